"""Names become subjects: networks of the zoo, of a file or of torchvision; ONNX files;
addresses of servers.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.cache import named_path
from hardcase.errors import Problem
from hardcase.models.adapters import (
    adapted,
    adapted_if_needed,
    module_of,
    own_names,
    without_trainer,
)
from hardcase.models.checkpoints import fit_state, read_state
from hardcase.models.health import answers, looks_like_probabilities
from hardcase.models.http import Http, Manners, checked_url, is_here
from hardcase.models.names import aligned
from hardcase.models.normalisation import settled, stated_by
from hardcase.models.onnx import Onnx, PixelLayout
from hardcase.models.pretrained.catalogue import PRETRAINED
from hardcase.models.specs import is_known, load_spec
from hardcase.models.subject import Subject
from hardcase.models.wrappers import Cached, LabelOnly, Patient
from hardcase.models.zoo import trained_classifier
from hardcase.tensors import from_bytes
from hardcase.training.loop import TrainingProgress
from hardcase.types import Images, Model
from hardcase.usercode import Unanswered, ask_leave, file_member, guarded

_log = logging.getLogger(__name__)

FORMS = (
    "zoo:NAME, file.py:factory, weights.safetensors@file.py:factory, timm:NAME, hf:NAME-OR-PATH,"
    " torchvision:NAME, weights@timm:NAME, FILE.pt2, onnx:FILE.onnx,"
    " http://HOST/v2/models/NAME/infer"
)


NOTHING = Images(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), torch.zeros(0).long(), (), ())
"""No images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSettings:
    """How a model is asked that may be slow, far away or dear; `timeout` of None:
    30 s for servers, none for others.
    """

    batch: int = 32
    concurrency: int = 4
    rate: float | None = None
    timeout: float | None = None
    retries: int = 5
    cache: int = 100_000
    label_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a model is loaded: where it goes, how its input is normalised, whom it trusts,
    what a zoo model learns from.

    Args:
        train: What a zoo model learns from; networks that state everything need no images.
        test: What it is measured on.
        device: Where the networks are.
        mean: Mean per channel, in units of [0, 1].
        std: Standard deviation per channel.
        outputs: ``logits``, ``probabilities``, ``sigmoid`` or ``auto``.
        channels: ``rgb``, or what else the network wants of them; see `Subject`.
        trust_pickle: Unpickle weights, which may run any code.
        seed: Everything random follows from it.
        progress: Told how the training goes.
        offline: Ask nothing outside this machine.
        asking: How a model behind an address is asked.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> how = hc.models.Loading(train=toy_images(8), test=toy_images(4))
        >>> how.device
        'cpu'
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
    asking: AskSettings = field(default_factory=AskSettings)


def load_model(spec: str, how: Loading) -> Model:
    """The subject that `spec` names, in the wrappings that `how` asks for.

    Args:
        spec: ``zoo:lenet5`` (``?seed=1``: another training), ``file.py:factory``,
            ``onnx:net.onnx``, an address, …
        how: How it is loaded.
    """
    form, _, name = spec.partition(":")
    if form == "zoo" and not is_stated(spec):
        name, _, seed = name.partition("?seed=")  # another training of the same network
        net, _ = trained_classifier(
            name,
            how.train,
            how.test,
            device=how.device,
            seed=int(seed) if seed.isdecimal() else how.seed,
            progress=how.progress,
        )
        model: Model = _subject(net, spec, how)
    else:
        model = _load(spec, how)
    if how.asking.timeout is not None and not spec.startswith(("http:", "https:")):
        model = Patient(model, how.asking.timeout)
    return LabelOnly(model) if how.asking.label_only else model


def model_of(thing: Any, images: Images) -> Model:
    """The model in whatever a user has; models of hardcase are returned as they are.

    Its normalisation is what it states itself (timm's networks do), else the usual one that it
    clearly wants; which one that is, is logged.

    Args:
        thing: A module of any library, a traced or exported program, or a function of images.
        images: Labelled images of its data.

    Example:
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> model_of(toy_subject().net, toy_images(8)).offers
        'gradients'
    """
    if isinstance(thing, Subject) or (
        not isinstance(thing, nn.Module) and isinstance(thing, Model)
    ):
        return thing
    example = from_bytes(images.x[:2])
    names = own_names(thing)
    known = aligned(images, names) if names else images
    how = Loading(test=known)
    stated = stated_by(thing)
    if stated is not None:
        how = replace(how, mean=stated[0], std=stated[1])
    elif not isinstance(thing, nn.Module | torch.export.ExportedProgram):
        return adapted(thing, example=example, arrays=not _takes_tensors(thing, example))
    else:
        how = _with_normalisation(module_of(thing), how)
    net = thing if isinstance(thing, nn.Module) else module_of(thing)
    own = adapted_if_needed(without_trainer(net), example)
    name = str(getattr(thing, "__name__", "") or type(thing).__name__)
    return _subject(own, name, replace(how, device=str(_place(net))))


def _place(net: nn.Module) -> torch.device:
    return next((each.device for each in net.parameters()), torch.device("cpu"))


def _takes_tensors(function: Callable[..., Any], example: torch.Tensor) -> bool:
    """Whether a function answers tensors; else it is given arrays."""
    try:
        function(example)
    except Exception:  # whatever it raises, it did not answer
        return False
    return True


def network(model: Model) -> Subject:
    """`model`, if it is one whose layers can be seen."""
    if not isinstance(model, Subject):
        raise Problem(
            f'this needs the layers of a network; subject "{model.name}" offers {model.offers}'
            " only.",
            fix="a model of the zoo, of a Python file or of torchvision",
        )
    return model


