"""Names become objects, once: everything that a campaign is made of,
each part when it is needed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hardcase.campaign.pace import seconds_per_seed, seeds_in_time
from hardcase.campaign.record import Campaign, computing, overlay, parse_keep
from hardcase.config import Config, MethodConfig, parse, typed_options
from hardcase.criteria.criterion import parse_list
from hardcase.data.images import large
from hardcase.data.sources import load
from hardcase.data.streams import ImageSet, LabelledSet, Stream
from hardcase.errors import Problem, choice
from hardcase.generators.build import (
    check_labels_kept,
    load_generator,
    trained_generator,
    usual_generator,
)
from hardcase.generators.quality import Sampler, measure, recognised_seeds, refuse_unreadable
from hardcase.generators.staged import Decoder, Recalled, supplied
from hardcase.methods.neurons import Profiles
from hardcase.models import quantised
from hardcase.models.load import NOTHING, AskSettings, Loading, from_file, is_stated, load_model
from hardcase.models.names import ClassMap, aligned, map_between
from hardcase.models.specs import names_outputs
from hardcase.models.subject import Subject
from hardcase.models.tiles import campaign_tile
from hardcase.models.witnesses import (
    affordable,
    default_witnesses,
    named_epochs,
    pretrained_witnesses,
    witness_record,
)
from hardcase.oracles import wanted_oracle
from hardcase.randomness import Rng
from hardcase.registry import Part, check_offer, resolve
from hardcase.regression import regressing
from hardcase.runs.identity import code_digests
from hardcase.runs.start import Plan
from hardcase.runs.workers import gpus
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, Labelled, Library, latent, partners
from hardcase.spaces.pixel import Pixels
from hardcase.tensors import TILE, from_bytes, steady, usable_device
from hardcase.training.loop import TrainingProgress, patient_for
from hardcase.types import OFFERS, Budget, Images, Method, Model, Space, is_photographic

if TYPE_CHECKING:
    from hardcase.guides.archive import CellGrid

TellTraining = Callable[[TrainingProgress], None] | None
GIVEN = (
    *("space", "partners", "subject", "peers", "witnesses", "standins"),
    *("profile", "target", "shape"),
)
"""What a method may ask for by naming a parameter so; everything else it takes are options."""
ONE_SHOT = 4
"""Queries or gradients per seed up to which a shard is over so soon that its files cost more."""
GUIDED = (1024, 4096)
"""The fewest and the most seeds of a shard for methods with guides, by the size of the images: they
learn from each other while they are searched.
"""
PLAIN = (bool, int, float, str)
"""Types of options that a configuration file can hold."""
SEEDS = 100
"""Images to start from where nobody says how many."""
ROOM = 2**20
"""Numbers of the images that a CPU is given at once: a gradient keeps a few hundred times that."""
PATIENCE = 1800.0
"""Seconds that the training of a network may take that nobody asked for by name."""
FILES = ("folder:", "csv:")
"""Data whose images are files of their own, of any size and number."""
FEW = 256
"""Images of many files that stand for all of them where a shape or a first answer is needed."""
MEASURED = 500
"""Images with which a generator of the user's own is measured."""
STANDINS = ("lenet1", "lenet4", "lenet1?seed=1", "lenet4?seed=1")
"""Networks of the zoo whose gradients stand for those of a black box on small grey images: none has
the architecture of the usual subject.
"""

_log = logging.getLogger(__name__)
_CODES = ("pixels", "vae", "vqvae", "gan", "diffusion", "diffusers:PATH")
"""Families in whose codes can be searched."""
_PLACES: Mapping[str, Callable[[Any, Context], Any]] = {
    "gan": lambda net, context: net,
    "vae": lambda net, context: Decoder(net),
    "vqvae": lambda net, context: Recalled(net, context.starting_images),
    "diffusion": lambda net, context: net,
}
"""Families whose activations can be perturbed, as generators with places."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator that is ready: its network (None for raw pixels), its family and its card."""

    family: str
    net: nn.Module | None = None
    card: Mapping[str, Any] | None = None


