"""A judge for any data set, from its training images alone; kept in the cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.judges.members import seats
from hardcase.judges.panel import WEAK, Panel, per_class
from hardcase.judges.rules import Rule
from hardcase.judging.judge import Judge, judge_of
from hardcase.judging.schooling import USUAL, Schooling, Tell, parts, teach
from hardcase.tensors import from_bytes
from hardcase.training import cards
from hardcase.training.goals import geometry
from hardcase.training.loop import own_randomness
from hardcase.types import Images

KIND, NAME = "judge", "panel"
_log = logging.getLogger(__name__)


def trained(
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    schooling: Schooling = USUAL,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Judge:
    """The judge of this data set, trained on `train` (which must not hold the seeds) or from the cache; `test` measures it."""
    taught, held_out = parts(train, schooling.held_out)
    config = _config(train, test, taught, schooling, seed)

    def school(net: nn.Module) -> Mapping[str, Any]:
        assert isinstance(net, Panel)
        return teach(net.to(device), taught, held_out, schooling, seed=seed, device=device, progress=progress)

    net, card = cards.cached(
        KIND,
        NAME,
        config,
        data=train.hash,
        build=build,
        train=school,
        measure=lambda net: _measure(net.to(device), test, device),
        measured_on=test.hash,
    )
    if card["accuracy"] < WEAK:
        _log.warning(
            "the judge of %s takes only %.1f %% of test images for what they are: it will deny or leave open the label of many good tests",
            train.name, 100 * card["accuracy"],
        )  # fmt: skip
    return judge_of(net.to(device), card, cards.folder_of(KIND, NAME, config, train.hash))


def folder(train: Images, test: Images, *, seed: int = 0, schooling: Schooling = USUAL) -> Path:
    """Where the judge of this data is kept, if it was trained."""
    taught, _ = parts(train, schooling.held_out)
    return cards.folder_of(KIND, NAME, _config(train, test, taught, schooling, seed), train.hash)


def made(card: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules of a card as they were before people were asked."""
    return {name: Rule.from_card(rule) for name, rule in card["rules"].items()}


def _config(train: Images, test: Images, taught: Images, schooling: Schooling, seed: int) -> dict[str, Any]:
    channels, size, classes = geometry(train, test)
    references = int(taught.y.bincount(minlength=classes).clamp_max(per_class(classes)).sum())
    return {
        "channels": channels, "size": size, "classes": classes, "references": references, "learned": len(train),
        "seed": seed, "schooling": asdict(schooling),
    }  # fmt: skip


def build(config: Mapping[str, Any]) -> Panel:
    with own_randomness(config["seed"], "judges"):
        return Panel(
            seats(config["schooling"]["places"]),
            **{name: config[name] for name in ("channels", "size", "classes", "references", "learned")},
        )


def _measure(net: nn.Module, test: Images, device: torch.device | str) -> Mapping[str, Any]:
    assert isinstance(net, Panel)
    seen = net.ask(from_bytes(test.x.to(device)), test.y.to(device)).seen.cpu()
    return {"accuracy": int((seen == test.y).sum()) / len(test), "measured_images": len(test)}
