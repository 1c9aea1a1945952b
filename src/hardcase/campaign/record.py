"""The records of a run: its parts, limits per image, rule of keeping, counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.environment import arithmetic
from hardcase.errors import HardcaseError, choice
from hardcase.oracles import MARGIN, MIN_MARGIN, Witnessed
from hardcase.tensors import from_bytes, margin, ordinal, tile_in_use, use_tile
from hardcase.types import (
    KINDS,
    OFFERS,
    Budget,
    Findings,
    Guide,
    Method,
    Model,
    Oracle,
    Probe,
    State,
    Tap,
)

# Which failures of an image are kept.

MANY = 2**62


@dataclass(frozen=True, slots=True)
class Keep:
    """Up to `count` failures of each image, kind, label (if `per_label`) and cell of a map (by
    `place`): the nearest or the earliest, first what witnesses keep by `target_margin` logits.
    """

    count: int = 1
    nearest: bool = True
    per_label: bool = False
    place: Callable[[Tensor], Tensor] | None = None
    target_margin: float = 0.0

    @property
    def bounded(self) -> bool:
        return self.count < MANY

    def rows(
        self,
        seed: Int[Tensor, " t"],
        kind: Int[Tensor, " t"],
        label: Int[Tensor, " t"],
        distance: Float[Tensor, " t"],
        kept: Float[Tensor, " t"] | None = None,
        x: Float[Tensor, "t c h w"] | None = None,
    ) -> Int[Tensor, " r"]:
        """Positions to keep, ascending. Failures that witnesses keep by `target_margin` logits come
        first (`kept` are their margins), then larger margins; ties go to the nearer, then the
        earlier.
        """
        if not self.bounded:
            return torch.arange(len(seed), device=seed.device)
        # One whole number names the group that competes for a place: image, kind, then label and
        # cell of a map where these are asked for. Mixed radix, so that no two groups meet.
        group = seed * len(KINDS) + kind
        if self.per_label and len(label):
            group = group * (int(label.max() - label.min()) + 1) + label - label.min()
        if self.place is not None and x is not None and len(x):
            cell = self.place(x)
            group = group * (int(cell.max()) + 1) + cell
        order = torch.arange(len(seed), device=seed.device)
        if self.nearest:
            order = distance.argsort(stable=True)
        if kept is not None:
            order = order[torch.relu(self.target_margin - kept[order]).argsort(stable=True)]
        # Stable sorts from the least to the most important key: distance, then witnesses, then
        # group. The first `count` of each group win, and ties go to the earlier candidate on every
        # device.
        order = order[group[order].argsort(stable=True)]
        return order[ordinal(group[order]) < self.count].sort().values

    def prune(self, findings: Findings) -> Findings:
        """The failures that this rule keeps."""
        rows = self.rows(
            findings.seed,
            findings.kind,
            findings.predicted,
            findings.distance,
            findings.witness_margin,
            None if self.place is None else from_bytes(findings.x),
        )
        return findings.take(rows)


def parse_keep(text: str) -> Keep:
    """``first | best | best-per-label | all | N``."""
    named = {
        "first": Keep(nearest=False),
        "best": Keep(),
        "best-per-label": Keep(per_label=True),
        "all": Keep(count=MANY, nearest=False),
    }
    if text in named:
        return named[text]
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return Keep(count=int(text))
    raise HardcaseError(f"keep is {text!r}; it is one of {', '.join(named)} or a number above 0.")


# Budgets become limits per image first, so that they hold exactly in any order of work.


@dataclass(frozen=True, slots=True)
class Limits:
    """The remaining budget of each image."""

    queries: Int[Tensor, " n"]
    gradients: Int[Tensor, " n"]

    def to(self, device: torch.device) -> Limits:
        return Limits(self.queries.to(device), self.gradients.to(device))

    def take(self, rows: slice) -> Limits:
        return Limits(self.queries[rows], self.gradients[rows])


def limits(budget: Budget, count: int) -> Limits:
    """Per-seed limits for `count` images; a total's remainder goes to the first seeds."""
    return Limits(
        _limit("queries", budget.queries, budget.total_queries, count),
        _limit("gradients", budget.gradients, budget.total_gradients, count),
    )


