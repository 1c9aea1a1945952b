"""Published numbers of ARGUS beside our own curves."""

import pytest
import torch

from hardcase.spaces.latent import Grid
from hardcase.testing.toys import ToyQuantiser
from hardcase_studies import argus_curve
from hardcase_studies.argus_curve import PlacedOnce, Point, at_rate, run
from hardcase_studies.lab import LatentModel
from tiny import bars

CARD = {"configuration": {"family": "vqvae", "kind": "toy"}}


def point(er, ssim=0.9):
    return Point(er, er, er, er / 10, 100.0, (0.01,) * 4, (ssim,) * 4)


def test_the_mix_of_a_rate_lies_between_two_measured_ones():
    mix, found = at_rate({0.3: point(10, 0.9), 0.4: point(30, 0.8)}, 25)
    assert mix == pytest.approx(0.375)
    assert found.ld == pytest.approx(2.5)
    assert found.ssim == pytest.approx((0.825,) * 4)
    assert at_rate({0.3: point(10), 0.4: point(30)}, 50) is None


def test_codes_that_are_placed_once_stay_where_the_loss_leaves_them():
    rng = torch.Generator().manual_seed(0)
    book = PlacedOnce(8, 2)
    book.learn(torch.randn(16, 2, 3, 3), rng)
    before = book.codes.clone()
    far = torch.full((16, 2, 3, 3), 50.0)
    for _ in range(600):
        book.learn(far, rng)
    moved = (book.codes - before).norm(dim=1) > 20
    assert int(moved.sum()) == 1, "the nearest code follows, the others are not placed anew"


def test_every_generator_is_measured_at_every_mix_and_kept(bench, monkeypatch):
    net = ToyQuantiser()
    made = LatentModel(net, Grid(net), CARD, bars(60))
    asked = []
    monkeypatch.setattr(
        argus_curve, "quantised", lambda here, **o: asked.append(o.get("joint_epochs")) or made
    )
    monkeypatch.setattr(argus_curve, "coarse", lambda here: made)
    here = bench(
        models=["lenet1"], model_epochs=4, mixes=[0.0, 0.5, 1.0], stops=[2], originals=4, partners=5
    )
    outcome = run(here)
    assert asked == [None, 2]
    along, beside = outcome.tables
    assert len(along.rows) == 9
    rates = [float(row[1].split()[0]) for row in along.rows[:3]]
    assert rates[0] < rates[2], "an image that is its partner is misread"
    assert along.rows[0][5].endswith("1.000"), "without a partner it is its reconstruction"
    assert beside.rows == [], "the paper has no such network"
    run(here)
    assert asked == [None, 2], "what is kept is not measured again"
