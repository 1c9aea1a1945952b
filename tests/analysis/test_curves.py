"""Curves: counts with intervals, crossings in eight questions, images that come back, errors."""

from dataclasses import replace

import pytest
import torch
from aftermath import verdict, write_run

from hardcase.analysis import curves
from hardcase.analysis.curves import crossings, curve, one_condition, severity_curves
from hardcase.analysis.slices import Rules, slices_of_run
from hardcase.conditions import Conditions, condition_box, measure_worst
from hardcase.corruptions import corrupt
from hardcase.errors import HardcaseError
from hardcase.imaging.noise import WORD, content_key
from hardcase.randomness import keys_of
from hardcase.statistics import binomial_interval
from tiny import bars, columns_subject as subject

EDGES = torch.linspace(0.05, 6.0, 40)


class Threshold:
    """Row `i` is class 1 from severity `EDGES[i]` on: the change writes the severity into the
    image, the model reads it."""

    def __init__(self):
        self.asked = 0

    def change(self, x, severity, rows):
        over = (severity >= EDGES[rows]).float()
        return over[:, None, None, None].expand_as(x)

    def subject(self, x):
        self.asked += len(x)
        level = x.mean((1, 2, 3))
        return torch.stack([torch.full_like(level, 0.5), level], 1) * 10


def seeds():
    return torch.zeros(len(EDGES), 1, 8, 8), torch.zeros(len(EDGES), dtype=torch.int64)


def test_a_curve_counts_with_an_interval():
    world = Threshold()
    found = curve(world.change, world.subject, *seeds(), torch.tensor([0.0, 2.0, 5.0]), batch=7)
    rows = found.table()
    assert [row["failing"] for row in rows] == [int((level >= EDGES).sum()) for level in (0, 2, 5)]
    assert (rows[1]["low"], rows[1]["high"]) == binomial_interval(rows[1]["failing"], 40)
    assert found.share().tolist() == [row["share"] for row in rows]
    assert world.asked == 3 * 40
    assert not found.non_monotone().any()


def test_eight_questions_leave_a_hundredth_open():
    world = Threshold()
    found = crossings(world.change, world.subject, *seeds(), batch=16)
    assert found.queries == 8
    assert world.asked == 8 * 40
    crossing = EDGES < 5
    assert bool(((found.severity() - EDGES).abs()[crossing] <= 0.01).all())
    assert bool((found.low[crossing] <= EDGES[crossing]).all())
    assert bool((EDGES[crossing] <= found.high[crossing]).all())
    assert bool(found.severity()[~crossing].isinf().all())
    said = found.summary()
    assert said["crossed"] == int(crossing.sum())
    assert said["quartiles"][0] == pytest.approx(float(EDGES[9]), abs=0.01)
    assert crossings(world.change, world.subject, *seeds(), most=1.0).queries == 6


def test_seeds_that_come_back_are_counted():
    failing = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    found = curves.Curve(torch.arange(3.0), failing)
    assert found.non_monotone().tolist() == [False, False, True, False]
    assert len(curves.grid()) == 16
    assert float(curves.grid()[-1]) == 5.0


def test_what_is_asked_is_an_eight_bit_image():
    """A change of less than half a grey level changes nothing."""
    x, y = torch.full((3, 1, 8, 8), 0.2), torch.zeros(3, dtype=torch.int64)

    def subject(x):
        moved = 100 * (x.mean((1, 2, 3)) - 0.2)
        return torch.stack([torch.zeros_like(moved), moved], 1)

    def change(x, severity, rows):
        return x + severity[:, None, None, None] / 1000

    found = curve(change, subject, x, y, torch.tensor([1.0, 2.0, 3.0]))
    assert found.share().tolist() == [0, 1, 1]


def test_a_corruption_is_a_condition_whose_noise_stays_with_its_seed():
    x = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    keys = torch.arange(5) + 100
    change = one_condition("corruption.gaussian_noise", "0..5", (1, 16, 16), keys)
    level = torch.full((5,), 2.0)
    whole = change(x, level, torch.arange(5))
    own = (content_key(x) + keys) & WORD
    assert torch.allclose(whole, corrupt(x, "gaussian_noise", level, own), atol=1e-6)
    rows = torch.tensor([4, 1])
    assert torch.equal(change(x[rows], level[rows], rows), whole[rows])
    assert torch.equal(change(x, 0 * level, torch.arange(5)), x)


