"""Effects of conditions: net, unbiased with few questions, shown only where there is one."""

import numpy as np
import pytest
import torch

import hardcase as hc
from conditions.toys import darkness, exposure, grey
from hardcase.conditions import condition_box
from hardcase.conditions.box import samples_of
from hardcase.conditions.effects import (
    Effect,
    EffectTable,
    differences,
    effects,
    effects_of_shard,
    near_margin,
    weights_of_samples,
)
from hardcase.conditions.risk import answered, logits_under_conditions, measure_risk, seeds_of
from hardcase.tensors import margin

SAMPLES = 4


def measured(model, images, box, seed=0):
    """Which samples failed, and their margins."""
    drawn = samples_of(box, images.id, SAMPLES, seed=seed)
    seeds = seeds_of(images, box, torch.device("cpu"))
    of = torch.arange(len(images)).repeat_interleave(SAMPLES)
    logits = logits_under_conditions(
        model, box, seeds, of, drawn.z.flatten(0, 1), drawn.pattern.flatten()
    )
    failed = answered(logits, seeds.y[of]).failed
    return failed.reshape(-1, SAMPLES), margin(logits, seeds.y[of]).reshape(-1, SAMPLES)


def test_the_condition_that_makes_all_failures_has_the_whole_failure_rate_as_its_effect():
    images, box, model = grey(400), exposure(), darkness()
    failed, margins = measured(model, images, box)
    assert torch.equal(failed, measure_risk(model, images, box, samples=SAMPLES).failed)
    table = effects_of_shard(model, images, box, seed=0, failed=failed, margins=margins)
    light, shift = effects([table])
    assert (light.condition, shift.condition) == ("exposure", "shift")
    assert light.value == pytest.approx(float(failed.double().mean()))
    assert light.shown
    assert shift.value == 0
    assert not shift.shown
    assert light.low < light.value < light.high
    assert not effects([])


@pytest.mark.parametrize("labels_alone", [False, True])
def test_any_shards_in_any_order_give_the_same_effects(labels_alone):
    images, box, model = grey(60), exposure(), darkness()
    failed, margins = measured(model, images, box)
    near = near_margin(failed, margins)

    def table(rows):
        own = None if labels_alone else margins[rows]
        how = {"seed": 0, "failed": failed[rows], "margins": own, "near": near, "rows": 7}
        return effects_of_shard(model, images.take(rows), box, **how)

    whole = effects([table(torch.arange(60))])
    parts = effects([table(torch.arange(37, 60)), table(torch.arange(37))])
    assert [one.value for one in whole] == pytest.approx([one.value for one in parts])
    queries = table(torch.arange(60)).queries
    assert int(queries.max()) <= SAMPLES
    assert bool((queries == SAMPLES).all()) == labels_alone


def test_one_condition_alone_is_not_asked_again():
    box = condition_box(hc.Conditions({"exposure": "±1 stops"}), (1, 16, 16))
    none = torch.zeros(5, SAMPLES)
    table = effects_of_shard(darkness(), grey(5), box, seed=0, failed=none.bool(), margins=none)
    assert effects([table]) == []


def drawn(rng, count, law):
    """Failing and margins of samples, and failing with a condition at neutral, by a law."""
    size = (count, SAMPLES)
    level = rng.normal(-6, 2, (count, 1))
    if law == "few carry most":
        level = np.where(rng.random((count, 1)) < 0.01, rng.normal(0, 1, (count, 1)), -9.0)
    first = level + rng.normal(0, 2, size)
    again = level + rng.normal(0, 2, size)
    if law == "costs":
        first = first + np.abs(rng.normal(0, 3, size))
    neutral = again > 0
    if law == "margins mislead":  # what newly fails has nothing to do with the margin
        neutral = rng.random(size) < 0.02
    return torch.from_numpy(first > 0), torch.from_numpy(first), torch.from_numpy(neutral)


def estimated(rng, law, count):
    failed, margins, neutral = drawn(rng, count, law)
    draw = torch.from_numpy(rng.random((count, SAMPLES)))
    weight = weights_of_samples(failed, margins, draw)
    return differences(failed, weight, neutral[weight > 0]), failed, neutral, weight


@pytest.mark.parametrize("law", ["costs", "few carry most", "margins mislead", "no effect"])
def test_the_estimate_is_unbiased_and_asks_little(law):
    rng = np.random.default_rng(5)
    value, failed, neutral, weight = estimated(rng, law, 100_000)
    full = (failed.double() - neutral.double()).mean(1)
    error = (value - full).std() / 100_000**0.5
    assert abs(float((value - full).mean())) < 4 * float(error)
    assert float(value.abs().max()) <= 1, "an image's figure lies where its effect does"
    passing = (~failed).sum(1)
    chosen = (weight > 0) & ~failed & (weight > 1)
    assert bool((chosen.sum(1) <= 1).all())
    assert float((weight * ~failed).sum() / passing.sum()) == pytest.approx(1)
    assert float((weight > 0).double().mean()) < 0.5


@pytest.mark.parametrize("law", ["few carry most", "margins mislead", "no effect"])
@pytest.mark.parametrize(("count", "repeats"), [(60, 150), (1000, 60)])
def test_intervals_cover_together_and_nothing_is_shown_of_nothing(law, count, repeats):
    rng = np.random.default_rng(count)
    names = [f"condition {i}" for i in range(6)]
    million, failed, neutral, _ = estimated(np.random.default_rng(1), law, 500_000)
    truth = float((failed.double() - neutral.double()).mean())
    if law != "margins mislead":
        truth = 0.0
    missed = 0
    for _ in range(repeats):
        found = {name: estimated(rng, law, count)[0] for name in names}
        table = EffectTable(("",) * count, (), found, torch.zeros(count).long())
        missed += any(not one.low <= truth <= one.high for one in effects([table]))
    assert missed <= 0.05 * repeats + 2.6 * (0.05 * 0.95 * repeats) ** 0.5
    assert abs(float(million.mean()) - truth) < 0.003


def test_claims_about_one_image_are_one_unit():
    value = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.0, 0.0] * 20)
    names = tuple(f"c/{i}" for i in range(120))
    alone = EffectTable(names, (), {"a": value, "b": value}, torch.zeros(120).long())
    images = tuple(f"i/{i // 6}" for i in range(120))
    joined = EffectTable(names, images, {"a": value, "b": value}, torch.zeros(120).long())
    assert effects([joined])[0].high - effects([joined])[0].low != pytest.approx(
        effects([alone])[0].high - effects([alone])[0].low
    )


def test_what_is_kept_says_whether_it_is_shown():
    kept = Effect("bend", 0.002, 0.001, 0.004).to_json()
    assert kept == {
        "condition": "bend",
        "value": 0.002,
        "low": 0.001,
        "high": 0.004,
        "shown": True,
    }
    assert not Effect("bend", 0.002, -0.001, 0.004).shown
    assert Effect("bend", -0.002, -0.003, -0.001).shown
