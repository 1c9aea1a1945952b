"""Curves of a model and an image set."""

import sys
from pathlib import Path

import pytest
import torch

from hardcase.analysis.curves import severity_curves
from hardcase.analysis.slices import Rules, slices_of_run
from hardcase.conditions import Conditions, condition_box, measure_worst
from hardcase.errors import Problem
from hardcase.randomness import keys_of
from tiny import bars, columns_subject as subject

sys.path.insert(0, str(Path(__file__).parent / "suite"))
from aftermath import verdict, write_run


def test_curves_of_a_model_that_noise_confuses():
    found = severity_curves(subject(), bars(60), ("gaussian_noise", "contrast", "speckle_noise"))
    assert found["usable"] == 60
    assert [row["corruption"] for row in found["corruptions"]] == [
        "gaussian_noise",
        "contrast",
        "speckle_noise",
    ]
    noise, contrast, _ = found["corruptions"]
    assert len(noise["curve"]) == 16
    assert len(noise["error"]) == 5
    assert noise["crossing"]["queries"] == 8
    assert contrast["curve"][-1]["failing"] == 0, "the order of brightness stays"
    assert found["corruption_error"]["corruptions"] == ["gaussian_noise", "contrast"], (
        "speckle is one of the extra four"
    )
    seen = []
    severity_curves(subject(), bars(6), ("contrast",), progress=lambda *done: seen.append(done))
    assert seen == [(1, 1)]
    with pytest.raises(Problem, match="contrast"):
        severity_curves(subject(), bars(6), ("contrasts",))


def test_noise_stays_with_an_image_whatever_stands_beside_it():
    images = bars(30)
    whole = severity_curves(subject(), images, ("gaussian_noise",))["corruptions"][0]
    half = severity_curves(
        subject(), images.take(torch.arange(29, -1, -1)), ("gaussian_noise",), batch=7
    )
    assert half["corruptions"][0]["curve"] == whole["curve"]
    assert len(set(keys_of(images.id).tolist())) == 30
    assert bool((keys_of(images.id) >= 0).all())


def test_nothing_right_is_told():
    images = bars(6)
    wrong = images.__class__(images.x, (images.y + 1) % 3, images.id, images.classes)
    with pytest.raises(Problem, match="none of the 6"):
        severity_curves(subject(), wrong, ("contrast",))


def test_slices_of_a_run_are_of_its_attempted_seeds(tmp_path):
    """Dark seeds fail, and the judge confirms half of their tests."""
    levels = [1 + i % 120 for i in range(600)] + [200] * 9
    found = {i: [140] for i in range(600) if levels[i] < 40}
    verdicts = [verdict(kept=i % 2 == 0) for i in range(len(found))]
    run = write_run(tmp_path / "run", levels=levels, found=found, verdicts=verdicts)
    rules = Rules(support=5)
    slices = slices_of_run(run, rules=rules)
    assert slices[0].tags == ("dark",)
    assert slices[0].accepted
    seen = slices[0].estimated
    assert seen.total + seen.total_outside <= 40, (
        "equal images are one group, wrong seeds are not attempted"
    )
    confirmed = slices_of_run(run, outcome="confirmed", rules=rules)[0]
    assert confirmed.estimated.inside < seen.inside


def test_conditions_are_drawn_over_their_scale_alone_and_together():
    declared = Conditions({"exposure": "±3 stops", "rotation": "±90 deg"})
    images = bars(24)
    worst = measure_worst(subject(), images, condition_box(declared, images.shape), queries=0)
    found = severity_curves(subject(), images, (), worst=worst)
    rows = {row["condition"]: row for row in found["conditions"]}
    assert list(rows) == ["all conditions together", "rotation", "exposure"]
    together, turned = rows["all conditions together"]["curve"], rows["rotation"]["curve"]
    assert [point["share"] for point in turned] == sorted(point["share"] for point in turned)
    assert together[-1]["share"] >= turned[-1]["share"] > 0, "a bar on its side is another"
    with pytest.raises(Problem, match="no condition"):
        severity_curves(subject(), images, ())
