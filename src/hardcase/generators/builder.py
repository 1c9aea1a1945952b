"""Names become generators: fresh ones, trained ones, and ones read from a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardcase.errors import choice
from hardcase.generators.catalogue import GENERATORS, Generator
from hardcase.generators.quality import measure, yardstick
from hardcase.generators.vae import Vae, reconstruct
from hardcase.training import cards
from hardcase.training.goals import geometry
from hardcase.training.loop import Progress, fit, own_randomness
from hardcase.types import Images


def build(family: str, *, kind: str, channels: int, size: int, classes: int, latent: int, seed: int = 0) -> Vae:
    """A fresh generator for square images; the same seed gives the same weights."""
    row = _row(family, kind)
    module, _, function = row.where.partition(":")
    factory: Callable[[int, int, int, int], Vae] = getattr(import_module(f"hardcase.generators.{module}"), function)
    with own_randomness(seed, "generators", row.name):
        return factory(channels, size, classes, latent)


def trained(
    family: str,
    images_train: Images,
    images_test: Images,
    *,
    kind: str = "linear",
    latent: int | None = None,
    beta: float = 1.0,
    epochs: int | None = None,
    seed: int = 0,
    judge: Callable[[Tensor], Tensor] | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Vae, cards.Card]:
    """The generator trained on these images by its recipe, on `device` in eval mode, and its card; kept in the cache.

    `judge` maps images in [0, 1] to logits; with it the card says how often it still sees the label in reconstructions.
    """
    row = _row(family, kind)
    recipe = row.recipe if epochs is None else replace(row.recipe, epochs=epochs, steps=0)
    channels, size, classes = geometry(images_train, images_test)
    shape = {"family": family, "kind": kind, "channels": channels, "size": size, "classes": classes}
    config = {**shape, "latent": latent or row.latent, "beta": beta, "seed": seed, "recipe": asdict(recipe)}

    def train(net: torch.nn.Module) -> Mapping[str, Any]:
        goal = reconstruct(images_train, beta=beta)
        history = fit(net, images_train, goal, recipe, seed=seed, name=row.name, device=device, progress=progress)
        return {"seed": seed, **asdict(history)}

    net, card = cards.cached(
        family,
        kind,
        config,
        data=images_train.hash,
        build=_from_config,
        train=train,
        measure=lambda net: measure(net.to(device), images_test, judge, device=device),
        measured_on=yardstick(images_test, judge, device=device),
    )
    assert isinstance(net, Vae)
    return net.to(device), card


def load(folder: Path, family: str = "vae", *, data: str | None = None) -> tuple[Vae, cards.Card]:
    """A trained generator read from its folder; with `data`, refused unless it was trained on images of that hash."""
    net, card = cards.load(folder, _from_config, kind=family, data=data)
    assert isinstance(net, Vae)
    return net, card


def _row(family: str, kind: str) -> Generator:
    families = list(dict.fromkeys(row.family for row in GENERATORS.values()))
    if family not in families:
        raise choice("generator", family, families)
    if f"{family}-{kind}" not in GENERATORS:
        raise choice(f"kind of {family}", kind, [row.kind for row in GENERATORS.values() if row.family == family])
    return GENERATORS[f"{family}-{kind}"]


def _from_config(config: Mapping[str, Any]) -> Vae:
    return build(**{key: config[key] for key in ("family", "kind", "channels", "size", "classes", "latent", "seed")})
