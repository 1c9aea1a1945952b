"""What a stranger reads first: one value line everywhere, pictures, and what the demo really prints."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import hardcase
from hardcase.cli.main import _HELP

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST, REST = README.split("## More")
VALUE = "hardcase measures how often your image classifier fails under conditions you choose, and shows you the images."


def plain(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        README,
        (ROOT / "docs/index.md").read_text(encoding="utf-8"),
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"],
        (ROOT / "CITATION.cff").read_text(),
        json.loads((ROOT / ".zenodo.json").read_text())["description"],
        hardcase.__doc__,
        _HELP,
    ],
    ids=["README", "index", "pyproject", "CITATION", "zenodo", "package", "help"],
)
def test_one_value_line_everywhere(text):
    assert VALUE in plain(text)


def test_the_first_page_begins_with_failures_and_is_short():
    assert FIRST.startswith("![Six images")
    prose = re.sub(r"```.*?```|\(docs/[^)]*\)|\([^)]*\.md\)|[|*#]", " ", FIRST, flags=re.S)
    assert len(prose.split()) <= 350


def test_the_three_numbers_are_stored_ones():
    """Each number of the first page is in the page of results that it links."""
    rows = re.findall(r"^- \*\*(.+?)\*\*(.*)$", FIRST, re.M)
    assert len(rows) == 3
    for number, text in rows:
        page = ROOT / re.search(r"\((docs/results/[\w-]+\.md)\)", text)[1]
        numbers = re.findall(r"[\d.]+", number + re.sub(r"\(.*?\)|\]", " ", text.split(". [")[0]))
        stored = re.findall(r"\d+(?:\.\d+)?", page.read_text(encoding="utf-8"))
        shown = {value for one in stored for value in {one, f"{float(one):.0f}", f"{float(one):.2f}", f"{100 * float(one):.2f}"}}  # fmt: skip
        missing = [one for one in numbers if one.strip(".") and one.strip(".") not in shown]
        assert not missing, (text, missing)


@pytest.mark.long
def test_the_demo_prints_what_the_first_page_shows(tmp_path, monkeypatch, capsys):
    """Numbers and decisions, line by line; seconds and folders may differ."""
    from hardcase.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--progress", "none"]) == 0
    printed = capsys.readouterr().out
    shown = re.search(r"<!-- demo -->\n+```\n(.*?)```", README, re.S)[1]
    assert plain(shown) == plain(printed)
