"""The laws every method must pass.

Each `check_*` raises AssertionError with what it saw and what to look at.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from hardcase import tensors
from hardcase.campaign.loop import encode_images, run_shard
from hardcase.campaign.record import Campaign, Counts, Shard, limits, overlay, parse_keep
from hardcase.randomness import Rng
from hardcase.registry import Part
from hardcase.tensors import digest_tensors, flat, from_bytes
from hardcase.testing.toys import Counting, digit_world, toy_images, toy_subject, toy_world
from hardcase.types import (
    KINDS,
    Budget,
    Evaluator,
    Findings,
    Images,
    Method,
    Model,
    Probe,
    Search,
    Seeds,
    State,
)

Make = Callable[[], Method]
Some = Callable[[int], Images]
"""Toy images, so many of them; methods that make their own originals bring their own."""

SECONDS = 120.0
"""How long one search of a few toy images may take."""
STEPS = 50_000
"""How many steps it may take."""
IDLE = 1000
"""How many steps in a row may go by without a query."""


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
    """Search one shard of the toy world; a search that does not end is an AssertionError."""
    campaign = Campaign(
        subject=subject or toy_subject(),
        method=method,
        peers=peers,
        batch=batch,
        seed=seed,
        keep=parse_keep(method.keep),
    )
    bounds = limits(overlay(budget or Budget(), method.budget), len(images))
    return run_shard(campaign, images, bounds, guides=method.guides, stop=_Patience())


@dataclass
class MethodTrial:
    """A method in the toy world. Laws that only read what it finds share one search."""

    make: Make
    peers: tuple[Model, ...] = ()
    some: Some = toy_images

    @cached_property
    def method(self) -> Method:
        return self.make()

    @cached_property
    def images(self) -> Images:
        """The images of `plain`."""
        return self.some(5)

    @cached_property
    def plain(self) -> Shard:
        return search(self.method, images=self.images, peers=self.peers)

    def search(
        self, method: Method | None = None, *, images: Images | None = None, **options: Any
    ) -> Shard:
        """Search anew, with a method built anew on images made anew unless they are given."""
        return search(
            method or self.make(),
            images=self.some(5) if images is None else images,
            peers=self.peers,
            **options,
        )


class _Patience:
    """Asked before each step: raises when a search takes too long, so that a law ends."""

    def __init__(self) -> None:
        self.began = monotonic()
        self.steps = 0
        self.idle = 0
        self.queries = 0

    def __call__(self, counts: Counts) -> bool:
        queries = int(counts.queries.sum())
        self.idle = (self.idle + 1) * (queries == self.queries)
        self.queries = queries
        self.steps += 1
        spent = monotonic() - self.began
        so_far = f"{self.steps - 1} steps, {queries} queries and {spent:.0f} s"
        assert self.idle <= IDLE, (
            f"the search still goes on after {so_far}, but its last {IDLE} steps asked nothing: "
            "evaluate.retire images that have nothing left to try"
        )
        ends = self.steps <= STEPS and spent <= SECONDS
        assert ends, (
            f"the search of {len(counts.queries)} toy images still goes on after {so_far}: bound it"
            " by Method.budget, evaluate.retire finished images, and check that it keeps the best"
            " candidates (higher scores are better), not the worst"
        )
        return False


def check_finds_failures(trial: MethodTrial) -> None:
    findings = trial.plain.findings
    seeds = len(set(findings.seed.tolist()))
    assert seeds >= 3, (
        f"found failures for {seeds} of 5 images of the toy model, on which they are easy to find:"
        " look at the sign of the step, at the step size, and at which candidates are kept"
    )


def check_findings_fail(trial: MethodTrial) -> None:
    """Re-running the method's own oracle on the stored image says the same kind."""
    method = trial.method
    images = trial.images
    findings = trial.plain.findings
    assert len(findings), "nothing was found"
    stored = torch.stack([tensors.decode(tensors.encode(image)) for image in findings.x])
    assert torch.equal(stored, findings.x.cpu()), "images changed when they were stored"
    subject = toy_subject()
    x = from_bytes(stored)
    origin = Seeds(x, from_bytes(images.x[findings.seed]), images.y[findings.seed], findings.seed)
    answer = subject(
        x, {name: tap for name, tap in method.taps.items() if not name.startswith("peer")}
    )
    probe = Probe(
        x,
        x,
        answer.logits,
        origin,
        tuple(peer(x).logits for peer in trial.peers),
        answer.activations,
    )
    left = Campaign(subject=subject, method=method).leaves(probe)
    label = findings.kind == KINDS.index("label")
    assert bool(method.oracle(probe)[findings.kind != KINDS.index("non_finite")].all()), (
        "a stored failure no longer fails: does the oracle read anything but the 8-bit image's"
        " answers?"
    )
    assert torch.equal(label, left), (
        "a failure is called a label failure where the model keeps the label, or the reverse"
    )
    assert torch.equal(probe.logits.argmax(1), findings.predicted), (
        "a stored label is not the image's"
    )
    assert torch.equal(findings.expected, origin.y), (
        "a failure was judged against another seed's label: are `rows` those of the candidates?"
    )