def overlay(budget: Budget, default: Budget) -> Budget:
    """`budget`, with the method's limits where the user set none of that sort."""
    limits = {
        f.name: getattr(budget, f.name)
        for f in fields(Budget)
        if getattr(budget, f.name) is not None
    }
    limited = {name.removeprefix("total_") for name in limits}
    silent: dict[str, None] = {name: None for name in ("queries", "gradients") if name in limited}
    return replace(default, **{**silent, **limits})


def seconds(time: float | str | None) -> float | None:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"`` in seconds."""
    if time is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", str(time).strip())
    if not match:
        raise HardcaseError(f"the time limit {time!r} is not a duration.", fix="30s, 10m or 2h")
    limit = float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2] or "s"]
    if limit <= 0:
        raise HardcaseError(
            f"a time limit of {time} leaves no time for any query.",
            fix="30s, 10m or 2h, or none",
        )
    return limit


def within(rows: Int[Tensor, " m"], left: Int[Tensor, " n"]) -> Bool[Tensor, " m"]:
    """Which rows fit into what their images have left, counting in order."""
    if bool((counted(rows, len(left)) <= left).all()):
        return torch.ones_like(rows, dtype=torch.bool)
    return ordinal(rows) < left[rows]


def counted(
    rows: Int[Tensor, " m"], count: int, of: Bool[Tensor, " m"] | None = None
) -> Int[Tensor, " n"]:
    """How many rows each of `count` images has, or how many that are true in `of`.

    Unlike `torch.bincount` it does not wait for a device.
    """
    ones = torch.ones_like(rows) if of is None else of.long()
    return torch.zeros(count, dtype=torch.int64, device=rows.device).index_add_(0, rows, ones)


def _limit(name: str, each: int | None, total: int | None, count: int) -> Int[Tensor, " n"]:
    for value, label in ((each, name), (total, f"total_{name}")):
        if value is not None and value < 1:
            raise HardcaseError(
                f"a budget of {value} {label} allows no query.",
                fix=f"{label} of at least 1, or none",
            )
    limit = torch.full((count,), each or MANY)
    if total is None:
        return limit
    share = torch.full((count,), total // max(count, 1)) + (
        torch.arange(count) < total % max(count, 1)
    )
    return torch.minimum(limit, share)


