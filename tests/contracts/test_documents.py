"""What the pages point to is there."""

import doctest
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from hardcase.registry import rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MADE = {"contributing.md", "results.md", "changelog.md", "roadmap.md"}
MADE |= {"security.md", "conduct.md", "releasing.md", "reference"}
"""What the site has and the repository has elsewhere, or not before it is built."""


@pytest.fixture(autouse=True)
def _programs_of_the_pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    wrong = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not [link for link in wrong if not MADE & set(Path(link).parts)]


def test_every_promise_names_a_test_that_exists():
    """A row is a promise; it links files of tests, and names between backquotes are tests in those files."""
    path = ROOT / "docs/research/promises.md"
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| promise", "|---"))]
    assert len(promises) >= 15
    before = ""
    for row in promises:
        shown = row.rpartition(" | ")[2]
        files = re.findall(r"\]\(([^)]*tests/[^)]*)\)", shown)
        files = files or (before if "the same" in row else [])
        assert files, f"no test is named: {row}"
        before = files
        linked = [path.parent / file for file in files if file.endswith(".py")]
        text = "".join(file.read_text(encoding="utf-8") for file in linked)
        named = re.findall(r"`(test_\w+)`", shown)
        assert not [name for name in named if f"def {name}(" not in text]


def test_pages_say_what_the_stored_results_say():
    """`make results` would change no page and no raw table; every stored result has its schema."""
    from make_results import left_over, pages, raw_tables, rendered, stored

    for path in RESULTS.glob("*.json"):
        assert stored(path)["rows"]
    assert len(pages(ROOT)) >= 11
    assert ROOT / "docs/research/scale.md" in pages(ROOT)
    for page, home in pages(ROOT).items():
        text = page.read_text(encoding="utf-8")
        assert rendered(text, RESULTS, home) == text, f"{page.name}: make results"
    for table, text in raw_tables(ROOT).items():
        assert table.read_text(encoding="utf-8") == text, f"{table.name}: make results"
    assert not left_over(ROOT)


def test_results_are_short_enough_to_be_read():
    """One page of at most 1,000 words for each document."""
    pages = (ROOT / "docs/results").glob("*.md")
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert not {name: count for name, count in words.items() if count > 1000}


def test_speeds_stand_beside_what_was_asked_for(tmp_path):
    """What is missed is bold; a result without a row of that name, or none at all, does no harm."""
    from make_results import NOT_RUN, rendered

    page = "<!-- goals: x y -->\n<!-- end -->\n<!-- goals: x | a / c -->\n<!-- end -->\n"
    row = {"name": "a", "value": 0.5, "unit": "of bare networks (1 of 2/s)", "against": "goal at least 0.8"}  # fmt: skip
    rows = [row, {**row, "name": "b", "value": 1234.5}, {**row, "name": "c", "against": "nothing"}]
    record = {"name": "x", "commit": "abcdef0123", "rows": rows, "columns": list(row)}
    rest = dict.fromkeys(("command", "seeds", "data", "device", "versions", "notes", "checksum"), "")  # fmt: skip
    (tmp_path / "x.json").write_text(json.dumps({**record, **rest}))
    every, chosen = rendered(page, tmp_path).split("<!-- goals: x | a / c -->")
    assert "| a | **0.5** of bare networks | ≥ 0.8 |" in every
    assert "| b | 1,234 of bare networks | ≥ 0.8 |" in every
    assert "| c |" not in every
    assert f"y ({NOT_RUN})" in every
    assert "| c | 0.5 of bare networks | – |" in chosen
    assert "†" not in every
    rows = [{**each, "commit": commit} for each, commit in zip(rows, ("abcdef0123", "old", "old"))]
    record = {**record, "rows": rows, "columns": list(rows[0])}
    (tmp_path / "x.json").write_text(json.dumps({**record, **rest}))
    assert "| a | **" in rendered(page, tmp_path)
    assert "| b † | 1,234" in rendered(page, tmp_path)


def test_every_measured_number_on_a_page_is_a_stored_one():
    """A decimal, a percentage or a count of a whole is in a stored file that the page links."""
    from make_results import pages, unbacked

    wrong = {page.name: unbacked(page.read_text("utf-8"), RESULTS) for page in pages(ROOT)}
    assert not {name: found for name, found in wrong.items() if found}
    for linked in ("results/sinvad-rq4.json", "results/tables/sinvad-rq4.md"):
        assert unbacked(f"it rose by 12.345 [x](../../{linked})", RESULTS) == ["12.345"]


