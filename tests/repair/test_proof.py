"""The proof: paired figures, elsewhere looked at, and four verdicts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.models.subject import Subject
from hardcase.repair.attack import AttackSize
from hardcase.repair.proof import (
    Proof,
    ProofRow,
    ProofSize,
    ProofValues,
    compare_values,
    measure_values,
    prove,
    untrained,
)
from tiny import bars, trained_bars

TINY = ProofSize(
    seeds=60,
    draws=4,
    alone=1,
    attack=AttackSize(seeds=12, restarts=2, gradients=3, queries=4, draws=4),
)


def row(group, name, low, high, *, decides=False, margin=0.01):
    return ProofRow(group, name, 0.1, 0.1 + (low + high) / 2, low, high, 500, margin, decides)


def proof(*rows, added=0.0):
    named = {one.name for one in rows}
    usual = [
        row("declared", "error", -0.002, 0.004, decides=True),
        row("declared", "risk", -0.05, -0.03, decides=True),
        row("elsewhere", "what was not trained on", -0.01, 0.005, decides=True),
    ]
    kept = [one for one in usual if one.name not in named]
    return Proof((*kept, *rows), {"before": 0.0, "after": added}, {}, 500)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (proof(), "repaired"),
        (proof(row("declared", "error", 0.02, 0.04, decides=True)), "worse"),
        (proof(row("declared", "worst case", 0.02, 0.04)), "worse"),
        (proof(row("elsewhere", "fog", 0.02, 0.04)), "moved elsewhere"),
        (proof(row("outside", "optdigits", 0.011, 0.03, decides=True)), "moved elsewhere"),
        (proof(row("class", "7: risk", 0.02, 0.2)), "moved elsewhere"),
        (proof(row("declared", "error", -0.01, 0.02, decides=True)), "cannot tell"),
        (proof(row("outside", "optdigits", -0.01, 0.03, decides=True)), "cannot tell"),
        (proof(row("elsewhere", "fog", -0.1, 0.1)), "repaired"),
        (proof(row("declared", "risk", -0.05, 0.001, decides=True)), "cannot tell"),
        (proof(added=0.02), "cannot tell"),
    ],
)
def test_the_verdict_follows_from_the_rows(found, verdict):
    assert found.verdict == verdict
    assert bool(found.reasons) == (verdict != "repaired")
    assert found.to_json()["verdict"] == verdict


def values(clean, risk, **more):
    count = len(clean)
    blank = {"conditions": {}, "elsewhere": {}, "corruptions": {}, "outside": {}, **more}
    return ProofValues(np.arange(count) % 2, np.array(clean, float), np.array(risk), **blank)


def test_differences_are_paired_and_oriented():
    rng = np.random.default_rng(0)
    clean = (rng.random(800) < 0.05).astype(float)
    risk = np.clip(clean + 0.2 * rng.random(800), 0, 1)
    after = np.clip(risk - 0.1, 0, 1)
    more = {"elsewhere": {"fog": risk}, "outside": {"others": clean}}
    worse = {"elsewhere": {"fog": np.clip(risk + 0.1, 0, 1)}, "outside": {"others": clean}}
    rows = compare_values(
        values(clean, risk, **more), values(clean, after, **worse), ("a", "b"), 0.01
    )
    named = {one.name: one for one in rows}
    assert named["risk"].outcome == "better"
    assert named["risk"].after - named["risk"].before == pytest.approx((after - risk).mean())
    assert named["error"].outcome == "not worse"
    assert named["fog"].outcome == "worse"
    assert named["what was not trained on"].outcome == "worse"
    assert named["a: risk"].outcome == "better"
    assert named["others"].group == "outside"
    assert not named["fog"].decides
    assert named["fog"].high - named["fog"].low > named["risk"].high - named["risk"].low, (
        "intervals of many figures hold together"
    )


def test_conditions_that_were_not_declared_are_looked_at():
    declared = hc.Conditions({"rotation": "±8 deg", "noise": "0..10 levels"})
    found = untrained(declared, (1, 28, 28))
    assert {"fog", "defocus", "exposure", "shear"} <= set(found)
    assert not {"rotation", "noise", "temperature"} & set(found)
    assert "temperature" in untrained(declared, (3, 28, 28))


def test_a_network_is_not_better_than_itself_and_what_broke_is_told():
    subject = trained_bars()
    images = bars(60, seed=5, split="test")
    box = condition_box(hc.Conditions({"shift": "±12 %"}), images.shape)
    same = prove(subject, subject, images, box, TINY, margin=0.01, seed=0)
    assert same.verdict == "cannot tell"
    searched = ("1 - least scale",)  # by other searches of the same network
    assert all(one.before == one.after for one in same.rows if one.name not in searched)
    broken = Subject(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3)), classes=images.classes
    )
    found = prove(subject, broken, images, box, TINY, margin=0.01, seed=0)
    assert found.verdict == "worse"
    assert "error (declared) is worse" in found.reasons[0]


def test_values_depend_on_no_batch_and_no_order():
    subject = trained_bars()
    images = bars(24, seed=5, split="test")
    box = condition_box(hc.Conditions({"shift": "±12 %"}), images.shape)
    outside = {"others": bars(9, seed=6)}
    both = measure_values(subject, images, box, TINY, seed=0, outside=outside)
    turned = measure_values(subject, images.take(torch.arange(24).flip(0)), box, TINY, seed=0)
    assert np.array_equal(both.risk, turned.risk[::-1])
    assert np.array_equal(both.corruptions["blur"], turned.corruptions["blur"][::-1])
    assert set(both.corruptions) == {"noise", "blur", "weather", "digital"}
    assert len(both.outside["others"]) == 9
    assert replace(TINY, draws=8).draws == 8
