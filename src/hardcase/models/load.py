"""Names become models: networks of the zoo, of a file or of a hub; ONNX files; servers.

Settings that a network's source states (normalisation, classes, size) are used; the others are
chosen by trying them on labelled images, and reported.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase import registry
from hardcase.cache import named_path
from hardcase.companions import teams_module
from hardcase.errors import (
    HardcaseError,
    Unanswered,
    file_member,
    guarded,
    require_consent,
    within,
)
from hardcase.models.adapters import (
    Adapted,
    ClientConfig,
    LabelOnly,
    Retrying,
    adapted_if_needed,
    fit_state,
    from_model_file,
    function_model,
    is_model,
    module_of,
    own_names,
    read_state,
    without_trainer,
)
from hardcase.models.fetching import load as load_fetched, subject as fetched
from hardcase.models.health import answers
from hardcase.models.mistakes import binary_reading, settled, stated_by
from hardcase.models.names import aligned
from hardcase.models.pretrained import PRETRAINED, Pretrained
from hardcase.models.subject import Subject, device_of, is_softmax
from hardcase.models.zoo import build_classifier, trained_classifier
from hardcase.tensors import from_bytes
from hardcase.training.cards import TrainingProgress
from hardcase.types import Images, Model

_log = logging.getLogger(__name__)

FORMS = (
    "zoo:NAME, file.py:factory, weights.safetensors@file.py:factory, weights.safetensors@zoo:NAME,"
    " timm:NAME, hf:NAME-OR-PATH, hf:NAME-OR-PATH?labels=cat,dog,"
    " torchvision:NAME, weights@timm:NAME, FILE.pt2, FILE.pt (TorchScript), onnx:FILE.onnx,"
    " http://HOST/v2/models/NAME/infer"
)
WHOLE = (".pt2", ".pt", ".pth", ".ts", ".jit", ".torchscript")
"""Files that hold a network with its code."""
NOTHING = Images(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), torch.zeros(0).long(), (), ())
"""No images."""
LOADING = 20
"""How many answers' time a model has to be loaded and looked at, where a timeout was set ..."""
LEAST_LOADING = 60.0
"""... and the seconds that it has at least."""
SOME = 64
"""Labelled images that show what kind of outputs a model has."""


def _register(row: Pretrained) -> None:
    """Register a network of the catalogue, next to those that hardcase trains."""

    def fetched_network() -> nn.Module:
        return load_fetched(row.name)[0]

    fetched_network.__doc__ = f"{row.summary}."
    facts = {name: getattr(row, name) for name in ("size", "lineage", "licence", "accuracy")}
    if row.outputs in ("boxes", "masks"):
        facts["task"] = row.outputs
    needs = f"hardcase fetch model {row.name}"
    registry.model(row.name, paper=row.paper, needs=needs, **facts)(fetched_network)


