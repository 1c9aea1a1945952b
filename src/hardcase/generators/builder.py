"""Names become generators: fresh ones, trained ones, and ones read from a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.errors import choice
from hardcase.generators.catalogue import GENERATORS, Generator
from hardcase.generators.lessons import LESSONS, Course
from hardcase.generators.quality import yardstick
from hardcase.training import cards, unfinished
from hardcase.training.goals import geometry
from hardcase.training.loop import own_randomness
from hardcase.training.telling import Progress
from hardcase.types import Images


def build(family: str, *, kind: str, channels: int, size: int, classes: int, latent: int, seed: int = 0) -> nn.Module:
    """A fresh generator for square images; the same seed gives the same weights."""
    row = _row(family, kind)
    module, _, function = row.where.partition(":")
    factory: Callable[[int, int, int, int], nn.Module] = getattr(
        import_module(f"hardcase.generators.{module}"), function
    )
    with own_randomness(seed, "generators", row.name):
        return factory(channels, size, classes, latent)


def trained(
    family: str,
    images_train: Images,
    images_test: Images,
    *,
    kind: str | None = None,
    latent: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    judge: Callable[[Tensor], Tensor] | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> tuple[nn.Module, cards.Card]:
    """The generator trained on these images by its recipe, on `device` in eval mode, and its card; kept in the cache.

    `judge` maps images in [0, 1] to logits; with it the card says how often it still sees the label. `options` are the
    family's own: `beta` of a VAE; `mix`, `latent_weight`, `image_weight`, `joint_epochs` of a VQ-VAE; `flips` of a GAN.
    A VQ-VAE with a `mix` goes on from the one without, which is kept too and shared by all that differ in these options.
    """
    row = _row(family, kind)
    lesson = LESSONS[family]
    for key in options:
        if key not in lesson.options:
            raise choice(f"option of {family}", key, list(lesson.options))
    channels, size, classes = geometry(images_train, images_test)
    recipe = row.recipe_for(channels)
    recipe = recipe if epochs is None else replace(recipe, epochs=epochs, steps=0)
    recipe = recipe if batch is None else replace(recipe, batch=batch)
    settings = {**lesson.options, **options}
    shape = {"family": family, "kind": row.kind, "channels": channels, "size": size, "classes": classes}
    stated = {key: value for key, value in settings.items() if value is not None}
    config = {**shape, "latent": latent or row.latent, **stated, "seed": seed, "recipe": asdict(recipe)}

    def begun() -> nn.Module:
        return trained(
            family, images_train, images_test, kind=kind, latent=latent, epochs=epochs, batch=batch,
            seed=seed, judge=judge, progress=progress, device=device,
        )[0]  # fmt: skip

    kept = unfinished.beside(cards.folder_of(family, row.kind, config, images_train.hash))

    def train(net: nn.Module) -> Mapping[str, Any]:
        course = Course(
            net=net, images=images_train, recipe=recipe, options=settings,
            seed=seed, name=row.name, device=device, progress=progress, begun=begun, kept=kept,
        )  # fmt: skip
        return {"seed": seed, **asdict(lesson.train(course))}

    net, card = cards.cached(
        family,
        row.kind,
        config,
        data=images_train.hash,
        build=_from_config,
        train=train,
        measure=lambda net: lesson.measure(net.to(device), images_test, judge, device=device),
        measured_on=yardstick(images_test, judge, device=device),
    )
    unfinished.forget(kept)
    return net.to(device), card


def load(folder: Path, family: str = "vae", *, data: str | None = None) -> tuple[nn.Module, cards.Card]:
    """A trained generator read from its folder; with `data`, refused unless it was trained on images of that hash."""
    return cards.load(folder, _from_config, kind=family, data=data)


def _row(family: str, kind: str | None) -> Generator:
    """The row of this kind, or the family's first."""
    families = list(dict.fromkeys(row.family for row in GENERATORS.values()))
    if family not in families:
        raise choice("generator", family, families)
    kinds = [row.kind for row in GENERATORS.values() if row.family == family]
    if kind is not None and kind not in kinds:
        raise choice(f"kind of {family}", kind, kinds)
    return GENERATORS[f"{family}-{kind or kinds[0]}"]


def _from_config(config: Mapping[str, Any]) -> nn.Module:
    return build(**{key: config[key] for key in ("family", "kind", "channels", "size", "classes", "latent", "seed")})
