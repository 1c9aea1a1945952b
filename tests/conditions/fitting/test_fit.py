"""Conditions fitted to a field: nothing is invented, what is planted is found, and the same again."""

import json

import numpy as np
import pytest
import torch

import hardcase as hc
from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.subjects import Annotation
from hardcase.conditions import condition_box
from hardcase.conditions.box import samples_of
from hardcase.conditions.fitting import fit as fitting, search
from hardcase.conditions.fitting.coordinates import Spread, conditions_of, fittable
from hardcase.errors import HardcaseError
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Seeds

FEW = ("rotation", "fading", "noise")
"""Coordinates of the small fits: a search of seconds."""


@pytest.fixture(scope="module")
def digits():
    test = hc.data.load("mnist5k", split="test").sample(count=240, seed=1)
    train = hc.data.load("mnist5k", split="train")
    return test, train.take(torch.arange(0, 2000, 2)), train.take(torch.arange(1, 2000, 2))


def seen(images, ranges, seed=3):
    """The images under declared conditions, as 8-bit ones."""
    box = condition_box(hc.Conditions(ranges), images.shape)
    drawn = samples_of(box, images.id, 1, seed=seed, stream="hidden")
    number = torch.arange(len(images))
    seeds = Seeds(drawn.z[:, 0], from_bytes(images.x), images.y, number)
    seeds = Seeds(seeds.z, seeds.x, seeds.y, seeds.id, {"pattern": drawn.pattern[:, 0]})
    return to_bytes(box.decode(seeds.z, seeds))


def fitted(digits, field, **how):
    test, train, _ = digits
    return hc.conditions.fit(test, field, train=train, coordinates=FEW, **how)


def test_nothing_is_claimed_of_other_images_of_the_same_kind(digits):
    found = fitted(digits, digits[2].sample(count=300, seed=2).x)
    assert found.found == ()
    assert found.unexplained.p > 0.01  # one null in twenty is below 0.05
    assert {*found.smallest} == {*FEW}
    with pytest.raises(HardcaseError, match="no conditions were found"):
        _ = found.conditions


@pytest.fixture(scope="module")
def noisy(digits, tmp_path_factory):
    """A field with noise and fading, fitted into a file."""
    field = seen(
        digits[2].sample(count=300, seed=2), {"noise": "0..30 levels", "fading": "0..60 %"}
    )
    out = tmp_path_factory.mktemp("fit") / "field.toml"
    return field, fitted(digits, field, out=out), out


def test_planted_conditions_are_found_with_their_widths(noisy):
    _, found, _ = noisy
    widths = {one.name: one.width for one in found.found}
    assert {*widths} == {"noise", "fading"}
    assert widths["noise"] == pytest.approx(30 / 3**0.5, rel=0.3)
    assert widths["fading"] == pytest.approx(60 / 3**0.5, rel=0.3)
    assert all(one.low <= one.width <= one.high and one.p <= 0.05 for one in found.found)
    assert found.unexplained.share < 0.1


def test_the_file_declares_what_was_fitted(noisy):
    _, found, out = noisy
    declared = hc.Conditions.load(str(out))
    assert str(declared) == str(found.conditions)
    record = json.loads(out.with_suffix(".json").read_text())
    assert [one["condition"] for one in record["conditions"]] == [*declared.ranges]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in out.parent.iterdir() if path.name.startswith(".")]


def test_a_stopped_fit_goes_on_to_the_same_bytes(digits, noisy, tmp_path, monkeypatch):
    field, _, whole = noisy
    rendered = []

    class Killed(BaseException):
        pass

    def dying(what, count):
        rendered.append(count)
        if count == 25:
            raise Killed

    out = tmp_path / "field.toml"
    with pytest.raises(Killed):
        fitted(digits, field, out=out, on_progress=dying)
    assert not out.exists()
    calls = []
    place = search.Renderer.__call__
    monkeypatch.setattr(search.Renderer, "__call__", lambda *a: calls.append(a) or place(*a))
    fitted(digits, field, out=out)
    for suffix in (".toml", ".json", ".png"):
        assert out.with_suffix(suffix).read_bytes() == whole.with_suffix(suffix).read_bytes()


def test_another_mix_of_classes_is_no_condition(digits):
    other = digits[2]
    mostly = torch.cat([(other.y < 3).nonzero().flatten(), (other.y > 2).nonzero().flatten()[:60]])
    found = fitted(digits, other.take(mostly).x)
    assert found.found == ()
    assert sum(found.classes[name] for name in ("0", "1", "2")) > 0.6


def test_what_no_condition_does_is_said_to_be_unexplained(digits):
    field = digits[2].sample(count=300, seed=2).x.clone()
    field[:, :, :, ::4] = 255  # stripes
    found = fitted(digits, field)
    assert found.unexplained.rejects
    assert len(found.least_explained) == len(found.field)


def test_the_least_explained_images_come_first(digits):
    field = digits[2].sample(count=200, seed=2).x.clone()
    field[:5] = 255 - field[:5]
    found = fitted(digits, field)
    assert {*found.least_explained[:5]} == {
        i for i, name in enumerate(found.field.names) if int(name) < 5
    }


def test_the_expected_accuracy_has_an_interval_or_a_reason(digits):
    class Brightest(torch.nn.Module):
        def forward(self, x):
            return x[:, 0, 4:24, 9:19].mean(1) * 8

    images = digits[0]
    subject = hc.Subject(Brightest(), classes=images.classes)
    found = fitted(digits, digits[2].sample(count=200, seed=2).x, model=subject)
    accuracy = found.accuracy
    assert accuracy.refused or accuracy.low <= accuracy.value <= accuracy.high
    assert 0 <= accuracy.fitted <= 1


@pytest.mark.parametrize("even", [True, False])
def test_a_declaration_draws_what_the_fit_rendered(even):
    spread = Spread.of(fittable((1, 28, 28), ["noise"])[0], 1.0, 0.4, even)
    declared = conditions_of({"noise": spread})
    again = hc.Conditions({"noise": str(declared.ranges["noise"])})
    boxes = [condition_box(one, (1, 28, 28)) for one in (declared, again)]
    codes = [samples_of(box, [f"{i}" for i in range(50)], 4, seed=1).z for box in boxes]
    assert torch.equal(*codes)


def test_the_labelled_images_are_bounded(digits):
    ready = fitting.prepared(digits[1], digits[2].x, train=digits[0])
    assert len(ready.images) == fitting.MOST_LABELLED
    assert len(ready.field) <= 1000


def test_boxes_are_not_looked_at(digits):
    nothing = torch.zeros(0, dtype=torch.long)
    none = Annotation(nothing, torch.zeros(0, 4), nothing[:, None])
    annotated = AnnotatedImages(digits[0], (none,) * len(digits[0]))
    assert fitting.known_images(annotated) is digits[0]


def test_labelled_images_that_are_named_twice_are_divided(digits):
    ready = fitting.prepared(digits[1], digits[2].x, train=digits[1])
    assert not {*ready.images.id} & {*ready.readout.id}


def test_too_few_labelled_images_are_refused(digits):
    with pytest.raises(HardcaseError, match="too few"):
        fitting.prepared(digits[0].first(30), digits[2].x, train=digits[1])


def test_figures_of_a_fit_are_plain(noisy):
    text = json.dumps(noisy[1].to_json(), allow_nan=False)
    assert "noise" in text
    assert np.isfinite(noisy[1].unexplained.distance)
