"""Plans: what is stored gives the same plan again, and who gave a setting stands beside it."""

import tomllib
from pathlib import Path

import pytest
import torch

from hardcase.config import parse
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.runs.identity import Identity, require_same
from hardcase.runs.plan import measure_plan, plan_of
from hardcase.testing.toys import toy_images, toy_subject
from tiny import MODEL, save_toys


@pytest.fixture
def named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    save_toys(tmp_path, 60)
    values = {"model": "model.py:make", "data": "npz:toy.npz", "allow_low_accuracy": True}

    def context(**more):
        return Context(parse({**values, "method": "pgd", **more}))

    return context


def test_the_stored_settings_give_the_same_plans(named):
    first = named(images=6)
    measuring, searching = measure_plan(first), plan_of(first)
    for plan in (measuring, searching):
        again = Context(parse(tomllib.loads(plan.config)))
        assert measure_plan(again).identity == measuring.identity
        same = plan_of(again)
        assert same.identity(same.campaign) == searching.identity(searching.campaign)
        assert same.config == searching.config


def test_what_was_chosen_is_stored_as_the_programs_choice(named):
    stored = tomllib.loads(plan_of(named(given={"model.name": "flag"})).config)
    assert stored["given"]["model.name"] == "flag"
    assert stored["conditions"] == "scanner"
    assert stored["given"]["conditions"] == "default"
    assert stored["campaign"]["shard"] > 0


def test_images_are_measured_in_an_order_of_their_names_and_the_seed():
    def order(**how):
        images = toy_images(40)
        if how.pop("mirrored", False):
            images = images.take(torch.arange(39, -1, -1))
        return measure_plan(Context.of(toy_subject(), images, "pgd", some=True, **how)).images.id

    assert order() == order(mirrored=True)
    assert sorted(order()) == sorted(order(seed=1))
    assert order() != order(seed=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep": "some"},
        {"target": "up"},
        {"budget": {"time": "soon"}},
        {"method": {"name": "pgd", "epsilon": -1}},
        {"method": {"name": "pgd", "epsilom": 1}},
        {"criteria": "nothing"},
        {"map": "nothing"},
    ],
)
def test_what_is_wrong_with_a_later_phase_is_told_before_the_first(named, wrong):
    with pytest.raises(HardcaseError):
        measure_plan(named(**wrong))


def test_nothing_is_trained_before_all_is_measured(named, monkeypatch):
    def trained(*given, **more):
        raise AssertionError("trained")

    monkeypatch.setattr(Context, "generator", property(trained))
    monkeypatch.setattr(Context, "witnesses", property(trained))
    for method in ("sinvad", "natural", "pgd"):
        measure_plan(named(method=method))


def test_an_error_names_few_of_many_settings_that_differ():
    """About two hundred names of parts of a method once filled the terminal."""
    parts = {f"setting method parts.space.{number}": "1" for number in range(200)}
    then = Identity({**parts, "setting method": "pgd", "setting images": "60", "model": "a"})
    now = Identity(dict.fromkeys(then.parts, "other"))
    with pytest.raises(HardcaseError) as caught:
        require_same(then, now)
    named = "the model, the settings (method, images, method parts.space.0 and 199 more)"
    assert caught.value.what == f"{named} are not those this run began with."
