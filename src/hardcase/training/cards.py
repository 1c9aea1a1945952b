"""A trained network is a folder: weights as safetensors, and a card that says what they are.

Never pickle.
"""

from __future__ import annotations

import errno
import json
import logging
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.cache import cache_folder, regular, write_atomically
from hardcase.environment import VERSION
from hardcase.errors import Problem
from hardcase.tensors import digest, digest_tensors
from hardcase.training.loop import (
    Goal,
    TrainingProgress,
    TrainingRecipe,
    fit,
    remove_unfinished,
    unfinished_folder,
)
from hardcase.types import Images

__all__ = ["Card", "cached", "fitted_network", "folder_of", "load_card", "read_card"]

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
    config = _plain(config)
    folder = folder_of(kind, name, config, data)
    if not any((folder / part).exists() for part in (CARD, WEIGHTS)):
        _make(folder.parent)
        net = build(config)
        entries = {**train(net), "measured_on": measured_on, **measure(net)}
        head = {"schema": SCHEMA, "kind": kind, "name": name, "configuration": config, "data": data}
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "hardcase": VERSION,
        }
        _publish(folder, net, {**head, **entries, "versions": versions})
    net, card = load_card(folder, build, kind=kind, config=config, data=data)
    if card.get("measured_on") != measured_on:
        card = {**card, "measured_on": measured_on, **_plain(measure(net))}
        with suppress(Problem):
            write_atomically(folder / CARD, _text(card))
    return net, card


def fitted_network(
    kind: str,
    config: Config,
    images: Images,
    goal: Callable[[], Goal],
    recipe: TrainingRecipe,
    *,
    data: str,
    build: Callable[[Config], nn.Module],
    measure: Callable[[nn.Module], Config],
    measured_on: str,
    device: torch.device | str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
) -> tuple[nn.Module, Card]:
    """The network of this configuration, trained by `fit` unless the cache has it, on `device` in
    eval mode, and its card. A training that was stopped goes on.

    Args:
        kind: Kind of network, the first word of its folder's name.
        config: Its ``name`` and ``seed``, and all else that tells it from other networks.
        goal: Makes what it learns, if it is trained.
        data: Hash of what it learns from.
        build: Makes the untrained network of a configuration.
        measure: Entries of the card, from the network on `device`.
        measured_on: Hash of what it is measured on.
    """
    name, seed = config["name"], config["seed"]
    unfinished = unfinished_folder(folder_of(kind, name, config, data))

    def train(net: nn.Module) -> Config:
        history = fit(
            net,
            images,
            goal(),
            recipe,
            seed=seed,
            name=name,
            device=device,
            progress=progress,
            kept=unfinished,
        )
        return {"seed": seed, **asdict(history)}

    try:
        net, card = cached(
            kind,
            name,
            config,
            data=data,
            build=build,
            train=train,
            measure=lambda net: measure(net.to(device)),
            measured_on=measured_on,
        )
    except Problem:  # nothing worth going on from
        remove_unfinished(unfinished)
        raise
    remove_unfinished(unfinished)
    return net.to(device), card


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
) -> tuple[nn.Module, Card]:
    """The network in `folder` (eval mode, CPU) and its card; refused if damaged or another."""
    card = read_card(folder)
    if card["kind"] != kind:
        raise Problem(f"{folder / CARD} describes a {card['kind']}, not a {kind}.")
    if config is not None and card["configuration"] != _plain(config):
        raise _spoiled(
            folder / CARD,
            "it describes another configuration than the one its folder is named after",
        )
    if data is not None and card["data"] != data:
        raise Problem(
            f"{folder} was trained on other data: its card says {card['data']}, asked for is"
            f" {data}.",
            "What a network learned elsewhere says little about these images.",
            fix="train it on this data, or use the data it was trained on",
        )
    try:
        net = build(card["configuration"])
    except Problem:
        raise
    except Exception as error:  # anything can stand in a card that others wrote
        raise _spoiled(
            folder / CARD, f"no network can be made from it ({type(error).__name__})"
        ) from error
    _fill(net, folder / WEIGHTS, card["weights"])
    return net.eval(), card


def read_card(folder: Path) -> Card:
    """The card in `folder`, checked to be one."""
    path = folder / CARD
    try:
        card = json.loads(regular(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not (folder / WEIGHTS).exists():
            raise Problem(f"there is no trained network in {folder}: {CARD} is missing.") from None
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


def _spoiled(path: Path, why: str) -> Problem:
    return Problem(
        f"{path} cannot be used: {why}.",
        fix=f"delete {CARD} and {WEIGHTS} in {path.parent}, then train again",
    )


def _unwritable(path: Path, error: OSError) -> Problem:
    return Problem(
        f"cannot write {path}: {error.strerror or error}.",
        fix="free some space, or name a writable folder: HARDCASE_CACHE=/another/folder",
    )
