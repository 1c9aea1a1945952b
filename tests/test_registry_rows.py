"""Rows of the registry: each is complete, and the stored catalogue says the same."""

import pytest

from hardcase import registry
from hardcase.catalogue import build_catalogue, citation_key, render
from hardcase.registry import CATALOGUE, ROOMS, options_of

ROWS = [
    (kind, name)
    for kind in ROOMS
    for name in registry.parts(kind)
    if name not in ("diffusion-edm", "vae-hierarchical")  # come with hardcase-studies
]


@pytest.fixture(scope="module")
def catalogue():
    return build_catalogue()


def test_the_stored_catalogue_is_not_stale():
    assert CATALOGUE.read_text(encoding="utf-8") == render(), "make catalogue writes it anew"


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_a_row_says_what_a_list_shows(kind, name, catalogue):
    part = registry.parts(kind)[name]
    row = next(row for row in catalogue[ROOMS[kind]] if row["name"] == name)
    assert {"name", "summary", "needs", "paper", "laws", "options", "cite"} <= row.keys()
    assert part.summary
    assert not part.summary.endswith(".")
    assert row["needs"]
    assert row["laws"] or kind not in ("method", "search", "space", "criterion")
    assert set(row["options"]) == set(options_of(part))
    assert part.paper or kind in ("data", "space", "search", "objective", "oracle")


def test_every_citation_is_stated_once(catalogue):
    rooms = [catalogue[room] for room in ROOMS.values()]
    used = {key for rows in rooms for row in rows for key in row["cite"]}
    assert used <= catalogue["citations"].keys()
    for key, text in catalogue["citations"].items():
        assert citation_key(text) == key


def test_rows_do_not_depend_on_the_order_of_imports(catalogue):
    for kind, room in ROOMS.items():
        names = [row["name"] for row in catalogue[room]]
        assert names == sorted(names, key=lambda name: name.split("@")), kind
