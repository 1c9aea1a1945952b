"""Criteria and APFD against dnn-tip (M. Weiss and P. Tonella, "Simple techniques work surprisingly well for neural network test
prioritization and active learning", ISSTA 2022), on equal activations: ``pip install --no-deps dnn-tip psutil tqdm``.

Where the conventions differ, the option that makes them equal is named. dnn-tip counts every unit (``mode=unit``), never scales
activations, leaves a training maximum out of the last of KMNC's sections (here it is in it, which no test image shows), counts a
unit at its training bound as beyond it (``equal=both``), gives a constant unit no section and still counts it
(``constant=never``), and squares Mahalanobis' distance (``squared=true``) over all classes (``per=all``).
"""

import numpy as np
import pytest
import torch
from worlds import World

from hardcase.criteria.criterion import profile_for
from hardcase.criteria.network import select
from hardcase.suite.coverage import coverage
from hardcase.tensors import from_bytes
from hardcase_studies.ranking import apfd
from tiny import bars

neuron_coverage = pytest.importorskip("dnn_tip.neuron_coverage", reason="dnn-tip is not installed")
surprise = pytest.importorskip("dnn_tip.surprise", reason="dnn-tip or psutil is not installed")


@pytest.fixture(scope="module")
def world():
    return World(training=bars(300, seed=2))


def activations(world, images, layers="conv-linear"):
    selection = select(world.graph, layers, "unit")
    with torch.no_grad():
        answer = world.subject(from_bytes(images.x), selection.taps)
    layered = [one.double().numpy() for one in selection.read(answer.activations)]
    return layered, answer.logits.argmax(1).numpy()


def ours(world, spec):
    profile = profile_for(world.subject, world.training, [spec])
    return coverage(world.subject, world.images, spec, profile=profile)[0]["value"]


def covered(profiles):
    return profiles.any(0).mean()


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.75])
def test_neuron_coverage(world, threshold):
    profiles = neuron_coverage.NAC(threshold)(activations(world, world.images)[0])[1]
    assert ours(world, f"nc:threshold={threshold},mode=unit") == pytest.approx(covered(profiles))


@pytest.mark.parametrize("sections", [2, 10, 100])
def test_sections(world, sections):
    known = activations(world, world.training)[0]
    bounds = [[f(layer, axis=0) for layer in known] for f in (np.min, np.max)]
    theirs = neuron_coverage.KMNC(*bounds, sections)(activations(world, world.images)[0])[1]
    found = ours(world, f"kmnc:k={sections},mode=unit,constant=never")
    assert found == pytest.approx(covered(theirs), abs=2 / theirs[0].size)


@pytest.mark.parametrize("widen", [0.0, 0.5])
def test_boundaries(world, widen):
    known = activations(world, world.training)[0]
    low, high, std = ([f(layer, axis=0) for layer in known] for f in (np.min, np.max, np.std))
    seen = activations(world, world.images)[0]
    both = neuron_coverage.NBC(low, high, std, widen)(seen)[1]
    above = neuron_coverage.SNAC(high, std, widen)(seen)[1]
    assert ours(world, f"nbc:widen={widen},equal=both,mode=unit") == pytest.approx(covered(both))
    assert ours(world, f"snac:widen={widen},equal=both,mode=unit") == pytest.approx(covered(above))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_greatest_of_a_layer(world, k):
    theirs = neuron_coverage.TKNC(k)(activations(world, world.images)[0])[1]
    assert ours(world, f"tknc:k={k},mode=unit") == pytest.approx(covered(theirs))


def surprises(world, kind, layers):
    known, known_said = activations(world, world.training, layers)
    seen, said = activations(world, world.images, layers)
    known, seen = ([layers[0]] for layers in (known, seen))
    if kind == "dsa":
        return surprise.DSA(known, known_said)(seen, said)
    if kind == "mdsa":
        return surprise.MDSA(known)(seen)
    by_class = surprise.MultiModalSA.build_by_class(
        known, known_said, lambda rows, _: surprise.LSA(rows)
    )
    return by_class(seen, said)


@pytest.mark.parametrize(
    ("kind", "spec", "layers"),
    [
        ("dsa", "dsa", "last-hidden"),
        ("mdsa", "mdsa:per=all,squared=true", "last-hidden"),
        ("lsa", "lsa:layers=last,floor=0", "last"),  # dead units make scipy's density singular
    ],
)
def test_surprise(world, kind, spec, layers):
    theirs = surprises(world, kind, layers)
    assert ours(world, spec) == pytest.approx(float(np.mean(theirs)), rel=1e-4)


def test_how_early_errors_come():
    from dnn_tip.apfd import apfd_from_order

    rng = np.random.default_rng(0)
    for _ in range(5):
        wrong = rng.random(50) < 0.2
        order = rng.permutation(50)
        assert apfd(torch.tensor(wrong), torch.tensor(order)) == pytest.approx(
            apfd_from_order(wrong.astype(int), order)
        )
