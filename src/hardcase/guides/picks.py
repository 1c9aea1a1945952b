"""Ways to pick units to push. Each takes a board and gives, row by row, units and which way to push them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.types import Aim


@dataclass(frozen=True, slots=True)
class Board:
    """What a pick may know: hit counts by row, units with large incoming weights, each row's last scaled values (NaN where
    there are none), the threshold, and which units may be pushed across it."""

    hits: Int[Tensor, "m u"]
    heavy: Bool[Tensor, " u"]
    values: Float[Tensor, "m u"]
    threshold: float
    crossing: Bool[Tensor, " u"]


Pick = Callable[[Board, int, torch.Generator], Aim]


def uncovered(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Units never covered, drawn evenly; any, where none is left."""
    return _drawn((board.hits == 0).float(), count, rng)


def anything(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Any units, drawn evenly: the control."""
    return _drawn(torch.ones_like(board.values), count, rng)


def often(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Units often covered (DLFuzz's strategy 1): drawn in proportion to their hits."""
    return _drawn(board.hits.float(), count, rng)


def rarely(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Units rarely covered (strategy 2): drawn in proportion to what they lack to the most covered one."""
    return _drawn((board.hits.amax(1, keepdim=True) - board.hits).float(), count, rng)


def heavy(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Units with large incoming weights (strategy 3), drawn evenly."""
    return _drawn(board.heavy.float().expand_as(board.values), count, rng)


def across(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Units near the threshold (strategy 4): those just above it are pushed down, those just below it up."""
    return _near(board, count, down=-1)


def apart(board: Board, count: int, rng: torch.Generator) -> Aim:
    """Strategy 4 as DLFuzz's code has it: those just above are pushed up, those just below down, away from the threshold."""
    return _near(board, count, down=1)


def most(board: Board, count: int, rng: torch.Generator) -> Aim:
    """The most covered units, without a draw (ADAPT's form of DLFuzz)."""
    return _first(board.hits, count)


def least(board: Board, count: int, rng: torch.Generator) -> Aim:
    """The least covered units, without a draw (ADAPT's form of DLFuzz)."""
    return _first(-board.hits, count)


PICKS: dict[str, Pick] = {
    f.__name__: f for f in (uncovered, anything, often, rarely, heavy, across, apart, most, least)
}


def _drawn(weight: Float[Tensor, "m u"], count: int, rng: torch.Generator) -> Aim:
    """`count` different units a row, one after the other in proportion to the weights; those without weight come last."""
    noise = torch.rand(weight.shape, generator=rng, device=rng.device).to(weight.device)
    keys = weight.clamp_min(1e-30).log() - (-noise.clamp(1e-12, 1 - 1e-7).log()).log()
    unit = keys.topk(min(count, keys.shape[1]), dim=1).indices
    return {"unit": unit, "sign": torch.ones(unit.shape, device=unit.device)}


def _first(keys: Tensor, count: int) -> Aim:
    """The units with the greatest keys, ties to the lower number."""
    unit = keys.argsort(dim=1, descending=True, stable=True)[:, :count]
    return {"unit": unit, "sign": torch.ones(unit.shape, device=unit.device)}


def _near(board: Board, count: int, *, down: int) -> Aim:
    """The first units within 0.25 above and 0.2 below the threshold, half each; `down` is the sign of those above."""
    above, below = board.values - board.threshold, board.threshold - board.values
    number = torch.arange(board.values.shape[1], device=board.values.device)
    parts = []
    for near, sign, some in (
        ((above > 0) & (above < 0.25), down, count - count // 2),
        ((below > 0) & (below < 0.2), -down, count // 2),
    ):
        near = near & board.crossing
        unit = torch.where(near, -number, -number - len(number)).argsort(dim=1, descending=True, stable=True)[:, :some]
        parts.append((unit, near.gather(1, unit) * float(sign)))
    return {"unit": torch.cat([u for u, _ in parts], 1), "sign": torch.cat([s for _, s in parts], 1)}
