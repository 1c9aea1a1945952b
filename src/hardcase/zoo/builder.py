"""Names become networks: fresh ones, trained ones, and ones read from a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.errors import Problem, choice
from hardcase.training import cards
from hardcase.training.goals import classify, geometry, predict
from hardcase.training.loop import fit, own_randomness
from hardcase.training.telling import Progress
from hardcase.types import Images
from hardcase.zoo.attack import attack
from hardcase.zoo.catalogue import MODELS, Model

KIND = "classifier"


def build(name: str, *, channels: int, size: int, classes: int, seed: int = 0) -> nn.Module:
    """A fresh network for square images; the same seed gives the same weights. Input in [0, 1], output logits."""
    module, _, function = _row(name).where.partition(":")
    factory: Callable[[int, int, int], nn.Module] = getattr(import_module(f"hardcase.zoo.{module}"), function)
    with own_randomness(seed, "zoo", name):
        return factory(channels, size, classes)


def trained(
    name: str,
    images_train: Images,
    images_test: Images,
    *,
    seed: int = 0,
    epochs: int | None = None,
    adversarial: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, cards.Card]:
    """The network trained on these images by its recipe, on `device` in eval mode, and its card; kept in the cache.

    `adversarial` (``"linf:0.1"``, ``"l2:1.5"``) trains it on images attacked within that radius.
    """
    recipe = _row(name).recipe if epochs is None else replace(_row(name).recipe, epochs=epochs, steps=0)
    channels, size, classes = geometry(images_train, images_test)
    shape = {"name": name, "channels": channels, "size": size, "classes": classes}
    config = {**shape, "seed": seed, "recipe": asdict(recipe), "adversarial": adversarial}
    goal = classify(classes, perturb=None if adversarial is None else attack(adversarial))

    def train(net: nn.Module) -> Mapping[str, Any]:
        history = fit(net, images_train, goal, recipe, seed=seed, name=name, device=device, progress=progress)
        return {"seed": seed, **asdict(history)}

    net, card = cards.cached(
        KIND,
        name,
        config,
        data=images_train.hash,
        build=_from_config,
        train=train,
        measure=lambda net: _measure(net.to(device), images_test, device),
        measured_on=images_test.hash,
    )
    return net.to(device), card


def load(folder: Path, *, data: str | None = None) -> tuple[nn.Module, cards.Card]:
    """A trained network read from its folder; with `data`, refused unless it was trained on images of that hash."""
    return cards.load(folder, _from_config, kind=KIND, data=data)


def _row(name: str) -> Model:
    if name not in MODELS:
        raise choice("model", name, list(MODELS))
    return MODELS[name]


def _from_config(config: Mapping[str, Any]) -> nn.Module:
    return build(**{key: config[key] for key in ("name", "channels", "size", "classes", "seed")})


def _measure(net: nn.Module, images: Images, device: torch.device | str) -> Mapping[str, Any]:
    predicted = predict(net, images, device=device)
    if bool((predicted == predicted[0]).all()) and not bool((images.y == images.y[0]).all()):
        raise Problem(
            f"the network says {images.classes[int(predicted[0])]!r} of all {len(images)} images it is measured on.",
            "It has learned nothing that tells them apart; nothing was kept.",
            fix="more epochs, or a look at the images and labels it was trained on",
        )
    return {"accuracy": int((predicted == images.y).sum()) / len(images), "measured_images": len(images)}
