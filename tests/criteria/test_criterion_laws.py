"""Every criterion of the registry, and variants of its options, under the laws it declares, at its edges (dead units, constant
layers, one class, one sample, numbers that are none), and as a guide of a campaign."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from worlds import World, small_net

from hardcase.campaign.record import Campaign
from hardcase.criteria.criterion import Measure, build_criteria, toward
from hardcase.criteria.profile import ActivationBatch
from hardcase.criteria.surprise import Distance, Likelihood, Mahalanobis, Traces
from hardcase.errors import HardcaseError
from hardcase.methods import pgd
from hardcase.randomness import Rng
from hardcase.registry import parts
from hardcase.tensors import from_bytes
from hardcase.testing import check_criterion, check_pull
from tiny import bars

VARIANTS = (
    "nc:threshold=0.3,scale=input",
    "nc:threshold=0.3,scale=input,order=scale-mean,layers=activated-softmax",
    "kmnc:k=7,mode=unit",
    "kmnc:k=5,cuts=left-open",
    "kmnc:k=5,cuts=closed,constant=all,layers=activated",
    "kmnc:k=5,top=corner,constant=never",
    "nbc:count=both,mode=unit",
    "nbc:count=either,widen=0.2,equal=both",
    "layer-snac:mode=unit,widen=-0.5",
    "tknc:k=6,mode=unit",
    "tknp:k=2,ordered=true,mode=unit",
    "ssc:channels=true",
    "ssc:pairs=seed-test",
    "vsc:pairs=seed-test",
    "svc:factor=1.2",
    "vvc:factor=1.2",
    "lsc:n=5,per=all",
    "dsc:n=7,lower=0,upper=1",
    "mdsa:per=all,squared=true",
    "neighbour:threshold=0.05",
)
CRITERIA = parts("criterion")
SPECS = (*CRITERIA, *VARIANTS)


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.mark.parametrize("spec", SPECS)
def test_laws(world, spec):
    make = world.make(spec)
    check_criterion(make, world.looks(make()), laws=make().laws)


@pytest.mark.parametrize("spec", SPECS)
def test_something_is_covered(world, spec):
    """The laws would also hold for a criterion that never sees anything."""
    criterion = world.make(spec)()
    for probe in world.looks(criterion, sizes=(40, 40, 40, 40)):
        criterion.update(probe)
    assert criterion.value() > 0


@pytest.mark.parametrize("spec", SPECS)
def test_gradients(world, spec):
    make = world.make(spec)
    seen = make()
    for probe in world.looks(seen):
        seen.update(probe)
    x0 = x = from_bytes(world.images.x[:6])
    for criterion in (make(), seen):
        check_pull(
            lambda c=criterion: c,
            toward,
            lambda x, rows, c=criterion: world.evaluate(x, c, seeds=x0[rows], ids=rows),
            x,
        )


def test_an_unknown_law_is_refused(world):
    make = world.make("nc")
    with pytest.raises(AssertionError, match="unknown laws"):
        check_criterion(make, world.looks(make()), laws=("cheap",))


def test_laws_notice_a_merge_that_replaces(world, monkeypatch):
    from hardcase.criteria.memory import Bits

    def replace(self, deltas):
        self.base = self.table = torch.zeros_like(self.table)

    make = world.make("nc")
    monkeypatch.setattr(Bits, "merge", replace)
    with pytest.raises(AssertionError, match="shards"):
        check_criterion(make, world.looks(make()), laws=make().laws)


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
    except HardcaseError as problem:
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
        with pytest.raises(HardcaseError, match="two or more training traces"):
            single.make(spec)()
    with pytest.raises(HardcaseError, match="one class"):
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
    with pytest.raises(HardcaseError, match="one class"):
        Distance.fit(traces)


def test_nothing_to_compare_is_said():
    narrow = World(nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.ReLU(), nn.Linear(4, 3)))
    with pytest.raises(HardcaseError, match="neighbouring layers"):
        narrow.make("ssc")
    with pytest.raises(HardcaseError, match="no layer of the group 'conv'"):
        narrow.make("nc:layers=conv")


def test_a_profile_must_hold_what_is_asked(world):
    with pytest.raises(HardcaseError, match="needs a profile"):
        build_criteria("kmnc", world.graph)
    with pytest.raises(HardcaseError, match=r"no ranges of '0\|unit'"):
        build_criteria("kmnc:mode=unit", world.graph, world.profile("kmnc"))


def test_following_without_an_aim_is_said(world):
    criterion = world.make("nbc")()
    with pytest.raises(HardcaseError, match="no target was chosen"):
        toward(criterion)(world.evaluate(from_bytes(world.images.x[:2]), criterion))


def test_readers_of_one_layer_that_want_different_things(world):
    specs = ("kmnc", "nc:scale=input,order=scale-mean,layers=conv-linear", "nbc:mode=unit")
    criteria = [world.make(spec)() for spec in specs]
    (taps,) = Campaign(subject=world.subject, method=pgd(), criteria=tuple(criteria)).taps()
    x = from_bytes(world.images.x)
    with torch.no_grad():
        shared = world.subject(x, taps).activations
    for spec, criterion in zip(specs, criteria, strict=True):
        alone = world.make(spec)()
        probe = world.evaluate(x, alone)
        alone.update(probe)
        criterion.update(replace(probe, activations=shared))
        assert criterion.value() == alone.value() > 0


@pytest.mark.parametrize(
    ("spec", "draws"),
    [
        ("snac", 1),
        # one draw moves by more than guidance adds
        pytest.param("nbc:mode=unit", 12, marks=pytest.mark.long),
        ("kmnc:k=50", 1),
        ("tknc:k=1", 1),
        ("dsc:n=50,layers=hidden-dense", 1),
        ("ssc:pairs=seed-test", 1),
    ],
)
def test_following_a_criterion_covers_more_than_walking_at_random(world, spec, draws):
    """Twenty small steps along the gradient against twenty at random, from the same images, the mean of some draws."""
    make = world.make(spec)
    led, random = (
        sum(_walk(world, make(), guided=guided, draw=draw) for draw in range(draws))
        for guided in (True, False)
    )
    assert led > random


def _walk(world, criterion: Measure, *, guided, draw):
    x0, noise = from_bytes(world.images.x[:20]), torch.Generator().manual_seed(draw)
    rng = Rng.numbered(draw, "guides", 20)
    rows, x, pull = torch.arange(20), from_bytes(world.images.x[:20]), toward(criterion)
    criterion.update(world.evaluate(x, criterion, seeds=x0, ids=rows))
    for step in range(20):
        if step % 5 == 0:
            targets = criterion.choose(rows, rng)
        x = x.detach().requires_grad_()
        probe = world.evaluate(x, criterion, seeds=x0, ids=rows)
        score = pull(replace(probe, targets=targets))
        (gradient,) = torch.autograd.grad(score.sum(), x)
        gradient = gradient if guided else torch.randn(x.shape, generator=noise)
        x = (
            x
            + 0.3 * gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-9)[:, None, None, None]
        ).clamp(0, 1)
        criterion.update(world.evaluate(x.detach(), criterion, seeds=x0, ids=rows))
    return criterion.value()
