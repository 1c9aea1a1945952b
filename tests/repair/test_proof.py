"""The proof: paired figures, margins that the images can show, and four verdicts."""

import numpy as np
import pytest

from hardcase.repair import proof as proofs
from hardcase.repair.measures import ProofValues
from hardcase.repair.proof import (
    FAILURE_RATE,
    UNMODIFIED,
    UNTRAINED,
    ProofMargin,
    ProofRow,
    shown_margin,
)
from hardcase.statistics import bounded_mean_interval


def row(group, name, low, high, *, decides=False, margin=0.01, before=0.1, needed=None):
    after = before + (low + high) / 2
    return ProofRow(group, name, before, after, low, high, 500, margin, decides, needed=needed)


def rate(low, high, **how):
    """The failure rate, of which a repair takes away a quarter at least: 2.5 points."""
    return row("declared", FAILURE_RATE, low, high, decides=True, **{"margin": 0.025, **how})


def proof(*rows, **how):
    named = {one.name for one in rows}
    usual = [
        rate(-0.05, -0.03),
        row("declared", UNMODIFIED, -0.002, 0.004, decides=True),
        row("elsewhere", UNTRAINED, -0.01, 0.005, decides=True),
    ]
    kept = [one for one in usual if one.name not in named]
    return proofs.Proof((*kept, *rows), 500, **how)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (proof(), "repaired"),
        (proof(rate(-0.05, 0.01, needed=900)), "inconclusive"),
        (proof(rate(-0.02, 0.01)), "not repaired"),
        (proof(rate(0.02, 0.05)), "not repaired"),
        (proof(rate(0.0, 0.001, before=0.0, margin=0.0)), "not repaired"),
        (proof(rate(-0.004, -0.001)), "repaired"),
        (proof(row("declared", UNMODIFIED, 0.02, 0.04, decides=True)), "regressed elsewhere"),
        (proof(row("elsewhere", "fog", 0.02, 0.04)), "regressed elsewhere"),
        (proof(row("outside", "others", 0.011, 0.03, decides=True)), "regressed elsewhere"),
        (proof(row("class", "7: failure rate", 0.02, 0.2)), "regressed elsewhere"),
        (proof(rate(-0.02, 0.01), row("class", "7: error", 0.02, 0.2)), "not repaired"),
        (proof(row("declared", UNMODIFIED, -0.01, 0.02, decides=True)), "inconclusive"),
        (proof(row("outside", "others", -0.01, 0.03, decides=True)), "inconclusive"),
        (proof(row("elsewhere", "fog", -0.1, 0.1)), "repaired"),
        (proof(row("attack", "worst case", 0.3, 0.9), attacked=30), "repaired"),
        (proof(row("stored", "findings of the run", 1.0, 1.0)), "repaired"),
    ],
)
def test_the_verdict_follows_from_the_figures(found, verdict):
    assert found.verdict == verdict
    assert bool(found.reasons) == (verdict != "repaired")
    assert found.to_json()["verdict"] == verdict


def test_what_is_open_says_how_many_images_would_tell():
    one = row("declared", UNMODIFIED, -0.01, 0.02, decides=True, needed=1900)
    found = proof(rate(-0.05, 0.01, needed=900), one)
    assert found.needed.count == 1900
    assert [row.name for row in found.unclear] == [FAILURE_RATE, UNMODIFIED]
    assert proof().needed is None


def test_an_attack_gives_a_bound_and_says_so():
    worst = ProofRow("attack", "worst case", 0.9, 0.6, -0.4, -0.2, 30, 1.0)
    found = proof(worst, attacked=30, added={"before": 0.0, "after": 0.2})
    assert "longer attack" in found.bound
    assert found.verdict == "repaired"
    assert proof().bound == ""


@pytest.mark.parametrize(("share", "count"), [(0.02, 500), (0.15, 500), (0.02, 1000), (0.0, 60)])
def test_a_margin_is_one_that_so_many_images_show_where_nothing_changes(share, count):
    rng = np.random.default_rng(count)
    before = np.repeat([1.0, 0.0], [round(share * count), count - round(share * count)])
    margin = shown_margin(before)
    assert margin >= proofs.LEAST_MARGIN
    flips = (1 - proofs.ALIKE) * share * (1 - share)  # each way, of answers that correlate so
    shown = 0
    for _ in range(200):
        change = rng.choice([1.0, 0.0, -1.0], count, p=[flips, 1 - 2 * flips, flips])
        shown += bounded_mean_interval(change, -1.0, 1.0).high <= margin
    assert shown >= 0.85 * 200
    many = np.repeat([1.0, 0.0], [2_000, 98_000])
    assert shown_margin(many) == proofs.LEAST_MARGIN


def values(clean, risk, **more):
    return ProofValues(np.arange(len(clean)) % 2, clean, risk, **more)


MARGINS = dict.fromkeys((FAILURE_RATE, UNMODIFIED, UNTRAINED, "others"), ProofMargin(0.01, 0.01))


def test_differences_are_paired_and_oriented():
    rng = np.random.default_rng(0)
    clean = (rng.random(800) < 0.05).astype(float)
    risk = np.clip(clean + 0.2 * rng.random(800), 0, 1)
    after = np.clip(risk - 0.1, 0, 1)
    more = {"elsewhere": {"fog": risk}, "outside": {"others": clean}}
    worse = {"elsewhere": {"fog": np.clip(risk + 0.1, 0, 1)}, "outside": {"others": clean}}
    both = (values(clean, risk, **more), values(clean, after, **worse))
    named = {one.name: one for one in proofs.compare_values(*both, ("a", "b"), MARGINS)}
    primary = named[FAILURE_RATE]
    assert primary.outcome == "better"
    assert primary.after - primary.before == pytest.approx((after - risk).mean())
    assert primary.margin == pytest.approx(0.25 * risk.mean())
    assert named[UNMODIFIED].outcome == "not worse"
    assert named["fog"].outcome == "worse"
    assert named[UNTRAINED].outcome == "worse"
    assert named["a: failure rate"].outcome == "better"
    assert named["others"].group == "outside"
    assert not named["fog"].decides
    wide, narrow = (named[name].high - named[name].low for name in ("fog", UNTRAINED))
    assert wide > narrow, "intervals of many figures hold together"


def test_claims_about_one_image_are_one_unit():
    rng = np.random.default_rng(1)
    image = np.repeat(np.arange(60), 5)
    change = np.repeat(rng.random(60) < 0.1, 5).astype(float)
    none = np.zeros(300)
    names = tuple(f"i/{one}" for one in image)
    rows = [
        proofs.compare_values(
            values(none, change, image=units), values(none, none, image=units), ("a", "b"), MARGINS
        )[0]
        for units in ((), names)
    ]
    assert rows[1].high - rows[1].low > 1.5 * (rows[0].high - rows[0].low)


def test_few_images_are_inconclusive_and_say_how_many_would_tell():
    rng = np.random.default_rng(2)
    clean = np.zeros(60)
    risk = (rng.random(60) < 0.3).astype(float)
    after = np.where(rng.random(60) < 0.15, 0.0, risk)
    rows = proofs.compare_values(values(clean, risk), values(clean, after), ("a", "b"), MARGINS)
    found = proofs.Proof(tuple(rows), 60)
    assert found.verdict == "inconclusive"
    assert found.needed.count > 60
    assert "images would tell" in found.reasons[0]
