"""Every method of the table passes every law."""

import inspect
from importlib import import_module

import pytest

from hardcase.methods.catalogue import METHODS
from hardcase.spaces.vae import Latent
from hardcase.testing.methods import CHECKS
from hardcase.testing.toys import ToyAutoencoder
from hardcase.types import OFFERS

SPACES = {"vae": lambda: Latent(ToyAutoencoder())}
OPTIONS = {"sinvad": {"spread": 1.5, "generations": 20}, "cw": {"steps": 20, "rounds": 3}}


def make(name):
    row = METHODS[name]
    module, _, function = row.where.partition(":")
    recipe = getattr(import_module(f"hardcase.methods.{module}"), function)
    given = {"space": SPACES[row.generator]()} if "space" in inspect.signature(recipe).parameters else {}
    return recipe(**given, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("law", CHECKS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method_obeys(name, law):
    law(lambda: make(name))


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_row_is_true(row):
    method = make(row.name)
    assert method.needs == row.needs in OFFERS
    assert row.summary
    assert row.paper
    assert row.cite
    assert method.budget.queries or method.budget.gradients, "a run must always end"
