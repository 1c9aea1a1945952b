"""Every criterion against a naive loop over the same activations."""

import itertools

import naive
import numpy as np
import pytest
import torch

from hardcase.criteria import neuron
from hardcase.criteria.criterion import Measure
from hardcase.criteria.mcdc import Independence, LayerPair
from hardcase.criteria.memory import Bits
from hardcase.criteria.network import Layer, LayerTap, Selection
from hardcase.criteria.neuron import Activated, BoundarySections, Combinations, Strongest
from hardcase.criteria.profile import ActivationBatch, Range
from hardcase.criteria.surprise import Distance, Likelihood, Mahalanobis, Traces
from hardcase.criteria.surprise_coverage import MeanSurprise, SurpriseBuckets
from hardcase.criteria.trace import Dispersion, Novelty, TraceVariance

WIDTHS = (6, 3, 9)


def layers(widths=WIDTHS, mode="channel"):
    return Selection(tuple(Layer(f"l{i}", "linear", (w,), 0) for i, w in enumerate(widths)), mode)


def grid(rows, widths=WIDTHS, seed=0, steps=16, nan=False):
    """Values on a coarse binary grid, so that cut points and ties are met exactly."""
    rng = torch.Generator().manual_seed(seed)
    ends = (-2 * steps, 2 * steps + 1)
    values = [torch.randint(*ends, (rows, w), generator=rng) / steps for w in widths]
    if not nan:
        return values
    return [v.masked_fill(torch.rand(v.shape, generator=rng) < 0.1, torch.nan) for v in values]


def frames(values, cuts=(5, 1, 9), **more):
    rows = len(values[0])
    parts = [0, *(int(c) for c in np.cumsum(cuts) if c < rows), rows]
    for a, b in itertools.pairwise(parts):
        logits = more["logits"][a:b] if "logits" in more else torch.zeros(b - a, 3)
        extra = {k: v[a:b] for k, v in more.items() if k != "logits"}
        yield ActivationBatch({f"l{i}": v[a:b] for i, v in enumerate(values)}, logits, **extra)


def shown(rule, values, **more):
    measure = Measure("it", rule)
    for frame in frames(values, **more):
        measure.observe(frame)
    return measure


def cells(measure):
    memory = measure.memory
    covered = (memory if isinstance(memory, Bits) else memory.bits).covered()
    return {tuple(cell) for cell in covered.nonzero().tolist()}


def flat(found, widths=WIDTHS):
    starts = [0, *np.cumsum(widths)]
    return {(starts[i] + u, 0) for i, u in found}


def ranges(seed=9):
    units = sum(WIDTHS)
    rng = torch.Generator().manual_seed(seed)
    low = torch.randint(-4, 1, (units,), generator=rng) / 2
    high = low + 2 ** torch.randint(-1, 2, (units,), generator=rng).float()
    high[::5] = low[::5]
    return Range(low, high, (low + high) / 2, torch.full((units,), 0.25))


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 1.5])
def test_raw_neuron_coverage(threshold, nan):
    values = grid(20, nan=nan)
    measure = shown(Activated(layers(), threshold), values)
    expected = naive.nc([v.tolist() for v in values], threshold)
    assert cells(measure) == flat(expected)
    assert measure.value() == len(expected) / sum(WIDTHS)


