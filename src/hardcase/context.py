"""Names become objects, once: data, subject, peers, generator, partners and the method of a campaign."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from hardcase.campaign.record import Campaign, parse_keep
from hardcase.config import Config, wrong_value
from hardcase.criteria.catalogue import parse_list
from hardcase.data.sources import load
from hardcase.errors import Problem, choice
from hardcase.generators.build import load_generator, trained_generator
from hardcase.generators.quality import Sampler, fresh
from hardcase.generators.staged import Decoder, supplied
from hardcase.methods.catalogue import METHODS, Recipe
from hardcase.models.load import AskSettings, Loading, from_file, load_model
from hardcase.models.subject import Subject
from hardcase.oracles import Disagree, LeavesLabel, NonFinite
from hardcase.randomness import stream
from hardcase.runs.start import Plan
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, Labelled, Library, collect, latent
from hardcase.spaces.pixel import Pixels
from hardcase.tensors import digest_tensors, from_bytes
from hardcase.training.loop import TrainingProgress
from hardcase.types import OFFERS, Budget, Images, Method, Model, Oracle, Space

# --- Names become methods: a recipe's function is called with its options and with what the campaign can give it.

GIVEN = ("space", "partners", "subject", "peers", "profile", "target")
_log = logging.getLogger(__name__)
LOST = 0.1
"""Share of labels that reconstruction may lose before a generator is warned about."""
CALIBRATION = 256
"""Training images from which an 8-bit copy learns its ranges."""

_ORACLES: Mapping[str, Callable[[], Oracle]] = {
    "label": LeavesLabel,
    "disagreement": Disagree,
    "non-finite": NonFinite,
}


_SPACES: Mapping[str, Callable[[Any], Space]] = {
    "vae": latent,
    "vqvae": Grid,
}
"""The space that each family of generators opens."""
_PLACES: Mapping[str, Callable[[Any], Any]] = {"gan": lambda net: net, "vae": Decoder}
"""Families whose activations can be perturbed, as generators with places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What lies ready when a recipe is built: the networks and the data of the campaign.

    `data` is the name under which the images can be loaded again, if it is not the one they carry.
    """

    subject: Model
    images: Images
    data: str | None = None
    peers: tuple[Model, ...] = ()
    target: int | None = None
    generator: str | None = None
    criterion: str | None = None
    oracle: str | None = None
    seed: int = 0
    progress: Callable[[TrainingProgress], None] | None = None

    def training(self) -> Images:
        return load(self.data or self.images.name, split="train")

    @property
    def profile(self) -> Any:
        """What recipes make criteria with."""
        from hardcase.methods.neurons import Profiles

        return Profiles(from_bytes(self.images.x[:1]), self.training)


def recipe(name: str) -> Recipe:
    if name not in METHODS:
        raise choice("method", name, list(METHODS))
    return METHODS[name]


def options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a method, by name."""
    return {
        key: p
        for key, p in inspect.signature(_function(recipe(name))).parameters.items()
        if key not in GIVEN
    }


def equipped(name: str, bench: Bench, settings: Mapping[str, Any] | None = None) -> Bench:
    """`bench` with the peers that the method falls back on where none was given: an 8-bit copy of the subject, rounded by us
    or, where `settings` say ``int8=fx``, made by torch."""
    if bench.peers or recipe(name).peers != "quantised" or bench.oracle in ("label", "non-finite"):
        return bench
    if not isinstance(bench.subject, Subject):
        raise Problem(
            f'method "{name}" compares with an 8-bit copy of the subject, which "{bench.subject.name}" cannot give.',
            fix="--peer MODEL",
        )
    images = from_bytes(bench.training().first(CALIBRATION).x)
    if (settings or {}).get("int8") == "fx":
        from hardcase.models.quantised import fx_int8

        return replace(bench, peers=(fx_int8(bench.subject, images),))
    from hardcase.models.quantised import int8

    return replace(bench, peers=(int8(bench.subject, images),))


def build_method(name: str, settings: Mapping[str, Any], bench: Bench) -> Method:
    """The method called `name` with these settings, its generator trained if it is missing."""
    row = recipe(name)
    _offered(row, bench.subject)
    known = options(name)
    for key in settings:
        if key not in known:
            raise choice(f"option of {name}", key, list(known))
    wanted = inspect.signature(_function(row)).parameters
    asked = {
        "target": bench.target is not None,
        "generator": bench.generator,
        "criterion": bench.criterion,
    }
    for key, needs in (("target", "target"), ("generator", "space"), ("criterion", "criterion")):
        if asked[key] and needs not in wanted:
            raise Problem(
                f'method "{name}" takes no {key}.', fix=f"leave out --{key}, or another --method"
            )
    given = {
        key: getattr(bench, key)
        for key in GIVEN
        if key in wanted and key not in ("space", "partners")
    }
    typed = _typed(row, {**settings, **({"criterion": bench.criterion} if bench.criterion else {})})
    training = {"mix": typed.get("mix", wanted["mix"].default)} if row.joint else {}
    space, card = _space(row, bench, training) if "space" in wanted else (None, None)
    made: dict[str, Any] = {} if space is None else {"space": space}
    if space is not None and "partners" in wanted and not isinstance(space, Labelled):
        made["partners"] = _partners(space, bench)
    try:
        method: Method = _function(row)(**given, **typed, **made)
    except TypeError as error:
        raise Problem(f"method {name!r} cannot be built: {error}") from error
    details = {**method.details, "generator": card, "cite": row.cite}
    return replace(method, oracle=_oracle(method, bench), details=details)


