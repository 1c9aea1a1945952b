"""MC/DC for networks: sign-sign, value-sign, sign-value and value-value coverage of neighbouring layers.

Y. Sun, X. Huang, D. Kroening, J. Sharp, M. Hill, R. Ashmore, "Structural test coverage criteria for deep neural networks",
ACM TECS 2019 (first "Testing deep neural networks", 2018). A pair of a condition unit and a decision unit in the next
layer is covered by two inputs if the condition alone changes (its sign, the signs of its layer else unchanged; or its
size by a factor, no sign of its layer changed) and the decision changes with it (its sign; or its size, its sign kept).

Here as a measure of a given test set: any two of its inputs may form the pair (``pairs="all"``), or an input and the seed
it was made from (``pairs="seed-test"``). Signs are those of values before the activation; zero counts as negative.
Differences: a change in size is a factor up or down, whichever input comes first; value-sign looks at the condition
unit's own size, where the authors' tool may take the whole layer's distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.frame import Frame
from hardcase.criteria.independence import Kind, Split, cover_set, covers, flips_of, relaxed
from hardcase.criteria.measure import Tally
from hardcase.criteria.memory import Rows
from hardcase.criteria.pairs import CELLS, hash_signs, keys_of, matches
from hardcase.criteria.units import Selection
from hardcase.tensors import chunks
from hardcase.types import State


@dataclass(frozen=True)
class Independence:
    """Which (condition, decision) pairs some two inputs show to be connected, and how."""

    selection: Selection
    splits: tuple[Split, ...]
    kind: Kind = "sign-sign"
    pairs: Literal["all", "seed-test"] = "all"
    factors: tuple[float, float] = (2.0, 2.0)
    relax: float = 0.01

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Rows:
        values = torch.empty(0, self.selection.units)
        flags = {"id": torch.empty(0, dtype=torch.int64), "seed": torch.empty(0, dtype=torch.bool)}
        return Rows({"values": values > 0 if self.kind == "sign-sign" else values, **flags})

    def observe(self, frame: Frame, memory: Rows) -> None:
        rows = self._rows(frame)
        good = frame.matrix(self.selection).isfinite().all(1).cpu()
        memory.add({name: value.cpu()[good] for name, value in rows.items()})

    def gain(self, frame: Frame, memory: Rows) -> Float[Tensor, " m"]:
        """How many pairs the row alone would newly cover, together with any row known."""
        rows, known, gain = self._rows(frame), memory.all(), torch.zeros(len(frame))
        good = frame.matrix(self.selection).isfinite().all(1).cpu()
        for split, covered in zip(self.splits, self.covered(memory), strict=True):
            row, other = self._partners(rows, known, split)
            shown = torch.zeros(len(frame), covered.numel(), dtype=torch.int16)
            for part in chunks(len(row), max(1, CELLS // covered.numel())):
                hit = self._show(split, rows["values"][row[part]], known["values"][other[part]])
                shown.index_add_(0, row[part], hit.flatten(1).to(torch.int16))
            gain += ((shown > 0) & (split.allowed & ~covered).flatten()).sum(1)
        return gain.where(good, 0).to(frame.device)

    def choose(self, count: int, rng: torch.Generator, memory: Rows) -> dict[str, Tensor]:
        """Uncovered pairs as numbers into the list of all allowed ones."""
        allowed = torch.cat([split.allowed.flatten() for split in self.splits])
        open_ = (allowed & ~torch.cat([c.flatten() for c in self.covered(memory)])).nonzero().squeeze(1)
        open_ = open_ if len(open_) else allowed.nonzero().squeeze(1)
        return {"pair": open_[torch.randint(max(1, len(open_)), (count,), generator=rng, device=rng.device).cpu()]}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Rows) -> Float[Tensor, " m"]:
        """Toward changing the pair's condition and decision against the row's seed, and no other sign of the condition's layer."""
        values, anchor = frame.matrix(self.selection), self._anchors(frame, memory)
        score, start = values.sum(1) * 0, 0
        for split in self.splits:
            cell = aim["pair"] - start
            mine = (cell >= 0) & (cell < split.allowed.numel())
            pulled = split.pull(self.kind, self.factors, values, anchor, cell.clamp(0, split.allowed.numel() - 1))
            score, start = torch.where(mine, pulled, score), start + split.allowed.numel()
        return score.where(anchor.isfinite().all(1) & score.isfinite(), 0)

    def tally(self, memory: Rows) -> Tally:
        covered = sum(int((c & s.allowed).sum()) for c, s in zip(self.covered(memory), self.splits, strict=True))
        total = sum(int(split.allowed.sum()) for split in self.splits)
        detail: dict[str, object] = {"qualified input pairs": self._digest(memory)[1], "inputs": len(memory)}
        if self.kind == "sign-sign":
            detail |= self._relaxed(memory, total)
        return Tally(covered / max(total, 1), covered, total, detail)

    def covered(self, memory: Rows) -> list[Bool[Tensor, "s t"]]:
        return self._digest(memory)[0]

    def _digest(self, memory: Rows) -> tuple[list[Bool[Tensor, "s t"]], int]:
        """What is covered by the rows so far; rows that came since are worked in."""
        done, known = memory.digest or (0, ([torch.zeros_like(split.allowed) for split in self.splits], 0))
        if done < len(memory) or not memory.digest:
            work = self._all if self.pairs == "all" else self._by_seed
            memory.digest = (len(memory), work(memory.all(), done, known))
        assert memory.digest is not None
        found: tuple[list[Tensor], int] = memory.digest[1]
        return found

    def _all(self, rows: State, done: int, known: object) -> tuple[list[Bool[Tensor, "s t"]], int]:
        found = [cover_set(self.kind, self.factors, split, rows["values"]) for split in self.splits]
        return [covered for covered, _ in found], sum(count for _, count in found)

    def _by_seed(self, rows: State, done: int, known: tuple[list[Tensor], int]) -> tuple[list[Tensor], int]:
        test, seed = _seeded(rows)
        fresh = (test >= done) | (seed >= done)
        test, seed, covered, count = test[fresh], seed[fresh], list(known[0]), known[1]
        for i, split in enumerate(self.splits):
            for part in chunks(len(test), max(1, CELLS // split.allowed.numel())):
                hit = self._show(split, rows["values"][test[part]], rows["values"][seed[part]])
                covered[i] = covered[i] | hit.any(0)
            flips = flips_of(split, rows["values"][test], rows["values"][seed])
            count += int((flips == (1 if self.kind.startswith("sign") else 0)).sum())
        return covered, count

    def _show(self, split: Split, a: Tensor, b: Tensor) -> Bool[Tensor, "e s t"]:
        return covers(
            self.kind, self.factors, split.conditions(a), split.decisions(a), split.conditions(b), split.decisions(b)
        )

    def _relaxed(self, memory: Rows, total: int) -> dict[str, object]:
        """The form of the authors' heuristic: up to a share of the condition layer may flip along."""
        rows, covered, pairs, flips = memory.all(), 0, 0, list[int]()
        for split in self.splits:
            most = max(1, int(self.relax * split.allowed.shape[0]))
            chosen = None if self.pairs == "all" else _seeded(rows)
            cells, count = relaxed(split, rows["values"], most, chosen)
            covered, pairs, flips = covered + int((cells & split.allowed).sum()), pairs + count, [*flips, most]
        return {
            "relaxed": {
                "value": covered / max(total, 1),
                "covered": covered,
                "qualified input pairs": pairs,
                "flips": flips,
            }
        }

    def _rows(self, frame: Frame) -> State:
        values, none = frame.matrix(self.selection).detach().cpu(), torch.full((len(frame),), -1)
        ids = none if frame.ids is None else frame.ids.cpu()
        seeds = torch.zeros(len(frame), dtype=torch.bool) if frame.are_seeds is None else frame.are_seeds.cpu()
        return {"values": values > 0 if self.kind == "sign-sign" else values, "id": ids, "seed": seeds}

    def _partners(self, rows: State, known: State, split: Split) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
        """Rows and known rows that may form a qualifying pair."""
        if self.pairs == "seed-test":
            row, other = matches(rows["id"][:, None], known["id"])
            mixed = rows["seed"][row] != known["seed"][other]
            return row[mixed], other[mixed]
        signs, seen = split.conditions(rows["values"]) > 0, split.conditions(known["values"]) > 0
        wanted = hash_signs(signs)[:, None]
        if self.kind.startswith("sign"):
            keys = keys_of(signs.shape[1])
            wanted = torch.where(signs, wanted - keys, wanted + keys)
        return matches(wanted, hash_signs(seen))

    def _anchors(self, frame: Frame, memory: Rows) -> Float[Tensor, "m u"]:
        """The values of each row's seed: its own if the row is the seed, not-a-number while the seed is unknown."""
        own, rows = self._rows(frame), memory.all()
        values = torch.full(own["values"].shape, torch.nan)
        row, other = matches(own["id"][:, None], rows["id"].where(rows["seed"], -2))
        values[row] = rows["values"][other].float()
        values[own["seed"]] = own["values"][own["seed"]].float()
        return values.to(frame.device)


def _seeded(rows: State) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Every test and a seed of the same number."""
    tests, seeds = (~rows["seed"]).nonzero().squeeze(1), rows["seed"].nonzero().squeeze(1)
    a, b = matches(rows["id"][tests, None], rows["id"][seeds])
    return tests[a], seeds[b]