@pytest.mark.parametrize("order", ["mean-scale", "scale-mean"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_neuron_coverage_scaled_within_an_input(order, epsilon):
    rng = torch.Generator().manual_seed(4)
    maps = [torch.randn(20, c, 2, 3, generator=rng) for c in (4, 7)]
    maps[0][3] = 0.5  # a layer that is constant for one input covers nothing
    known = tuple(Layer(f"l{i}", "conv", tuple(m.shape[1:]), 0) for i, m in enumerate(maps))
    selection = Selection(known, "channel", order)
    tapped = [selection.taps[f"l{i}"](m) for i, m in enumerate(maps)]
    measure = shown(Activated(selection, 0.55, epsilon), tapped)
    expected = naive.scaled_nc([m.flatten(2).numpy() for m in maps], 0.55, order, epsilon)
    assert cells(measure) == flat(expected, (4, 7))
    richer = [LayerTap(layer, "whole")(m) for layer, m in zip(known, maps, strict=True)]
    whole = shown(Activated(selection, 0.55, epsilon), richer)
    assert cells(whole) == cells(measure), "a richer tap gives another answer"


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("cuts", ["right-open", "left-open", "closed"])
@pytest.mark.parametrize("top", ["last", "corner"])
@pytest.mark.parametrize("constant", ["skip", "never", "all"])
def test_sections(cuts, top, constant, nan):
    values, known = grid(30, nan=nan), ranges()
    how = (8, cuts, top, constant)
    measure = shown(neuron.Sections(layers(), known, *how), values)
    rows = torch.cat(values, 1).tolist()
    expected, total = naive.sections(rows, known.low.tolist(), known.high.tolist(), *how)
    assert cells(measure) == expected
    assert (measure.result().covered, measure.result().total) == (len(expected), total)


def test_a_value_just_above_the_range_fills_no_section():
    known = Range(torch.tensor([-1e6]), torch.tensor([0.0]), torch.zeros(1), torch.zeros(1))
    rule = neuron.Sections(layers((1,)), known, 4)
    measure = Measure("it", rule)
    measure.observe(ActivationBatch({"l0": torch.tensor([[1e-3]])}, torch.zeros(1, 2)))
    assert measure.value() == 0
    measure.observe(ActivationBatch({"l0": torch.tensor([[0.0]])}, torch.zeros(1, 2)))
    assert cells(measure) == {(0, 3)}


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("equal", ["none", "above", "both"])
def test_corners(equal, nan):
    values, known = grid(12, nan=nan), ranges()
    ends = (known.low.tolist(), known.high.tolist())
    above, below = naive.corners(torch.cat(values, 1).tolist(), *ends, equal)
    n, tallies = sum(WIDTHS), {}
    for c in ("corners", "both", "either"):
        rule = BoundarySections(layers(), known, "both", 0, equal, c)
        tallies[c] = shown(rule, values).result()
    assert tallies["corners"].covered == len(above) + len(below)
    assert tallies["corners"].total == 2 * n
    assert tallies["both"].covered == len(above & below)
    assert tallies["either"].covered == len(above | below)
    assert tallies["both"].total == n
    strong = shown(BoundarySections(layers(), known, "above", 0, equal), values).result()
    assert (strong.covered, strong.total) == (len(above), n)


def test_widened_corners_and_corners_by_layer():
    values, known = grid(12), ranges()
    low, high = known.low - 1.0, known.high + 1.0  # two standard deviations of 0.5
    above, below = naive.corners(torch.cat(values, 1).tolist(), low.tolist(), high.tolist())
    found = shown(BoundarySections(layers(), known, "both", 2.0), values).result()
    assert found.covered == len(above) + len(below)
    result = shown(neuron.LayerBoundarySections(layers(), known, "above"), values).result()
    shares, start = [], 0
    for i, width in enumerate(WIDTHS):
        high = known.high[start : start + width]
        beyond = values[i] > high
        shares.append(beyond.any(0).double().mean().item())
        assert result.detail["layers"][f"l{i}"] == pytest.approx(shares[-1])
        start += width
    assert result.value == pytest.approx(sum(shares) / 3)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_strongest_units_and_their_patterns(k, nan):
    values = grid(25, steps=2, nan=nan)
    top = naive.strongest([v.tolist() for v in values], k)
    starts = [0, *np.cumsum(WIDTHS)]
    units = {starts[i] + u for row in top for i, best in enumerate(row) for u in best}
    assert cells(shown(Strongest(layers(), k), values)) == {(u, 0) for u in units}
    sets = {tuple(tuple(sorted(best)) for best in row) for row in top}
    assert shown(Combinations(layers(), k), values).value() == len(sets)
    tuples = {tuple(map(tuple, row)) for row in top}
    assert shown(Combinations(layers(), k, ordered=True), values).value() == len(tuples)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_strongest_units_of_wide_layers(k, nan):
    widths = (1500, 40, 1088)
    values = grid(6, widths, steps=3, nan=nan)
    values[2][2] = -torch.inf
    values[2][2, 70] = 1.0
    top = naive.strongest([v.masked_fill(v == -torch.inf, torch.nan).tolist() for v in values], k)
    starts = [0, *np.cumsum(widths)]
    units = {starts[i] + u for row in top for i, best in enumerate(row) for u in best}
    assert cells(shown(Strongest(layers(widths), k), values)) == {(u, 0) for u in units}


@pytest.mark.parametrize("kind", ["sign-sign", "value-sign", "sign-value", "value-value"])
@pytest.mark.parametrize("rows", [3, 60])
def test_pairs_of_a_test_set(kind, rows):
    values = grid(rows, (4, 5, 3), seed=rows, steps=4)
    starts = (0, 4, 9)
    splits = (LayerPair(slice(0, 4), slice(4, 9)), LayerPair(slice(4, 9), slice(9, 12)))
    measure = shown(Independence(layers((4, 5, 3)), splits, kind), values)
    covered, qualified = set(), 0
    for i in range(2):
        found, pairs = naive.mcdc(kind, values[i].tolist(), values[i + 1].tolist(), 2.0)
        covered |= {(starts[i] + a, starts[i + 1] + b) for a, b in found}
        qualified += pairs
    got = set()
    for s, c in zip(splits, measure.rule.covered(measure.memory), strict=True):
        got |= {(s.condition.start + a, s.decision.start + b) for a, b in c.nonzero().tolist()}
    assert got == covered
    assert measure.result().detail["qualified input pairs"] == qualified
    assert measure.result().total == 35


@pytest.mark.parametrize("kind", ["sign-sign", "value-sign", "sign-value", "value-value"])
def test_pairs_of_seed_and_test_in_any_order(kind):
    values = grid(48, (3, 4), seed=3, steps=4)
    split = LayerPair(slice(0, 3), slice(3, 7))
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    rule = Independence(layers((3, 4)), (split,), kind, "seed-test")
    mixed = shown(rule, [v[order] for v in values], ids=order % 6, are_seeds=order < 6)
    chosen = [(t, t % 6) for t in range(6, 48)]
    expected, qualified = naive.mcdc(kind, values[0].tolist(), values[1].tolist(), 2.0, chosen)
    assert {tuple(cell) for cell in rule.covered(mixed.memory)[0].nonzero().tolist()} == expected
    assert mixed.result().detail["qualified input pairs"] == qualified


@pytest.mark.parametrize("kind", ["sign-sign", "value-sign", "sign-value", "value-value"])
@pytest.mark.parametrize("pairs", ["all", "seed-test"])
def test_the_gain_of_pairs_is_what_a_row_would_add(kind, pairs):
    values = grid(30, (3, 4), seed=3, steps=4)
    split = LayerPair(slice(0, 3), slice(3, 7))
    rule = Independence(layers((3, 4)), (split,), kind, pairs)
    first = torch.arange(20)
    measure = shown(rule, [v[:20] for v in values], ids=first % 5, are_seeds=first < 5)
    ids, tests = torch.arange(10) % 5, torch.zeros(10).bool()
    (rest,) = frames([v[20:] for v in values], cuts=(), ids=ids, are_seeds=tests)
    before, gain = measure.result().covered, rule.gain(rest, measure.memory)
    for row in range(10):
        one = measure.fork()
        alone = [v[20 + row : 21 + row] for v in values]
        one.observe(next(frames(alone, ids=ids[row : row + 1], are_seeds=tests[:1])))
        assert one.result().covered - before == gain[row]


def clouds(count=200, d=5, classes=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    predicted = torch.randint(classes, (count,), generator=rng)
    mix = torch.randn(classes, d, d, generator=rng)
    drawn = torch.randn(count, d, generator=rng)
    values = torch.einsum("nd,nde->ne", drawn, mix[predicted])
    return values + 2.0 * predicted[:, None], predicted


def test_likelihood_against_scipy():
    from scipy.stats import gaussian_kde

    values, predicted = clouds(300)
    values[:, 2] = 7.0  # a constant unit is left out
    points, classes = clouds(50, seed=1)
    model = Likelihood.fit(Traces(values, predicted, predicted))
    known, new = (x[:, [0, 1, 3, 4]].double().numpy().T for x in (values, points))
    densities = [gaussian_kde(known[:, predicted == c]) for c in range(3)]
    expected = [-densities[c].logpdf(new[:, i])[0] for i, c in enumerate(classes)]
    np.testing.assert_allclose(model(points, classes).numpy(), expected, rtol=1e-4, atol=1e-4)
    single = Likelihood.fit(Traces(values, predicted, predicted), per_class=False)
    ours, together = single(points, classes).numpy(), gaussian_kde(known)
    np.testing.assert_allclose(ours, -together.logpdf(new), rtol=1e-4, atol=1e-4)


def test_likelihood_of_training_leaves_the_trace_itself_out():
    values, predicted = clouds(40, classes=1)
    model = Likelihood.fit(Traces(values, predicted, predicted))
    gaussian = model.gaussians[0]
    for row in (0, 7, 39):
        others = torch.cat([gaussian.traces[:row], gaussian.traces[row + 1 :]]).double()
        kernel = (-(others - gaussian.traces[row].double()).square().sum(1) / 2).exp().sum()
        size = gaussian.size + 2.5 * np.log(2 * np.pi)
        assert model.training()[row] == pytest.approx(-float((kernel / 39).log()) + size, abs=1e-3)


@pytest.mark.parametrize("count", [90, 2400])
def test_distance_against_brute_force(count):
    values, predicted = clouds(count)
    points, classes = clouds(40, seed=1)
    points[0] = values[predicted == classes[0]][0]  # a training trace itself: no surprise
    model = Distance.fit(Traces(values, predicted, predicted))
    new, known = points.double().numpy(), values.double().numpy()
    expected = naive.dsa(new, classes.tolist(), known, predicted.tolist())
    np.testing.assert_allclose(model(points, classes).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert float(model(points, classes)[0]) == 0


def test_mahalanobis_against_its_formula():
    values, predicted = clouds(300)
    points, classes = clouds(30, seed=1)
    got = Mahalanobis.fit(Traces(values, predicted, predicted))(points, classes)
    for row in range(30):
        own = values[predicted == classes[row]].double().numpy()
        step = points[row].double().numpy() - own.mean(0)
        expected = np.sqrt(step @ np.linalg.inv(np.cov(own.T, bias=True)) @ step)
        assert float(got[row]) == pytest.approx(expected, rel=1e-4)


def test_surprise_buckets_and_mean():
    values, predicted = clouds(300)
    points, classes = clouds(200, seed=1)
    model = Distance.fit(Traces(values, predicted, predicted))
    logits = torch.nn.functional.one_hot(classes, 3).float()
    surprise = model(points, classes).tolist()
    lower, upper = sorted(surprise)[20], sorted(surprise)[-20]
    measure = shown(SurpriseBuckets(layers((5,)), model, lower, upper, 50), [points], logits=logits)
    assert {c for _, c in cells(measure)} == naive.buckets(surprise, lower, upper, 50)
    assert measure.result().detail == {"inputs": 200, "below": 20, "above": 19, "without": 0}
    mean = shown(MeanSurprise(layers((5,)), model), [points], logits=logits)
    assert mean.value() == pytest.approx(np.mean(surprise))


def test_novelty_is_first_come_and_spread_the_mean_size_of_covariances():
    values = grid(200, (2,), steps=8)
    measure = shown(Novelty(layers((2,)), 0.1), values)
    kept = naive.novel(values[0].double().numpy(), 0.1)
    np.testing.assert_array_equal(measure.memory.all().numpy(), np.array(kept, dtype=np.float32))
    values = grid(40)
    expected = sum(np.abs(np.cov(v.double().numpy().T, bias=True)).mean() for v in values)
    assert shown(TraceVariance(layers()), values).value() == pytest.approx(expected)


def test_gains_of_sums_are_what_a_row_would_add():
    values, known = grid(40), torch.arange(40) % 3
    traces = Traces(torch.cat(grid(60, seed=5), 1), torch.arange(60) % 3, torch.arange(60) % 3)
    surprise = MeanSurprise(layers(), Mahalanobis.fit(traces))
    for rule in (TraceVariance(layers()), Dispersion.fit(layers(), traces), surprise):
        measure = shown(rule, [v[:30] for v in values], labels=known[:30])
        rest = next(frames([v[30:] for v in values], cuts=(), labels=known[30:]))
        gain = rule.gain(rest, measure.memory)
        for row in range(10):
            one = measure.fork()
            alone = [v[30 + row : 31 + row] for v in values]
            one.observe(next(frames(alone, cuts=(), labels=known[30 + row : 31 + row])))
            assert one.value() - measure.value() == pytest.approx(float(gain[row]), abs=1e-5)


def test_dispersion_by_hand():
    predicted = torch.arange(60) % 3
    label = (predicted + (torch.arange(60) % 5 == 0)) % 3
    traces = Traces(torch.cat(grid(60, seed=5), 1), predicted, label)
    values, labels = grid(30), torch.arange(30) % 2
    right = traces.predicted == traces.label
    centres = [traces.values[right & (traces.label == c)].mean(0) for c in range(3)]
    rows = torch.cat(values, 1)
    means = [(rows[labels == c] - centres[c]).norm(dim=1).mean().item() for c in range(2)]
    found = shown(Dispersion.fit(layers(), traces), values, labels=labels).value()
    assert found == pytest.approx(np.mean(means), rel=1e-5)
