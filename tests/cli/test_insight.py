"""Curves from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from hardcase.cli.main import main
from hardcase.corruptions import CORRUPTIONS
from hardcase.report import report
from tiny import HALVES


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(HALVES)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 60, (200, 16, 16)).astype(np.uint8)
    y = np.arange(200) % 2
    for i in range(200):
        x[i, :, 8 * y[i] : 8 * y[i] + 8] += np.uint8(i % 60)
    np.savez(tmp_path / "halves.npz", images=x, labels=y)


NAMED = ("--model", "models.py:net", "--data", "npz:halves.npz?split=all")


def test_a_curve_is_told_and_written_and_needs_something_to_draw(capsys):
    asked = "--corruptions gaussian_noise,fog --conditions none --count 6 --out curve.json"
    assert main(["curve", *NAMED, *asked.split()]) == 0
    assert "gaussian_noise" in capsys.readouterr().out
    written = json.loads(Path("curve.json").read_text())
    assert written["images"] == 6
    assert len(written["corruptions"]) == 2
    assert main(["curve", "--corruptions", "fog"]) == 2
    assert "--model" in capsys.readouterr().err


def test_grey_images_have_every_corruption_but_that_of_colours(capsys):
    asked = "--conditions none --count 2 --out all.json"
    assert main(["curve", *NAMED, *asked.split()]) == 0
    names = {row["corruption"] for row in json.loads(Path("all.json").read_text())["corruptions"]}
    assert names == CORRUPTIONS.keys() - {"saturate"}
    assert "curves: fog" in capsys.readouterr().err


def test_curves_of_conditions_stay_with_the_run(capsys):
    import hardcase as hc

    words = "run --model models.py:net --data npz:halves.npz?split=all --method none --images 12 -q"
    Path("own.toml").write_text('exposure = "±3 stops"\nnoise = "0..90 levels"\n')
    assert main([*words.split(), "--conditions", "own.toml", "--out", "declared"]) == 0
    assert main(["curve", "declared", "--corruptions", "none"]) == 0
    capsys.readouterr()
    run = hc.Run("declared")
    assert run.verification.state == "verified"
    assert 0 < run.record["worst_case"]["value"] <= 1
    assert run.record["least_scale"]["seeds"] == 12
    page = report(run).read_text()
    assert "Somewhere in the declared ranges" in page
    assert "How failing grows with severity" in page