def _oracle(method: Method, bench: Bench) -> Oracle:
    """The oracle that was asked for, or the method's own."""
    if bench.oracle is None:
        return method.oracle
    if bench.oracle not in _ORACLES:
        raise choice("oracle for this method", bench.oracle, list(_ORACLES))
    if bench.oracle == "disagreement" and not bench.peers:
        raise Problem(
            "disagreement needs a model to disagree with, and no peer was given.",
            fix="--peer MODEL",
        )
    made = _ORACLES[bench.oracle]()
    return method.oracle if made.kind == method.oracle.kind else made


def _typed(row: Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the recipe's annotations want them; a list from a file becomes a tuple, text is no number."""
    hints = get_type_hints(_function(row))
    typed = {}
    for key, value in settings.items():
        try:
            typed[key] = TypeAdapter(
                hints[key], config={"arbitrary_types_allowed": True}
            ).validate_python(value)
        except ValidationError as error:
            raise wrong_value(f"method.{key}", error) from error
    return typed


def _function(row: Recipe) -> Callable[..., Method]:
    module, _, function = row.where.partition(":")
    made: Callable[..., Method] = getattr(import_module(f"hardcase.methods.{module}"), function)
    return made


def _offered(row: Recipe, subject: Model) -> None:
    level = OFFERS.index(subject.offers)
    if OFFERS.index(row.needs) <= level:
        return
    able = [other.name for other in METHODS.values() if OFFERS.index(other.needs) <= level]
    raise Problem(
        f'method "{row.name}" needs {row.needs}; subject "{subject.name}" offers {subject.offers} only.',
        f"methods that work here: {', '.join(able)}",
    )


def _space(
    row: Recipe, bench: Bench, training: Mapping[str, Any]
) -> tuple[Space, dict[str, Any] | None]:
    """The latent space of the generator that was named, or of the recipe's own, trained on the seeds' data if missing."""
    family, _, rest = (bench.generator or row.generator).partition(":")
    source = bench.data or bench.images.name
    train = load(source, split="train")
    path = Path(rest).expanduser()
    if family == "pixels":
        return Pixels(), None
    perturbed = row.seeds == "generator"
    if perturbed and family.endswith(".py"):
        return _own(Path(family), rest, bench)
    if family not in (_PLACES if perturbed else _SPACES):
        known = [*_PLACES, "FILE.py:FACTORY"] if perturbed else ["pixels", *_SPACES]
        raise choice(f"generator for {row.name}", family, known)
    if perturbed and family == "vae":
        rest = rest if rest not in ("", source) else "conditional"
        if rest in ("linear", "conv", "hierarchical"):
            raise Problem(
                f"a VAE of kind {rest} is not told the class, so it cannot make labelled seeds.",
                fix="--generator vae:conditional",
            )
    if rest and (path / "card.json").is_file():
        net, card = load_generator(path, family, data=train.hash)
    else:
        judge = (lambda x: bench.subject(x).logits) if isinstance(bench.subject, Subject) else None
        net, card = trained_generator(
            family,
            train,
            load(source, split="test"),
            kind=None if rest in ("", source) else rest,
            judge=judge,
            seed=bench.seed,
            progress=bench.progress,
            device=bench.subject.device,
            **training,
        )
    _warn(card)
    net = net.to(bench.subject.device)
    return (_places(_PLACES[family](net), bench) if perturbed else _SPACES[family](net)), card


def _places(net: Any, bench: Bench) -> Activations:
    classes = len(bench.images.classes)
    return Activations(net, early_places(net, classes=classes), classes=classes)


def _own(path: Path, factory: str, bench: Bench) -> tuple[Space, dict[str, Any]]:
    """The activations of a generator that the user supplies."""
    net = from_file(path, factory).to(bench.subject.device)
    generator = supplied(net)
    if generator.shape != tuple(bench.images.x.shape[1:]):
        raise Problem(
            f"{path}:{factory} paints images of {generator.shape}; the data has {tuple(bench.images.x.shape[1:])}."
        )
    card = {
        "kind": "supplied",
        "name": f"{path}:{factory}",
        "weights": digest_tensors(dict(net.state_dict())),
    }
    return _places(generator, bench), card


def _warn(card: Mapping[str, Any]) -> None:
    """Say so if the generator's reconstructions lose the label: failures then say more of it than of the subject."""
    before, after = card.get("judge_accuracy"), card.get("reconstruction_accuracy")
    if before is not None and after is not None and before - after > LOST:
        _log.warning(
            "the generator's reconstructions lose the label: the model gets %.1f %% of test images right, %.1f %% of their "
            "reconstructions; train it longer or with a larger code", 100 * before, 100 * after,
        )  # fmt: skip


def _partners(space: Space, bench: Bench) -> Library:
    """Codes of training images in `space`, to walk toward or to mix with."""
    train = bench.training()
    unknown = train.y.new_zeros(1)

    def encode(x: Tensor) -> Tensor:
        return space.encode(
            x, unknown.expand(len(x)).to(x.device), stream(0, "partners", device=x.device)
        )[0]

    return collect(train, encode, device=bench.subject.device)


# --- From a configuration to a plan: every name is looked up here, once, in whatever process needs the objects.

TellTraining = Callable[[TrainingProgress], None] | None


def plan(config: Config, progress: TellTraining = None) -> Plan:
    """The plan of a configured run; networks that are missing are trained first, in this process."""
    if config.criteria is not None:
        parse_list(config.criteria)
    ready = campaign(config, progress)
    images = (
        made_seeds(config, ready)
        if recipe(config.method.name).seeds == "generator"
        else seeds(config)
    )
    return Plan(
        source=partial(campaign, config),
        images=images,
        budget=Budget(**config.budget.model_dump()),
        shard=config.campaign.shard,
        rounds=config.campaign.round,
        workers=config.workers,
        cluster=config.cluster,
        metrics=Path(config.metrics) if config.metrics else None,
        allow_low_accuracy=config.allow_low_accuracy,
        config=config.to_toml(),
        about={"model": config.model, "data": config.data, "keep": config.keep},
    )


def campaign(config: Config, progress: TellTraining = None) -> Campaign:
    """Build subject, peers and method by name. Cheap once the networks are in the cache."""
    own = subject(config, config.model, progress)
    images = load(config.data, split="test", offline=config.offline)
    peers = tuple(subject(config, spec, progress) for spec in config.peers)
    bench = Bench(
        subject=own,
        images=images,
        data=config.data,
        peers=peers,
        target=_target(config, images),
        generator=config.generator,
        criterion=config.criterion,
        oracle=config.oracle,
        progress=progress,
    )
    bench = equipped(config.method.name, bench, config.method.options())
    method = build_method(config.method.name, config.method.options(), bench)
    keep = parse_keep(config.keep or method.keep)
    batch = 256 if config.batch_size == "auto" else config.batch_size
    return Campaign(
        subject=own, method=method, peers=bench.peers, keep=keep, batch=batch, seed=config.seed
    )


def seeds(config: Config) -> Images:
    """A class-balanced sample of the configured split."""
    images = load(config.data, split=config.split, offline=config.offline)
    return images.sample(count=min(config.seeds, len(images)), seed=config.seed)


def made_seeds(config: Config, ready: Campaign) -> Images:
    """Fresh samples of the method's generator that the subject gets right; none of the target's own class."""
    space, subject = ready.method.space, ready.subject
    assert isinstance(space, Activations)
    assert isinstance(space.generator, Sampler)
    images = load(config.data, split="test", offline=config.offline)
    target = _target(config, images)
    labels = torch.tensor([c for c in range(len(images.classes)) if c != target])
    return fresh(
        space.generator, images.classes, config.seeds, labels=labels, seed=config.seed, device=subject.device,
        accept=lambda x, y: subject(x).logits.argmax(1) == y,
    )  # fmt: skip


def subject(config: Config, spec: str, progress: TellTraining = None) -> Model:
    train, test = (
        load(config.data, split=split, offline=config.offline) for split in ("train", "test")
    )
    how = Loading(
        train=train,
        test=test,
        device=device(config.device),
        mean=config.subject.mean,
        std=config.subject.std,
        outputs=config.subject.outputs,
        trust_pickle=config.trust_pickle,
        progress=progress,
        offline=config.offline,
        asking=asking(config),
    )
    return load_model(spec, how)


def asking(config: Config) -> AskSettings:
    """How models are asked; a limit of requests a second is shared out over the worker processes."""
    own = config.subject
    rate = None if own.rate is None else own.rate / config.workers
    return AskSettings(
        batch=own.batch,
        concurrency=own.concurrency,
        rate=rate,
        timeout=own.timeout,
        retries=own.retries,
        cache=own.cache,
        label_only=own.label_only,
    )


def device(name: str) -> str:
    """A device that exists here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise Problem(
            f"device {name!r} cannot be used: {str(error).splitlines()[0]}", fix="--device cpu"
        ) from error
    return name


def _target(config: Config, images: Images) -> int | None:
    if config.target is None:
        return None
    if str(config.target) in images.classes:
        return images.classes.index(str(config.target))
    if isinstance(config.target, int) and 0 <= config.target < len(images.classes):
        return config.target
    raise Problem(f"there is no class {config.target!r}.", f"classes: {', '.join(images.classes)}")
