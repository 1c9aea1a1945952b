"""Every name that a user reaches from `hc` explains its parameters."""

import inspect
from types import ModuleType

import pytest

import hardcase as hc
from hardcase import registry

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
    with pytest.raises(hc.Problem, match="known: "):
        hc.methods.pgd(norm="linff")
    with pytest.raises(hc.Problem, match="known: "):
        hc.methods.maxplore(None, None, form="onee")
