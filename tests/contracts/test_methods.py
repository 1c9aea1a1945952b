"""Every registered method passes every law."""

from functools import cache, partial

import pytest

from hardcase.catalogue import describe
from hardcase.registry import SUPPLIED, parts
from hardcase.testing.methods import CHECKS, MethodTrial, method_facts, toy_method
from hardcase.testing.toys import toy_world
from hardcase.types import OFFERS

METHODS = parts("method")


@cache
def trial(name):
    method, world = METHODS[name], toy_world()
    return MethodTrial(partial(toy_method, method), world.peers(method), world.seeds(method))


@pytest.mark.parametrize("law", CHECKS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method_obeys(name, law):
    law(trial(name))


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_row_is_true(row):
    method = toy_method(row)
    assert method.name == row.name
    assert method.needs in OFFERS
    assert row.summary
    assert row.paper
    assert row.keys, "a method without BibTeX cannot be cited"
    assert method.budget.queries or method.budget.gradients, "a run must always end"
    assert set(row.given) <= set(SUPPLIED)
    assert set(row.preset) | set(row.facts.get("toy", {})) <= set(row.options)
    assert row.preset != {name: p.default for name, p in row.options.items()}


def test_rows_tell_needs_and_budget_of_the_methods_as_they_are_built():
    rows = {row["name"]: row for row in describe("method", measured=method_facts)}
    assert rows.keys() == METHODS.keys()
    assert {row["needs"] for row in rows.values()} <= set(OFFERS)
    told = {"pgd": "40 gradients", "fgsm": "1 gradient", "sinvad": "123 queries"}
    told |= {"argus-adaptive": "721 queries", "maxplore": "417 queries and 400 gradients"}
    for name, budget in told.items():
        assert rows[name]["budget"] == f"{budget} per image"
    assert rows["pgd"]["options"]["gradients"]["default"] == 40
    assert rows["argus@paper"]["options"]["mix"]["default"] == 0.2
