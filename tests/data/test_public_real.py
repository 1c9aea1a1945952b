"""The true sources, asked only where ``HARDCASE_NETWORK_TESTS=1`` is set."""

import os

import pytest

from hardcase.data.public import collect, fetch, public_sets, verify
from hardcase.errors import Problem

pytestmark = pytest.mark.skipif(
    os.environ.get("HARDCASE_NETWORK_TESTS") != "1",
    reason="asks the network; HARDCASE_NETWORK_TESTS=1 allows it",
)
SETS = ("mnist", "fashion", "cifar10")
ROUTES = [(name, i) for name in SETS for i in range(len(public_sets()[name].routes))]


@pytest.mark.parametrize("name", SETS)
def test_some_route_works_and_gives_the_known_content(name):
    fetch(name)  # what has other hashes is refused


@pytest.mark.parametrize(("name", "number"), ROUTES)
def test_each_route_that_answers_gives_the_known_content(name, number):
    wanted = public_sets()[name]
    try:
        parts = collect(wanted, wanted.routes[number], None)
    except Problem as problem:
        pytest.skip(f"{wanted.routes[number].name}: {problem.what}")
    verify(wanted, parts)