def check_distances(trial: MethodTrial) -> None:
    """Stored distances are those of the stored image (or code), and the space allows them."""
    method = trial.method
    images = trial.images
    findings = trial.plain.findings
    origin = encode_images(Campaign(subject=toy_subject(), method=method), images).take(
        findings.seed
    )
    space = method.space
    if space.keeps_code:  # a code is stored as it is
        z = findings.code.reshape(-1, *origin.z.shape[1:])
        slack = 1e-3
        open_range = torch.ones(len(z))
    else:
        z = from_bytes(findings.x)
        slack = 1e-4 + 0.5 / 255 * flat(z).shape[1] ** 0.5  # how far 8 bits may move an image
        # a pixel at its limit does not tell how far a code went
        wide = bool((space.project(z + 2, origin) > 1).any())
        open_range = ((flat(z) > 0) & (flat(z) < 1)).all(1) | (not wide)
    again = space.distance(z, origin)
    worst = max([0.0, *(again - findings.distance).abs().tolist()])
    assert worst <= slack, (
        f"a stored distance is off by {worst:.3g} from that between the stored image and the data"
        " set's own seed: were images edited in place, or does the distance not measure from its"
        " `origin`?"
    )
    out = flat(space.project(z, origin) - z).norm(dim=1) * open_range
    worst = max([0.0, *out.tolist()])
    assert worst <= slack, (
        f"a failure lies {worst:.3g} outside of what its space allows around the data set's own"
        " seed: were images edited in place, or does `project` not end inside?"
    )


def check_neighbours(trial: MethodTrial) -> None:
    """Without guides, an original's failures do not depend on the images beside it."""
    if trial.method.guides:
        return
    images = trial.some(5)
    together = trial.plain.findings
    for order in ([4, 2, 0], [1]):
        part = trial.search(images=images.take(torch.tensor(order))).findings
        for place, seed in enumerate(order):
            alone, together_findings = (
                _of(findings, row) for findings, row in ((part, place), (together, seed))
            )
            assert _same(alone, together_findings), (
                f"seed {seed} fails otherwise beside images {order} than beside all five: draw by"
                " rng.normal(rows, shape) with the rows of the candidates, and let no row see"
                " another"
            )


def check_deterministic(trial: MethodTrial) -> None:
    """Same seed, same failures, byte for byte, whatever the batch size."""
    first = trial.plain.findings
    second = trial.search().findings
    small = trial.search(batch=16).findings
    assert _same(first, second), (
        "two runs with one seed differ: is there randomness that does not come from `rng`, or"
        " memory that outlives a run?"
    )
    assert _same(first, small), "failures depend on the batch size: does a row see its neighbours?"


