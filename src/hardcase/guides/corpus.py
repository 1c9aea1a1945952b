"""A fuzzer's corpus: the candidates of every image that were new, and which to mutate next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.guides.units import appended, grown, row_of, take
from hardcase.randomness import Rng
from hardcase.registry import guide
from hardcase.tensors import ordinal, to_bytes
from hardcase.types import Guide, Oracle, Probe, State, Tap, Targets

# Which entry of a corpus is mutated next.


@dataclass(frozen=True, slots=True)
class Entries:
    """What a schedule knows of each original's entries: how many there are, how often each was
    picked, and where it stopped last time.
    """

    rows: Int[Tensor, " m"]
    size: Int[Tensor, " m"]
    picks: Int[Tensor, "m e"]
    cursor: Int[Tensor, " m"]


Schedule = Callable[[Entries, Rng], tuple[Tensor, Tensor]]
"""An entry for each image, and the new cursors."""


@dataclass(frozen=True, slots=True)
class Recent:
    """TensorFuzz's choice: with equal chance from the last `last` entries, or from all.

    Args:
        last: Newest entries that are preferred.
    """

    last: int = 5

    def __call__(self, of: Entries, rng: Rng) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        tail = of.size.clamp_max(self.last)
        place = rng.integers(of.rows, tail + 1)
        anywhere = rng.integers(of.rows, of.size)
        return torch.where(place < tail, of.size - 1 - place, anywhere), of.cursor


@dataclass(frozen=True, slots=True)
class Fading:
    """DeepHunter's: entries take turns, each accepted the less likely the more often picked.

    The paper's is ``1 - picks / gamma``, at least `least`; its code starts at 0.8, falls by a fifth
    and stays at 0.2 (`first` = 0.8, `gamma` = 5, `least` = 0.2).

    Args:
        gamma: Picks after which an entry is hardly chosen any more.
        least: Smallest probability.
        first: Probability of an entry that was never picked.
    """

    gamma: float = 20.0
    least: float = 0.5
    first: float = 1.0

    def __call__(self, of: Entries, rng: Rng) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        size = of.size.clamp_min(1)
        chance = (self.first - of.picks / self.gamma).clamp_min(self.least)
        turns = torch.arange(8 * of.picks.shape[1], device=size.device)
        entry = (of.cursor[:, None] + turns) % size[:, None]
        drawn = rng.uniform(of.rows, entry.shape[1:])
        # the first of the turns that is accepted
        accepted = (drawn < chance.gather(1, entry)).int().argmax(1, keepdim=True)
        chosen = entry.gather(1, accepted).squeeze(1)
        return chosen, (chosen + 1) % size


# The entries of a shard steer its own search; what is handed on when a round ends are the images,
# for the store, joined one after the other, and what the novelty guide learnt.

ENTRY = "entry/"
NOVELTY = "novelty."
MOST = 8192
"""Images that a corpus hands on at most, the newest."""


@guide("corpus", needs="a criterion", paper="Xie et al., ISSTA 2019")
class Corpus:
    """Candidates that do not fail by `oracle` and that `novelty` finds new, at most `capacity` for
    each image: the image itself and the newest. `schedule` picks the parents. `columns` that a
    search tells of an entry come back with it as a parent.

    Args:
        novelty: The guide whose gain says what is new.
        oracle: Failing candidates are not entries.
        schedule: Picks the parents: `Recent` or `Fading`.
        capacity: Entries per seed.
        base: What earlier rounds learnt.
    """

    name = "corpus"

    def __init__(
        self,
        novelty: Guide,
        oracle: Oracle,
        schedule: Schedule,
        capacity: int = 16,
        base: State | None = None,
    ) -> None:
        self.novelty = novelty
        self.oracle = oracle
        self.schedule = schedule
        self.capacity = max(2, capacity)
        self.base = base or {}
        self.tables = dict[str, Tensor]()
        self.size, self.cursor = (torch.zeros(0, dtype=torch.int64) for _ in range(2))
        self.picks = torch.zeros(0, self.capacity, dtype=torch.int64)
        self._seen: tuple[Probe, Tensor] | None = None

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.novelty.taps

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        """A parent for each image, with its columns; nothing before any seed was evaluated."""
        if not len(self.size) or not len(rows):
            return {}
        slots = self._by_age(rows)
        entries = Entries(
            rows,
            self.size[rows].clamp_max(self.capacity),
            self.picks[rows].gather(1, slots),
            self.cursor[rows],
        )
        age, self.cursor[rows] = self.schedule(entries, rng)
        entry = slots.gather(1, age[:, None]).squeeze(1)
        self.picks[rows, entry] += 1
        parents = {name: table[rows, entry] for name, table in self.tables.items()}
        parents["corpus/z"] = parents.pop("z")
        del parents["picture"]
        return parents

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        self._seen = (probe, self.novelty.gain(probe))
        return self._seen[1]

    def update(self, probe: Probe) -> None:
        last, gain = self._seen or (None, None)
        self._seen = None
        if gain is None or last is not probe:
            gain = self.novelty.gain(probe)
        sound = ~self.oracle(probe) & probe.logits.isfinite().all(1)
        gaining = (sound & ((gain > 0) | self._first(probe))).nonzero().squeeze(1)
        if bool(sound.all()):
            self.novelty.update(probe)
        elif bool(sound.any()):
            self.novelty.update(take(probe, sound.nonzero().squeeze(1)))
        if len(gaining) and "row" in probe.targets:
            self._add(take(probe, gaining))

    def fork(self) -> Corpus:
        return Corpus(self.novelty.fork(), self.oracle, self.schedule, self.capacity, self.base)

    def delta(self) -> State:
        learnt = {NOVELTY + name: value for name, value in self.novelty.delta().items()}
        if not len(self.size):
            return learnt
        inside = torch.arange(self.capacity, device=self.size.device) < self.size[:, None]
        return {
            **learnt,
            "picture": self.tables["picture"][inside].cpu(),
            "seed": self.tables["seed"][inside].cpu(),
        }

    def merge(self, deltas: Sequence[State]) -> None:
        learnt = [
            {k.removeprefix(NOVELTY): v for k, v in d.items() if k.startswith(NOVELTY)}
            for d in deltas
        ]
        self.novelty.merge(learnt)
        parts = [part for part in (self.base, *deltas) if "picture" in part]
        if parts:
            self.base = {
                name: torch.cat([part[name] for part in parts])[-MOST:]
                for name in ("picture", "seed")
            }

    def _first(self, probe: Probe) -> Bool[Tensor, " m"]:
        """Whether a row is the first of its seed: the image itself, always an entry."""
        rows = row_of(probe)
        sizes = torch.nn.functional.pad(self.size.to(rows.device), (0, 1 + int(rows.max())))
        return (sizes[rows] == 0) & (ordinal(rows) == 0)

    def _by_age(self, rows: Int[Tensor, " m"]) -> Int[Tensor, "m e"]:
        """The slots of each original's entries: the image, then from the oldest to the newest."""
        age = torch.arange(self.capacity, device=rows.device)
        gone = (self.size[rows] - self.capacity).clamp_min(0)[:, None]
        return torch.where(age == 0, 0, 1 + (age - 1 + gone) % (self.capacity - 1))

    def _add(self, probe: Probe) -> None:
        """Append entries in order; beyond the capacity they replace the oldest but the first."""
        rows = probe.targets["row"]
        columns = {name: value for name, value in probe.targets.items() if name.startswith(ENTRY)}
        columns |= {"z": probe.z, "picture": to_bytes(probe.x), "seed": probe.origin.id}
        for name in ("size", "cursor", "picks"):
            setattr(self, name, grown(getattr(self, name), rows))
        for name, value in columns.items():
            if name not in self.tables:
                self.tables[name] = value.new_zeros(len(self.size), self.capacity, *value.shape[1:])
            self.tables[name] = grown(self.tables[name], rows)
        self.size, stays, slot = appended(self.size, rows, self.capacity)
        for name, value in columns.items():
            self.tables[name][rows[stays], slot] = value[stays]
        self.picks[rows[stays], slot] = 0
