"""Citations: every method has one, every entry is well-formed, and none of it needs torch."""

import re
import subprocess
import sys

import pytest

from hardcase.catalogue import bibtex, citations
from hardcase.errors import Problem
from hardcase.registry import rows


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


def test_entries_come_once_in_order_with_those_of_the_same_method():
    text = bibtex(["carlini2017cw", "kang2020sinvad", "carlini2017cw"])
    assert re.findall(r"@\w+{(\w+),", text) == ["carlini2017cw", "kang2020sinvad", "kang2024sinvad"]
    assert bibtex([]) == ""


def test_an_unknown_key_is_named_with_the_nearest_one():
    with pytest.raises(Problem, match=r"(?s)no citation 'madry2018'.*try: madry2018pgd"):
        bibtex(["madry2018"])


def test_citing_needs_no_torch():
    code = "import sys; from hardcase.catalogue import bibtex; bibtex(['madry2018pgd']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
