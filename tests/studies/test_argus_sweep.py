"""The sweep over adversarial weights: its grid, its distance, what it marks, and that a collapse is a row."""

import math

import pytest

from hardcase import generators
from hardcase.errors import Problem
from hardcase.spaces.latent import Grid
from hardcase.testing.toys import ToyQuantiser, toy_images, toy_subject
from hardcase_studies import argus_sweep
from hardcase_studies.argus_paper import ABLATION, PAPER
from hardcase_studies.argus_sweep import COLUMNS, Setting, grid, tables
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab, LatentModel
from tiny import bars, weights

NET, SUBJECT, TEST = ToyQuantiser(), toy_subject(), toy_images(24, seed=3)
CARD = {
    "configuration": {"family": "vqvae", "kind": "toy"},
    "ssim": 0.9, "mse": 0.0, "reconstruction_accuracy": 1.0, "judge_accuracy": 1.0,
}  # fmt: skip


def toy_labs(bench, names, most):
    return {"lenet5": Lab(bench, splits=(TEST, TEST), subject=SUBJECT)}


def test_published_numbers_are_those_of_the_tables():
    assert len(PAPER) == 6 * 7
    assert PAPER["lenet5", "ARGUS 0.3"] == (0.0066, 0.8768, 8.6, 43.75, 100)
    assert PAPER["resnet18", "dlfuzz@adapt"].er == 39.13
    assert ABLATION["no VQ"].cells() == ["0.0243", "0.6594", "6.0", "32.28 %", "100 %"]


def test_the_distance_is_zero_at_the_papers_numbers_and_grows_with_each():
    paper = PAPER["lenet5", "ARGUS 0.2"]
    same = {"er": 0.3134, "ld": 5.1, "sr": 1.0, "ssim": 0.9094}
    assert Setting(mix=0.2, losses=None, **same).distance(paper, 9) == pytest.approx(0)
    for name, gap in (("er", 0.1), ("ld", 0.9), ("sr", 0.1), ("ssim", 0.1)):
        moved = Setting(mix=0.2, losses=None, **{**same, name: same[name] - gap})
        assert moved.distance(paper, 9) == pytest.approx(0.05)
    assert math.isnan(Setting(mix=0.2, losses=None, problem="collapsed").distance(paper, 9))


def test_the_nearest_of_each_mix_and_the_nearest_weights_over_all_are_marked():
    good, bad = (
        {"er": 0.3, "ld": 5.0, "sr": 1.0, "ssim": 0.9},
        {"er": 0.0, "ld": 0.0, "sr": 0.0, "ssim": 0.9},
    )
    done = [
        Setting(mix=0.1, losses=None, **bad), Setting(mix=0.2, losses=None, **bad),
        Setting(mix=0.1, losses=("sum", 0.1, 1.0), **good), Setting(mix=0.2, losses=("sum", 0.1, 1.0), **good),
        Setting(mix=0.1, losses=("sum", 1.0, 1.0), problem="the VQ-VAE has collapsed"),
    ]  # fmt: skip
    every, pairs, paper = tables("lenet5", done, 9, ["a note"])
    assert [row[-1] for row in every.rows] == ["", "", "*", "*", "the VQ-VAE has collapsed"]
    assert all(len(row) == len(COLUMNS) for row in every.rows)
    assert [row[:2] for row in pairs.rows] == [["sum", "0.1"], ["none", "none"]]
    assert [row[-1] for row in pairs.rows] == ["*", ""]
    assert len(paper.rows) == 2
    unknown = tables("alexnet", done, 9, [])
    assert unknown[1].rows == unknown[2].rows == []
    assert all(row[-1] != "*" for row in unknown[0].rows)


def test_every_pair_of_weights_is_tried_at_every_mix_and_rows_are_kept_as_they_come(
    tmp_path, monkeypatch
):
    own = LatentModel(NET, Grid(NET), CARD, toy_images(40, seed=2))
    asked, on_disk = [], []

    def quantised(here, **options):
        on_disk.append((tmp_path / "results.md").exists())
        asked.append(
            (
                options.get("mix"),
                options.get("latent_weight"),
                options.get("image_weight"),
                options["kind"],
            )
        )
        if options.get("latent_weight") == 1.0:
            raise Problem("the VQ-VAE has collapsed: 1 of 256 codes in use")
        return own

    monkeypatch.setattr(argus_sweep, "labs", toy_labs)
    monkeypatch.setattr(argus_sweep, "quantised", quantised)
    options = {
        "mixes": [0.6, 0.7],
        "latent_weights": [0.1, 1.0],
        "image_weights": [0.2],
        "reductions": ["mean"],
        "originals": 4,
    }
    bench = Bench(out=tmp_path, repeats=1, options=options)
    assert grid(bench) == [None, ("mean", 0.1, 0.2), ("mean", 1.0, 0.2)]
    outcome = argus_sweep.run(bench)
    assert asked == [
        (None, None, None, "gradient"), (None, None, None, "gradient"),
        (0.6, 0.1, 0.2, "gradient"), (0.7, 0.1, 0.2, "gradient"), (0.6, 1.0, 0.2, "gradient"), (0.7, 1.0, 0.2, "gradient"),
    ]  # fmt: skip
    assert on_disk == [False, *[True] * 5]
    rows = outcome.tables[0].rows
    assert [row[0] for row in rows] == [0.6, 0.7] * 3
    assert rows[0][4:7] == ["0.9000", "100.00 %", "0.00 %"]
    assert "collapsed" in rows[-1][-1]


def test_a_start_that_fails_ends_the_sweep(tmp_path, monkeypatch):
    def quantised(*given, **options):
        raise Problem("cannot write")

    monkeypatch.setattr(argus_sweep, "labs", toy_labs)
    monkeypatch.setattr(argus_sweep, "quantised", quantised)
    with pytest.raises(Problem, match="cannot write"):
        argus_sweep.run(Bench(out=tmp_path, repeats=1, options={"originals": 4}))


def test_joint_training_goes_on_from_one_shared_start(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    train, test, told = bars(96), bars(30, seed=1, split="test"), []

    def trained(**options):
        return generators.trained_generator(
            "vqvae", train, test, latent=8, epochs=12, batch=16, progress=told.append, **options
        )

    joint, card = trained(mix=0.3, joint_epochs=2)
    first = len(told)
    assert card["steps"] == 12
    assert card["configuration"]["joint_epochs"] == 2
    assert card["configuration"]["recipe"]["batch"] == 16
    plain, alone = trained()
    assert len(told) == first, "the start was kept"
    assert "joint_epochs" not in alone["configuration"]
    assert weights(joint) != weights(plain)
    other, _ = trained(mix=0.3, joint_epochs=2, latent_weight=0.5)
    assert len(told) - first < first / 2, "another weight does not train the start again"
    assert weights(other) != weights(joint)
