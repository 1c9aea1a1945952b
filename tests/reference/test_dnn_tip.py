"""Our criteria in dnn-tip's convention, against dnn-tip on the same activations."""

import warnings

import numpy as np
import pytest
import torch
from worlds import World

from hardcase.criteria.criterion import build_criteria
from hardcase.criteria.network import join_taps
from hardcase.criteria.profile import ActivationBatch
from hardcase.tensors import from_bytes

MISSING = "dnn-tip is not installed: pip install --no-deps dnn-tip psutil"
tip = pytest.importorskip("dnn_tip.neuron_coverage", reason=MISSING)
surprise = pytest.importorskip("dnn_tip.surprise", reason=MISSING)

SPECS = ("nc", "kmnc:k=16", "nbc", "snac", "tknc:k=2", "nbc:widen=0.5", "snac:widen=0.5")


@pytest.fixture(scope="module")
def world():
    return World()


def rounded(values):
    """To a binary grid coarse enough for dnn-tip's cut points, computed another way, to fall on the same values."""
    return (values * 64).round() / 64


@pytest.fixture(scope="module")
def shown(world):
    """Activations of every unit, layer by layer: training and test."""
    profile = world.profile(*SPECS, "dsa", "lsa", convention="dnn-tip")
    measures = [build_criteria(spec, world.graph, profile, convention="dnn-tip") for spec in SPECS]
    taps = join_taps(m.taps for m in measures)
    rng = torch.Generator().manual_seed(0)
    x = from_bytes(world.images.x)
    noisy = (x + 0.2 * torch.randn(x.shape, generator=rng)).clamp(0, 1)
    train, test = (world.subject(images, taps) for images in (from_bytes(world.training.x), noisy))
    return [{name: rounded(v) for name, v in one.activations.items()} for one in (train, test)]


def arrays(activations, function=None):
    values = [v.double().numpy() for v in activations.values()]
    return [function(v) for v in values] if function else values


def peers(train):
    low, high, spread = (
        arrays(train, lambda v, f=f: f(v, axis=0)) for f in (np.min, np.max, np.std)
    )
    return {
        "nc": tip.NAC(0.0),
        "kmnc:k=16": tip.KMNC(low, high, 16),
        "nbc": tip.NBC(low, high, spread, 0),
        "snac": tip.SNAC(high, spread, 0),
        "tknc:k=2": tip.TKNC(2),
        "nbc:widen=0.5": tip.NBC(low, high, spread, 0.5),
        "snac:widen=0.5": tip.SNAC(high, spread, 0.5),
    }


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_cells_are_covered(world, shown, spec):
    from dataclasses import replace

    from hardcase.criteria.profile import Range

    train, test = shown
    measure = world.make(spec, convention="dnn-tip")()
    if hasattr(measure.rule, "range"):
        values = torch.cat(list(train.values()), 1)
        variance = values.double().var(0, unbiased=False).float()
        known = Range(values.amin(0), values.amax(0), values.mean(0), variance)
        measure.rule = replace(measure.rule, range=known)
    with torch.no_grad():
        for part, count in ((slice(0, 13), 13), (slice(13, 40), 27)):
            given = {name: v[part] for name, v in test.items()}
            measure.observe(ActivationBatch(given, torch.zeros(count, 3)))
    _, profiles = peers(train)[spec](arrays(test))
    theirs = profiles.any(0).reshape(measure.memory.rows, -1)
    ours = measure.memory.covered().numpy()
    if spec.startswith("nbc"):
        ours = ours[:, ::-1]  # dnn-tip puts the lower corner first
    if spec.startswith("tknc"):
        _without_ties(test, ours, theirs)
    else:
        np.testing.assert_array_equal(ours, theirs)


def _without_ties(test, ours, theirs):
    """dnn-tip breaks ties by the order of a sort that is not stable: compare layers whose second and third values differ."""
    start = 0
    for values in test.values():
        third = values.topk(3, dim=1).values
        own = slice(start, start + values.shape[1])
        if bool((third[:, 1] > third[:, 2]).all()):
            np.testing.assert_array_equal(ours[own], theirs[own])
        start = own.stop


def traces(seed=0, count=300):
    rng = torch.Generator().manual_seed(seed)
    predicted = torch.arange(count) % 3
    mix = torch.randn(6, 6, generator=torch.Generator().manual_seed(9))
    return torch.randn(count, 6, generator=rng) @ mix + predicted[:, None], predicted


def test_distance_based_surprise():
    from hardcase.criteria.surprise import Distance, Traces

    (values, predicted), (points, classes) = traces(), traces(1, 50)
    theirs = surprise.DSA(values.numpy(), predicted.numpy())(points.numpy(), classes.numpy())
    ours = Distance.fit(Traces(values, predicted, predicted))(points, classes)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4)


def test_likelihood_and_mahalanobis_surprise(capsys):
    from hardcase.criteria.surprise import Likelihood, Mahalanobis, Traces

    (values, predicted), (points, classes) = traces(), traces(1, 50)
    known = Traces(values, predicted, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        likelihood = surprise.LSA(values.double().numpy())(points.double().numpy())
        by_class = surprise.MultiModalSA.build_by_class(
            values.double().numpy(), predicted.numpy(), lambda a, p: surprise.LSA(a)
        )
        by_class = by_class(points.double().numpy(), classes.numpy())
    ours = Likelihood.fit(known, per_class=False, most=300)(points, classes)
    np.testing.assert_allclose(ours.numpy(), likelihood, rtol=1e-4)
    np.testing.assert_allclose(Likelihood.fit(known)(points, classes).numpy(), by_class, rtol=1e-4)
    theirs = surprise.MDSA(values.double().numpy())(points.double().numpy())
    ours = Mahalanobis.fit(known, per_class=False, squared=True)(points, classes)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4)


def test_surprise_coverage():
    from hardcase.criteria.network import Layer, Selection
    from hardcase.criteria.surprise import Mahalanobis, Traces
    from hardcase.criteria.surprise_coverage import SurpriseBuckets

    (values, predicted), (points, classes) = traces(), traces(1, 100)
    model = Mahalanobis.fit(Traces(values, predicted, predicted), per_class=False, squared=True)
    rule = SurpriseBuckets(Selection((Layer("l", "linear", (6,), 0),)), model, 0.0, 8.0, 20)
    seen = model(points, classes)
    theirs = surprise.SurpriseCoverageMapper(20, 8.0).get_coverage_profile(seen.numpy()).any(0)
    assert {int(b) - 1 for b in rule.buckets(seen) if b} == set(theirs.nonzero()[0].tolist())