def check_changes_nothing(trial: MethodTrial) -> None:
    """Global randomness, images, weights, modes and hooks are as before, also after an error."""
    subject = toy_subject()
    images = trial.some(5)
    method = trial.make()
    before = _surroundings(subject, images)
    watched = replace(method, search=_Watching(method.search))
    trial.search(watched, images=images, subject=subject)
    _unchanged(before, _surroundings(subject, images), "a run")
    with suppress(RuntimeError):
        trial.search(images=images, subject=Counting(subject, raise_after=1))
    _unchanged(before, _surroundings(subject, images), "a run that failed")


def check_budget(trial: MethodTrial) -> None:
    """No seed costs more than its budget, and every row given to the model is counted."""
    for budget in (Budget(queries=7), Budget(total_queries=23), Budget(queries=9, gradients=2)):
        subject = Counting(toy_subject())
        counts = trial.search(subject=subject, budget=budget).counts
        bound = limits(overlay(budget, trial.method.budget), 5)
        assert bool((counts.queries <= bound.queries).all()), (
            f"{counts.queries.tolist()} queries under {budget}"
        )
        assert bool((counts.gradients <= bound.gradients).all()), (
            f"{counts.gradients.tolist()} gradients under {budget}"
        )
        assert subject.rows == int(counts.queries.sum()), (
            f"{subject.rows} rows asked, {int(counts.queries.sum())} counted: does a part ask the"
            " model by another way than `evaluate`?"
        )


def check_seed_counts(trial: MethodTrial) -> None:
    """One seed or five, of mixed labels: each is searched, and only listed images have failures."""
    for count, shard in ((1, trial.search(images=trial.some(1))), (5, trial.plain)):
        assert bool((shard.counts.queries > 0).all()), (
            f"of {count} images, {int((shard.counts.queries == 0).sum())} were never evaluated"
        )
        assert set(shard.findings.seed.tolist()) <= set(range(count)), (
            "a failure names an image that does not exist"
        )


def check_black_box(trial: MethodTrial) -> None:
    """A method that does not need gradients never asks for them."""
    needs = trial.method.needs
    if needs != "gradients":
        trial.search(subject=Counting(toy_subject(), offers=needs))


def check_resumable_state(trial: MethodTrial) -> None:
    """The search's state and its random numbers survive being saved and loaded at every step."""
    method = trial.make()
    saved = trial.search(replace(method, search=_Saving(method.search))).findings
    assert _same(trial.plain.findings, saved), (
        "failures change when the state is saved and loaded between steps: what a search remembers "
        "belongs in its state, not in itself"
    )


SEARCH_LAWS = ("neighbours", "deterministic", "changes nothing", "resumable state")
CHECKS = (
    check_finds_failures,
    check_findings_fail,
    check_distances,
    check_neighbours,
    check_deterministic,
    check_changes_nothing,
    check_budget,
    check_seed_counts,
    check_black_box,
    check_resumable_state,
)


def check_method(
    theirs: Method | Make | Part, peers: tuple[Model, ...] = (), images: Some = toy_images
) -> None:
    """All laws of a method, on images and a model small enough to know every answer.

    Args:
        theirs: A registered method (``resolve("method", "square.py:square")``), which is built in
            the toy world with the options that its decorator calls ``toy``; a built method; or a
            function that builds it afresh.
        peers: Second networks, for methods that compare; they must name the toy's four classes.
        images: So many images; for methods that need other seeds than the toy images of 8x8 pixels.

    Raises:
        AssertionError: With the law that is broken, and what to look at.

    Example:
        >>> from hardcase.registry import resolve
        >>> from hardcase.testing import check_method
        >>> check_method(resolve("method", "fgsm"))
    """
    if isinstance(theirs, Part):
        world = toy_world()
        peers = world.peers(theirs)
        images = world.seeds(theirs)
        make: Make = partial(toy_method, theirs)
    elif isinstance(theirs, Method):
        built = theirs
        make = lambda: built  # noqa: E731 - a recipe without arguments
    else:
        make = theirs
    trial = MethodTrial(make, peers, images)
    for check in CHECKS:
        check(trial)


