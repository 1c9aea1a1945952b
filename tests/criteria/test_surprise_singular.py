"""Traces that do not vary in every direction: measured within their span, or refused; no ridge."""

import pytest
import torch

from hardcase.criteria.surprise import Bell, Likelihood, Mahalanobis, Traces, refuse_few
from hardcase.errors import Problem
from hardcase.randomness import stream


def embedded(count=80, rank=5, width=12, seed=0):
    """Points of `rank` dimensions, and the same ones lying in a space of `width`."""
    rng = stream(seed, "singular")
    inner = torch.randn(count, rank, generator=rng, dtype=torch.float64) * torch.arange(1, rank + 1)
    turn = torch.linalg.qr(torch.randn(width, rank, generator=rng, dtype=torch.float64)).Q
    return inner, inner @ turn.t()


def test_a_shape_is_the_same_wherever_it_lies():
    inner, outer = embedded()
    one, two = Bell.of(inner), Bell.of(outer)
    assert (one.rank, two.rank) == (5, 5)
    assert (one.projected, two.projected) == (False, True)
    assert two.size == pytest.approx(one.size)
    apart = [torch.cdist(bell.traces.double(), bell.traces.double()) for bell in (one, two)]
    assert torch.allclose(*apart, atol=1e-4)


def test_what_is_printed_hangs_on_no_constant(monkeypatch):
    _, outer = embedded(count=160)
    traces = Traces(outer.float(), torch.arange(160) % 2, torch.arange(160) % 2)
    seen = []
    for rank in (1e-8, 1e-7, 1e-6, 1e-5):
        monkeypatch.setattr("hardcase.criteria.surprise.RANK", rank)
        lsa, mdsa = Likelihood.fit(traces, floor=0), Mahalanobis.fit(traces)
        assert (lsa.projected, mdsa.projected) == (2, 2)
        some = outer[:9].float(), torch.arange(9) % 2
        seen.append(torch.stack([lsa(*some), mdsa(*some)]))
    assert all(torch.allclose(values, seen[0], rtol=1e-3) for values in seen)


def test_fewer_traces_than_units_are_refused():
    rng = stream(1, "few")
    values = torch.randn(20, 30, generator=rng)
    traces = Traces(values, torch.arange(20) % 2, torch.arange(20) % 2)
    for fit in (Likelihood.fit, Mahalanobis.fit):
        with pytest.raises(Problem, match="no density can be estimated from so few"):
            refuse_few(fit(traces))