def test_stored_results_are_whole_and_written_by_a_program():
    """Command, commit, images and device; a commit of this history; the checksum of its writer."""
    from hardcase_studies.stored import faults

    records = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.json")}
    wrong = {name: faults(json.loads(text)) for name, text in records.items()}
    assert not {name: found for name, found in wrong.items() if found}
    assert records


def test_what_is_not_stored_is_said_to_be_not_run(tmp_path):
    from make_results import NOT_RUN, rendered

    page = "<!-- figure: sinvad-gap -->\n<!-- end -->\n<!-- table: x | T | a -->\n<!-- end -->\n"
    assert rendered(page, tmp_path).count(NOT_RUN) == 2
    record = {"name": "x", "commit": "abcdef0123", "rows": [], "columns": ["table", "row", "column", "value"]}  # fmt: skip
    record["rows"] = [{"table": "T 1", "row": "one", "column": "a", "value": "3 of 4"}]
    rest = ("command", "seeds", "data", "device", "versions", "notes", "checksum")
    (tmp_path / "x.json").write_text(json.dumps({**record, **dict.fromkeys(rest, "")}))
    assert "| one | 3 of 4 |" in rendered(page, tmp_path)


def test_every_figure_is_drawn_and_used_and_pictures_are_small():
    from make_results import FIGURES, pages

    drawn = {path.stem: path for path in (ROOT / "docs/pictures/results").iterdir()}
    stored = {path.stem for path in RESULTS.glob("*.json")}
    assert set(drawn) == {name for name, row in FIGURES.items() if set(row[2]) <= stored}
    assert all(path.stat().st_size <= 60_000 for path in drawn.values())
    text = "".join(page.read_text(encoding="utf-8") for page in pages(ROOT))
    assert all(f"figure: {name} " in text for name in FIGURES)
    large = [path.name for path in (ROOT / "docs").rglob("*.png") if path.stat().st_size > 200_000]
    assert not large


def test_a_result_that_lacks_something_is_refused(tmp_path):
    from make_results import stored

    (tmp_path / "odd.json").write_text('{"name": "odd", "columns": ["a"], "rows": [{"b": 1}]}')
    with pytest.raises(SystemExit, match="command"):
        stored(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("page", "least"), [("guides/extend.md", 6), ("concepts/conditions.md", 10)]
)
def test_examples_with_prompts_run_as_they_stand(page, least):
    done = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert done.attempted >= least
    assert not done.failed


def test_the_references_of_keys_and_names_are_up_to_date():
    import make_tables

    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    assert page == make_tables.configuration()
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    names = [
        set(re.findall(r"^\| `(\w+)` \|", text, re.M)) for text in (page, make_tables.python())
    ]
    assert names[0] == names[1], "make docs"
    sys.modules.pop("make_tables")


def test_every_method_says_when_to_take_it_and_what_it_is_weak_at():
    notes = tomllib.loads((ROOT / "docs/method_notes.toml").read_text(encoding="utf-8"))
    names = {row["name"] for row in rows("methods") if "@" not in row["name"]}
    assert set(notes) == names
    for note in notes.values():
        assert {"when", "weak", "page"} <= set(note) <= {"when", "weak", "page", "differs"}
        assert (ROOT / "docs" / note["page"]).is_file()


def test_the_site_has_every_row_of_the_registry():
    import make_tables

    text = make_tables.catalogue()
    assert all(f"| `{row['name']}` |" in text for kind in ("methods", "data") for row in rows(kind))
    sys.modules.pop("make_tables")


def test_links_of_the_repository_become_those_of_the_site():
    from make_site import relinked

    assert relinked("[r](../RESULTS.md#a)", "docs/x.md") == "[r](results.md#a)"
    assert relinked("[r](../../RESULTS.md)", "docs/guides/x.md") == "[r](../results.md)"
    assert relinked("[d](docs/guides/data.md)", "CONTRIBUTING.md") == "[d](guides/data.md)"
    assert relinked("[t](../tests/fuzz)", "docs/x.md") == "t"
    assert relinked("[t](../../results/tables/a.md)", "docs/results/x.md") == "[t](../tables/a.md)"
    assert relinked("[t](../a.json)", "results/tables/a.md") == "t"
    assert relinked("[w](https://a.b)", "docs/x.md") == "[w](https://a.b)"
    assert relinked("```\n[r](../RESULTS.md)\n```", "docs/x.md") == "```\n[r](../RESULTS.md)\n```"
