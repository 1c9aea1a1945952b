"""How each family of generators is trained and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.generators import gan, hierarchical, vae, vqvae
from hardcase.generators.contest import train_gan
from hardcase.generators.joint import train_jointly
from hardcase.generators.pictures import draw_reconstructions
from hardcase.generators.quality import measure, measure_samples
from hardcase.training.loop import fit
from hardcase.training.recipe import Recipe
from hardcase.training.telling import History, Progress
from hardcase.types import Images

Judge = Callable[[Tensor], Tensor] | None
Train = Callable[["Course"], History]
Measure = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a lesson is given. `options` are the family's own, with every one present; `begun` gives this very network as the
    family's usual options train it, from the cache if it is there; in the folder `kept` a training that is stopped is kept."""

    net: nn.Module
    images: Images
    recipe: Recipe
    options: Mapping[str, Any]
    seed: int
    name: str
    device: torch.device | str
    progress: Callable[[Progress], None] | None
    begun: Callable[[], nn.Module]
    kept: Path


@dataclass(frozen=True, slots=True)
class Lesson:
    """`options`: what may be set for this family, with its defaults. One that is None is not part of a configuration."""

    train: Train
    measure: Measure
    options: Mapping[str, Any]


def _train_vae(course: Course) -> History:
    made = hierarchical.reconstruct if isinstance(course.net, hierarchical.Hierarchical) else vae.reconstruct
    return _fit(course, made(course.images, beta=course.options["beta"]))


def _train_vqvae(course: Course) -> History:
    """Reconstruction; if a `mix` is given, the one that only reconstructs goes on, with ARGUS's discriminators at that share."""
    net, mix = course.net, course.options["mix"]
    assert isinstance(net, vqvae.VqVae)
    if mix:
        net.load_state_dict(course.begun().state_dict())
        weights = (course.options["latent_weight"], course.options["image_weight"])
        rounds = course.options["joint_epochs"]
        recipe = course.recipe if rounds is None else replace(course.recipe, epochs=rounds, steps=0)
        history = train_jointly(
            net, course.images, recipe, mix=mix, weights=weights,
            seed=course.seed, device=course.device, progress=course.progress, kept=course.kept,
            seen=lambda: _draw(course),
        )  # fmt: skip
    else:
        history = _fit(course, vqvae.reconstruct(course.images))
    vqvae.healthy(net, course.images)
    return history


def _train_gan(course: Course) -> History:
    assert isinstance(course.net, gan.Gan)
    flips = bool(course.options["flips"])
    return train_gan(
        course.net, course.images, course.recipe,
        seed=course.seed, device=course.device, flips=flips, progress=course.progress, kept=course.kept,
    )  # fmt: skip


def _draw(course: Course) -> None:
    """What it gives back so far, beside what is kept of its training."""
    course.net.eval()
    draw_reconstructions(course.kept, course.net, course.images)
    course.net.train()


def _fit(course: Course, goal: Any) -> History:
    return fit(
        course.net, course.images, goal, course.recipe,
        seed=course.seed, name=course.name, device=course.device, progress=course.progress, kept=course.kept,
        seen=lambda: _draw(course),
    )  # fmt: skip


LESSONS = {
    "vae": Lesson(_train_vae, measure, {"beta": 1.0}),
    "vqvae": Lesson(
        _train_vqvae, measure, {"mix": 0.0, "latent_weight": 0.01, "image_weight": 0.01, "joint_epochs": None}
    ),
    "gan": Lesson(_train_gan, measure_samples, {"flips": False}),
}
