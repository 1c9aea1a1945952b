"""The linter of words finds what it is meant to find; ``make lint`` runs it on this repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
words = pytest.importorskip("words")
sys.path.remove(str(ROOT / "tools"))


def repository(page="", source="", **ceilings):
    rules = {
        "ceilings": {"replaced_in_strings": 0, "carriers_in_names": 0, "carriers_in_docstrings": 0}
        | ceilings,
        "pages": {"sentence_words": 16, "semicolons": 3, "waiting": []},
        "research": {"pages": ["docs/results/*.md"], "sentence_words": 99, "semicolons": 999},
        "names": {"carriers": "own said"},
        "replaced": {r"\bfunnel\b": "search results"},
        "keys": {"replaced": ["standing"]},
    }
    pages = [words.Page(words.ROOT / "docs/page.md", page)]
    sources = [words.Source(words.ROOT / "src/hardcase/part.py", source)]
    return words.Repository(rules, pages, sources)


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("The funnel counts images.", ""),
        ("One; two; three.", ""),
        (" ".join(["word"] * 36) + ".", ""),
        ("\n\n".join(["A sentence " + "with words " * 9 + "has no end."] * 3), ""),
        ("", 'raise ValueError("the funnel is empty")'),
        ("", 'row = {"standing": 1}'),
        ("", "what_he_said = 1"),
        ("", '"""What a part said."""'),
    ],
)
def test_each_fault_is_found(page, source):
    assert repository(page, source).faults()


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("```sh\nthe funnel; one; two\n```\nShort.", ""),
        ("The key `funnel` is old.", ""),
        ("| a; b | c; d |\n".replace(";", ","), ""),
        ("", 'row = {"status": 1}\nvalue = "funnel"'),
        ("", "window = 1  # said by nobody"),
    ],
)
def test_code_and_good_words_are_no_fault(page, source):
    assert not repository(page, source).faults()


def test_a_ceiling_that_is_not_reached_is_no_fault():
    source = 'raise ValueError("the funnel is empty")'
    assert not repository("", source, replaced_in_strings=1).faults()


def test_a_page_of_research_has_limits_of_its_own():
    known = repository("The funnel counts; it counts; it counts.")
    page = words.Page(words.ROOT / "docs/results/page.md", known.pages[0].text)
    assert not words.Repository(known.rules, [page], []).faults()


def test_a_sentence_ends_where_a_reader_pauses():
    page = words.Page(words.ROOT / "docs/page.md", "One is *here.* Two is `x.y` there: Three is a list.\n\n* A point of it\n* and another one\n")  # fmt: skip
    assert len(page.sentences) == 5