def toy_method(part: Part) -> Method:
    """The method in the toy world, with the options that make it find something there."""
    return toy_world().build(part, **part.facts.get("toy", {}))


def method_facts(part: Part) -> dict[str, Any]:
    """What a method's row says beside its decorator, read from the method itself."""
    built_method = digit_world().build(part)
    kinds = {"queries": built_method.budget.queries, "gradients": built_method.budget.gradients}
    spent = " and ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count is not None)
    if spent == "1 gradients":
        spent = "1 gradient"
    return {"needs": built_method.needs, "budget": f"{spent} per image", "laws": _laws()}


def search_facts(part: Part) -> dict[str, Any]:
    """The laws of a search: those of the methods that walk with it."""
    return {"laws": [law for law in _laws() if law in SEARCH_LAWS]}


def _laws() -> list[str]:
    return [check.__name__.removeprefix("check_").replace("_", " ") for check in CHECKS]


class _Saving:
    """A search that goes through a file between any two steps, and its random numbers with it."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.rng: Rng | None = None

    def init(self, seeds: Seeds, rng: Rng) -> State:
        state = self.search.init(seeds, rng)
        self.rng = rng
        return state

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        for name, value in state.items():
            assert isinstance(value, Tensor), (
                f"the state's {name!r} is of type {type(value).__name__}: a state is a dict of"
                f" tensors, so that it can be saved at any step; keep torch.tensor({value!r})"
                " instead"
            )
        self.rng = pickle.loads(pickle.dumps(self.rng))
        assert self.rng is not None
        loaded = load(save({name: value.contiguous() for name, value in state.items()}))
        return self.search.step(loaded, evaluate, self.rng)


class _Watching:
    """A search whose images are compared with what they were, before and after all it does."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.seeds: Seeds | None = None
        self.before = ""

    def init(self, seeds: Seeds, rng: Rng) -> State:
        self.seeds = seeds
        self.before = _digest(seeds)
        state = self.search.init(seeds, rng)
        self._compare("init")
        return state

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        state = self.search.step(state, evaluate, rng)
        self._compare("step")
        return state

    def _compare(self, where: str) -> None:
        assert self.seeds is None or _digest(self.seeds) == self.before, (
            f"the search's {where} edited its images in place: clone what the state keeps of them,"
            " and write z + move, not z.add_(move)"
        )


def _of(findings: Findings, seed: int) -> Findings:
    """The failures of one seed, without its number."""
    of_seed = findings.take((findings.seed == seed).nonzero().squeeze(1))
    return replace(of_seed, seed=torch.zeros_like(of_seed.seed))


def _same(first: Findings, second: Findings) -> bool:
    return all(
        torch.equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(Findings)
    )


def _digest(seeds: Seeds) -> str:
    return digest_tensors(
        {"z": seeds.z, "x": seeds.x, "y": seeds.y, "id": seeds.id, **seeds.context}
    )


def _unchanged(before: dict[str, object], after: dict[str, object], who: str) -> None:
    moved = [name for name in before if before[name] != after[name]]
    assert not moved, f"{who} changed what does not belong to it: {', '.join(moved)}"


def _surroundings(subject: torch.nn.Module, images: Images) -> dict[str, object]:
    """What a run must leave as it was, by name."""
    modules = list(subject.modules())
    return {
        "the global random state": torch.get_rng_state().numpy().tobytes(),
        "the model's weights": digest_tensors(subject.state_dict()),
        "the model's hooks": sum(
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
            for m in modules
        ),
        "the model's training flags": tuple(module.training for module in modules),
        "the images": images.hash,
    }
