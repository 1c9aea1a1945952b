"""Every method of the table passes every law."""

import inspect
from importlib import import_module

import pytest
import torch

from hardcase.methods.catalogue import METHODS
from hardcase.methods.neurons import Profiles
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, Latent, collect
from hardcase.tensors import from_bytes
from hardcase.testing.methods import CHECKS
from hardcase.testing.toys import (
    CLASSES,
    Quarters,
    ToyAutoencoder,
    ToyPainter,
    ToyQuantiser,
    painted_images,
    toy_images,
    toy_subject,
)
from hardcase.types import OFFERS

SPACES = {
    "vae": lambda: Latent(ToyAutoencoder()),
    "vqvae": lambda: Grid(ToyQuantiser()),
    "gan": lambda: Activations(ToyPainter(), early_places(ToyPainter(), classes=4), classes=4),
}
OPTIONS = {
    "feature-perturbation": {"stride": 0.05},
    "feature-perturbation@paper": {"stride": 0.05},
    "sinvad@paper": {"spread": 1.5, "generations": 20},
    "sinvad-between@code": {"spread": 1.5, "generations": 20},
    "sinvad-surprise": {"passes": 2},
    "sinvad-surprise@paper": {"passes": 2, "goal": 10.0, "tolerance": 4.0, "stride": 2.0},
    "cw": {"steps": 20, "rounds": 3},
    "deepxplore": {"gradients": 150},
    "deepxplore@code": {"size": 6},
    "dlfuzz@paper": {"stride": 0.1},
    "adapt": {"gradients": 36},
    "adapt@paper": {"stride": 0.3, "gradients": 30},
    "deepxplore@adapt": {"stride": 0.3, "gradients": 30},
    "dlfuzz@adapt": {"stride": 0.3, "gradients": 30},
    "maxplore@code": {"stride": 0.3},
    "maxplore@paper": {"stride": 0.3},
    "deephunter": {"criterion": "kmnc:k=20", "queries": 141},
    "deephunter@code": {"criterion": "kmnc:k=20", "queries": 141},
    "tensorfuzz": {"queries": 201},
    "argus": {"mix": 0.7},
    "argus@paper": {"mix": 0.7},
}
TOY = (
    toy_subject()
)  # making a network draws from global randomness, so both are made before any law is checked
OTHER = Quarters()
OTHER.mean.weight.data += 0.04 * torch.randn(OTHER.mean.weight.shape, generator=stream(3, "peer"))
OTHER = Subject(OTHER, classes=CLASSES, name="other toy")


def make(name):
    row = METHODS[name]
    module, _, function = row.where.partition(":")
    recipe = getattr(import_module(f"hardcase.methods.{module}"), function)
    able = {
        "space": lambda: SPACES[row.generator.partition(":")[0]](),
        "partners": lambda: partners_of(row.generator),
        "subject": lambda: TOY,
        "peers": lambda: peers_of(name),
        "profile": lambda: Profiles(from_bytes(toy_images().x[:1]), lambda: toy_images(40, seed=1)),
    }
    given = {key: able[key]() for key in able if key in inspect.signature(recipe).parameters}
    return recipe(**given, **OPTIONS.get(name, {}))


def partners_of(generator):
    space, images = SPACES[generator.partition(":")[0]](), toy_images(40, seed=2)
    return collect(
        images,
        lambda x: space.encode(x, images.y[: len(x)], stream(0))[0],
        device=torch.device("cpu"),
    )


def peers_of(name):
    """A second opinion that differs a little from the toy subject's, for methods that compare."""
    return () if METHODS[name].peers == "none" else (OTHER,)


@pytest.mark.parametrize("law", CHECKS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method_obeys(name, law):
    some = painted_images if METHODS[name].seeds == "generator" else toy_images
    law(lambda: make(name), peers_of(name), some)


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_row_is_true(row):
    method = make(row.name)
    assert method.needs == row.needs in OFFERS
    assert row.summary
    assert row.paper
    assert row.cite
    assert method.budget.queries or method.budget.gradients, "a run must always end"
