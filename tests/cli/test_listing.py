"""Every table can be listed, as text and as JSON with the agreed keys."""

import json

import pytest

from hardcase.cli.listing import WHERE, rows
from hardcase.cli.main import main


@pytest.mark.parametrize("kind", WHERE)
def test_json_has_the_agreed_keys(kind, capsys):
    assert main(["list", kind, "--format", "json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in table] == [row.name for row in rows(kind)]
    for row in table:
        assert set(row) == {"name", "summary", "needs", "paper", "laws"}
        assert isinstance(row["laws"], list)
        assert row["summary"]


@pytest.mark.parametrize("kind", WHERE)
def test_text_names_every_row(kind, capsys):
    assert main(["list", kind]) == 0
    said = capsys.readouterr().out
    assert all(row.name in said for row in rows(kind))
    assert said.strip()


def test_verbose_confesses_differences(capsys):
    assert main(["list", "methods", "-v"]) == 0
    said = capsys.readouterr().out
    assert "differences" in said
    assert all(row.differences in said for row in rows("methods"))


@pytest.mark.parametrize("kind", ["spaces", "searches"])
def test_rows_name_something_that_exists(kind):
    from importlib import import_module

    for row in rows(kind):
        module, _, name = row.where.partition(":")
        assert hasattr(import_module(f"hardcase.{kind}.{module}"), name)


def test_an_unknown_table_is_a_usage_error(capsys):
    assert main(["list", "methodes"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
