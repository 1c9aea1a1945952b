"""Tags: words for thirds of measures, columns of data, and measures that measure what they say."""

import pytest
import torch

from hardcase.analysis.tags import (
    columns,
    figure_measures,
    join,
    kind_of,
    measure,
    photograph_measures,
    thirds,
)
from hardcase.errors import Problem


def photographs(count=30, side=32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, side, side, generator=rng)


def digits(count=30, side=28):
    x = torch.zeros(count, 1, side, side)
    for i in range(count):
        x[i, 0, 5:20, 8 + i % 7 : 11 + i % 7 + i % 3] = 0.3 + 0.02 * i
    return x


def test_thirds_leave_out_what_is_constant_or_not_a_number():
    values = {
        "brightness": torch.tensor([0.0, 1, 2, 3, 4, 5]),
        "scale": torch.ones(6),
        "speed": torch.tensor([1, 2, 3, 4, 5, float("nan")]),
    }
    tags = thirds(values)
    assert tags.names == ("dark", "bright", "low speed", "high speed")
    assert tags.family == ("brightness", "brightness", "speed", "speed")
    assert tags.has[:, 0].tolist() == [True, True, False, False, False, False]
    assert not tags.has[5, 2:].any(), "what is not a number is in no third"
    assert len(thirds({"scale": torch.ones(6)})) == 0


def test_columns_of_words_numbers_and_answers():
    table = {
        "camera": ["a", "b", "b", "c"] * 15,
        "night": [True, False] * 30,
        "speed": list(range(60)),
        "same": ["x"] * 60,
    }
    tags = columns(table)
    assert tags.names == ("camera: a", "camera: b", "camera: c", "night", "low speed", "high speed")
    assert tags.has[:, 0].sum() == 15
    rare = columns({"camera": ["a"] * 99 + ["b"]})
    assert rare.names == ("camera: a",)
    assert len(columns({})) == 0
    with pytest.raises(Problem, match="same images"):
        join(tags, rare)
    with pytest.raises(Problem, match="two tags"):
        join(tags, tags)


def test_measures_of_photographs_move_with_what_they_name():
    x = photographs()
    plain = photograph_measures(x)
    smooth = torch.nn.functional.avg_pool2d(x, 3, 1, 1)
    grey = x.mean(1, keepdim=True).expand_as(x)
    assert bool((photograph_measures(x / 2)["brightness"] < plain["brightness"]).all())
    assert bool((photograph_measures(x / 2)["contrast"] < plain["contrast"]).all())
    assert bool((photograph_measures(smooth)["sharpness"] < plain["sharpness"]).all())
    assert bool((photograph_measures(smooth)["edges"] < plain["edges"]).all())
    assert bool((photograph_measures(grey)["colourfulness"] < plain["colourfulness"]).all())
    assert bool((photograph_measures(grey)["saturation"] < plain["saturation"]).all())
    assert set(photograph_measures(x[:, :1])) == {"brightness", "contrast", "sharpness", "edges"}


def test_colourfulness_is_that_of_its_authors():
    x = photographs(2).double()
    red, green, blue = x[0]
    across, along = red - green, (red + green) / 2 - blue
    expected = (across.var() + along.var()).sqrt() + 0.3 * (
        across.mean() ** 2 + along.mean() ** 2
    ).sqrt()
    assert float(photograph_measures(x)["colourfulness"][0]) == pytest.approx(float(expected))


def test_figures_and_photographs_are_told_apart():
    assert kind_of(digits()) == "figure"
    assert kind_of(photographs()) == "photograph"


def test_everything_together():
    x = digits()
    tags = measure(x, table={"writer": ["a", "b"] * 15, "speed": list(range(30))})
    named = {"dark", "bright", "thin strokes", "figure left", "low speed", "writer: a"}
    assert named <= set(tags.names)
    assert "hue" not in tags.family
    assert torch.equal(measure(x, batch=7).has, measure(x).has)
    assert set(measure(photographs()).family) == set(photograph_measures(photographs()))
    assert set(measure(photographs(), kind="figure").family) <= set(figure_measures(photographs()))
    with pytest.raises(Problem, match="no images"):
        measure(x[:0])
