"""Any method of the catalogue in the fault benchmark's world, where there is no data set to load by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hardcase import generators
from hardcase.errors import Problem, choice
from hardcase.experiments.faults_lab import Lab
from hardcase.methods.catalogue import METHODS, Recipe
from hardcase.methods.watching import Profiles
from hardcase.oracles import Confident
from hardcase.spaces.activations import Activations, Staged, early_places
from hardcase.spaces.library import Library, collect
from hardcase.spaces.vae import Conditional, Labelled
from hardcase.spaces.vqvae import Grid
from hardcase.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.types import Method, Space

MARGIN = 5.0
"""By how much, in logits, a test must fail that follows a gradient: the same for features and for pixels."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "feature-perturbation": {"confidence": MARGIN, "radius": 1e9, "retreat": 0, "stride": 0.02},
    "feature-perturbation@paper": {"confidence": MARGIN, "stride": 0.02},
    "pgd": {"epsilon": 0.1},
    "fgsm": {"epsilon": 0.1},
}
"""Confident failures, as in the paper, and pixel changes that nobody would call a change of the picture."""


def built(name: str, here: Lab, subject: Subject, settings: Mapping[str, Any]) -> Method:
    """The method with the benchmark's settings for it, and `settings` on top."""
    if name not in METHODS:
        raise choice("method", name, list(METHODS))
    row = METHODS[name]
    if row.peers == "quantised":
        raise Problem(f"{name} compares networks; a fault of one network has nothing to compare with.")
    module, _, function = row.where.partition(":")
    recipe: Callable[..., Method] = getattr(import_module(f"hardcase.methods.{module}"), function)
    able: Mapping[str, Callable[[], Any]] = {
        "space": lambda: _space(row, here),
        "subject": lambda: subject,
        "peers": lambda: (),
        "profile": lambda: Profiles(from_bytes(here.train.x[:1]), lambda: here.train),
        "partners": lambda: _partners(_space(row, here), here),
    }
    wanted = inspect.signature(recipe).parameters
    given = {
        key: make()
        for key, make in able.items()
        if key in wanted and not (key == "partners" and row.generator.startswith("vae"))
    }
    options = {**SETTINGS.get(name, {}), **settings}
    for key in options:
        if key not in wanted:
            raise choice(f"option of {name}", key, [key for key in wanted if key not in able])
    method = recipe(**given, **options)
    return replace(method, oracle=Confident(confidence=MARGIN)) if name == "pgd" else method


def _space(row: Recipe, here: Lab) -> Space:
    """The conditional VAE's code or activations, or a VQ-VAE of the same pictures."""
    if row.seeds == "generator":
        assert isinstance(here.generator, Staged)
        return Activations(here.generator, early_places(here.generator, classes=2), classes=2)
    if row.generator.startswith("vqvae"):
        net, _ = generators.trained("vqvae", here.train, here.test, seed=here.seed, device=here.device)
        return Grid(net)  # type: ignore[arg-type]  # a VQ-VAE, by its family
    assert isinstance(here.vae, Conditional)
    return Labelled(here.vae)


def _partners(space: Space, here: Lab) -> Library:
    unknown = here.train.y.new_zeros(1)

    def encode(x: Tensor) -> Tensor:
        return space.encode(x, unknown.expand(len(x)).to(x.device), torch.Generator(x.device))[0]

    return collect(here.train, encode, device=torch.device(here.device))
