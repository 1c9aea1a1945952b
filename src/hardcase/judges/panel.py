"""The judge of small images, by an ensemble trained on the data's own; kept in the cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase import registry
from hardcase.cache import turn
from hardcase.data.sources import load
from hardcase.judges.judge import KIND, WEAK, PanelJudge, accuracy_on, panel_judge, split_rows
from hardcase.judges.networks import Panel, build, references_of
from hardcase.judges.training import (
    THOROUGH,
    USUAL,
    Tell,
    TrainConfig,
    learner,
    split,
    train_panel,
)
from hardcase.training import cards
from hardcase.training.loop import geometry, remove_unfinished, stated, unfinished_folder
from hardcase.types import Images

__all__ = [
    "NAME",
    "card_config",
    "config_for",
    "folder",
    "for_data",
    "help_with",
    "read",
    "trained",
]

NAME = "panel"
_log = logging.getLogger(__name__)


def config_for(
    train: Images, test: Images, *, seed: int, device: torch.device | str
) -> TrainConfig:
    """Choose thorough training for colour where there is a GPU, or where that was done already."""
    if train.x.shape[1] == 1:
        return USUAL
    kept = (folder(train, test, seed=seed, config=THOROUGH) / cards.CARD).exists()
    if kept or torch.device(device).type == "cuda":
        return THOROUGH
    return USUAL


def card_config(train: Images, test: Images, config: TrainConfig, seed: int) -> dict[str, Any]:
    """Return the configuration that a judge's card states and its folder is named after."""
    channels, size, classes = geometry(train, test)
    fitted, _ = split_rows(train.y, train.id, config.held_out)
    return {
        "channels": channels,
        "size": size,
        "classes": classes,
        "references": references_of(train.y[fitted], classes),
        "learned": len(train),
        "seed": seed,
        "training": stated(config),
    }


def folder(
    train: Images, test: Images, *, seed: int = 0, config: TrainConfig | None = None
) -> Path:
    """Return where the judge of this data is kept, if it was trained."""
    config = config or config_for(train, test, seed=seed, device="cpu")
    return cards.folder_of(KIND, NAME, card_config(train, test, config, seed), train.hash)


@registry.judge(
    NAME,
    needs="the training split of the data; hardcase train judge",
    paper=(
        "Riccio and Tonella, ICSE 2023 (the study it is measured against); "
        "Serrà et al., ICLR 2020; Wong, Rice and Kolter, ICLR 2020"
    ),
    cite=("riccio2023validity", "serra2020complexity", "wong2020fast"),
    laws=(
        "took no part in the search",
        "never saw the seeds",
        "never used in a search",
    ),
)
def trained(
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    config: TrainConfig | None = None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> PanelJudge:
    """Return the judge of a data set: an ensemble trained on `train`, or from the cache.

    A training that was stopped goes on.

    Args:
        train: Images to train on; never the seeds.
        test: Images that measure it.
        seed: Of everything random.
        config: How it is trained; by default what suits the images and the device.
        device: Where it computes.
        progress: Told how the training goes.
    """
    config = config or config_for(train, test, seed=seed, device=device)
    described = card_config(train, test, config, seed)
    folder = cards.folder_of(KIND, NAME, described, train.hash)
    kept = unfinished_folder(folder)

    def train_net(net: nn.Module) -> Mapping[str, Any]:
        assert isinstance(net, Panel)
        fitted, held_out = split(train, config.held_out)
        given: dict[str, Any] = {"seed": seed, "device": device, "progress": progress}
        return train_panel(net.to(device), fitted, held_out, config, kept=kept, **given)

    def measure(net: nn.Module) -> Mapping[str, Any]:
        assert isinstance(net, Panel)
        right = accuracy_on(net.to(device), test.x, test.y, device)
        return {"accuracy": right / len(test), "measured_images": len(test)}

    net, card = cards.cached(
        KIND,
        NAME,
        described,
        data=train.hash,
        build=build,
        train=train_net,
        measure=measure,
        measured_on=test.hash,
    )
    remove_unfinished(kept)
    if card["accuracy"] < WEAK:
        _log.warning(
            "the judge of %s takes only %.1f %% of test images for what they are: it will deny or"
            " leave open the label of many good findings",
            train.name,
            100 * card["accuracy"],
        )
    return panel_judge(net.to(device), card, folder)


def help_with(train: Images, test: Images, *, seed: int = 0, progress: Tell = None) -> None:
    """Train members of the judge that another process is training, from the last on, until that
    process works at the next one; it finds them finished.
    """
    config = config_for(train, test, seed=seed, device="cpu")
    fitted, _ = split(train, config.held_out)
    kept = unfinished_folder(folder(train, test, seed=seed, config=config))
    panel = build(card_config(train, test, config, seed))
    if not kept.is_dir():  # finished, or not begun
        return
    learn = learner(panel, fitted, config, seed=seed, device="cpu", progress=progress, kept=kept)
    learn(0)
    for number in range(len(panel.members), 0, -1):
        with turn(kept / f"{number}.lock", wait=False) as free:
            pass
        if not free or not kept.is_dir():
            return
        learn(number)


def for_data(
    name: str,
    *,
    train_on: str = "train",
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> PanelJudge:
    """Return the judge of a data set by name, trained if it is missing.

    Args:
        name: A data set, as ``--data`` names it.
        train_on: The split that it is trained on; it is measured on the other.
        offline: Ask nothing outside this machine.
        seed: Of everything random.
        device: Where the networks are.
        progress: Told how the training goes.
    """
    splits = sorted(("train", "test"), key=lambda split: split != train_on)
    first, second = (load(name, split=split, offline=offline) for split in splits)
    return trained(first, second, seed=seed, device=device, progress=progress)


def read(folder: Path) -> PanelJudge:
    """Read a trained judge from its folder.

    Args:
        folder: Folder of a trained judge.
    """
    net, card = cards.load_card(folder, build, kind=KIND)
    return panel_judge(net, card, folder)