for _row in PRETRAINED.values():
    _register(_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a model is loaded.

    Args:
        train: What a zoo model learns from; networks that state everything need no images.
        test: The images on which it is measured, and on which its preprocessing is chosen.
        device: Where the networks are.
        mean: Mean per channel, in units of [0, 1].
        std: Standard deviation per channel.
        outputs: What it returns, see `Subject`; ``auto``: chosen by trying.
        channels: ``rgb``, or what else the network wants of them; see `Subject`.
        trust_pickle: Unpickle weights, which may run any code.
        seed: Everything random follows from it.
        progress: Called with the progress of the training.
        offline: Ask nothing outside this machine.
        asking: How to call a model that may be slow, far away or costly.
    """

    train: Images = NOTHING
    test: Images = NOTHING
    device: str = "cpu"
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    outputs: str = "auto"
    channels: str = "rgb"
    trust_pickle: bool = False
    seed: int = 0
    progress: Callable[[TrainingProgress], None] | None = None
    offline: bool = False
    asking: ClientConfig = field(default_factory=ClientConfig)

    @property
    def normalised(self) -> bool:
        """Whether the user set a normalisation."""
        return (tuple(self.mean), tuple(self.std)) != ((0.0,), (1.0,))


def load_model(spec: str, how: Loading) -> Model:
    """The model that `spec` names, in the wrappings that `how` asks for.

    Args:
        spec: ``zoo:lenet5`` (``?seed=1``: another training), ``file.py:factory``,
            ``onnx:net.onnx``, an address, …
        how: How it is loaded.
    """
    form = spec.partition(":")[0]
    patience = how.asking.timeout and max(LOADING * how.asking.timeout, LEAST_LOADING)
    try:
        with within(None if form == "zoo" else patience):
            model = _loaded(spec, how)
    except Unanswered as error:
        raise HardcaseError(
            f"{spec} does not answer while it is loaded: {error}.",
            fix="a longer --set model.timeout=SECONDS, or a model that ends",
        ) from error
    if how.asking.timeout is not None and form not in ("http", "https"):
        model = Retrying(model, how.asking.timeout)
    if how.asking.label_only:
        return LabelOnly(model)
    return model


def _loaded(spec: str, how: Loading) -> Model:
    """The same without patience and wrappings."""
    form, _, name = spec.partition(":")
    if is_stated(spec):
        return _stated(spec, how)
    if form == "zoo" and "@" not in spec:
        name, _, seed = name.partition("?seed=")  # another training of the same network
        number = int(seed) if seed.isdecimal() else how.seed
        options: dict[str, Any] = {"device": how.device, "progress": how.progress}
        net, _ = trained_classifier(name, how.train, how.test, seed=number, **options)
        return _subject(net, spec, how)
    if (load := loader(form)) is not None:
        return model_of(load(spec, how), how.test)
    return _local(spec, how)


ELSEWHERE = {"onnx": "onnx", "http": "http", "https": "http", "tflite": "tflite"}
"""Forms of models that ``hardcase_teams`` loads: its module of each, which is also the extra."""
HUBS = {"timm": "teams", "hf": "huggingface", "torchvision": "torchvision"}
"""Forms of networks that it takes from a hub, and the extra of each."""


def loader(form: str) -> Callable[..., Any] | None:
    """The function that loads models named ``form:...``: of ``hardcase_teams``, or of an entry
    point of the group ``hardcase.loader``; None where torch runs them.

    Its arguments are the model's name and a `Loading`; it returns an argument of `model_of`. For
    taggers, detectors and segmenters it also takes ``task=``, ``outputs=`` (names of the model's
    outputs, if the user set them) and ``classes=`` (those of the data), and returns a
    `hardcase.claims.answers.AskedNetwork`.
    """
    if form in ELSEWHERE:
        extra = ELSEWHERE[form]
        load: Callable[..., Any] = teams_module(extra, f"a model {form}:...", extra).load
        return load
    for point in entry_points(group="hardcase.loader", name=form):
        return partial(_load_by, point)
    return None


def from_hub(spec: str, how: Loading, *, weights: str = "", task: str = "classes") -> Any:
    """The network of a hub as `hardcase_teams.hubs.Hub`, with `weights` of a file if named."""
    form = spec.partition(":")[0]
    load = teams_module("hubs", f"a model {form}:...", HUBS[form]).from_hub
    return load(spec, weights=weights, offline=how.offline, trust=how.trust_pickle, task=task)


def _load_by(point: EntryPoint, spec: str, *given: Any, **task: Any) -> Any:
    """Load a model by an entry point of others; a run folder that names it needs consent."""
    require_consent(spec)
    with guarded(f"loader {point.name!r} of the entry point {point.value}"):
        return point.load()(spec, *given, **task)


def _stated(spec: str, how: Loading) -> Subject:
    """A network whose source states its normalisation; the user may state another."""
    weights, _, code = spec.rpartition("@")
    kind, _, name = code.partition(":")
    if kind == "zoo":
        subject = fetched(name, device=how.device)
        subject.sizing = f"resize={PRETRAINED[name].size}&crop=center"
        return subject
    hub = from_hub(code, how, weights=weights)
    _log.info("%s", hub)
    mean, std = (how.mean, how.std) if how.normalised else (hub.mean, hub.std)
    subject = Subject(
        Adapted(hub.net), mean=mean, std=std, classes=hub.classes, name=spec, device=how.device
    )
    subject.sizing = hub.options
    return subject


def _local(spec: str, how: Loading) -> Model:
    """A network or a function that lies in a file; what it states nothing of is tried."""
    net = opened_network(spec, how)
    if isinstance(net, Subject):
        return net
    if not isinstance(net, nn.Module):
        return with_outputs(partial(_of_function, net, spec, how), how)
    if "@" in spec or named_path(spec).suffix not in WHOLE:
        net = adapted_if_needed(net, from_bytes(how.test.x[:1]))
    return _subject(net, spec, _with_normalisation(net, how))


def _of_function(function: Callable[..., Any], spec: str, how: Loading, outputs: str) -> Model:
    """The model of a function of images that a function in a file returned."""
    about: dict[str, Any] = {"mean": how.mean, "std": how.std, "channels": how.channels}
    about |= {"classes": how.test.classes, "device": how.device, "outputs": outputs}
    return function_model(function, from_bytes(how.test.x[:2]), spec, **about)


def opened_network(spec: str, how: Loading) -> Any:
    """The network in a file, or that a function in a file makes, with the weights of another."""
    weights, _, code = spec.rpartition("@")
    form, _, name = code.partition(":")
    if "@" not in spec and named_path(spec).suffix in WHOLE:
        return from_model_file(named_path(spec))
    if form == "zoo":  # its weights come from elsewhere, such as a repair
        channels, size, _ = how.test.shape
        net = build_classifier(name, channels=channels, size=size, classes=len(how.test.classes))
    else:
        net = network_of_code(code)
    if weights:
        if not isinstance(net, nn.Module):
            raise HardcaseError(f"{code} returns {type(net).__name__}, which takes no weights.")
        note = fit_state(net, read_state(named_path(weights), trust=how.trust_pickle), weights)
        if note:
            _log.info("%s: %s", weights, note)
    return net


def network_of_code(code: str) -> Any:
    """What ``file.py:factory`` makes, without weights of another file."""
    path, _, factory = code.rpartition(":")
    if not path or not factory.isidentifier():
        raise HardcaseError(f"{code!r} is a model of no known kind.", f"known forms: {FORMS}")
    return from_file(named_path(path), factory)


def model_of(thing: Any, images: Images) -> Model:
    """The model in whatever a user has; models of hardcase are returned as they are.

    Its normalisation is that of its source, else the usual normalisation that it clearly needs.

    Args:
        thing: A module of any library, a traced or exported program, or a function of images.
        images: Labelled images of its data.
    """
    if is_model(thing):
        return thing  # type: ignore[no-any-return]  # checked by is_model
    example = from_bytes(images.x[:2])
    if not isinstance(thing, nn.Module | torch.export.ExportedProgram):
        return function_model(thing, example)
    names = own_names(thing)
    how = Loading(test=aligned(images, names) if names else images)
    net = thing if isinstance(thing, nn.Module) else module_of(thing)
    stated = stated_by(thing)
    if stated is None:
        how = _with_normalisation(module_of(thing), how)
    else:
        how = replace(how, mean=stated[0], std=stated[1])
    name = str(getattr(thing, "__name__", "") or type(thing).__name__)
    net = adapted_if_needed(without_trainer(net), example)
    return _subject(net, name, replace(how, device=str(device_of(net))))


def network(model: Model) -> Subject:
    """`model`, if its layers are accessible."""
    if not isinstance(model, Subject):
        raise HardcaseError(
            f'this needs the layers of a network; model "{model.name}" offers {model.offers} only.',
            fix="a model of the zoo, of a Python file or of torchvision",
        )
    return model


def _with_normalisation(net: nn.Module, how: Loading) -> Loading:
    """`how`, with the usual normalisation that the network clearly needs, if the user set none."""
    if how.normalised:
        return how
    normalisation = settled(net, how.test, how.channels)
    if normalisation is None:
        return how
    mean, std, words = normalisation
    _log.warning("found by trying the usual ones: %s", words)
    return replace(how, mean=mean, std=std)


def with_outputs(make: Callable[[str], Model], how: Loading) -> Model:
    """A model with its kind of output, by trying it on sample images, unless the user set it."""
    if how.outputs not in ("auto", "sigmoid") or not len(how.test):
        return make(how.outputs.replace("auto", "logits"))
    plain = make("logits")
    sampled = how.test.take(torch.linspace(0, len(how.test) - 1, min(SOME, len(how.test))).long())
    try:
        scores = answers(plain, sampled)
    except Unanswered as error:
        raise HardcaseError(f"{plain.name} does not answer: {error}") from error
    except Exception:  # wrong sizes and the like are told in full by `health.check`
        return plain
    if scores.shape[1] == 1 and len(sampled.classes) == 2:
        outputs, why = binary_reading(scores, sampled.y)
        for word, name in zip(("first", "second"), sampled.classes):
            why = why.replace(f"{word} class", f"class {name!r}")
        _log.warning("%s has %s; to fix it: --set model.outputs=%s", plain.name, why, outputs)
        return make(outputs)
    if how.outputs == "sigmoid":
        return make("sigmoid")
    return make("probabilities") if is_softmax(scores) else plain


def _subject(net: nn.Module, spec: str, how: Loading) -> Subject:
    """A model with its kind of output, by trying it on sample images, unless the user set it."""

    def make(outputs: str) -> Subject:
        return Subject(
            net,
            mean=how.mean,
            std=how.std,
            classes=how.test.classes,
            name=spec,
            outputs=outputs,
            device=how.device,
            channels=how.channels,
        )

    model = with_outputs(make, how)
    assert isinstance(model, Subject)
    return model


def from_file(path: Path, factory: str) -> Any:
    """The module, or the function of images, that a function in a Python file makes."""
    if not path.is_file():
        raise HardcaseError(f"there is no file {path}.", f"known forms of a model: {FORMS}")
    make = file_member(path, factory)
    with guarded(f"{path}:{factory}"):
        net = make()
    if isinstance(net, nn.Module) or (callable(net) and not isinstance(net, type)):
        return net
    raise HardcaseError(
        f"{path}:{factory} returned {type(net).__name__}; it must return a torch.nn.Module, or a"
        " function of images."
    )


def is_stated(spec: str) -> bool:
    """Whether the source of this network states its normalisation and the size of its images."""
    kind, _, name = spec.rpartition("@")[2].partition(":")
    return kind in HUBS or (kind == "zoo" and name in PRETRAINED)


def names_outputs(spec: str) -> bool:
    """Whether a model of this name may bring class names that differ from the data's."""
    return is_stated(spec) or spec.partition(":")[0] not in ("zoo", "onnx", "http", "https")


def lineage_of(spec: str) -> str:
    """The model family of a network that others have trained; empty where its name says nothing.

    Of a hub's network the architecture counts, without the tag of its weights: the same
    architecture from two hubs often is the same training.

    Example:
        >>> lineage_of("zoo:efficientnet-lite2"), lineage_of("timm:tf_efficientnet_lite0.in1k")
        ('efficientnet-lite', 'efficientnet-lite')
    """
    row = PRETRAINED.get(spec.removeprefix("zoo:"))
    if row is not None:
        return row.lineage
    kind, _, name = spec.rpartition("@")[2].partition(":")
    if kind not in HUBS:
        return ""
    base = ""
    with suppress(
        OSError, ValueError, AttributeError, HardcaseError
    ):  # a folder of a hub's network
        stated = json.loads((named_path(name) / "config.json").read_text(encoding="utf-8"))
        base = str(stated.get("architecture") or stated.get("model_type") or "")
    base = (base or name.rpartition("/")[2].partition(".")[0]).lower().replace("_", "-")
    if "efficientnet-lite" in base:
        return "efficientnet-lite"
    return base
