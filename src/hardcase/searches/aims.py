"""What guides asked for, kept in a search's state: which walk follows which aim."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.types import Aim, State

PREFIX = "aim/"


def held(state: State, rows: Int[Tensor, " m"]) -> Aim:
    """The aims that these rows follow."""
    return {name.removeprefix(PREFIX): value[rows] for name, value in state.items() if name.startswith(PREFIX)}


def keep(state: State, rows: Int[Tensor, " m"], aim: Aim, count: int) -> State:
    """`state` with the aims of these rows, out of `count`, replaced."""
    kept = dict(state)
    for name, value in aim.items():
        table = state.get(PREFIX + name)
        if table is None or table.shape[1:] != value.shape[1:]:
            table = torch.zeros(count, *value.shape[1:], dtype=value.dtype, device=value.device)
        kept[PREFIX + name] = table.index_copy(0, rows, value)
    return kept
