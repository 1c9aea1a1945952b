"""The laws of spaces and of coverage criteria: those all must pass, those a criterion declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from hardcase.criteria.criterion import LAWS
from hardcase.guides.units import take
from hardcase.randomness import Rng, stream
from hardcase.registry import Part
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images
from hardcase.types import Criterion, Images, Objective, Probe, Seeds, Space, State

SPACE_LAWS = (
    "decodes what it encodes",
    "projects once",
    "rows independent",
    "edits nothing in place",
)
"""What `check_space` holds a space to."""

SPACE_PARTS = ("name", "keeps_code", "encode", "decode", "project", "distance")
"""What every space has."""


def space_facts(part: Part) -> dict[str, Any]:
    """The laws of a space."""
    return {"laws": list(SPACE_LAWS)}


def check_space(space: Space, *, images: Images | None = None, tolerance: float = 1e-3) -> None:
    """Codes give images back, projection is idempotent, rows do not see each other.

    Args:
        space: The space.
        images: Images to encode; by default toy ones.
        tolerance: Largest difference of a decoded image, in units of [0, 1].

    Example:
        >>> import hardcase as hc
        >>> hc.testing.check_space(hc.spaces.Pixels())
    """
    assert not isinstance(space, type), f"check_space wants a space: {space.__name__}(), no class"
    missing = [name for name in SPACE_PARTS if not hasattr(space, name)]
    assert not missing, f"a space has {', '.join(SPACE_PARTS)}; this one lacks {', '.join(missing)}"
    images = toy_images() if images is None else images
    x = from_bytes(images.x)
    y = images.y
    x_before = x.clone()
    encoded = space.encode(x, y, Rng.numbered(0, "check", len(x)))
    assert isinstance(encoded, tuple), (
        "encode returns codes and a dictionary of what decoding needs"
    )
    z, context = encoded
    assert space.keeps_code or z.shape == x.shape, (
        "keeps_code is False, so that the image is the code; these codes are no images"
    )
    seeds = Seeds(z, x, y, torch.arange(len(y)), context)
    back = space.decode(space.project(z, seeds), seeds)
    assert back.shape == x.shape, f"decoded to {tuple(back.shape)}, images are {tuple(x.shape)}"
    worst = float((back - x).detach().abs().amax())
    assert worst <= tolerance, f"decode(encode(x)) is off by {worst:.3g}"
    distance = space.distance(z, seeds)
    assert distance.shape == (len(z),), f"distances have the shape {tuple(distance.shape)}"
    assert bool((distance.abs() < 1e-6).all()), "an image is not at distance 0 of itself"
    code = z.clone()
    moved = z + torch.randn(z.shape, generator=stream(1, "check"))
    before = moved.clone()
    once = space.project(moved, seeds)
    assert torch.equal(moved, before), "project edits codes in place"
    assert torch.allclose(space.project(once, seeds), once, atol=1e-6), (
        "projecting twice is not projecting once"
    )
    batched = space.decode(once, seeds)
    for i in range(len(once)):
        row = torch.tensor([i])
        alone = space.decode(once[row], seeds.take(row))
        assert torch.allclose(alone, batched[row], atol=1e-6), (
            f"row {i} is decoded differently beside others"
        )
    assert torch.equal(x, x_before), "the images were edited in place"
    assert torch.equal(z, code), "the codes were edited in place"


Make = Callable[[], Criterion]


def check_criterion(
    make: Make, probes: Sequence[Probe], *, laws: Iterable[str], tolerance: float = 1e-9
) -> None:
    """Check a criterion's laws; an AssertionError says what was seen.

    Laws that may be declared are `hardcase.criteria.criterion.LAWS`; "to rounding" lets sums differ
    by `tolerance`.

    Args:
        make: Makes a fresh criterion.
        probes: What it is shown.
        laws: The laws that it declares.
        tolerance: Difference that rounding may make.
    """
    declared = set(laws)
    unknown = declared - set(LAWS)
    assert not unknown, f"unknown laws: {sorted(unknown)}"
    near = tolerance * ("to rounding" in declared)
    assert make().value() == 0, f"a fresh criterion says {make().value()}, not 0"
    _probes_untouched(make, probes)
    _gain_pure(make, probes)
    _chooses(make, probes[0])
    if "ratio" in declared or "monotone" in declared:
        _grows(make, probes, declared)
    for law, others, what in (
        ("order-free", probes[::-1], "the order of the probes matters"),
        ("idempotent", [*probes, *probes], "seeing the same probes again matters"),
    ):
        if law in declared:
            _same(value_of(make, probes), value_of(make, others), near, what)
    if "mergeable" in declared:
        _mergeable(make, probes, near)


def check_pull(
    make: Make,
    objective: Callable[[Criterion], Objective],
    evaluate: Callable[[Tensor, Tensor], Probe],
    x: Tensor,
) -> None:
    """Check a criterion's gradient: finite, of each row alone, and a step along it climbs.

    Args:
        make: Makes a fresh criterion.
        objective: The objective that pulls toward what it has not covered.
        evaluate: Shows images, with their row numbers in `x`, to the criterion's network.
        x: The images, in [0, 1].
    """
    criterion = make()
    rows = torch.arange(len(x))
    targets = criterion.choose(rows, Rng.numbered(0, "aim", len(rows)))
    pull = objective(criterion)
    x = x.clone().requires_grad_()
    score = pull(replace(evaluate(x, rows), targets=targets))
    assert score.shape == (len(x),), f"scores have the shape {tuple(score.shape)} for {len(x)} rows"
    (gradient,) = torch.autograd.grad(score.sum(), x)
    assert bool(gradient.isfinite().all()), "a gradient is not finite"
    for row in torch.split(rows, 1):
        alone = pull(
            replace(
                evaluate(x[row], row), targets={name: value[row] for name, value in targets.items()}
            )
        )
        assert torch.allclose(alone, score[row], rtol=1e-4, atol=1e-5), (
            f"row {int(row)} scores differently beside others"
        )
    _climbs(
        lambda moved: pull(replace(evaluate(moved, rows), targets=targets)), x.detach(), gradient
    )


def _climbs(score: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> None:
    """Some step along the gradient raises the score of every row that has one."""
    length = gradient.flatten(1).norm(dim=1)
    unit = gradient / length.clamp_min(1e-12).reshape(-1, *[1] * (x.ndim - 1))
    with torch.no_grad():
        gains = torch.stack(
            [score(x + size * unit) - score(x) for size in (1e-1, 1e-2, 1e-3, 1e-4)]
        )
    stuck = (length > 1e-4) & ~(gains > 0).any(0)
    assert not bool(stuck.any()), (
        f"no step along the gradient raises the score of rows {stuck.nonzero().flatten().tolist()}"
    )


def value_of(make: Make, probes: Sequence[Probe]) -> float:
    criterion = make()
    for probe in probes:
        criterion.update(probe)
    return criterion.value()


def _probes_untouched(make: Make, probes: Sequence[Probe]) -> None:
    criterion = make()
    probe = probes[0]
    before = {name: value.clone() for name, value in probe.activations.items()}
    criterion.gain(probe)
    criterion.update(probe)
    for name, value in before.items():
        assert torch.equal(value.nan_to_num(), probe.activations[name].nan_to_num()), (
            f"activations of {name} were edited in place"
        )


def _gain_pure(make: Make, probes: Sequence[Probe]) -> None:
    criterion = make()
    last = probes[-1]
    for probe in probes[:-1]:
        criterion.update(probe)
    value = criterion.value()
    state = {name: value.clone() for name, value in criterion.delta().items()}
    gain = criterion.gain(last)
    assert gain.shape == (len(last.logits),), f"gains have the shape {tuple(gain.shape)}"
    assert bool(gain.isfinite().all()), "a gain is not finite"
    assert torch.equal(gain, criterion.gain(last)), "asking for the gain twice gives two answers"
    assert criterion.value() == value, "asking for the gain changed the value"
    assert _equal(state, criterion.delta()), "asking for the gain changed the delta"
    for row in range(len(gain)):
        alone = criterion.gain(take(last, torch.tensor([row])))
        assert torch.allclose(alone, gain[row : row + 1], atol=1e-6), (
            f"row {row} gains differently beside others"
        )


def _grows(make: Make, probes: Sequence[Probe], declared: set[str]) -> None:
    criterion = make()
    for probe in _one_by_one(probes):
        before = criterion.value()
        gain = float(criterion.gain(probe))
        criterion.update(probe)
        after = criterion.value()
        assert "ratio" not in declared or 0 <= after <= 1, f"a ratio of {after}"
        if "monotone" in declared:
            assert after >= before, f"the value fell from {before} to {after}"
            assert gain > 0 or after == before, (
                f"the value rose from {before} to {after}, but the gain was {gain}"
            )


def _mergeable(make: Make, probes: Sequence[Probe], near: float) -> None:
    batched = value_of(make, probes)
    _same(batched, value_of(make, list(_one_by_one(probes))), near, "the batch size matters")
    for cut in range(1, len(probes)):
        base = make()
        base.update(probes[0])
        value_before = base.value()
        deltas = []
        for shard in (probes[1:cut], probes[cut:]):
            fork = base.fork()
            for probe in shard:
                fork.update(probe)
            assert base.value() == value_before, "a fork changed what it was forked from"
            stored = {name: value.contiguous() for name, value in fork.delta().items()}
            deltas.append(load(save(stored)))
        base.merge(deltas)
        _same(
            batched,
            base.value(),
            near,
            f"cut into shards after probe {cut}, the probes give another value",
        )
        again = base.fork()
        assert isinstance(again, Criterion), "a fork is no criterion"
        _same(batched, again.value(), near, "a fork of the merged state has another value")


def _chooses(make: Make, probe: Probe) -> None:
    state = torch.get_rng_state()
    rows = torch.arange(5)
    criterion = make()
    row, two = (criterion.choose(rows, Rng.numbered(3, "choose", len(rows))) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state()), "choosing moved the global random state"
    for name, value in row.items():
        assert len(value) == len(rows), f"target {name} has {len(value)} rows, not {len(rows)}"
        assert torch.equal(value, two[name]), f"target {name} differs for the same random stream"


def _one_by_one(probes: Sequence[Probe]) -> Iterable[Probe]:
    return (
        take(probe, torch.tensor([row])) for probe in probes for row in range(len(probe.logits))
    )


def _equal(a: State, b: State) -> bool:
    return set(a) == set(b) and all(
        torch.allclose(a[n].double(), b[n].double(), rtol=0, atol=0, equal_nan=True) for n in a
    )


def _same(a: float, b: float, near: float, what: str) -> None:
    assert abs(a - b) <= near * max(1.0, abs(a), abs(b)), f"{what}: {a!r} and {b!r}"