class Context:
    """The ingredients of one campaign: each is loaded, hashed or built once, when it is first used.

    Args:
        config: Names and settings, as a configuration file or flags give them.
        subject: The network under test, where it is an object and not a name.
        seeds: The images to start from, where they are objects.
        train: Training images, where the data set has no name to load them by.
        peers: Networks to compare with, where they are objects.
        witnesses: Networks that must keep the label, objects or names.
        method: A recipe that is built already.
        progress: Told how the training of missing networks goes.

    Example:
        >>> from hardcase.config import parse
        >>> from hardcase.context import Context
        >>> context = Context(parse({"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"}))
        >>> context.train is context.images("train")
        True
    """

    def __init__(
        self,
        config: Config,
        *,
        subject: Model | None = None,
        seeds: Images | Stream | None = None,
        train: Images | Stream | None = None,
        peers: tuple[Model, ...] | None = None,
        witnesses: tuple[Model | str, ...] | None = None,
        method: Method | None = None,
        progress: TellTraining = None,
    ) -> None:
        self.config = config
        self.progress = progress
        self._stored: dict[str, Images | Stream] = {} if train is None else {"train": train}
        if train is not None and seeds is not None and ":" not in seeds.name:
            self._stored["test"] = seeds  # nothing else is known of the data
        self._splits: dict[str, Images] = {}
        self._painted: dict[str, Any] = {}
        given = {"subject": subject, "seeds": seeds, "peers": peers, "method": method}
        live = {name: value for name, value in given.items() if value is not None}
        self._wanted = config.witnesses if witnesses is None else witnesses
        objects = witnesses is not None and not all(isinstance(one, str) for one in witnesses)
        self._named = not live and train is None and not objects
        self.__dict__.update(live)  # these take the place of the cached properties
        if seeds is not None and subject is not None:
            seeds = self.under_model_classes(seeds)
            self.__dict__["seeds"] = seeds
        self._like = None if seeds is None else few(seeds)
        if self._like is not None and self._perturbs and "latent" not in self._like.context:
            # the method's generator makes as many seeds; the images say their shape and classes
            del self.__dict__["seeds"]

    @classmethod
    def of(
        cls,
        subject: Model | str,
        seeds: Images | Stream,
        method: str | Method,
        *,
        options: Mapping[str, Any] | None = None,
        peers: Sequence[Model] = (),
        witnesses: str | Sequence[str | Model] | None = None,
        train: Images | Stream | None = None,
        progress: TellTraining = None,
        **values: Any,
    ) -> Context:
        """The context of a campaign whose subject and seeds are objects.

        Args:
            subject: The network under test, or its name.
            seeds: The images to start from; their name says which data set they are of.
            method: The name of a method, or a built recipe.
            options: Options of a method that is given by name.
            peers: Networks to compare with.
            witnesses: Networks that must keep the label, as objects or names; ``"default"``;
                nobody if empty; None for the method's own.
            train: Training images, where the data set cannot be loaded by its name.
            progress: Told how the training of missing networks goes.
            values: Any other keys of a configuration.
        """
        built = None if isinstance(method, str) else method
        name = method if isinstance(method, str) else method.name
        known = {
            "model": subject if isinstance(subject, str) else subject.name,
            "data": seeds.name,
            "method": {**(options or {}), "name": name},
            "seeds": max(len(seeds), 1),
        }
        return cls(
            parse({**known, **values}),
            subject=None if isinstance(subject, str) else subject,
            seeds=seeds,
            train=train,
            peers=tuple(peers) or None,
            witnesses=several(witnesses),
            method=built,
            progress=progress,
        )

    # data

    def images(self, split: str) -> Images:
        """One split of the data under the model's classes, loaded once."""
        if split not in self._splits:
            self._splits[split] = self.labelled(split).images()
        return self._splits[split]

    def named_images(self, data: str, split: str) -> Images:
        """One split of any data set, under the model's classes."""
        if data == self.config.data:
            return self.images(split)
        return self.under_model_classes(load(data, split=split, offline=self.config.offline))

    def under_model_classes(self, images: LabelledSet) -> LabelledSet:
        """The images with the labels and class names of the model's outputs."""
        names = self._output_names
        return images if names in ((), images.classes) else aligned(images, names)

    @property
    def class_map(self) -> ClassMap | None:
        """Which output means each class of the data; None where they are the same."""
        return map_between(self._read(self.config.split).classes, self._output_names)

    def labelled(self, split: str) -> Images | Stream:
        """One split under the model's classes; of many files nothing is decoded yet."""
        if split in self._splits:
            return self._splits[split]
        return self.under_model_classes(self._read(split))

    def _read(self, split: str) -> Images | Stream:
        """One split of the data as it is stored, under its own classes."""
        if split not in self._stored:
            spec = self.data
            many = large(spec, split) if spec.startswith(FILES) else None
            self._stored[split] = many or load(spec, split=split, offline=self.config.offline)
        return self._stored[split]

    @cached_property
    def data(self) -> str:
        """The name of the data; images without a size of their own get the model's."""
        spec = self.config.data
        sized = "resize=" in spec or "crop=" in spec
        if sized or not spec.startswith(FILES) or not self._states_itself:
            return spec
        wanted = getattr(self.subject, "sizing", "")
        if not wanted:
            return spec
        _log.warning("images are prepared as %s states: ?%s", self.config.model, wanted)
        return f"{spec}{'&' if '?' in spec else '?'}{wanted}"

    @property
    def _states_itself(self) -> bool:
        """Whether the subject was given, or is a network whose source states how it is asked."""
        return "subject" in self.__dict__ or is_stated(self.config.model)

    @cached_property
    def _output_names(self) -> tuple[str, ...]:
        """What the model calls its outputs; empty where it takes the data's names."""
        if self.config.subject.classes:
            return self.config.subject.classes
        if "subject" not in self.__dict__ and not names_outputs(self.config.model):
            return ()
        return tuple(getattr(self.subject, "class_names", ()))

    @property
    def train(self) -> Images:
        """What generators, profiles and judges learn from."""
        return self.images("train")

    @property
    def test(self) -> Images:
        """What trained networks are measured on."""
        return self.images("test")

    @property
    def starting_images(self) -> Images:
        """The split of which seeds are drawn."""
        return self.images(self.config.split)

    @cached_property
    def seeds(self) -> ImageSet:
        """The images that the search starts from: a class-balanced sample, or fresh ones; very
        many stay in their files.
        """
        config = self.config
        if self.part is not None and self.part.facts.get("seeds") == "generator":
            return self._generated_seeds()
        images = self.labelled(config.split)
        return images.sample(count=min(self.count, len(images)), seed=config.seed).held()

    @cached_property
    def count(self) -> int:
        """How many images the search starts from: as configured, else 100; of photographs on a CPU
        as many as a few minutes are enough for, by the time of one pass.
        """
        if self.config.seeds is not None:
            return self.config.seeds
        if not (steady(self.subject.device) and is_photographic(self.shape)):
            return SEEDS
        most = min(SEEDS, len(self.labelled(self.config.split)))
        return seeds_in_time(self.campaign, self._timed_rows, self._budget, most=most)

    def seconds_per_seed(self) -> float:
        """How long a seed takes that spends its budget, by one timed pass of every network."""
        return seconds_per_seed(self.campaign, self._timed_rows, self._budget)

    @property
    def _timed_rows(self) -> Tensor:
        return from_bytes(self._some.x[:4]).to(self.subject.device)

    @property
    def _budget(self) -> Budget:
        """What a seed may spend: as configured, else the method's."""
        return overlay(Budget(**self.config.budget.model_dump()), self.method.budget)

    @cached_property
    def _some(self) -> Images:
        """Images of the campaign's shape and classes, whichever are at hand."""
        return few(self.labelled("test")) if self._like is None else self._like

    # networks

    @cached_property
    def device(self) -> str:
        """Where the networks are: as configured, if that exists here."""
        if "subject" in self.__dict__:
            return str(self.subject.device)
        return usable_device(self.config.device)

    @cached_property
    def subject(self) -> Model:
        """The network under test."""
        return self.model(self.config.model)

    @cached_property
    def peers(self) -> tuple[Model, ...]:
        """The networks that the method compares with: those named, or a quantised copy it needs."""
        before = () if self.config.baseline is None else (self.config.baseline,)
        named = (*before, *self.config.peers)  # the oracle of regressions looks at the first
        if named:
            return tuple(self.model(spec) for spec in named)
        wanted = self.part is not None and self.part.facts.get("peers") == "quantised"
        if wanted and self.config.oracle not in ("label", "non-finite"):
            return (self._quantised_copy(),)
        return ()

    @cached_property
    def witnesses(self) -> tuple[Model, ...]:
        """The networks that must keep the label where the subject leaves it.

        Those that were named or given; without any, the default ones if the method has witnesses.
        """
        if self._wanted is None:
            return self._own_witnesses()
        if tuple(self._wanted) == ("none",):
            return ()
        found = list[Model]()
        for one in self._wanted:
            if isinstance(one, str) and one.partition(":")[0] == "default":
                found += self._default_witnesses(one.partition(":")[2])
            elif isinstance(one, str):
                found.append(self.model(one, label_only=False))
            else:
                found.append(one)
        return tuple(found)

    def _own_witnesses(self) -> tuple[Model, ...]:
        """The method's own witnesses, if it has any and they can be had."""
        if self.part is None or self.part.facts.get("witnesses") != "default":
            return ()
        try:
            found = self._default_witnesses()
        except Problem as problem:
            _log.warning("this run has no witness: %s", problem.what)
            return ()
        return affordable(found) if is_photographic(self.shape) else found

    def _default_witnesses(self, epochs: str = "") -> tuple[Model, ...]:
        """Networks trained on the data, for other `epochs` than usual if they are named; for
        photographs those that others have trained.
        """
        count = named_epochs(epochs)
        if is_photographic(self.shape):
            load = partial(self.model, label_only=False)
            return pretrained_witnesses(self.subject, len(self._some.classes), load)
        with patient_for(PATIENCE):
            return default_witnesses(
                self.train,
                self.test,
                epochs=count,
                device=self.subject.device,
                progress=self.progress,
            )

    @cached_property
    def standins(self) -> tuple[Model, ...]:
        """Networks trained on the data as a subject would be, for a method that asks a black box;
        none where there are none for such images.
        """
        if self.shape[0] != 1 or is_photographic(self.shape):
            return ()
        try:
            with patient_for(PATIENCE):
                found = [self.model(f"zoo:{name}", label_only=False) for name in STANDINS]
        except Problem as problem:
            _log.warning("nobody stands in for the model: %s", problem.what)
            return ()
        own = getattr(self.subject, "weights", "")
        return tuple(one for one in found if getattr(one, "weights", None) != own)

    def model(self, spec: str, *, label_only: bool | None = None) -> Model:
        """The model that `spec` names, loaded as this campaign loads models.

        Args:
            spec: A name as ``--model`` takes it.
            label_only: Forget all but the label; by default as configured for the subject.
        """
        config = self.config
        asking = _asking(config)
        if label_only is not None:
            asking = replace(asking, label_only=label_only)
        own = spec == config.model or not is_stated(spec)  # who states it needs to be told nothing
        images = [NOTHING, NOTHING]
        if not is_stated(spec):
            read = self.labelled if config.subject.classes else self._read
            found = [read(split) for split in ("train", "test")]
            trained = spec.startswith("zoo:")
            images = [one.images() if trained else few(one) for one in found]
        how = Loading(
            train=images[0],
            test=images[1],
            device=self.device,
            mean=config.subject.mean if own else (0.0,),
            std=config.subject.std if own else (1.0,),
            outputs=config.subject.outputs,
            channels=config.subject.channels,
            trust_pickle=config.trust_pickle,
            progress=self.progress,
            offline=config.offline,
            asking=asking,
        )
        return load_model(spec, how)

    def _quantised_copy(self) -> Model:
        """A copy of the subject in 8 bits, rounded by us or, with ``int8=fx``, made by torch; or in
        the arithmetic that the method's option ``copy`` names.
        """
        if not isinstance(self.subject, Subject):
            raise Problem(
                f'method "{self.config.method.name}" compares with an 8-bit copy of the subject, '
                f'which "{self.subject.name}" cannot give.',
                fix="--peer MODEL",
            )
        images = from_bytes(self.train.first(quantised.CALIBRATION).x)
        options = self.config.method.options()
        if options.get("int8") == "fx":
            return quantised.fx_int8(self.subject, images)
        return quantised.lowered(self.subject, str(options.get("copy", "int8")), images)

    # what latent and white-box methods need

    @cached_property
    def generator(self) -> Generator:
        """The generator that was named, or the method's own, trained on the data if missing."""
        assert self.part is not None
        own = str(self.part.facts.get("generator", ""))
        if own == "gan" and self.shape[0] > 1:  # a small one paints no photographs
            own = "vqvae"
        named = self.config.generator or own
        family, _, rest = named.partition(":")
        if family == "pixels":
            return Generator(family)
        if family.endswith(".py"):
            net = from_file(Path(family), rest)
            return self._supplied_generator(net, named) if self._perturbs else self._own(net, named)
        if family == "diffusers" and not self._perturbs:
            from hardcase.generators.adapters import from_diffusers

            return self._own(from_diffusers(Path(rest).expanduser()), named)
        self._check_family(family)
        kind = "" if rest == self.config.data else rest
        if self._perturbs and family == "vae":
            kind = _conditional(kind)
        elif not kind:
            family, _, kind = usual_generator(family, self.shape[0]).partition(":")
        folder = Path(kind).expanduser()
        if kind and (folder / "card.json").is_file():
            net, card = load_generator(folder, family, data=self.train.hash)
        else:
            with patient_for(PATIENCE):
                net, card = trained_generator(
                    family,
                    self.train,
                    self.test,
                    kind=kind or None,
                    judge=self._reads if isinstance(self.subject, Subject) else None,
                    progress=self.progress,
                    device=self.subject.device,
                    **self._joint_training(),
                )
        if not self._perturbs or family == "vqvae":
            check_labels_kept(card, refuse=not self.config.allow_low_accuracy)
        return Generator(family, net.to(self.subject.device), card)

    @cached_property
    def space(self) -> Space:
        """The space that the method searches, as its generator opens it."""
        made = self.generator
        if made.net is None:
            return Pixels()
        if not self._perturbs:
            return self._codes(made)
        net: Any = made.net if made.family == "supplied" else _PLACES[made.family](made.net, self)
        classes = len(self._some.classes)
        return Activations(net, early_places(net, classes=classes), classes=classes)

    @cached_property
    def partners(self) -> Library | None:
        """Codes of training images, to walk toward or to mix with;
        none where codes need a label.
        """
        if isinstance(self.space, Labelled):
            return None
        with computing(self.subject.device.type, self.tile, self.config.precision):
            return partners(self.space, self.train, device=self.subject.device)

    @cached_property
    def profile(self) -> Profiles:
        """What white-box methods know of networks: their units,
        and what training data does to them.
        """
        return Profiles(from_bytes(self._some.x[:1]), lambda: self.train)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = self._some.x.shape[1:]
        return channels, height, width

    @cached_property
    def target(self) -> int | None:
        """The class that a targeted search must reach."""
        wanted = self.config.target
        if wanted is None:
            return None
        classes = self._some.classes
        if str(wanted) in classes:
            return classes.index(str(wanted))
        if isinstance(wanted, int) and 0 <= wanted < len(classes):
            return wanted
        raise Problem(f"there is no class {wanted!r}.", f"classes: {', '.join(classes)}")

    # the method and the campaign

    @cached_property
    def part(self) -> Part | None:
        """The registry's row of the method; None if a built recipe was given."""
        return None if "method" in self.__dict__ else resolve("method", self.config.method.name)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The method's options, checked, as is everything else that is asked of the method."""
        part = self.part
        assert part is not None
        check_offer(part, self.subject.name, self.subject.offers, OFFERS)
        options = self._options(part)
        self._check_unused_flags(part)
        unknown = [name for name in part.given if name not in GIVEN]
        if unknown:
            raise Problem(
                f'method "{part.name}" takes {unknown[0]!r}, which no campaign can give it.',
                f"A method may ask for {', '.join(GIVEN)}; options are keyword-only parameters.",
            )
        return options

    @cached_property
    def method(self) -> Method:
        """The recipe with its options, and with what it asks this context for."""
        part = self.part
        assert part is not None
        options = self.options
        card = self.generator.card if "space" in part.given else None
        given = {name: getattr(self, name) for name in part.given}
        needed = inspect.signature(part.make).parameters
        if given.get("partners", 0) is None and needed["partners"].default is not None:
            raise Problem(
                f'method "{part.name}" mixes codes of images; those of this generator hold no'
                " class.",
                fix="--generator vqvae, or another that is not told the class",
            )
        try:
            method: Method = part(**given, **options)
        except TypeError as error:
            raise Problem(f"method {part.name!r} cannot be built: {error}") from error
        known = {name: option.default for name, option in part.options.items()}
        details = {
            **method.details,
            "generator": card,
            "cite": part.cite,
            "options": {**known, **options, **method.details.get("options", {})},
        }
        oracle = wanted_oracle(
            self.config.oracle,
            method.oracle,
            peers=bool(self.peers),
            regressions=self.config.baseline is not None,
        )
        method = replace(method, oracle=oracle, details=details)
        return method if self.config.baseline is None else regressing(method)

    @cached_property
    def map_cells(self) -> CellGrid | None:
        """The cells of the map that the search fills; None without ``--map``."""
        if self.config.map is None:
            return None
        from hardcase.maps import grid_of

        return grid_of(self.config.map, self._some)

    def _filling(self, cells: CellGrid) -> Method:
        """The method as a search that fills the cells of a map."""
        from hardcase.maps import mapping

        margin = self.config.campaign.margin if self.witnesses else None
        return mapping(self.method, cells, margin=margin)

    @cached_property
    def campaign(self) -> Campaign:
        """The method applied to the subject: what worker processes are given."""
        config = self.config
        cells = self.map_cells
        method = self.method if cells is None else self._filling(cells)
        keep = parse_keep(config.keep or method.keep)
        return Campaign(
            subject=self.subject,
            method=method,
            peers=self.peers,
            witnesses=self.witnesses,
            margin=config.campaign.margin,
            keep=keep if config.keep else replace(keep, place=cells),
            batch=self._rows_per_call() if config.batch_size == "auto" else config.batch_size,
            seed=config.seed,
            tile=self.tile,
            precision=config.precision,
        )

    @cached_property
    def tile(self) -> int | None:
        """Rows of every network call on a device: as recorded, else the largest that holds bits."""
        device = self.subject.device
        if steady(device):
            if self.config.precision == "bf16":
                raise Problem("bf16 is an arithmetic of GPUs.", fix="--precision strict")
            if not is_photographic(self.shape):
                return None
        if self.config.campaign.tile is not None:
            return self.config.campaign.tile
        example = from_bytes(self._some.x[:64]).to(device)
        networks: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
            (_logits_of(model), example)
            for model in (self.subject, *self.peers, *self.witnesses)
            if isinstance(model, Subject)
        ]
        if not steady(device):
            takes_space = self.part is not None and "space" in self.part.given
            networks += _decoder(self.space if takes_space else self.method.space, example)
        return campaign_tile(networks, device, self.config.precision)

    def _rows_per_call(self) -> int:
        """How many rows a network is given at once: as many as keep a GPU busy and still fit."""
        size = max(self._some.x[:1].numel(), 1)
        if steady(self.subject.device):
            return max(self.tile or TILE, min(256, ROOM // size))
        return max(self.tile or 1, min(8192, 2**22 // size))

    @cached_property
    def plan(self) -> Plan:
        """Everything that a run on disk needs; names that are wrong are told before anything
        runs.
        """
        config = self.config
        if config.criteria is not None:
            parse_list(config.criteria)
        if self.part is not None:
            # mistakes that show at once are told before anything is trained
            needed = ("subject", "options", "generator")
            for name in needed if "space" in self.part.given else needed[:2]:
                getattr(self, name)
        campaign = self.campaign
        return Plan(
            source=partial(_campaign_of, config) if self._named else partial(_itself, campaign),
            campaign=campaign,
            images=self.seeds,
            budget=Budget(**config.budget.model_dump()),
            shard=self._shard(),
            rounds=config.campaign.round or (1 if campaign.method.guides else 8),
            workers=config.workers,
            devices=self._devices(),
            cluster=config.cluster,
            metrics=Path(config.metrics) if config.metrics else None,
            allow_low_accuracy=config.allow_low_accuracy,
            config=self._resolved().to_toml() if self._named else _FROM_PYTHON,
            about=self._about,
            ingredients=self._ingredients(),
        )

    def _devices(self) -> tuple[str, ...]:
        """The GPUs over which worker processes are spread: all, unless one of them was named."""
        place = self.subject.device
        named = ":" in self.config.device
        if named or place.type != "cuda" or place.index not in (None, 0):
            return ()
        return gpus(torch.cuda.device_count())

    def _shard(self) -> int:
        """Seeds that are searched at once.

        Without guides the size changes no finding, so it follows the device; with guides it is the
        same everywhere, and large enough for a GPU.
        """
        if self.config.campaign.shard is not None:
            return self.config.campaign.shard
        size = max(self._some.x[:1].numel(), 1)
        if self.campaign.method.guides:
            return max(GUIDED[0], min(GUIDED[1], 2**24 // size))
        most = 16384 if self.campaign.method.needs == "gradients" else 4096
        if steady(self.subject.device):
            asked = self.campaign.method.budget
            once = min(asked.queries or ONE_SHOT + 1, asked.gradients or ONE_SHOT + 1) <= ONE_SHOT
            most = min(256 if once else 32, 2**23 // size)
        return max(32, min(most, 2**27 // size))

    def _resolved(self) -> Config:
        """The configuration with what was chosen for it, so that it re-runs the same way."""
        config = self.config
        campaign = config.campaign.model_copy(update={"shard": self._shard(), "tile": self.tile})
        changed: dict[str, Any] = {
            "campaign": campaign,
            "device": self.device,
            "data": self.data,
            "seeds": len(self.seeds) if config.seeds is None else config.seeds,
        }
        if isinstance(self.subject, Subject) and not is_stated(config.model):
            mean = tuple(self.subject.mean.flatten().tolist())
            std = tuple(self.subject.std.flatten().tolist())
            changed["subject"] = config.subject.model_copy(update={"mean": mean, "std": std})
        options = self.method.details.get("options", {})
        plain = {name: value for name, value in options.items() if isinstance(value, PLAIN)}
        changed["method"] = MethodConfig(name=config.method.name, **plain)
        return config.model_copy(update=changed)

    def _ingredients(self) -> dict[str, str]:
        """What the campaign was made from and does not show: source text, and the training data
        where it was used.
        """
        train = self._splits.get("train")
        known = {
            **code_digests(self.config.model_dump()),
            "training data": "none" if train is None else train.hash,
        }
        standins = self.method.details.get("standins")
        return {**known, "stand-ins": " ".join(standins)} if standins else known

    # the steps of the above

    @property
    def _about(self) -> dict[str, Any]:
        """What run.json says beyond the campaign itself."""
        config = self.config
        about: dict[str, Any] = {"model": config.model, "data": self.data, "keep": config.keep}
        witnesses = self.witnesses
        if any(one.name.startswith("witness:") for one in witnesses):
            margin = config.campaign.margin
            about["witnesses"] = witness_record(self.subject, witnesses, margin, self.train)
        if config.judge_features:
            about["judge_features"] = list(config.judge_features)
        if config.baseline is not None:
            about["baseline"] = config.baseline
        if self._perturbs and len(self.seeds) and self._painted:  # counted while seeds are made
            about["generated seeds"] = self._painted
        if self.map_cells is not None:
            from hardcase.maps import record

            about["map"] = record(self.map_cells)
        return about

    @property
    def _perturbs(self) -> bool:
        """Whether the method perturbs activations of a generator that makes its own seeds."""
        return self.part is not None and self.part.facts.get("seeds") == "generator"

    def _generated_seeds(self) -> Images:
        """Fresh samples that the subject and most of the readers classify correctly; none of the
        target's own class.
        """
        space = self.campaign.method.space
        assert isinstance(space, Activations)
        assert isinstance(space.generator, Sampler)
        classes = self._some.classes
        labels = torch.tensor([c for c in range(len(classes)) if c != self.target])
        readers = self._readers()
        how: dict[str, Any] = {"seed": self.config.seed, "device": self.subject.device}
        with self.campaign.arithmetic():
            if readers and not refuse_unreadable(
                space.generator, labels, readers, self._some, **how
            ):
                _log.warning("networks that would check generated seeds do not know the data")
                readers = ()
            seeds, self._painted = recognised_seeds(
                space.generator,
                classes,
                self.count,
                subject=self.subject,
                readers=readers,
                labels=labels,
                **how,
            )
        return seeds

    def _readers(self) -> tuple[Model, ...]:
        """Networks other than the subject that check what a generator paints for seeds: the
        witnesses, or the default ones where nobody was named and they can be had.
        """
        why = "--witness default, or networks of your own, do"
        if self._wanted is None and not self.witnesses:
            try:
                return self._default_witnesses()
            except Problem as problem:
                why = problem.what
        if not self.witnesses:
            _log.warning("nobody but the subject checks the seeds that a generator paints; %s", why)
        return self.witnesses

    def _check_family(self, family: str) -> None:
        known = [*(_PLACES if self._perturbs else _CODES), "FILE.py:FACTORY"]
        if family not in known:
            raise choice(f"generator for {self.config.method.name}", family, known)

    def _supplied_generator(self, net: nn.Module, name: str) -> Generator:
        """A generator of the user's own, whose activations are perturbed."""
        from hardcase.generators.adapters import supplied_card

        generator = supplied(net.to(self.subject.device))
        if generator.shape != self.shape:
            raise Problem(f"{name} makes images of {generator.shape}; the data has {self.shape}.")
        return Generator("supplied", generator, supplied_card(net, name))

    def _own(self, net: nn.Module, name: str) -> Generator:
        """A generator of the user's own, in whose codes is searched; it is measured as ours are."""
        from hardcase.generators.adapters import coder, supplied_card

        made = coder(
            net.to(self.subject.device).eval(),
            shape=self.shape,
            classes=len(self._some.classes),
        )
        reads = self._reads if isinstance(self.subject, Subject) else None
        some = self._some.sample(count=min(MEASURED, len(self._some)), seed=0)
        card = {
            **supplied_card(net, name),
            **measure(made, some, reads, device=self.subject.device),
        }
        check_labels_kept(card, refuse=not self.config.allow_low_accuracy)
        return Generator("own", made, card)

    def _codes(self, made: Generator) -> Space:
        """The space of a generator's codes; a GAN's are found by descent."""
        if made.family == "vqvae":
            return Grid(made.net)  # type: ignore[arg-type]  # a VqVae, by its family
        if made.family != "gan":
            return latent(made.net)
        from hardcase.generators.adapters import Inverted

        assert made.net is not None
        return latent(Inverted(made.net, shape=self.shape, classes=len(self._some.classes)))

    def _reads(self, x: Tensor) -> Tensor:
        return self.subject(x).logits

    def _joint_training(self) -> dict[str, Any]:
        """ARGUS trains its generator for the share at which codes will be mixed."""
        part = self.part
        if part is None or not part.facts.get("joint"):
            return {}
        return {"mix": self._options(part).get("mix", part.options["mix"].default)}

    def _options(self, part: Part) -> dict[str, Any]:
        """The method's settings, the criterion's flag among them."""
        settings = self.config.method.options()
        if self.config.criterion:
            settings = {**settings, "criterion": self.config.criterion}
        return typed_options(part, settings)

    def _check_unused_flags(self, part: Part) -> None:
        """A flag that the method has no use for is an error, not ignored."""
        wanted = inspect.signature(part.make).parameters
        config = self.config
        flags = {"target": config.target, "generator": config.generator}
        for name, needs in (("target", "target"), ("generator", "space")):
            if flags[name] is not None and needs not in wanted:
                raise Problem(
                    f'method "{part.name}" takes no {name}.',
                    fix=f"leave out --{name}, or another --method",
                )
        if config.criterion and "criterion" not in wanted:
            raise Problem(
                f'method "{part.name}" takes no criterion.',
                fix="leave out --criterion, or another --method",
            )


def few(images: Images | Stream) -> Images:
    """A few of many files, decoded; whatever is in memory already stays whole."""
    return images.first(FEW).images() if isinstance(images, Stream) else images


def _logits_of(model: Model) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).logits


def _decoder(space: Space, example: Tensor) -> list[tuple[Callable[[Tensor], Tensor], Tensor]]:
    """The decoder of a latent space with a few codes, for the test of its tile."""
    space = getattr(space, "space", space)  # inside what only adds to it
    for name in ("vae", "vqvae"):
        net: Any = getattr(space, name, None)
        if net is not None and not isinstance(space, Labelled):
            label = torch.zeros(len(example), dtype=torch.int64, device=example.device)
            rng = Rng.numbered(0, "tile", len(example), device=example.device)
            return [(net.decode, space.encode(example, label, rng)[0].detach())]
    return []


_FROM_PYTHON = (
    "# Started from Python with live objects: hc.resume(folder, subject, seeds, ...) goes on.\n"
)


def _asking(config: Config) -> AskSettings:
    """How models are asked; a limit of requests a second is shared out over the workers."""
    own = config.subject
    return AskSettings(
        batch=own.batch,
        concurrency=own.concurrency,
        rate=None if own.rate is None else own.rate / config.workers,
        timeout=own.timeout,
        retries=own.retries,
        cache=own.cache,
        label_only=own.label_only,
    )


def _conditional(kind: str) -> str:
    """The kind of VAE whose samples have labels."""
    if kind in ("linear", "conv", "hierarchical"):
        raise Problem(
            f"a VAE of kind {kind} is not told the class, so it cannot make labelled seeds.",
            fix="--generator vae:conditional",
        )
    return kind or "conditional"


def several(
    witnesses: str | Sequence[str | Model] | None,
) -> tuple[str | Model, ...] | None:
    """Witnesses as a tuple, where one name was given too."""
    if witnesses is None:
        return None
    return (witnesses,) if isinstance(witnesses, str) else tuple(witnesses)


def _campaign_of(config: Config) -> Campaign:
    """A campaign from its configuration, in whatever process needs it."""
    return Context(config).campaign


def _itself(campaign: Campaign) -> Campaign:
    return campaign
