"""Classification as a goal, if asked for against small attacks; what of a data set a training needs to be true."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem
from hardcase.tensors import chunks, from_bytes
from hardcase.training.loop import Goal
from hardcase.types import Images

Perturb = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
"""Other images to train on in place of these: (network, images, labels, noise)."""


def classify(classes: int, *, perturb: Perturb | None = None) -> Goal:
    """Cross-entropy of logits; with `perturb`, on the images it makes of the batch."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        return functional.cross_entropy(net(x if perturb is None else perturb(net, x, y, noise)), y)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = net(x)
        return logits

    return Goal(loss, answer, math.log(classes))


@torch.no_grad()
def predict(
    net: Callable[[Tensor], Tensor], images: Images, *, device: torch.device | str = "cpu"
) -> Int[Tensor, " n"]:
    """The class that `net` (images to logits) gives each image."""
    parts = [net(from_bytes(images.x[rows].to(device))).argmax(1) for rows in chunks(len(images), 256)]
    return torch.cat(parts).cpu()


def geometry(train: Images, test: Images) -> tuple[int, int, int]:
    """Channels, size and classes of a data set, after checking that a network can be trained and measured on it."""
    _, channels, height, width = train.x.shape
    if height != width or train.x.shape[1:] != test.x.shape[1:]:
        seen = f"{tuple(train.x.shape[1:])} for training, {tuple(test.x.shape[1:])} for measuring"
        raise Problem(f"images must be square and alike; {train.name} has {seen} (channels, height, width).")
    if train.classes != test.classes:
        raise Problem(
            f"{train.name} names {len(train.classes)} classes for training, {len(test.classes)} others for measuring."
        )
    for part in (train, test):
        _check_labels(part)
    if bool((train.y == train.y[0]).all()):
        raise Problem(
            f"the {train.split} split of {train.name} holds a single class.", "There is nothing to tell apart."
        )
    return channels, height, len(train.classes)


def _check_labels(images: Images) -> None:
    if len(images) == 0:
        raise Problem(f"the {images.split} split of {images.name} is empty.")
    low, high = int(images.y.min()), int(images.y.max())
    if low < 0 or high >= len(images.classes):
        raise Problem(
            f"{images.name} has labels {low}..{high} for {len(images.classes)} classes (0..{len(images.classes) - 1})."
        )
