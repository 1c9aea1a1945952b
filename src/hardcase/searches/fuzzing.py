"""Fuzzing: parents from a corpus, mutated by label-preserving changes; and short gradient walks
from a list of images that grows by what is new, the loop of DLFuzz and ADAPT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.imaging import blur as blurs
from hardcase.imaging.resample import affine
from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.searches.gradient import Direction, held, keep, raw
from hardcase.tensors import flat, length, per_row, to_grid
from hardcase.types import Evaluator, Feedback, Seeds, State, Targets

# An operator draws a level for every row and applies it; pictures go in and come out in [0, 1], on
# the 8-bit grid. Ranges are those of DeepHunter's code (X. Xie et al., ISSTA 2019).

Level = Float[Tensor, " m"]
Picture = Float[Tensor, "m c h w"]


@dataclass(frozen=True, slots=True)
class Operator:
    """A change of images: `apply` changes each by a level of `levels`."""

    name: str
    levels: tuple[float, ...]
    apply: Callable[[Tensor, Tensor, Tensor, Rng], Tensor]


def mutate(
    x: Picture,
    operator: Int[Tensor, " m"],
    level: Level,
    operators: Sequence[Operator],
    rows: Int[Tensor, " m"],
    rng: Rng,
) -> Picture:
    """Each picture (of the image in `rows`) changed by its operator at its level."""
    changed = x.clone()
    for number, operator_of in enumerate(operators):
        chosen = (operator == number).nonzero().squeeze(1)
        if len(chosen):
            changed[chosen] = to_grid(
                operator_of.apply(x[chosen], level[chosen], rows[chosen], rng)
            )
    return changed


def translate(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Down and to the right by the same number of pixels."""
    height, width = x.shape[2:]
    return _warp(x, 1, 0, -2 * level / width, 0, 1, -2 * level / height)


