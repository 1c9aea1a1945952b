"""Licences of dependencies: read from their metadata, complete, permissive."""

import json
from email.message import Message
from importlib.metadata import requires

import pytest

from hardcase.cli.licences import installed, licence_of
from hardcase.cli.main import main
from hardcase.errors import Problem

PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "PSF", "Python Software", "HPND", "MPL", "Mozilla", "Zlib", "0BSD", "CC0", "Unlicense", "MIT-CMU", "CNRI")  # fmt: skip


def facts(**fields):
    message = Message()
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (facts(License_Expression="MIT", License="BSD"), "MIT"),
        (facts(Classifier=["License :: OSI Approved :: BSD License"]), "BSD License"),
        (facts(License="Apache 2.0\n\nlong text"), "Apache 2.0"),
        (facts(Name="x"), "not stated"),
    ],
)
def test_where_a_licence_is_read(given, said):
    assert licence_of(given) == said


def test_every_installed_dependency_is_listed_once(capsys):
    assert main(["licences", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = [row["name"].lower() for row in rows]
    assert names[0] == "hardcase"
    assert len(names) == len(set(names))
    assert {"torch", "numpy", "typer", "sympy"} <= set(names), "those of dependencies too"
    direct = [text for text in requires("hardcase") if "extra" not in text]
    assert len([row for row in rows if row["for"] == "hardcase"]) >= len(direct)


def test_they_are_permissive():
    strange = [
        row for row in installed("hardcase") if not any(word in row["licence"] for word in PERMISSIVE)
    ]  # fmt: skip
    assert [row["name"] for row in strange if row["licence"] != "not stated"] == []


def test_what_is_not_installed_is_told():
    with pytest.raises(Problem, match="is not installed"):
        list(installed("no-such-package-anywhere"))
