"""The front door opens on everything: what is registered is reachable from `hc`, nothing else, and every name explains its parameters."""

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
    made = [part.make for part in registry.parts(kind).values() if not part.preset]
    return {inspect.unwrap(make) for make in made if make.__module__.startswith("hardcase.")}


@pytest.mark.parametrize("kind", sorted(registry.ROOMS.keys() - {*BY_NAME, *LATER}))
def test_every_registered_part_is_reachable(kind):
    room = getattr(hc, registry.ROOMS[kind])
    values = [getattr(room, name) for name in dir(room)]
    missing = makers(kind) - {inspect.unwrap(value) for value in values if callable(value)}
    assert not missing, f"{room.__name__} lacks {sorted(part.__name__ for part in missing)}"


MODULES = {name for name in dir(hc) if isinstance(getattr(hc, name), ModuleType)}


@pytest.mark.parametrize("room", sorted(MODULES - {"insight", "zoo"}))
def test_a_room_lists_its_exports_and_no_imports(room):
    module = getattr(hc, room)
    assert sorted(dir(module)) == sorted(module.__all__)
    homes = {name: getattr(getattr(module, name), "__module__", "hardcase") for name in dir(module)}
    assert not [name for name, home in homes.items() if not home.startswith("hardcase")]


def test_authors_find_their_types_and_functions_win_over_their_files():
    assert set(AUTHORS) <= set(dir(hc))
    registry.parts("method")
    assert inspect.isfunction(hc.methods.natural)
    assert len(hc.methods.natural((1, 8, 8)).space.name) > 0


ROOMS = [*registry.ROOMS.values(), "testing"]


def public():
    """Every public class and function by the name under which users find it."""
    found = {}
    homes = {"": hc, **{f"{room}.": getattr(hc, room) for room in ROOMS}}
    for prefix, home in homes.items():
        for name in getattr(home, "__all__", None) or vars(home):
            value = getattr(home, name)
            own = hasattr(home, "__all__") or getattr(value, "__module__", "") == home.__name__
            if own and not name.startswith("_") and _documented(value):
                found.setdefault(id(value), (prefix + name, value))
    return dict(found.values())


def _documented(value):
    return not isinstance(value, ModuleType) and (inspect.isclass(value) or callable(value))


NAMES = public()


def parameters(value):
    if getattr(value, "_is_protocol", False):
        return []
    return [name for name in inspect.signature(value).parameters if not name.startswith("_")]


def explained(doc):
    """The parameters that the ``Args`` section names."""
    _, _, section = doc.partition("Args:\n")
    lines = section.split("\n\n")[0].splitlines()
    heads = [line.partition(":")[0] for line in lines if line[:5].strip() and ":" in line]
    return {name.strip() for head in heads for name in head.split(",")}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_explained(name):
    doc = inspect.getdoc(NAMES[name]) or ""
    missing = set(parameters(NAMES[name])) - explained(doc)
    assert not missing, f"hc.{name} does not explain {sorted(missing)}"


def test_a_word_that_an_option_does_not_know_is_refused():
    with pytest.raises(hc.HardcaseError, match="known: "):
        hc.methods.pgd(norm="linff")
    with pytest.raises(hc.HardcaseError, match="known: "):
        hc.methods.maxplore(None, None, form="onee")