def scale(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Larger or smaller about the centre."""
    return _warp(x, 1 / level, 0, 0, 0, 1 / level, 0, mode="bicubic")


def shear(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Rows shifted in proportion to their height in the picture."""
    return _warp(x, 1, level, 0, 0, 1, 0)


def rotate(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Turned about the centre, by degrees."""
    angle = level * (math.pi / 180)
    stretch = x.shape[2] / x.shape[3]
    cos = angle.cos()
    sin = angle.sin()
    return _warp(x, cos, -sin * stretch, 0, sin / stretch, cos, 0)


def _warp(x: Picture, *entries: Tensor | float, mode: str = "bilinear") -> Picture:
    """The picture under an affine map, a 2x3 matrix per row, entry by entry."""
    columns = [torch.as_tensor(entry, device=x.device).expand(len(x)) for entry in entries]
    matrix = torch.stack([column.to(x.dtype) for column in columns], 1).reshape(-1, 2, 3)
    outside = {3: "reflection"}.get(x.shape[1], "zeros")
    return affine(x, matrix, outside=outside, mode=mode)


def contrast(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    return x * per_row(level, x)


def brightness(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Every pixel up or down by so many grey levels."""
    return x + per_row(level / 255, x)


BLURS: tuple[Callable[[Picture], Picture], ...] = (
    *(partial(blurs.box, size=size) for size in (3, 4, 5)),
    *(partial(blurs.gaussian_window, size=size) for size in (3, 5, 7)),
    *(partial(blurs.median, size=size) for size in (3, 5)),
    blurs.bilateral,
)


def blur(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Nine kinds: box 3, 4, 5; Gaussian 3, 5, 7; median 3, 5; bilateral."""
    changed = x.clone()
    for number, kind in enumerate(BLURS):
        chosen = (level == number).nonzero().squeeze(1)
        if len(chosen):
            changed[chosen] = kind(x[chosen])
    return changed


def pixels(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Randomly drawn values (with replacement) get any new value."""
    values = x.flatten(1)
    most = int(level.max())
    place = rng.integers(rows, values.shape[1], (most,))
    new = rng.integers(rows, 256, (most,)) / 255
    wanted = torch.arange(most, device=x.device) < level[:, None]
    place = torch.where(wanted, place, place[:, :1])
    return values.scatter(1, place, torch.where(wanted, new, new[:, :1])).reshape(x.shape)


def noise(x: Picture, level: Level, rows: Int[Tensor, " m"], rng: Rng) -> Picture:
    """Gaussian (5 % of the range), salt and pepper (0.4 % of values) or speckle (10 % each)."""
    normal = rng.normal(rows, x.shape[1:])
    place = rng.uniform(rows, x.shape[1:])
    salted = torch.where(place < 0.002, 1.0, torch.where(place > 0.998, 0.0, x))
    kind = per_row(level, x)
    return torch.where(
        kind == 0, x + 0.05 * normal, torch.where(kind == 1, salted, x * (1 + 0.1 * normal))
    )


def _tenths(first: int, last: int) -> tuple[float, ...]:
    return tuple(i / 10 for i in range(first, last + 1))


AFFINE = (
    Operator("translate", tuple(map(float, range(-3, 3))), translate),
    Operator("scale", _tenths(7, 11), scale),
    Operator("shear", _tenths(-6, 5), shear),
    Operator("rotate", tuple(map(float, range(-50, 50))), rotate),
)
LIGHT = (
    Operator("contrast", _tenths(5, 12), contrast),
    Operator("brightness", tuple(map(float, range(-20, 20))), brightness),
    Operator("blur", tuple(map(float, range(9))), blur),
)
PIXELS = Operator("pixels", tuple(map(float, range(1, 10))), pixels)
NOISE = Operator("noise", (0.0, 1.0, 2.0), noise)


# Parents from every original's corpus are mutated; what guides find new joins it.

ENTRY = "entry/"
"""Aims by which a search tells the corpus what belongs to a candidate,
and gets it back with a parent.
"""


@runtime_checkable
class Mutator(Protocol):
    """Makes a child of each parent; `columns` are what it wants to know of a parent."""

    def start(self, z: Tensor) -> State: ...

    def __call__(
        self, z: Tensor, columns: Mapping[str, Tensor], rows: Int[Tensor, " m"], rng: Rng
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]: ...


@dataclass(frozen=True, slots=True)
class WhiteNoise:
    """Normal noise of size `sigma` on every coordinate (TensorFuzz).

    Args:
        sigma: Standard deviation of the noise.
    """

    sigma: float

    def start(self, z: Tensor) -> State:
        return {}

    def __call__(
        self, z: Tensor, columns: Mapping[str, Tensor], rows: Int[Tensor, " m"], rng: Rng
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]:
        noise = rng.normal(rows, z.shape[1:])
        return z + self.sigma * noise, {}, torch.ones(len(z), dtype=torch.bool, device=z.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metamorphic:
    """DeepHunter's mutation: at most 1 affine change, and pixel changes while they are small.

    A pixel change is small if fewer than `alpha` of the values differ from the reference picture,
    or none by `beta` of the range. An affine change is done to the reference too and is always
    accepted, once; what had changed before it is added (count) or compared (size) from then on. A
    child that is refused `tries` times is abandoned.

    Args:
        affine: Affine changes, of which a child has at most 1.
        pixel: Changes of pixel values.
        alpha: Share of values that may change by any amount.
        beta: Change, in units of [0, 1], that all values may make.
        tries: Draws before a parent is abandoned.
    """

    affine: tuple[Operator, ...] = AFFINE
    pixel: tuple[Operator, ...] = (*LIGHT, NOISE)
    alpha: float = 0.02
    beta: float = 0.20
    tries: int = 50

    def start(self, z: Tensor) -> State:
        none = torch.zeros(len(z), device=z.device)
        return {
            "reference": z.clone(),
            "turned": none.bool(),
            "changed": none,
            "largest": none.clone(),
        }

    def __call__(
        self, z: Tensor, columns: Mapping[str, Tensor], rows: Int[Tensor, " m"], rng: Rng
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]:
        child = z.clone()
        children = {name: value.clone() for name, value in columns.items()}
        open_ = torch.ones(len(z), dtype=torch.bool, device=z.device)
        for _ in range(self.tries):
            left = open_.nonzero().squeeze(1)
            if not len(left):
                break
            before = {name: value[left] for name, value in columns.items()}
            new, after, good = self._try(z[left], before, rows[left], rng)
            accepted = left[good]
            child[accepted] = new[good]
            open_[accepted] = False
            for name, value in after.items():
                children[name][accepted] = value[good]
        return child, children, ~open_

    def _try(
        self, z: Tensor, columns: State, rows: Int[Tensor, " m"], rng: Rng
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]:
        """A change of each picture, and whether it is accepted."""
        operators = (*self.affine, *self.pixel)
        first = columns["turned"].long() * len(self.affine)
        chosen = first + rng.integers(rows, len(operators) - first)
        level = _levels(operators, chosen, rows, rng)
        turning = chosen < len(self.affine)
        new = mutate(z, chosen, level, operators, rows, rng)
        old_reference = columns["reference"]
        reference = old_reference.clone()
        reference[turning] = mutate(
            old_reference[turning], chosen[turning], level[turning], operators, rows[turning], rng
        )
        changed, largest = _differences(old_reference, torch.where(per_row(turning, z), z, new))
        good = turning | self._small(
            changed + columns["changed"], torch.maximum(largest, columns["largest"]), z
        )
        after = {
            "reference": reference,
            "turned": columns["turned"] | turning,
            "changed": torch.where(turning, changed, columns["changed"]),
            "largest": torch.where(turning, largest, columns["largest"]),
        }
        return new, after, good

    def _small(self, changed: Tensor, largest: Tensor, like: Tensor) -> Bool[Tensor, " m"]:
        values = like[:1].numel()
        return (changed < int(self.alpha * values)) | (largest < int(self.beta * 255))


@search(
    "fuzzing",
    needs="label",
    paper="Xie et al., ISSTA 2019; Odena et al., ICML 2019",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzing:
    """Mutants of parents that a corpus chooses: white noise, or label-preserving changes.

    At every step `children` mutants of a parent of each live seed. Guides choose the parents
    (``corpus/z``).

    Args:
        mutator: Makes a child of each parent.
        children: Mutants of a parent per step.
    """

    mutator: Mutator
    children: int = 20

    def init(self, seeds: Seeds, rng: Rng) -> State:
        return {"seed": seeds.z.clone(), "begun": torch.zeros(1, dtype=torch.bool)}

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        if not bool(state["begun"]):
            seed = state["seed"][rows]
            evaluate(seed, rows, {**_entries(self.mutator.start(seed)), "row": rows})
            return {**state, "begun": ~state["begun"]}
        chosen = evaluate.choose(rows).items()
        parents = {name: value.repeat_interleave(self.children, 0) for name, value in chosen}
        columns_of_entry = [name for name in parents if name.startswith(ENTRY)]
        columns = {name.removeprefix(ENTRY): parents[name] for name in columns_of_entry}
        many = rows.repeat_interleave(self.children)
        z, mutants, good = self.mutator(parents["corpus/z"], columns, many, rng)
        entries = {name: value[good] for name, value in _entries(mutants).items()}
        evaluate(z[good], many[good], {**entries, "row": many[good]})
        if not bool(good.any()):
            evaluate.retire(rows)
        return state


def _levels(
    operators: Sequence[Operator], chosen: Int[Tensor, " m"], rows: Int[Tensor, " m"], rng: Rng
) -> Float[Tensor, " m"]:
    """A level of the operator chosen for each row, drawn evenly."""
    count = torch.tensor([len(change.levels) for change in operators], device=chosen.device)
    first = count.cumsum(0) - count
    table = torch.tensor([x for change in operators for x in change.levels], device=chosen.device)
    return table[first[chosen] + rng.integers(rows, count[chosen])]


def _entries(columns: Mapping[str, Tensor]) -> State:
    return {ENTRY + name: value for name, value in columns.items()}


def _differences(a: Float[Tensor, "m c h w"], b: Float[Tensor, "m c h w"]) -> tuple[Tensor, Tensor]:
    """How many values differ, and by how many grey levels at most."""
    levels = flat((a * 255).round() - (b * 255).round()).abs()
    return (levels > 0).sum(1).float(), levels.amax(1)


@search(
    "worklist",
    needs="gradients",
    paper="Guo et al., ESEC/FSE 2018; Lee et al., ISSTA 2020",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Worklist:
    """Short gradient walks from a list that grows by candidates that are new and near.

    Each seed has a list of entries, first come first served, that begins with the seed itself. A
    walk starts at the next entry with its targets; a candidate joins the list (as a copy) if
    it adds more than `gain` to what the guides know and lies within `radius` of the seed.

    Evaluations carry among their targets ``row``, the seed's place, and ``seen``, whether the image
    was evaluated before (walks start from pictures that were).

    Args:
        step_size: Size of a step.
        direction: How a gradient becomes a step: `sign`, `unit`, `rms` or `raw`.
        steps: Gradient steps of a walk.
        gain: Least gain that makes a candidate an entry.
        radius: Largest L2 distance of an entry from its seed, relative to the seed's length.
        capacity: Entries per seed.
        restart: Start again from the original when the list is empty; otherwise it retires.
        peek: Query an entry before guides choose what to push from it.
        decay: What the least gain is divided by: 1 plus the ``entries`` walked before, or 1 plus
            the number of the original (``seeds``).
    """

    step_size: float
    direction: Direction = raw
    steps: int = 3
    gain: float = 0.0
    radius: float = 0.5
    capacity: int = 16
    restart: bool = True
    peek: bool = False
    decay: Literal["none", "entries", "seeds"] = "none"

    def init(self, seeds: Seeds, rng: Rng) -> State:
        count = torch.zeros(len(seeds), dtype=torch.int64, device=seeds.z.device)
        return {
            "seed": seeds.z.clone(),
            "length": length(flat(seeds.z)),
            "z": seeds.z.clone(),
            "queue": torch.zeros(
                len(seeds), self.capacity, *seeds.z.shape[1:], device=seeds.z.device
            ),
            "first": count,
            "size": count.clone(),
            "entries": count.clone(),
            "number": seeds.id.clone(),
            "phase": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        """Evaluate every live original's candidate, with its gradient until its walk has ended."""
        phase = int(state["phase"])
        if phase == 0:
            state = self._next_entry(state, evaluate)
        rows = evaluate.live.nonzero().squeeze(1)
        evaluated = ((state["entries"][rows] > 1) | self.peek) & (phase == 0)
        z = state["z"][rows]
        targets = {**held(state, rows), "row": rows, "seen": evaluated}
        if phase < self.steps:
            feedback, gradient = evaluate.gradient(z, rows, targets)
            moved = feedback.z + self.step_size * self.direction(gradient)
            state = {**state, "z": state["z"].index_copy(0, rows, moved)}
        else:
            feedback = evaluate(z, rows, targets)
        if phase:
            state = self._join(state, rows, feedback)
        return {**state, "phase": (state["phase"] + 1) % (self.steps + 1)}

    def _next_entry(self, state: State, evaluate: Evaluator) -> State:
        """Take the first entry of every list; images whose list is empty start again or retire."""
        rows = evaluate.live.nonzero().squeeze(1)
        empty = state["size"][rows] == 0
        if not self.restart:
            over = empty & (state["entries"][rows] > 0)
            evaluate.retire(rows[over])
            rows = rows[~over]
            empty = empty[~over]
        # The queue is a ring buffer per image, so all images take their next entry in a single
        # indexing step, however long their lists are.
        z = torch.where(
            per_row(empty, state["z"]),
            state["seed"][rows],
            state["queue"][rows, state["first"][rows]],
        )
        nonempty = (~empty).long()
        state = {
            **state,
            "z": state["z"].index_copy(0, rows, z),
            "first": state["first"].index_add(0, rows, nonempty) % self.capacity,
            "size": state["size"].index_add(0, rows, -nonempty),
            "entries": state["entries"].index_add(0, rows, torch.ones_like(nonempty)),
        }
        if self.peek and len(rows):
            evaluated = state["entries"][rows] > 1
            evaluate(z, rows, {**held(state, rows), "row": rows, "seen": evaluated})
        return self._targets(state, evaluate, rows, empty)

    def _targets(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " m"], fresh: Bool[Tensor, " m"]
    ) -> State:
        """Targets chosen afresh where a list starts, and following the last where it goes on."""
        for part, following in ((rows[fresh], False), (rows[~fresh], True)):
            if len(part):
                before: Targets | None = None
                if following:
                    before = {**held(state, part), "row": part}
                state = keep(state, part, evaluate.choose(part, before), len(state["z"]))
        return state

    def _join(self, state: State, rows: Int[Tensor, " m"], feedback: Feedback) -> State:
        """Append copies of the candidates that are new and near; a full list takes no more."""
        seed = state["seed"][rows]
        size = state["size"][rows]
        # The radius is relative to the length of the original's code, as in the reference: a dark
        # image may move less than a bright one.
        near = length(flat(feedback.z - seed)) < self.radius * state["length"][rows]
        gained = feedback.gain > self._required_gain(state, rows)
        new = feedback.evaluated & near & gained & (size < self.capacity)
        slot = (state["first"][rows] + size) % self.capacity
        state["queue"][rows[new], slot[new]] = feedback.z[new]
        return {**state, "size": state["size"].index_add(0, rows, new.long())}

    def _required_gain(
        self, state: Mapping[str, Tensor], rows: Int[Tensor, " m"]
    ) -> Float[Tensor, " m"]:
        before = {
            "none": 0 * rows,
            "entries": state["entries"][rows] - 1,
            "seeds": state["number"][rows],
        }
        return self.gain / (1 + before[self.decay])
