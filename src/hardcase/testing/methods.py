"""The laws every method must pass. Each `check_*` raises AssertionError with what it saw."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import torch
from safetensors.torch import load, save

from hardcase import tensors
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, Shard, limits, overlay, parse_keep
from hardcase.tensors import digest_tensors, from_bytes
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import (
    KINDS,
    Budget,
    Findings,
    Images,
    Look,
    Method,
    Model,
    Probe,
    Search,
    Seeds,
    State,
)

Make = Callable[[], Method]
Some = Callable[[int], Images]
"""Toy images, so many of them; methods that make their own seeds bring their own."""


def search(
    method: Method,
    *,
    images: Images,
    subject: Model | None = None,
    peers: tuple[Model, ...] = (),
    budget: Budget | None = None,
    batch: int = 256,
    seed: int = 0,
) -> Shard:
    """One shard of the toy world searched with `method`."""
    campaign = Campaign(
        subject=subject or toy_subject(),
        method=method,
        peers=peers,
        batch=batch,
        seed=seed,
        keep=parse_keep(method.keep),
    )
    bounds = limits(overlay(budget or Budget(), method.budget), len(images))
    return run_shard(campaign, images, bounds, guides=(*method.guides,))


def check_finds_failures(
    make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images
) -> None:
    found = search(make(), images=some(5), peers=peers).findings
    seeds = len(set(found.seed.tolist()))
    assert seeds >= 3, (
        f"found failures for {seeds} of 5 seeds of the toy subject, on which they are easy to find"
    )


def check_findings_fail(make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images) -> None:
    """Re-running the method's own oracle on the stored picture says the same kind."""
    method, images = make(), some(5)
    found = search(method, images=images, peers=peers).findings
    assert len(found), "nothing was found"
    stored = torch.stack([tensors.decode(tensors.encode(image)) for image in found.x])
    assert torch.equal(stored, found.x.cpu()), "pictures changed when they were stored"
    subject, x = toy_subject(), from_bytes(stored)
    origin = Seeds(x, from_bytes(images.x[found.seed]), images.y[found.seed], found.seed)
    answer = subject(
        x, {name: tap for name, tap in method.taps.items() if not name.startswith("peer")}
    )
    probe = Probe(
        x, x, answer.logits, origin, tuple(peer(x).logits for peer in peers), answer.activations
    )
    left, label = probe.logits.argmax(1) != origin.y, found.kind == KINDS.index("label")
    assert bool(method.oracle(probe)[found.kind != KINDS.index("non_finite")].all()), (
        "a stored finding no longer fails"
    )
    assert torch.equal(label, left), (
        "a finding is called a label failure where the subject keeps the label, or the reverse"
    )
    assert torch.equal(probe.logits.argmax(1), found.predicted), (
        "a stored label is not the picture's"
    )
    assert torch.equal(found.expected, origin.y), (
        "a finding was judged against another seed's label"
    )


def check_deterministic(make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images) -> None:
    """Same seed, same findings, byte for byte, whatever the batch size."""
    one, two, small = (
        search(make(), images=some(5), peers=peers, batch=batch).findings
        for batch in (256, 256, 16)
    )
    assert _same(one, two), "two runs with one seed differ"
    assert _same(one, small), "findings depend on the batch size"


def check_changes_nothing(
    make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images
) -> None:
    """Global randomness, seeds, weights, training flags and hooks are as before, also after an exception."""
    subject, images = toy_subject(), some(5)
    before = _surroundings(subject, images)
    search(make(), images=images, subject=subject, peers=peers)
    assert _surroundings(subject, images) == before, "a run changed what does not belong to it"
    with suppress(RuntimeError):
        search(make(), images=images, subject=Counting(subject, raise_after=1), peers=peers)
    assert _surroundings(subject, images) == before, (
        "a run that failed changed what does not belong to it"
    )


def check_budget(make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images) -> None:
    """No seed costs more than its budget, and every row given to the subject is counted."""
    for budget in (Budget(queries=7), Budget(total_queries=23), Budget(queries=9, gradients=2)):
        subject, method = Counting(toy_subject()), make()
        counts = search(method, images=some(5), subject=subject, peers=peers, budget=budget).counts
        bound = limits(overlay(budget, method.budget), 5)
        assert bool((counts.queries <= bound.queries).all()), (
            f"{counts.queries.tolist()} queries under {budget}"
        )
        assert bool((counts.gradients <= bound.gradients).all()), (
            f"{counts.gradients.tolist()} gradients under {budget}"
        )
        assert subject.rows == int(counts.queries.sum()), (
            f"{subject.rows} rows asked, {int(counts.queries.sum())} counted"
        )


def check_seed_counts(make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images) -> None:
    """One seed or five, of mixed labels: each is searched, and only listed seeds have findings."""
    for count in (1, 5):
        shard = search(make(), images=some(count), peers=peers)
        assert bool((shard.counts.queries > 0).all()), "a seed was never looked at"
        assert set(shard.findings.seed.tolist()) <= set(range(count))


def check_black_box(make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images) -> None:
    """A method that does not need gradients never asks for them."""
    method = make()
    if method.needs != "gradients":
        search(
            method,
            images=some(5),
            subject=Counting(toy_subject(), offers=method.needs),
            peers=peers,
        )


def check_resumable_state(
    make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images
) -> None:
    """The search's state survives being saved and loaded at every step."""
    method = make()
    plain = search(make(), images=some(5), peers=peers).findings
    saved = search(
        replace(method, search=_Saving(method.search)), images=some(5), peers=peers
    ).findings
    assert _same(plain, saved), "findings change when the state is saved and loaded between steps"


CHECKS = (
    check_finds_failures,
    check_findings_fail,
    check_deterministic,
    check_changes_nothing,
    check_budget,
    check_seed_counts,
    check_black_box,
    check_resumable_state,
)


def check_method(make: Make, peers: tuple[Model, ...] = (), some: Some = toy_images) -> None:
    """All laws of a method that `make` builds afresh for images of the toy world."""
    for check in CHECKS:
        check(make, peers, some)


@dataclass(frozen=True, slots=True)
class _Saving:
    search: Search

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        return self.search.init(seeds, rng)

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        return self.search.step(
            load(save({k: v.contiguous() for k, v in state.items()})), look, rng
        )


def _same(one: Findings, two: Findings) -> bool:
    return all(torch.equal(getattr(one, f.name), getattr(two, f.name)) for f in fields(Findings))


def _surroundings(subject: torch.nn.Module, images: Images) -> tuple[object, ...]:
    modules = list(subject.modules())
    hooks = sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules
    )
    flags = tuple(module.training for module in modules)
    state = torch.get_rng_state().numpy().tobytes()
    return state, digest_tensors(subject.state_dict()), hooks, flags, images.hash