def test_any_condition_of_one_coordinate_has_a_curve():
    x, y = torch.full((4, 1, 8, 8), 0.5), torch.zeros(4, dtype=torch.int64)
    darker = one_condition("exposure", "-3..1 stops", (1, 8, 8), torch.arange(4))

    def subject(x):
        dark = 100 * (0.4 - x.mean((1, 2, 3)))
        return torch.stack([-dark, dark], 1)

    found = crossings(darker, subject, x, y, most=darker.most)
    # 0.5 * 2^(-s / 2.2) falls below 0.4 at 0.71 stops, less half a grey level
    assert found.severity().tolist() == pytest.approx([0.71] * 4, abs=0.03)
    with pytest.raises(HardcaseError, match="2 coordinates"):
        one_condition("shift", "±5 %", (1, 8, 8), torch.arange(4))


def test_errors_are_counted_over_all_images():
    world, (x, _) = Threshold(), seeds()
    wrong = torch.ones(len(EDGES), dtype=torch.int64)  # so that all are misclassified when clean
    found = curves.error_rates(world.change, world.subject, x, wrong, (0, 2))
    assert found == pytest.approx([1.0, float((EDGES > 2).double().mean())])


def test_what_cannot_be_drawn_is_told():
    world, (x, y) = Threshold(), seeds()
    with pytest.raises(HardcaseError, match="rise"):
        curve(world.change, world.subject, x, y, torch.tensor([2.0, 1.0]))
    with pytest.raises(HardcaseError, match="0 images"):
        curve(world.change, world.subject, x[:0], y[:0], torch.tensor([1.0]))
    found = crossings(lambda x, s, rows: x, Threshold().subject, *seeds())
    assert found.summary()["quartiles"] == [None, None, None]


def test_curves_of_a_model_that_noise_confuses():
    names = ("gaussian_noise", "contrast", "speckle_noise")
    found = severity_curves(subject(), bars(60), names)
    assert found["correctly_classified"] == 60
    assert tuple(row["corruption"] for row in found["corruptions"]) == names
    noise, contrast, _ = found["corruptions"]
    assert len(noise["curve"]) == 16
    assert len(noise["error"]) == 5
    assert noise["crossing"]["queries"] == 8
    assert contrast["curve"][-1]["failing"] == 0, "the order of brightness stays"
    counted = found["corruption_error"]["corruptions"]
    assert counted == ["gaussian_noise", "contrast"], "speckle is one of the extra four"
    seen = []
    severity_curves(subject(), bars(6), ("contrast",), progress=lambda *done: seen.append(done))
    assert seen == [(1, 1)]
    with pytest.raises(HardcaseError, match="contrast"):
        severity_curves(subject(), bars(6), ("contrasts",))


def test_noise_stays_with_an_image_whatever_stands_beside_it():
    images = bars(30)
    whole = severity_curves(subject(), images, ("gaussian_noise",))["corruptions"][0]
    turned = images.take(torch.arange(29, -1, -1))
    half = severity_curves(subject(), turned, ("gaussian_noise",), batch=7)
    assert half["corruptions"][0]["curve"] == whole["curve"]
    assert len(set(keys_of(images.id).tolist())) == 30
    assert bool((keys_of(images.id) >= 0).all())
    wrong = replace(bars(6), y=(bars(6).y + 1) % 3)
    with pytest.raises(HardcaseError, match="none of the 6"):
        severity_curves(subject(), wrong, ("contrast",))


def test_slices_of_a_run_are_of_its_attempted_seeds(tmp_path):
    """Dark images fail, and the judge confirms half of their tests."""
    levels = [1 + i % 120 for i in range(600)] + [200] * 9
    found = {i: [140] for i in range(600) if levels[i] < 40}
    verdicts = [verdict(("lost", "kept")[i % 2 == 0]) for i in range(len(found))]
    run = write_run(tmp_path / "run", levels=levels, found=found, verdicts=verdicts)
    rules = Rules(support=5)
    slices = slices_of_run(run, rules=rules)
    assert slices[0].tags == ("dark",)
    assert slices[0].accepted
    seen = slices[0].estimated
    # equal images are one group, wrong originals are not attempted
    assert seen.total + seen.total_outside <= 40
    accepted = slices_of_run(run, outcome="accepted", rules=rules)[0]
    assert accepted.estimated.inside < seen.inside


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
    with pytest.raises(HardcaseError, match="no condition"):
        severity_curves(subject(), images, ())
