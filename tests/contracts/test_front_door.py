"""The front door opens on everything: what is registered is reachable from `hc`, and nothing else."""

import inspect
from types import ModuleType

import pytest

import hardcase as hc
from hardcase import registry

LATER = ("judge",)
"""Kinds whose rooms do not export their parts yet."""
BY_NAME = ("generator", "data", "model")
"""Kinds whose rows are recipes that a loader makes by name: `hc.data.load`, `hc.models.load_model`."""
AUTHORS = ("Evaluator", "Feedback", "Guide", "Method", "Probe", "Rng", "Search", "Seeds", "Space")


def makers(kind):
    """What stands behind the rows of a kind, without presets."""
    own = registry.parts(kind).values()
    return {
        inspect.unwrap(part.make)
        for part in own
        if not part.preset and part.make.__module__.startswith("hardcase.")
    }


@pytest.mark.parametrize(
    "kind", [kind for kind in registry.ROOMS if kind not in (*BY_NAME, *LATER)]
)
def test_every_registered_part_is_reachable(kind):
    room = getattr(hc, registry.ROOMS[kind])
    offered = {
        inspect.unwrap(getattr(room, name)) for name in dir(room) if callable(getattr(room, name))
    }
    missing = makers(kind) - offered
    assert not missing, (
        f"hc.{registry.ROOMS[kind]} lacks {sorted(part.__name__ for part in missing)}"
    )


@pytest.mark.parametrize(
    "room",
    [
        name
        for name in dir(hc)
        if isinstance(getattr(hc, name), ModuleType) and name not in ("insight", "zoo")
    ],
)
def test_a_room_lists_its_exports_and_no_imports(room):
    module = getattr(hc, room)
    assert sorted(dir(module)) == sorted(module.__all__)
    strangers = [
        name
        for name in dir(module)
        if not getattr(getattr(module, name), "__module__", "hardcase").startswith("hardcase")
    ]
    assert not strangers


def test_authors_find_the_types_that_they_implement():
    assert set(AUTHORS) <= set(dir(hc))


def test_a_function_wins_over_the_file_it_lives_in():
    registry.parts("method")
    assert inspect.isfunction(hc.methods.natural)
    assert len(hc.methods.natural((1, 8, 8)).space.name) > 0
