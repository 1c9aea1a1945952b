"""Every table can be listed, as text and as JSON with the agreed keys, one row in full, fast."""

import json

import pytest

from hardcase import registry
from hardcase.cli.inspect import KINDS, RECOMMENDED, rows
from hardcase.cli.main import main
from hardcase.registry import resolve
from tiny import install


@pytest.mark.parametrize("kind", KINDS)
def test_json_has_the_agreed_keys_and_text_names_every_row(kind, capsys):
    assert main(["list", kind, "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in table] == [row["name"] for row in rows(kind)]
    for row in table:
        assert set(row) == {"name", "summary", "needs", "paper", "laws"}
        assert isinstance(row["laws"], list)
        assert row["summary"]
    assert main(["list", kind, "--all"]) == 0
    said = capsys.readouterr().out
    assert all(row["name"] in said for row in rows(kind))


def test_the_usual_methods_come_first_and_each_says_whom_it_is_for(capsys):
    assert main(["list", "methods"]) == 0
    said = capsys.readouterr().out
    first = [line.split()[0] for line in said.splitlines() if line[1:2].islower()]
    assert first == ["method", *RECOMMENDED]
    assert "--all" in said


def test_verbose_confesses_differences(capsys):
    assert main(["list", "methods", "-v"]) == 0
    said = capsys.readouterr().out
    assert "differences" in said
    assert all(row.get("differences", "") in said for row in rows("methods"))


def test_one_row_is_shown_in_full(capsys):
    assert main(["list", "criteria", "kmnc"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("kmnc", "option cuts", "left-open", "ma2018deepgauge"))
    assert "tknc" not in said
    assert main(["list", "criteria", "kmnc", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["options"]["k"] == {"default": 1000, "help": "Sections per unit.", "choices": []}


def test_an_unknown_table_or_row_is_a_usage_error(capsys):
    assert main(["list", "methodes"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert main(["list", "methods", "pdg"]) == 2
    assert "try: pgd" in capsys.readouterr().err


def test_parts_of_others_are_listed_and_used_by_their_names(tmp_path, monkeypatch, capsys):
    source = 'def keen(failures):\n    """Sees nothing."""\n'
    install(tmp_path, monkeypatch, "others", source, "[hardcase.judge]\nkeen = others:keen\n")
    monkeypatch.setitem(registry._parts, "judge", registry.parts("judge"))
    monkeypatch.setattr(registry, "_loaded", registry._loaded - {"judge"})
    for name in ("keen", f"{tmp_path}/others.py:keen"):
        assert main(["list", "judges", name]) == 0
        assert resolve("judge", name).make.__doc__.strip(".") in capsys.readouterr().out