@contextmanager
def computing(kind: str, tile: int | None, precision: str) -> Iterator[None]:
    """The same tile of rows and the same arithmetic for every call of a network on this kind of
    device.

    Whatever failures depend on is computed like this: searches, codes of partners, images that a
    generator makes.
    """
    if tile is None:
        with arithmetic(precision, kind):
            yield
        return
    before = tile_in_use(kind)
    use_tile(kind, tile)
    try:
        with arithmetic(precision, kind):
            yield
    finally:
        if kind == "cpu":  # networks of other images keep their own calls
            use_tile(kind, before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Campaign:
    """A method applied to a subject: frozen and picklable, for worker processes.

    Args:
        subject: The network under test.
        method: What a paper contributes: space, search, objective, oracle, guides.
        peers: Networks that the method compares with.
        witnesses: Networks that evaluate every candidate; `hardcase.objectives.with_witnesses`
            makes a method search for failures whose label they keep.
        margin: By how many logits each witness must keep it.
        criteria: Coverage that is measured on the way.
        keep: Which failures per image are stored.
        batch: Rows per call of a network; changes no result.
        seed: Everything random follows from it.
        tile: Rows of every network call on a device, see `hardcase.runs.tiles`; None on a CPU.
        precision: Arithmetic of the search on a GPU, from `hardcase.environment.PRECISIONS`.
    """

    subject: Model
    method: Method
    peers: tuple[Model, ...] = ()
    witnesses: tuple[Model, ...] = ()
    margin: float = MARGIN
    criteria: tuple[Guide, ...] = ()
    keep: Keep = field(default_factory=Keep)
    batch: int = 256
    seed: int = 0
    tile: int | None = None
    precision: str = "strict"

    def __post_init__(self) -> None:
        needed = self.method.needs
        offered = self.subject.offers
        if needed not in OFFERS:
            raise choice("kind of answer that a method may need", needed, OFFERS)
        if OFFERS.index(offered) < OFFERS.index(needed):
            raise HardcaseError(
                f'method "{self.method.name}" needs {needed}; model "{self.subject.name}" offers'
                f" {offered} only."
            )
        subject_hashes = {self.subject.hash, getattr(self.subject, "weights", "")} - {""}
        for witness in self.witnesses:
            if subject_hashes & {witness.hash, getattr(witness, "weights", "")}:
                twice = "" if witness.name == self.subject.name else f', as "{witness.name}"'
                raise HardcaseError(
                    f'"{self.subject.name}" is the model and a witness{twice}: '
                    "it cannot leave the label and keep it.",
                    fix="another network as --witness",
                )

    def arithmetic(self) -> AbstractContextManager[None]:
        """The tile and the arithmetic of this run, for whoever asks its networks."""
        return computing(self.subject.device.type, self.tile, self.precision)

    @property
    def failing(self) -> Oracle:
        """What becomes a failure: every failure, whether witnesses keep the label or not."""
        oracle = self.method.oracle
        if isinstance(oracle, Witnessed):
            return oracle.oracle
        return oracle

    @property
    def target(self) -> int | None:
        """The class that a targeted method must reach; images of that class cannot be seeds."""
        target: int | None = getattr(self.failing, "target", None)
        return target

    def __repr__(self) -> str:
        parts = f"{self.method.name!r} on {self.subject.name!r}"
        for kind in ("peers", "witnesses"):
            if names := [network.name for network in getattr(self, kind)]:
                parts += f", {kind}={names}"
        return f"Campaign({parts}, seed={self.seed})"

    def taps(self) -> list[Mapping[str, Tap]]:
        """What to keep of the layers of the model and of each peer."""
        readers = (
            self.method.taps,
            *(guide.taps for guide in (*self.method.guides, *self.criteria)),
        )
        wanted = dict[str, Tap]()
        for name, tap in (pair for taps in readers for pair in taps.items()):
            if wanted.setdefault(name, tap) != tap:  # readers that differ get it whole
                wanted[name] = torch.clone
        subject_taps = {name: tap for name, tap in wanted.items() if not name.startswith("peer")}
        peers = [
            {
                name.removeprefix(f"peer{i}/"): tap
                for name, tap in wanted.items()
                if name.startswith(f"peer{i}/")
            }
            for i in range(len(self.peers))
        ]
        return [subject_taps, *peers]

    def leaves(self, probe: Probe) -> Bool[Tensor, " m"]:
        """Whether the model has left the original's label, whatever the oracle."""
        return margin(probe.logits.softmax(1), probe.origin.y) >= MIN_MARGIN


@dataclass(frozen=True, slots=True)
class Counts:
    """What was spent on each image and what became of it."""

    queries: Int[Tensor, " n"]
    gradients: Int[Tensor, " n"]
    peer_queries: Int[Tensor, " n"]
    witness_queries: Int[Tensor, " n"]
    witness_gradients: Int[Tensor, " n"]
    surrogate_queries: Int[Tensor, " n"]
    surrogate_gradients: Int[Tensor, " n"]
    failing: Int[Tensor, " n"]
    lost: Bool[Tensor, " n"]

    @staticmethod
    def join(parts: Sequence[Counts]) -> Counts:
        """The concatenated counts of shards, in main memory."""
        columns = {f.name: [getattr(part, f.name).cpu() for part in parts] for f in fields(Counts)}
        return Counts(**{name: torch.cat(column) for name, column in columns.items()})

    @staticmethod
    def zeros(count: int, device: torch.device) -> Counts:
        none = {
            f.name: torch.zeros(count, dtype=torch.int64, device=device) for f in fields(Counts)
        }
        return Counts(**{**none, "lost": none["lost"].bool()})


@dataclass(frozen=True, slots=True)
class Shard:
    """Result of a shard.

    Args:
        findings: The stored failures.
        counts: What was spent on each seed.
        unfinished: Images that a time limit stopped.
        deltas: What each guide has learned, by name.
        dropped: Failures in a fast arithmetic that are none in the network's usual precision.
        state: Where the search ended.
    """

    findings: Findings
    counts: Counts
    unfinished: Bool[Tensor, " n"]
    deltas: Mapping[str, State] = field(default_factory=dict)
    dropped: int = 0
    state: State = field(default_factory=dict)
