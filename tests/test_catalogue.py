"""Rows of the registry are complete, the stored catalogue says the same, and every citation is well-formed."""

import re
import subprocess
import sys

import pytest

from hardcase.catalogue import bibtex, build_catalogue, citation_key, citations, render
from hardcase.errors import HardcaseError
from hardcase.registry import CATALOGUE, ROOMS, options_of, parts, rows


def test_every_method_can_be_cited():
    for row in rows("methods"):
        assert row["cite"]
        assert set(row["cite"]) <= citations().keys()


@pytest.mark.parametrize("key", citations())
def test_an_entry_carries_its_key_and_closes_what_it_opens(key):
    entry = citations()[key]
    assert re.match(rf"@\w+{{{re.escape(key)},\n", entry)
    assert entry.count("{") == entry.count("}")
    assert {"author", "title", "year"} <= set(re.findall(r"^  (\w+) +=", entry, re.M))
    assert ("booktitle" in entry) + ("journal" in entry) + entry.startswith("@misc") == 1


def test_entries_come_once_in_order_and_an_unknown_key_is_named():
    text = bibtex(["carlini2017cw", "kang2020sinvad", "carlini2017cw"])
    assert re.findall(r"@\w+{(\w+),", text) == ["carlini2017cw", "kang2020sinvad", "kang2024sinvad"]
    assert bibtex([]) == ""
    with pytest.raises(HardcaseError, match=r"(?s)no citation 'madry2018'.*try: madry2018pgd"):
        bibtex(["madry2018"])


def test_citing_needs_no_torch():
    code = "import sys; from hardcase.catalogue import bibtex; bibtex(['madry2018pgd']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ELSEWHERE = ("diffusion-edm", "vae-hierarchical")  # come with hardcase-studies
ROWS = [(kind, name) for kind in ROOMS for name in parts(kind) if name not in ELSEWHERE]


@pytest.fixture(scope="module")
def catalogue():
    return build_catalogue()


def test_the_stored_catalogue_is_not_stale():
    assert CATALOGUE.read_text(encoding="utf-8") == render(), "make catalogue writes it anew"


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_a_row_says_what_a_list_shows(kind, name, catalogue):
    part = parts(kind)[name]
    row = next(row for row in catalogue[ROOMS[kind]] if row["name"] == name)
    assert {"name", "summary", "needs", "paper", "laws", "options", "cite"} <= row.keys()
    assert part.summary
    assert not part.summary.endswith(".")
    assert row["needs"]
    assert row["laws"] or kind not in ("method", "search", "space", "criterion")
    assert set(row["options"]) == set(options_of(part))
    assert part.paper or kind in ("data", "space", "search", "objective", "oracle")


def test_every_citation_is_stated_once_and_rows_are_in_order(catalogue):
    rooms = [catalogue[room] for room in ROOMS.values()]
    used = {key for rows in rooms for row in rows for key in row["cite"]}
    assert used <= catalogue["citations"].keys()
    for key, text in catalogue["citations"].items():
        assert citation_key(text) == key
    for kind, room in ROOMS.items():
        names = [row["name"] for row in catalogue[room]]
        assert names == sorted(names, key=lambda name: name.split("@")), kind
