"""Calls that are captured once and replayed: same answers, kept apart, given up where it fails."""

import copy
import pickle

import pytest
import torch
from played_device import PlayedDevice
from torch import nn

import hardcase as hc
from hardcase.campaign import device
from hardcase.graphs import CapturedCall, CapturedCalls, captured, replayed, replays, side_by_side
from hardcase.testing.toys import toy_images, toy_subject


def doubled(x, y):
    return [2 * x + y, x.sum(1)]


def test_a_captured_call_answers_for_other_inputs_if_it_can_be_repeated():
    replay = captured(doubled, torch.ones(3, 2), torch.zeros(3, 2))
    first = replay.answer(torch.full((3, 2), 4.0), torch.ones(3, 2))
    second = replay.answer(torch.zeros(3, 2), torch.zeros(3, 2))
    assert torch.equal(first[0], torch.full((3, 2), 9.0))
    assert torch.equal(second[1], torch.zeros(3))

    def fickle(x):
        return [x + torch.rand(())]

    def broken(x):
        raise RuntimeError("not here")

    assert captured(fickle, torch.zeros(2)) is None
    assert captured(broken, torch.zeros(2)) is None


def test_tiles_side_by_side_are_those_of_single_calls():
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    several = side_by_side(lambda one: [one - one.mean(0)], 4)
    assert torch.equal(several(x)[0], torch.cat([p - p.mean(0) for p in x.split(2)]))


def test_what_was_captured_stays_where_it_was_and_a_cpu_replays_a_played_device():
    known = CapturedCalls({"a": CapturedCall(lambda x: [x], torch.zeros(1))})
    assert copy.deepcopy(known) == {}
    assert pickle.loads(pickle.dumps(known)) == {}
    here = torch.device("cpu")
    assert not replays(here)
    with PlayedDevice():
        assert replays(here)
    net = nn.Linear(2, 2)
    assert torch.equal(replayed(net, net, torch.ones(1, 2)), net(torch.ones(1, 2)))


@pytest.mark.parametrize("method", ["pgd", pytest.param("cw", marks=pytest.mark.long)])
def test_replayed_queries_find_what_eager_ones_find(method, monkeypatch):
    calls = []
    usual = CapturedCall.__call__
    counted = lambda self: calls.append(len(self.out[0])) or usual(self)  # noqa: E731
    monkeypatch.setattr(CapturedCall, "__call__", counted)

    def found(often):
        monkeypatch.setattr(device, "CAPTURE_AFTER_CALLS", often)
        with PlayedDevice(mixing=16):
            return hc.search(toy_subject(), toy_images(90), method=method)

    eager = found(10**9)
    assert not calls
    replay = found(2)
    assert {16, 64} <= set(calls), "single tiles and several side by side"
    for name in ("seed", "x", "score", "distance", "queries", "predicted"):
        assert torch.equal(getattr(eager, name), getattr(replay, name)), name
