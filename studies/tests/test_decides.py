"""Which figure decides: its statistics on known laws, its recipes, and the whole study in seconds."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from hardcase_studies import decides
from hardcase_studies.bench import Bench


def test_every_recipe_is_another_one_and_factors_have_the_values_that_were_declared():
    drawn = decides.recipes()
    assert len(set(drawn)) == len(drawn) >= 40
    assert not any(recipe.spent for recipe in drawn)
    for name, values in decides.FACTORS.items():
        found = [getattr(recipe, name) for recipe in drawn]
        assert {value: found.count(value) for value in values} == dict(values)
    assert not set(decides.BASELINE) & set(decides.OUTSIDE)


def test_the_error_of_a_left_out_recipe_is_that_of_fitting_without_it():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3))
    y = x @ [1.0, 2.0, 0.0] + rng.normal(size=12)
    errors = []
    for i in range(12):
        rest = np.arange(12) != i
        design = np.column_stack([np.ones(11), x[rest]])
        slopes = np.linalg.lstsq(design, y[rest], rcond=None)[0]
        errors.append(y[i] - slopes[0] - x[i] @ slopes[1:])
    assert decides.left_out_error(y, x) == pytest.approx(np.sqrt(np.mean(np.square(errors))))


def test_a_figure_without_effect_is_found_as_often_as_the_level_says_and_a_strong_one_always():
    rng = np.random.default_rng(1)
    null = []
    for _ in range(300):
        x = rng.normal(size=(20, 2))
        y = x[:, 0] + rng.standard_t(3, size=20)
        null.append(decides.permutation_p(y, x, x[:, 0] + rng.normal(size=20), count=199))
    assert 0.02 < np.mean(np.array(null) <= 0.05) < 0.09
    figure = rng.normal(size=20)
    strong = x[:, 0] - 3 * figure + rng.normal(size=20)
    assert decides.permutation_p(strong, x, figure, count=999) <= 0.002


def test_digits_from_elsewhere_look_like_those_of_mnist():
    for x, y in (decides.optdigits(), decides.printed()):
        assert x.shape[1:] == (1, 28, 28)
        assert set(y.tolist()) == set(range(10))
        light = x.float().sum(1)
        place = torch.arange(28) - 13.5
        for axis in (1, 2):
            centre = (light.sum(axis) @ place) / light.sum((1, 2))
            assert float(centre.abs().max()) <= 0.51
        assert float(x[:, 0, 0, 0].float().mean()) < 5
    assert len(decides.optdigits()[0]) == 1797


def test_pruning_and_rounding_do_what_they_say():
    net = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 5))
    decides._reduced(net, "pruned 30 %")
    weights = torch.cat([net[0].weight.flatten(), net[2].weight.flatten()])
    assert float((weights == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    decides._reduced(net, "4 bits")
    assert len(net[0].weight.unique()) <= 15


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A few hundred small digits in place of MNIST; half of them differ from those of the truth."""
    monkeypatch.setattr(decides, "BASELINE", ("contrast", "impulse_noise"))
    monkeypatch.setattr(decides, "OUTSIDE", ("fog", "pixelate"))
    monkeypatch.setattr(decides, "DRAWS", 8)
    monkeypatch.setattr(decides, "measure_worst", partial(decides.measure_worst, gradients=8))
    x, y = decides.optdigits()
    parts = {"train": slice(0, 300), "test": slice(300, 360)}
    arrays = {f"x_{part}": x[rows].numpy() for part, rows in parts.items()}
    arrays |= {f"y_{part}": y[rows].numpy() for part, rows in parts.items()}
    np.savez(tmp_path / "digits.npz", **arrays)
    elsewhere = {"optdigits": (x[800:1000], y[800:1000]), "printed": decides.printed()}
    for name, few in elsewhere.items():
        monkeypatch.setattr(decides, name, lambda size, few=few: few)

    def make(**options):
        sizes = {
            "recipes": 8,
            "trainings": 1,
            "epochs": 1,
            "seeds": 6,
            "worst": True,
            "searched": 2,
        }
        data = f"npz:{tmp_path / 'digits.npz'}"
        return Bench(out=tmp_path / "out", data=data, options={**sizes, **options})

    return make


def test_parts_are_measured_once_and_read_together(bench, monkeypatch):
    assert decides.run(bench(part="1/2")).tables[0].rows == [["1/2", "4 of 8"]]
    decides.run(bench(part="2/2"))
    monkeypatch.setattr(decides, "_trained", None)  # nothing is trained again
    outcome = decides.run(bench())
    added, _, ranks, each = outcome.tables
    assert [row[0] for row in added.rows] == ["optdigits", "corruptions", "second source"]
    assert added.rows[-1][1] == "not had"
    assert "2 are needed" in added.notes[0]
    for row in added.rows[:2]:
        assert row[3] == pytest.approx(row[2] / row[1])
        assert 0 < row[4] <= row[5] <= 1
    assert len(each.rows) == 8
    assert all(0 <= row[4] <= 1 for row in each.rows)
    assert len(ranks.rows) == 7
    assert all(0 < row[each.columns.index(decides.LEAST)] <= 1 for row in each.rows)
