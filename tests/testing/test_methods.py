"""The laws see what they are for: each is shown a method with the one defect, and the method without it."""

from dataclasses import dataclass, replace

import pytest
import torch

from hardcase.methods import pgd
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.testing import methods as laws
from hardcase.testing.methods import check_method
from hardcase.types import Budget, Method


@dataclass(frozen=True)
class Walk:
    """Random steps from the original. The flags plant one defect each."""

    edits: bool = False
    late: bool = False
    plain_state: bool = False
    idle: bool = False
    neighbours: bool = False

    def init(self, seeds, rng):
        z = seeds.z if self.late else seeds.z.clone()
        if self.edits:
            z = seeds.z.add_(0.05)
        return {"z": z, "step": 0 if self.plain_state else torch.zeros(1)}

    def step(self, state, evaluate, rng):
        if self.idle:
            return state
        rows = evaluate.live.nonzero().squeeze(1)
        noise = rng.uniform(rows, state["z"].shape[1:]) * 2 - 1
        if self.neighbours:
            noise = noise.flip(0)
        z = state["z"] if self.late else state["z"].clone()
        z[rows] = evaluate(z[rows] + 0.2 * noise, rows).z
        return {**state, "z": z}


def method(search, space=None, queries=40):
    return Method(
        name="walk", space=space or Pixels(Linf(0.4)), search=search, objective=Margin(), oracle=LeavesLabel(),
        needs="scores", budget=Budget(queries=queries),
    )  # fmt: skip


def trial(space=None, **defect):
    return laws.MethodTrial(lambda: method(Walk(**defect), space))


def test_a_sound_method_passes_as_a_value_and_as_a_recipe():
    check_method(pgd())
    check_method(pgd)


@pytest.mark.parametrize("where", ["edits", "late"])
def test_a_search_that_edits_its_seeds_is_told_where(where):
    laws.check_changes_nothing(trial())
    name = {"edits": "init", "late": "step"}[where]
    words = f"the search's {name} edited its images in place: clone"
    with pytest.raises(AssertionError, match=words):
        laws.check_changes_nothing(trial(**{where: True}))


def test_seeds_edited_in_place_move_no_ball_and_no_distance():
    """The search has copies: what it spoils are its own."""
    laws.check_distances(trial(Pixels(Linf(0.3)), edits=True))


def test_a_distance_from_elsewhere_is_noticed(monkeypatch):
    laws.check_distances(trial())
    honest = laws.search

    def lying(*args, **how):
        shard = honest(*args, **how)
        found = replace(shard.findings, distance=shard.findings.distance / 2)
        return replace(shard, findings=found)

    monkeypatch.setattr(laws, "search", lying)
    with pytest.raises(AssertionError, match="data set's own seed: were images edited in place"):
        laws.check_distances(trial())


def test_a_finding_outside_of_its_ball_is_noticed(monkeypatch):
    wide, narrow = method(Walk()), method(Walk(), Pixels(Linf(0.02)))
    found = laws.search(wide, images=laws.toy_images(5))
    assert len(found.findings) > 0
    monkeypatch.setattr(laws, "search", lambda *args, **how: found)
    with pytest.raises(AssertionError, match="outside of what its space allows"):
        laws.check_distances(laws.MethodTrial(lambda: narrow))


def test_numbers_of_another_row_are_noticed():
    laws.check_neighbours(trial())
    with pytest.raises(AssertionError, match=r"draw by rng\.normal"):
        laws.check_neighbours(trial(neighbours=True))


def test_a_state_that_is_no_tensor_is_told_what_to_keep():
    with pytest.raises(AssertionError, match=r"'step' is of type int: .* keep torch.tensor\(0\)"):
        laws.check_resumable_state(trial(plain_state=True))


def test_a_search_that_asks_nothing_ends():
    with pytest.raises(AssertionError, match=r"last 1000 steps asked nothing: evaluate\.retire"):
        laws.check_finds_failures(trial(idle=True))


@pytest.mark.parametrize(("limit", "value"), [("STEPS", 20), ("SECONDS", 0.0)])
def test_a_search_that_goes_on_ends(monkeypatch, limit, value):
    monkeypatch.setattr(laws, limit, value)
    endless = replace(method(Walk(), queries=1000), until="budget")
    with pytest.raises(AssertionError, match=r"still goes on after .* steps, .* Method.budget"):
        laws.check_finds_failures(laws.MethodTrial(lambda: endless))
