"""``hardcase conditions fit`` as it is typed."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import hardcase as hc
from hardcase.cli.main import main
from hardcase.runs.results import Run

FIT = ["conditions", "fit", "--data", "mnist5k", "--coordinates", "noise,fading"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def field(noise):
    """Sixty unlabelled digits, with grain."""
    folder = Path("field")
    folder.mkdir()
    chance = torch.Generator().manual_seed(2)
    images = hc.data.load("mnist5k", split="train").sample(count=60, seed=4)
    grain = noise * torch.randn(images.x.shape, generator=chance)
    for i, x in enumerate((images.x + grain).clamp(0, 255).byte()):
        Image.fromarray(x[0].numpy()).save(folder / f"{i}.png")


def test_a_field_is_fitted_and_measured(capsys):
    field(noise=25)
    assert main([*FIT, "--field", "folder:field", "--out", "field.toml", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["condition"] for one in told["conditions"]] == ["noise"]
    Path("net.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))\n"
    )
    asked = "run --model net.py:make --data mnist5k --conditions field.toml --method none"
    more = "--measure 40 --allow-low-accuracy --progress none -q --out run"
    assert main([*asked.split(), *more.split()]) == 0
    assert "noise" in Run("run").record["conditions"]
    page = hc.report(Run("run")).read_text()
    assert "The field whose conditions these are" in page
    assert page.count('class="sheet"') == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["conditions", "fit", "--data", "mnist5k"], "no field"),
        ([*FIT, "--field", "folder:nowhere"], "not a folder"),
        ([*FIT, "--field", "folder:.", "--coordinates", "nonsense"], "no images"),
        ([*FIT, "--field", "folder:.", "--out", "there.toml"], "stays as it is"),
        (
            [*FIT[:2], "--data", "canvas5k", "--field", "folder:.", "--model", "net.py:make"],
            "makes claims",
        ),
    ],
)
def test_mistakes_are_named(words, why, capsys):
    Path("there.toml").write_text("")
    assert main(words) == 2
    assert why in capsys.readouterr().err
