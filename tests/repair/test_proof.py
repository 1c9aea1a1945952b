"""The proof: paired figures, elsewhere looked at, and four verdicts."""

import numpy as np
import pytest
import torch

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.models.subject import Subject
from hardcase.repair import proof as proofs
from hardcase.repair.proof import AttackSize, ProofRow, ProofSize, attack_all, untrained
from tiny import bars, trained_bars

TINY = ProofSize(seeds=60, draws=4, alone=1)


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
    return proofs.Proof((*kept, *rows), {"before": 0.0, "after": added}, {}, 500)


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
    return proofs.ProofValues(np.arange(len(clean)) % 2, clean, risk, **more)


def test_differences_are_paired_and_oriented():
    rng = np.random.default_rng(0)
    clean = (rng.random(800) < 0.05).astype(float)
    risk = np.clip(clean + 0.2 * rng.random(800), 0, 1)
    after = np.clip(risk - 0.1, 0, 1)
    more = {"elsewhere": {"fog": risk}, "outside": {"others": clean}}
    worse = {"elsewhere": {"fog": np.clip(risk + 0.1, 0, 1)}, "outside": {"others": clean}}
    both = (values(clean, risk, **more), values(clean, after, **worse))
    named = {one.name: one for one in proofs.compare_values(*both, ("a", "b"), 0.01)}
    assert named["risk"].outcome == "better"
    assert named["risk"].after - named["risk"].before == pytest.approx((after - risk).mean())
    assert named["error"].outcome == "not worse"
    assert named["fog"].outcome == "worse"
    assert named["what was not trained on"].outcome == "worse"
    assert named["a: risk"].outcome == "better"
    assert named["others"].group == "outside"
    assert not named["fog"].decides
    wide, narrow = (named[name].high - named[name].low for name in ("fog", "risk"))
    assert wide > narrow, "intervals of many figures hold together"


def test_conditions_that_were_not_declared_are_looked_at():
    declared = hc.Conditions({"rotation": "±8 deg", "noise": "0..10 levels"})
    found = untrained(declared, (1, 28, 28))
    assert {"fog", "defocus", "exposure", "shear"} <= set(found)
    assert not {"rotation", "noise", "temperature"} & set(found)
    assert "temperature" in untrained(declared, (3, 28, 28))


def test_values_depend_on_no_batch_and_no_order():
    subject = trained_bars()
    images = bars(24, seed=5, split="test")
    box = condition_box(hc.Conditions({"shift": "±12 %"}), images.shape)
    outside = {"others": bars(9, seed=6)}
    both = proofs.measure_values(subject, images, box, TINY, seed=0, outside=outside)
    images = images.take(torch.arange(24).flip(0))
    turned = proofs.measure_values(subject, images, box, TINY, seed=0)
    assert np.array_equal(both.risk, turned.risk[::-1])
    assert np.array_equal(both.corruptions["blur"], turned.corruptions["blur"][::-1])
    assert set(both.corruptions) == {"noise", "blur", "weather", "digital"}
    assert len(both.outside["others"]) == 9


# The attack: several searches joined, the same for all networks.

SMALL = AttackSize(restarts=2, gradients=6, queries=12, draws=8)
IMAGES = bars(20, seed=5, split="test")
BOX = condition_box(hc.Conditions({"shift": "±20 %", "exposure": "±2 stops"}), (1, 12, 12))


def constant():
    """A network that fails nowhere on class 0 and everywhere else."""

    class First(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[1.0, 0.0, 0.0]]) + 0 * x.mean((1, 2, 3))[:, None]

    return Subject(First(), classes=IMAGES.classes)


def test_what_must_fail_fails_and_what_cannot_does_not():
    found = attack_all({"one": constant()}, IMAGES, BOX, SMALL, seed=0)["one"]
    assert torch.equal(found.failing, IMAGES.y != 0)
    assert bool((found.least[IMAGES.y != 0] == 0).all()), "misread as they are"
    assert found.added == 0


def test_networks_are_attacked_with_what_breaks_the_others():
    """A network whose gradients say nothing fails where the other one does."""
    open_ = trained_bars()

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = open_.net

        def forward(self, x):
            return (self.net(x) * 8).round() / 8  # no gradient anywhere

    masked = Subject(Masked(), classes=IMAGES.classes)
    few = AttackSize(restarts=2, gradients=6, queries=0, draws=1)
    alone = attack_all({"masked": masked}, IMAGES, BOX, few, seed=0)["masked"]
    both = attack_all({"open": open_, "masked": masked}, IMAGES, BOX, few, seed=0)
    assert int(alone.failing.sum()) < int(both["open"].failing.sum())
    missed = both["open"].failing & ~both["masked"].failing
    assert int(missed.sum()) <= 1, "but for a tie"


def test_the_second_half_is_counted():
    least = torch.tensor([0.5, 0.9, torch.inf, 0.2])
    found = proofs.AttackResult(least, torch.tensor([True, False, False, True]))
    assert found.added == 0.25
