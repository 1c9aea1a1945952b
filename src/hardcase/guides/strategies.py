"""Which units to push, by fixed strategies: DLFuzz's four side by side, or one after the other as ADAPT runs them.

J. Guo, Y. Jiang, Y. Zhao, Q. Chen, J. Sun, "DLFuzz: differential fuzzing testing of deep learning systems", ESEC/FSE 2018;
S. Lee, S. Cha, D. Lee, H. Oh, "Effective white-box testing of deep neural networks with adaptive neuron-selection strategy",
ISSTA 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import Problem, choice
from hardcase.guides.hits import Hits, Sight, Units, row_of, unseen
from hardcase.guides.picks import PICKS, Board
from hardcase.types import Aim, Probe, State, Tap


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What strategies know of units from the start: which have large incoming weights, and which may cross a threshold."""

    heavy: Bool[Tensor, " u"]
    crossing: Bool[Tensor, " u"]
    threshold: float = 0.5


class Strategies:
    """Picks `count` units a walk. `cycle`: the strategies take turns, a new one whenever a seed starts again; otherwise
    `count` is shared out evenly between them. `each`: every seed counts its coverage for itself."""

    def __init__(
        self,
        name: str,
        units: Units,
        facts: Facts,
        strategies: Sequence[str],
        count: int,
        *,
        cycle: bool = False,
        each: bool = False,
        hits: Hits | None = None,
    ) -> None:
        for strategy in strategies:
            if strategy not in PICKS:
                raise choice("neuron-selection strategy", strategy, list(PICKS))
        if not strategies or count < (1 if cycle else len(strategies)):
            raise Problem(f"{count} units cannot be shared out between {len(strategies)} strategies.")
        self.name, self.units, self.facts, self.strategies = name, units, facts, tuple(strategies)
        self.count, self.cycle, self.each = min(count, units.count), cycle, each
        self.hits, self.sight = hits or Hits(units.count, each=each), Sight(units)
        self.values, self.turns = torch.empty(0, units.count), torch.empty(0, dtype=torch.int64)

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.units.taps

    def choose(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        if not self.cycle:
            return self._named(self._shared_out(rows, rng))
        turn = self._turn(rows)
        return self._named({**self._in_turn(rows, turn, rng), "turn": turn})

    def follow(self, rows: Int[Tensor, " m"], aim: Aim, rng: torch.Generator) -> Aim:
        """A list that goes on stays with its strategy."""
        if not self.cycle:
            return self.choose(rows, rng)
        turn = aim[f"{self.name}/turn"]
        return self._named({**self._in_turn(rows, turn, rng), "turn": turn})

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        rows = row_of(probe)
        return (self.sight.of(probe)[1] & (self.hits.of(rows) == 0)).sum(1).float()

    def update(self, probe: Probe) -> None:
        rows, new = row_of(probe), unseen(probe)
        scaled, active = self.sight.of(probe)
        self.sight.forget()
        self.hits.add(rows[new], active[new])
        if len(rows):
            self.values = _grown(self.values, rows, torch.nan)
            self.values[rows] = scaled

    def fork(self) -> Strategies:
        parts = (self.name, self.units, self.facts, self.strategies, self.count)
        return Strategies(*parts, cycle=self.cycle, each=self.each, hits=self.hits.fork())

    def delta(self) -> State:
        return self.hits.delta()

    def merge(self, deltas: Sequence[State]) -> None:
        self.hits.merge(deltas)

    def _board(self, rows: Int[Tensor, " m"]) -> Board:
        self.values = _grown(self.values, rows, torch.nan)
        heavy, crossing = self.facts.heavy.to(rows.device), self.facts.crossing.to(rows.device)
        return Board(self.hits.of(rows), heavy, self.values[rows], self.facts.threshold, crossing)

    def _shared_out(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        board, each = self._board(rows), self.count // len(self.strategies)
        picks = [PICKS[strategy](board, each, rng) for strategy in self.strategies]
        return {key: torch.cat([pick[key] for pick in picks], 1) for key in ("unit", "sign")}

    def _in_turn(self, rows: Int[Tensor, " m"], turn: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        """Every strategy picks for every row, and each row takes the pick whose turn it is."""
        board = self._board(rows)
        picks = [PICKS[strategy](board, self.count, rng) for strategy in self.strategies]
        chosen = (turn % len(self.strategies))[None, :, None]
        stacked = {key: torch.stack([pick[key] for pick in picks]) for key in ("unit", "sign")}
        return {k: v.gather(0, chosen.expand(1, *v.shape[1:])).squeeze(0) for k, v in stacked.items()}

    def _turn(self, rows: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        self.turns = _grown(self.turns, rows, 0)
        turn = self.turns[rows].clone()
        self.turns[rows] += 1
        return turn

    def _named(self, aim: Aim) -> Aim:
        return {f"{self.name}/{key}": value for key, value in aim.items()}


def _grown(table: Tensor, rows: Int[Tensor, " m"], fill: float) -> Tensor:
    """`table` on the rows' device, with a line for each of them."""
    missing = max(0, (int(rows.max()) + 1 if len(rows) else 0) - len(table))
    more = torch.full((missing, *table.shape[1:]), fill, dtype=table.dtype, device=rows.device)
    return torch.cat([table.to(rows.device), more])