def _load(spec: str, how: Loading) -> Model:
    """A model from elsewhere: a file, a server, a source of pretrained networks."""
    form, _, name = spec.partition(":")
    if form == "onnx":
        return _black_box(
            partial(Onnx, named_path(name), len(how.test.classes), spec, _pixels(how)), how
        )
    if form in ("http", "https"):
        return _server(spec, how)
    if is_known(spec):
        return _stated(spec, how)
    weights, _, code = spec.rpartition("@")
    path, _, factory = code.rpartition(":")
    if not path or not factory.isidentifier():
        raise Problem(f"cannot tell what kind of model {spec!r} is.", f"known forms: {FORMS}")
    net = from_file(named_path(path), factory)
    if weights:
        fitted = fit_state(net, read_state(named_path(weights), trust=how.trust_pickle), weights)
        if fitted.note:
            _log.info("%s: %s", weights, fitted.note)
    if isinstance(net, Subject):
        return net
    own = adapted_if_needed(net, from_bytes(how.test.x[:1]))
    return _subject(own, spec, _with_normalisation(own, how))


def _with_normalisation(net: nn.Module, how: Loading) -> Loading:
    """`how`, with the usual normalisation that the network clearly wants where none was said."""
    if (tuple(how.mean), tuple(how.std)) != ((0.0,), (1.0,)):
        return how
    found = settled(copy.deepcopy(net).eval(), how.test, how.channels)
    if found is None:
        return how
    _log.warning("found by trying the usual ones: %s", found)
    return replace(how, mean=found.mean, std=found.std)


def _stated(spec: str, how: Loading) -> Subject:
    """A network whose source states its normalisation; the user may state another."""
    found = load_spec(
        spec,
        mean=how.mean if tuple(how.mean) != (0.0,) else None,
        std=how.std if tuple(how.std) != (1.0,) else None,
        device=how.device,
        offline=how.offline,
        trust=how.trust_pickle,
    )
    if found.note:
        _log.info("%s", found.note)
    if is_stated(spec):
        return found.subject
    return _subject(found.subject.net, spec, _with_normalisation(found.subject.net, how))


def _pixels(how: Loading) -> PixelLayout:
    return PixelLayout(mean=tuple(how.mean), std=tuple(how.std))


def _server(spec: str, how: Loading) -> Model:
    """A server's model, which is asked patiently and never twice for the same image."""
    if how.offline and not is_here(checked_url(spec)):
        raise Problem(
            f"{spec} is on another machine, and --offline forbids to ask it.",
            fix="leave out --offline",
        )
    ask_leave(spec)
    ask = how.asking
    manners = Manners(
        batch=ask.batch,
        concurrency=ask.concurrency,
        rate=ask.rate,
        timeout=ask.timeout or 30.0,
        retries=ask.retries,
    )
    channels, height, width = how.test.x.shape[1:]

    def make(outputs: str) -> Model:
        return Http(
            spec,
            len(how.test.classes),
            (channels, height, width),
            spec,
            _pixels(how),
            outputs,
            manners,
        )

    patient = Patient(_black_box(make, how), piece=ask.batch)
    return Cached(patient, ask.cache) if ask.cache else patient


def _black_box(make: Callable[[str], Model], how: Loading) -> Model:
    """A model with its kind of output found out on a few images, unless it was said."""
    if how.outputs != "auto" or not len(how.test):
        return make("logits" if how.outputs == "auto" else how.outputs)
    plain = make("logits")
    try:
        some = answers(plain, how.test.take(torch.arange(min(32, len(how.test)))))
    except Unanswered as error:
        raise Problem(f"{plain.name} does not answer: {error}") from error
    except Exception:  # wrong sizes and the like are told in full by `health.check`
        return plain
    return make("probabilities") if looks_like_probabilities(some) else plain


def _subject(net: nn.Module, spec: str, how: Loading) -> Subject:
    """A subject with its kind of output found out on a few images, unless it was said."""

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

    made = _black_box(make, how)
    assert isinstance(made, Subject)
    return made


def from_file(path: Path, factory: str) -> nn.Module:
    """The module that a function in a Python file makes."""
    if not path.is_file():
        raise Problem(f"there is no file {path}.", f"known forms of a model: {FORMS}")
    make = file_member(path, factory)
    with guarded(f"{path}:{factory}"):
        net = make()
    if not isinstance(net, nn.Module):
        raise Problem(
            f"{path}:{factory} returned {type(net).__name__}; it must return a torch.nn.Module."
        )
    return net


HUBS = ("timm", "hf", "torchvision")
"""Kinds of names that stand for networks which others have trained."""


def is_stated(spec: str) -> bool:
    """Whether the source of this network states its normalisation and the size of its images."""
    kind, _, name = spec.rpartition("@")[2].partition(":")
    return kind in HUBS or (kind == "zoo" and name in PRETRAINED)


def _architecture(folder: str) -> str:
    """What the configuration of a hub's network in a folder calls it; empty where there is none."""
    try:
        stated = json.loads((named_path(folder) / "config.json").read_text(encoding="utf-8"))
        return str(stated.get("architecture") or stated.get("model_type") or "")
    except (OSError, ValueError, AttributeError, Problem):
        return ""


def lineage_of(spec: str) -> str:
    """The lineage of a network that others have trained; empty where its name says nothing of it.

    Args:
        spec: A name of the catalogue, with or without ``zoo:``, or of a hub. Of a hub's network the
            architecture is taken, without the tag of its weights: the same architecture from two
            hubs often is the same training.

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
    base = _architecture(name) or name.rpartition("/")[2].partition(".")[0]
    base = base.lower().replace("_", "-")
    return "efficientnet-lite" if "efficientnet-lite" in base else base
