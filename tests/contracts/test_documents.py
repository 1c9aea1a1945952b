"""What the pages point to is there."""

import doctest
import json
import re
import tomllib
from pathlib import Path

import pytest

from hardcase.registry import rows

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / name for name in ("ROADMAP.md", "RELEASING.md", "RESULTS.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MADE = {
    "contributing.md",
    "results.md",
    "changelog.md",
    "roadmap.md",
    "security.md",
    "conduct.md",
    "releasing.md",
    "reference",
}
"""What the site has and the repository has elsewhere, or not before it is built."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    wrong = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not [link for link in wrong if not MADE & set(Path(link).parts)]


def test_every_promise_names_a_test_that_exists():
    """A row is a promise; it links files of tests, and names between backquotes are tests in those files."""
    path = ROOT / "docs/promises.md"
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| promise", "|---"))]
    assert len(promises) >= 15
    before = ""
    for row in promises:
        shown = row.rpartition(" | ")[2]
        files = re.findall(r"\]\(([^)]*tests/[^)]*)\)", shown) or (
            before if "the same" in row else []
        )
        assert files, f"no test is named: {row}"
        before = files
        text = "".join(
            (path.parent / file).read_text(encoding="utf-8")
            for file in files
            if file.endswith(".py")
        )
        missing = [
            name for name in re.findall(r"`(test_\w+)`", shown) if f"def {name}(" not in text
        ]
        assert not missing, missing


def test_the_measured_table_is_written_between_its_marks(tmp_path, monkeypatch):
    """Written twice it is the same; what was measured is in it, what was not is said."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from make_tables import measured

    text = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    (tmp_path / "results.json").write_text(
        '{"rows": [{"name": "ray-2-speedup", "value": 1.75, "unit": "times as fast", "against": "one process"}]}'
    )
    once = measured(text, tmp_path / "results.json")
    assert measured(once, tmp_path / "results.json") == once
    assert "| `ray-2-speedup` | 1.75 times as fast | one process |" in once
    assert "| `workers-2-speedup` | not measured yet" in once
    assert once.partition("## The model")[2] == text.partition("## The model")[2]


def test_pages_say_what_the_stored_results_say(monkeypatch):
    """`make results` would change nothing; every stored result has its schema."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from make_results import pages, rendered, stored

    results = ROOT / "results"
    assert {path.stem for path in results.glob("*.json")} >= {"bench-cpu", "questions"}
    for path in results.glob("*.json"):
        assert stored(path)["rows"]
    for page in pages(ROOT):
        text = page.read_text(encoding="utf-8")
        assert rendered(text, results) == text, f"{page.name}: make results"


def test_every_interval_on_a_page_is_a_stored_one(monkeypatch):
    """A number with its interval is in a file of results/, rounded or not; so are those of the pages kept by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from make_results import BY_HAND, pages, unbacked

    results = ROOT / "results"
    kept = [results / f"{name}.json" for name in BY_HAND]
    wrong = {
        page.name: found
        for page in [*pages(ROOT), *kept]
        if (found := unbacked(page.read_text(encoding="utf-8"), results))
    }
    assert not wrong
    assert unbacked("it rose by 12.3 % [4.5, 67.8]", results)


def test_what_was_put_right_names_what_holds_it():
    """Files of tests and results are there, and named tests are in the files named before them."""
    rows = json.loads((ROOT / "results/corrections.json").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        text = ""
        for name in re.findall(r"`([^`]+)`", row["held by these tests"]):
            if name.startswith("tests/"):
                text = (ROOT / name).read_text(encoding="utf-8")
            else:
                assert f"def {name}(" in text, name
        for name in filter(None, row["stored results"].split(", ")):
            assert (ROOT / name).exists() or (ROOT / f"results/{name}.json").exists(), name


def test_a_result_that_lacks_something_is_refused(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from make_results import stored

    (tmp_path / "odd.json").write_text('{"name": "odd", "columns": ["a"], "rows": [{"b": 1}]}')
    with pytest.raises(SystemExit, match="command"):
        stored(tmp_path / "odd.json")


def test_crossing_ideas_as_the_pages_show_it():
    """The examples with prompts run as they stand, with public names only."""
    done = doctest.testfile(str(ROOT / "docs/howto/extend.md"), module_relative=False)
    assert done.attempted >= 6
    assert not done.failed


def test_pictures_are_small():
    large = [path.name for path in (ROOT / "docs").rglob("*.png") if path.stat().st_size > 200_000]
    assert not large


def test_every_method_says_when_to_take_it_and_what_it_is_weak_at():
    notes = tomllib.loads((ROOT / "docs/method_notes.toml").read_text(encoding="utf-8"))
    names = {row["name"] for row in rows("methods") if "@" not in row["name"]}
    assert set(notes) == names
    for note in notes.values():
        assert {"when", "weak", "page"} == set(note)
        assert (ROOT / "docs" / note["page"]).is_file()


def test_links_of_the_repository_become_those_of_the_site(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from make_site import relinked

    assert relinked("[r](../RESULTS.md#a)", "docs/x.md") == "[r](results.md#a)"
    assert relinked("[r](../../RESULTS.md)", "docs/howto/x.md") == "[r](../results.md)"
    assert relinked("[d](docs/data.md)", "CONTRIBUTING.md") == "[d](data.md)"
    assert relinked("[t](../tests/fuzz)", "docs/x.md") == "t"
    assert relinked("[w](https://a.b)", "docs/x.md") == "[w](https://a.b)"
    assert relinked("```\n[r](../RESULTS.md)\n```", "docs/x.md") == "```\n[r](../RESULTS.md)\n```"
