"""Dead units, constant layers, one class, one sample, numbers that are none."""

import pytest
import torch
from torch import nn
from worlds import World, small_net

from hardcase import registry
from hardcase.criteria.criterion import build_criteria
from hardcase.criteria.profile import ActivationBatch
from hardcase.criteria.surprise import Distance, Likelihood, Mahalanobis, Traces
from hardcase.errors import Problem
from hardcase.tensors import from_bytes
from tiny import bars

CRITERIA = registry.parts("criterion")


@pytest.fixture(scope="module")
def world():
    return World()


def dead_net():
    """Units of the first dense layer that never fire, and a second dense layer that is constant."""
    net = small_net()
    net[4].weight.data[:3], net[4].bias.data[:3] = 0, -1
    net[6].weight.data[:], net[6].bias.data[:] = 0, 0.5
    return net


@pytest.mark.parametrize("spec", [*CRITERIA, "nc:scale=input"])
def test_dead_units_and_constant_layers(spec):
    world = World(dead_net())
    if spec in ("lsa", "lsc", "dsa", "dsc", "mdsa", "mdsc", "lscd"):
        spec += (",layers=4" if ":" in spec else ":layers=4") + (
            ",floor=0" if spec[0] == "l" and spec != "lscd" else ""
        )
    try:
        criterion = world.make(spec)()
    except Problem as problem:
        assert "one class" in str(problem)  # noqa: PT017 - a net that is constant predicts one class
        return
    for probe in world.looks(criterion):
        gain = criterion.gain(probe)
        assert bool(gain.isfinite().all())
        criterion.update(probe)
    assert criterion.value() >= 0 or spec.startswith("lsa")


def test_constant_units_are_left_out_of_sections():
    world = World(dead_net())
    criterion = world.make("kmnc:k=10")()
    criterion.update(world.looks(criterion)[0])
    still = 3 + 5 + 3  # dead units, the constant layer, and the logits it feeds
    result = criterion.result()
    assert result.detail["constant units"] == still
    assert result.total == 10 * (4 + 6 + 5 + 3 - still)


@pytest.mark.parametrize("spec", CRITERIA)
def test_not_a_number_covers_nothing(world, spec):
    criterion = world.make(spec)()
    probe = world.looks(criterion)[0]
    broken = {name: torch.full_like(value, torch.nan) for name, value in probe.activations.items()}
    frame = ActivationBatch(broken, probe.logits, labels=probe.origin.y, ids=probe.origin.id)
    assert torch.equal(criterion.rule.gain(frame, criterion.memory), torch.zeros(len(probe.logits)))
    criterion.observe(frame)
    assert criterion.value() == 0
    criterion.update(probe)
    clean = world.make(spec)()
    clean.update(probe)
    assert criterion.value() == pytest.approx(clean.value())


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
@pytest.mark.parametrize("spec", CRITERIA)
def test_infinity_breaks_nothing(world, spec, value):
    criterion = world.make(spec)()
    probe = world.looks(criterion)[0]
    broken = {name: torch.full_like(v, value) for name, v in probe.activations.items()}
    frame = ActivationBatch(broken, probe.logits, labels=probe.origin.y, ids=probe.origin.id)
    assert bool(criterion.rule.gain(frame, criterion.memory).isfinite().all())
    criterion.observe(frame)
    assert criterion.value() == criterion.value(), "the value is not a number"


def test_a_profile_of_one_image(world):
    single = World(training=bars(1))
    criterion = single.make("kmnc:k=3")()
    assert criterion.result().total == 0
    assert single.make("nbc")().value() == 0
    for spec in ("lsa", "mdsa"):
        with pytest.raises(Problem, match="two or more training traces"):
            single.make(spec)()
    with pytest.raises(Problem, match="one class"):
        single.make("dsa")()


def test_a_class_of_one_trace_is_compared_where_that_is_possible():
    values = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    predicted = torch.tensor([0, 0, 0, 1])
    traces, points = (
        Traces(values, predicted, predicted),
        torch.tensor([[0.5, 0.5], [4.0, 5.0], [1.0, 1.0]]),
    )
    classes = torch.tensor([0, 1, 2])
    assert Likelihood.fit(traces)(points, classes).isfinite().tolist() == [True, False, False]
    assert Mahalanobis.fit(traces)(points, classes).isfinite().tolist() == [True, False, False]
    distance = Distance.fit(traces)(points, classes)
    assert distance.isfinite().tolist() == [True, True, False], (
        "only a class never predicted in training is unknown"
    )
    assert distance[1] == pytest.approx(1.0 / 41**0.5)


def test_one_class_is_enough_for_likelihood():
    values = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    traces = Traces(values, torch.zeros(30).long(), torch.zeros(30).long())
    assert bool(Likelihood.fit(traces)(values, traces.predicted).isfinite().all())
    with pytest.raises(Problem, match="one class"):
        Distance.fit(traces)


def test_nothing_to_compare_is_said():
    narrow = World(nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.ReLU(), nn.Linear(4, 3)))
    with pytest.raises(Problem, match="neighbouring layers"):
        narrow.make("ssc")
    with pytest.raises(Problem, match="no layer of the group 'conv'"):
        narrow.make("nc:layers=conv")


def test_a_profile_must_hold_what_is_asked(world):
    with pytest.raises(Problem, match="needs a profile"):
        build_criteria("kmnc", world.graph)
    with pytest.raises(Problem, match=r"no ranges of '0\|unit'"):
        build_criteria("kmnc:mode=unit", world.graph, world.profile("kmnc"))


def test_following_without_an_aim_is_said(world):
    from hardcase.criteria.criterion import toward

    criterion = world.make("nbc")()
    with pytest.raises(Problem, match="no target was chosen"):
        toward(criterion)(world.evaluate(from_bytes(world.images.x[:2]), criterion))
