"""How a network is trained, as plain values, and what is kept of it: a folder with its weights as
safetensors (never pickle), and a card that says what they are.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from hardcase.cache import cache_folder, regular, write_atomically
from hardcase.data.sources import check_labels
from hardcase.environment import VERSION
from hardcase.errors import HardcaseError, choice
from hardcase.tensors import digest, digest_tensors
from hardcase.types import Images


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where the training of `what` stands; `loss` is the mean since the last report."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    warning: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The mean loss of every epoch, the steps taken, what was odd."""

    loss: tuple[float, ...]
    steps: int
    seconds: float
    warnings: tuple[str, ...] = ()


UNSTATED: Mapping[str, Any] = {"unstated": True}
"""Marks a field that a card states only where it differs from its default, so that networks which
were kept before the field existed are found again.
"""


def stated(value: Any) -> Any:
    """Parameters as a card states them: as `dataclasses.asdict`, less unstated defaults."""
    if is_dataclass(value):
        return {
            field_of.name: stated(getattr(value, field_of.name))
            for field_of in fields(value)
            if not (
                field_of.metadata.get("unstated")
                and getattr(value, field_of.name) == field_of.default
            )
        }
    if isinstance(value, tuple):
        return [stated(field_of) for field_of in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How a network is trained, as plain values that fit into a table and into a card.

    Args:
        epochs: Passes over the data.
        batch: Images in each step.
        lr: The largest learning rate.
        steps: The fewest steps: small data sets are passed over more often.
        optimiser: A name of `OPTIMISERS`.
        schedule: A name of `SCHEDULES`.
        augment: A name of `AUGMENTS`.
        decay: Weight decay.
        half: Compute losses in bfloat16 on a GPU, and on a CPU that has instructions for it.
        smoothing: Share of a label that is spread over all classes.
        most: The most steps of an epoch, which then passes over a part of the images; 0: all.
        clip: The longest gradient of a step; a longer one is shortened. 0: as long as it is.
    """

    epochs: int
    batch: int
    lr: float
    steps: int = 0
    optimiser: str = "adam"
    schedule: str = "cosine"
    augment: str = "none"
    decay: float = 0.0
    half: bool = field(default=False, metadata=UNSTATED)
    smoothing: float = field(default=0.0, metadata=UNSTATED)
    most: int = field(default=0, metadata=UNSTATED)
    clip: float = field(default=0.0, metadata=UNSTATED)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not self.lr > 0:
            settings = f"epochs {self.epochs}, batch {self.batch}, lr {self.lr}"
            raise HardcaseError(
                "training needs at least one epoch, a batch of one and a positive rate; "
                f"given: {settings}."
            )

    def rounds(self, count: int) -> tuple[int, int]:
        """Epochs, and steps in each, for `count` images; a smaller last batch is left out."""
        inside = max(count // self.batch, 1)
        inside = min(inside, self.most or inside)
        return max(self.epochs, math.ceil(self.steps / inside)), inside


Optimiser = Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer]
"""Makes an optimiser of parameters, learning rate and weight decay."""
Schedule = Callable[[float], float]
"""The share of the training that is done (0 to 1) gives the factor of the learning rate."""
_Row = TypeVar("_Row")


def pick(kind: str, name: str, table: Mapping[str, _Row]) -> _Row:
    """The row called `name`, or an error that lists the names there are."""
    if name not in table:
        raise choice(kind, name, list(table))
    return table[name]


OPTIMISERS: dict[str, Optimiser] = {
    "adam": lambda parameters, lr, decay: torch.optim.AdamW(
        parameters, lr=lr, weight_decay=decay, fused=True
    ),
    "sgd": lambda parameters, lr, decay: torch.optim.SGD(
        parameters, lr=lr, weight_decay=decay, momentum=0.9, nesterov=True, fused=True
    ),
}


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _warm(done: float, rise: float = 0.1) -> float:
    """Up in the first tenth, then down along a cosine."""
    if done < rise:
        return (done + 0.01) / (rise + 0.01)
    return _cosine((done - rise) / (1 - rise))


SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": _cosine,
    "warm": _warm,
    # a tenth after two and after four fifths, as ARGUS's every 20 of 50 epochs
    "stairs": lambda done: 0.1 ** int(done / 0.4 + 1e-9),
}


patience: ContextVar[float] = ContextVar("patience", default=math.inf)
"""Seconds that a training may take."""
PATIENCE = 1800.0
"""Seconds that the training of a network may take that nobody asked for by name."""


@contextmanager
def patient_for(seconds: float) -> Iterator[None]:
    """Refuse trainings that would take longer than this, as soon as their pace is known."""
    before = patience.set(seconds)
    try:
        yield
    finally:
        patience.reset(before)


def geometry(train: Images, test: Images) -> tuple[int, int, int]:
    """Channels, size and classes of a data set, once it is known to be fit for training."""
    _, channels, height, width = train.x.shape
    if height != width or train.x.shape[1:] != test.x.shape[1:]:
        shapes = f"{tuple(train.x.shape[1:])} for training, {tuple(test.x.shape[1:])} for measuring"
        raise HardcaseError(
            f"images must be square and alike; {train.name} has {shapes} (channels, height, width)."
        )
    if train.classes != test.classes:
        raise HardcaseError(
            f"{train.name} names {len(train.classes)} classes for training, {len(test.classes)}"
            " others for measuring."
        )
    for part in (train, test):
        check_labels(part, f"the {part.split} split of {part.name}")
    if bool((train.y == train.y[0]).all()):
        raise HardcaseError(
            f"the {train.split} split of {train.name} holds a single class.",
            "There is nothing to tell apart.",
        )
    return channels, height, len(train.classes)


CARD = "card.json"
WEIGHTS = "weights.safetensors"
CHECKSUM = "checksum"
VERIFIED = ("judge",)
"""Kinds of network whose card must carry a checksum; that of any other is verified if it is there,
since older caches hold cards without one.
"""
SCHEMA = 1
Card = dict[str, Any]
Config = Mapping[str, Any]
_log = logging.getLogger(__name__)


def cached(
    kind: str,
    name: str,
    config: Config,
    *,
    data: str,
    build: Callable[[Config], nn.Module],
    train: Callable[[nn.Module], Config],
    measure: Callable[[nn.Module], Config],
    measured_on: str,
) -> tuple[nn.Module, Card]:
    """The network of this configuration and data: from the cache, else trained and kept there.

    `train` and `measure` return entries of the card. A kept network is measured again, not trained
    again, when `measured_on` (a hash of what it is measured with) has changed. Two processes may
    train the same network at once: the first to finish is kept, and both return that one.
    """
    folder = folder_of(kind, name, config, data)
    if not any((folder / part).exists() for part in (CARD, WEIGHTS)):
        _keep(folder, kind, name, config, data, build, train, measure, measured_on)
    expected: dict[str, Any] = {"kind": kind, "config": config, "data": data}
    return load_card(folder, build, **expected, measure=measure, measured_on=measured_on)


def _keep(
    folder: Path,
    kind: str,
    name: str,
    config: Config,
    data: str,
    build: Callable[[Config], nn.Module],
    train: Callable[[nn.Module], Config],
    measure: Callable[[nn.Module], Config],
    measured_on: str,
) -> None:
    """Train a network and keep it in `folder` with its card."""
    _make(folder.parent)
    config = _plain(config)
    net = build(config)
    entries = {**train(net), "measured_on": measured_on, **measure(net)}
    head = {"schema": SCHEMA, "kind": kind, "name": name, "configuration": config, "data": data}
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardcase": VERSION,
    }
    _publish(folder, net, {**head, **entries, "versions": versions})


def fitted_network(
    kind: str,
    name: str,
    config: Config,
    train: Callable[[nn.Module, Mapping[str, Any]], History],
    *,
    data: str,
    build: Callable[[Config], nn.Module],
    measure: Callable[[nn.Module], Config],
    measured_on: str,
    device: torch.device | str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
) -> tuple[nn.Module, Card]:
    """The network of this configuration, trained unless the cache has it, on `device` in eval mode,
    and its card. A training that was stopped goes on.

    Args:
        kind: Kind of network, the first word of its folder's name; `name` is the second.
        config: Its ``seed``, and all else that tells it from other networks.
        train: Trains a network, given arguments of `fit` or `train_adversarially`.
        data: Hash of what it learns from.
        build: Makes the untrained network of a configuration.
        measure: Entries of the card, from the network on `device`.
        measured_on: Hash of what it is measured on.
    """
    unfinished = unfinished_folder(folder_of(kind, name, config, data))
    how = {
        "seed": config["seed"],
        "name": name,
        "device": device,
        "progress": progress,
        "kept": unfinished,
    }

    def trained(net: nn.Module) -> Config:
        return {"seed": config["seed"], **asdict(train(net, how))}

    def measured(net: nn.Module) -> Config:
        return measure(net.to(device))

    try:
        net, card = cached(
            kind,
            name,
            config,
            data=data,
            build=build,
            train=trained,
            measure=measured,
            measured_on=measured_on,
        )
    except HardcaseError as problem:
        if not isinstance(problem.__cause__, OSError):  # else a full disk: it was learned well
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    shutil.rmtree(unfinished, ignore_errors=True)
    return net.to(device), card


def unfinished_folder(folder: Path) -> Path:
    """Where the unfinished training of the network that will be in `folder` is kept."""
    return folder.with_name(f"{folder.name}.unfinished")


def folder_of(kind: str, name: str, config: Config, data: str) -> Path:
    """Where the network of this configuration and data is kept, if it was trained."""
    key = digest([str(SCHEMA), json.dumps(_plain(config), sort_keys=True), data])
    return cache_folder() / "networks" / f"{kind}-{name}-{key}"


def load_card(
    folder: Path,
    build: Callable[[Config], nn.Module],
    *,
    kind: str,
    config: Config | None = None,
    data: str | None = None,
    measure: Callable[[nn.Module], Config] | None = None,
    measured_on: str = "",
) -> tuple[nn.Module, Card]:
    """The network in `folder` (eval mode, CPU) and its card; refused if damaged or another. With
    `measure`, it is measured again where it was not on `measured_on`.
    """
    card = read_card(folder)
    if card["kind"] != kind:
        raise HardcaseError(f"{folder / CARD} describes a {card['kind']}, not a {kind}.")
    if config is not None and card["configuration"] != _plain(config):
        raise _spoiled(
            folder / CARD,
            "it describes another configuration than the one its folder is named after",
        )
    if data is not None and card["data"] != data:
        raise HardcaseError(
            f"{folder} was trained on other data: its card says {card['data']}, asked for is"
            f" {data}.",
            "What a network learned elsewhere says little about these images.",
            fix="train it on this data, or use the data it was trained on",
        )
    try:
        net = build(card["configuration"])
    except HardcaseError:
        raise
    except Exception as error:  # anything can stand in a card that others wrote
        raise _spoiled(
            folder / CARD, f"no network can be made from it ({type(error).__name__})"
        ) from error
    _fill(net, folder / WEIGHTS, card["weights"])
    net.eval()
    if measure is not None and card.get("measured_on") != measured_on:
        card = {**card, "measured_on": measured_on, **_plain(measure(net))}
        with suppress(HardcaseError):
            write_atomically(folder / CARD, _text(card))
    return net, card


def read_card(folder: Path) -> Card:
    """The card in `folder`, checked to be one."""
    path = folder / CARD
    try:
        card = json.loads(regular(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not (folder / WEIGHTS).exists():
            raise HardcaseError(
                f"there is no trained network in {folder}: {CARD} is missing."
            ) from None
        raise _spoiled(path, "it is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _spoiled(path, str(error)) from error
    needed = {"schema", "kind", "name", "configuration", "data", "weights"}
    if not isinstance(card, dict) or needed - card.keys():
        raise _spoiled(path, f"a card needs the keys {', '.join(sorted(needed))}")
    words = all(isinstance(card[name], str) for name in ("kind", "name", "data", "weights"))
    if not words or not isinstance(card["configuration"], dict):
        raise _spoiled(path, "some of it is of another kind than it should be")
    stored = card.pop(CHECKSUM, None)
    needed_here = stored is not None or card["kind"] in VERIFIED
    if needed_here and stored != digest([json.dumps(card, sort_keys=True)]):
        raise _spoiled(path, "its content is not what its checksum says")
    return card


def _fill(net: nn.Module, path: Path, expected: str) -> None:
    """Load the weights at `path` into `net`, if they are the ones that the card names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(regular(path))
        intact = digest_tensors(state) == expected
        if intact:
            net.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise _spoiled(path, (str(error).splitlines() or [""])[0]) from error
    if not intact:
        raise _spoiled(path, "its content is not what the card beside it says")


def _publish(folder: Path, net: nn.Module, card: Card) -> None:
    """Write under a temporary name, then rename; whoever comes second leaves what is there."""
    from safetensors.torch import save

    state = {
        name: value.detach().cpu().contiguous().clone() for name, value in net.state_dict().items()
    }
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_atomically(temporary / WEIGHTS, save(state))
        write_atomically(temporary / CARD, _text({**card, "weights": digest_tensors(state)}))
        temporary.chmod(folder.parent.stat().st_mode)
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise _unwritable(folder, error) from error
        _log.info("another process has finished %s first", folder.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _make(folder: Path) -> None:
    """Make `folder` and see that it can be written to, before minutes are spent on training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unwritable(folder, error) from error


def _plain(config: Config) -> dict[str, Any]:
    """As it reads back from JSON, so that what is compared is what was written."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(config)))
    return plain


def _text(card: Card) -> bytes:
    # of the values, not of how the file is spaced
    sealed = {**card, CHECKSUM: digest([json.dumps(_plain(card), sort_keys=True)])}
    return (json.dumps(sealed, indent=2, sort_keys=True) + "\n").encode()


def _spoiled(path: Path, why: str) -> HardcaseError:
    return HardcaseError(
        f"{path} cannot be used: {why}.",
        fix=f"delete {CARD} and {WEIGHTS} in {path.parent}, then train again",
    )


def _unwritable(path: Path, error: OSError) -> HardcaseError:
    return HardcaseError(
        f"cannot write {path}: {error.strerror or error}.",
        fix="free some space, or name a writable folder: HARDCASE_CACHE=/another/folder",
    )
