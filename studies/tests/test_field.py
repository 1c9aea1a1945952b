"""The study of conditions from the field: its trials follow from their number, its truths hold."""

import numpy as np
import pytest
import torch

from hardcase.types import Images
from hardcase_studies import field, field_uses as uses


def digits(count=40):
    x = torch.zeros(count, 1, 28, 28)
    x[:, :, 6:22, 12:16] = 255
    names = tuple(f"{i}" for i in range(count))
    return Images(x.byte(), torch.arange(count) % 10, names, tuple("0123456789"), "bars")


def test_trials_follow_from_their_number():
    first = [field.hidden(number) for number in range(40)]
    assert first == [field.hidden(number) for number in range(40)]
    assert sum(not one.conditions for one in first) == 10
    assert all(one.candidate.spreads for one in first if one.conditions)
    assert sum(one.independent for one in first) == 15


@pytest.mark.parametrize("name", field.THEIRS)
def test_the_independent_program_changes_what_it_should(name):
    values = {"scale": 20.0, "resolution": 2.0}
    given = {name: torch.full((40,), values.get(name, 10.0))}
    some = digits()
    changed = field.independent_render(some.x, given, seed=1)
    assert changed.shape == some.x.shape
    assert not torch.equal(changed.mul(255).round().byte(), some.x)
    centre = changed[:, 0].sum(2).mean(0) @ torch.arange(28.0) / changed[:, 0].sum((1, 2)).mean()
    if name not in ("shift", "noise"):
        assert float(centre) == pytest.approx(13.5, abs=0.3)


def test_nothing_is_done_to_a_null():
    some = digits()
    same = field.Hidden(field.Candidate(), conditions=False).render(some, "x")
    assert torch.equal(same.mul(255).round().byte(), some.x)


def test_a_mixture_leaves_some_images_as_they_are():
    spread = field.Spread(30.0, 1.0)
    what = field.Hidden(field.Candidate({"noise": spread}), share=0.6)
    some = digits(400)
    same = (what.render(some, "x").mul(255).round().byte() == some.x).flatten(1).all(1)
    assert float(same.double().mean()) == pytest.approx(0.4, abs=0.08)
    assert what.widths()["noise"] == pytest.approx(30 * 0.6**0.5, rel=0.01)


def row(kind, planted, found, detectable, **head):
    """A trial of one condition, noise."""
    numbers = dict.fromkeys(field.HEAD, 0.0) | {"kind": kind, "truth": 0.9, **head}
    noise = [planted, found, found, found, detectable]
    each = [value for name in field.OURS for value in (noise if name == "noise" else [0.0] * 5)]
    return [*(numbers[name] for name in field.HEAD), *each]


def test_widths_count_where_they_can_be_shown():
    trials = field.Trials(
        np.array(
            [
                row(1, 10.0, 11.0, 0.0),  # recovered
                row(1, 10.0, 20.0, 0.0),  # found, but too wide
                row(1, 10.0, 0.0, 2.0),  # could be shown, was not
                row(1, 1.0, 0.0, 2.0),  # too small to be shown
                row(0, 0.0, 0.0, 2.0),
            ]
        )
    )
    assert field.recovered(trials) == (1, 3)


def test_a_goal_with_few_trials_is_never_reached():
    trials = field.Trials(np.array([row(1, 10.0, 10.0, 0.0, value=0.9, low=0.8, high=1.0)] * 4))
    table = field.goals(trials, {})
    verdicts = {cells[0]: cells[-1] for cells in table.rows}
    assert verdicts["widths within 25 %, of those that can be shown"].startswith("inconclusive")


def test_figures_that_were_not_measured_are_said_to_be():
    rows = field.not_run([uses.ORDER])
    assert [row[-1] for row in rows] == ["not run"] * len(rows)
    assert uses.ORDER not in [row[0] for row in rows]
    assert uses.REPAIR in [row[0] for row in rows]


def test_an_order_of_networks_is_a_third_nearer_or_not():
    ranks = np.linspace(0.5, 0.9, 12)
    shuffled = np.random.default_rng(0).permutation(ranks)
    # test accuracy, both truths, the figures fitted to them, the scanner profile
    better = np.stack([shuffled, ranks, ranks, ranks, ranks, shuffled], 1)
    table, cells = uses.order(better.tolist())
    assert [row[-1] for row in table.rows] == ["reached", "reached"]
    assert cells[-1] == "inconclusive: too few networks"
    worse = np.stack([ranks, ranks, ranks, shuffled, ranks, ranks], 1)
    assert uses.order(worse.tolist())[1][-1] == "missed"


@pytest.mark.parametrize(
    ("fitted", "scanner", "verdict"),
    [(0.95, 0.94, "reached"), (0.95, 0.96, "missed"), (0.93, 0.9, "missed")],
)
def test_a_repair_gains_two_points_and_no_less_than_the_profile(fitted, scanner, verdict):
    on_usps = [0.9, 0.92, fitted, scanner]
    rows = [[one + 0.001 * i for one in on_usps] + [0.98] * 4 for i in range(5)]
    table, cells = uses.repair(rows)
    assert cells[-1] == verdict
    assert [row[0] for row in table.rows] == [*uses.ARMS]
    assert str(cells[2]).startswith(f"{100 * (fitted - 0.92):.2f}")
