"""Random numbers of a key per row and a name: equal on every device, and no row depends on another.

A number follows from its row's key, the name of its purpose and its position alone. The same
numbers are therefore used at every severity of a corruption, so that a row changes continuously
(and, for noise, monotonically) with severity.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.randomness import Rng

HALF = 2.0**-25
"""Half of the grid on which uniform numbers lie: with it none is 0 (and none may round to 1)."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers for `m` rows.

    Args:
        keys: One integer a row; rows with equal keys get equal numbers.

    Example:
        >>> draws = Draws(torch.tensor([3, 4, 3]))
        >>> u = draws.uniform("angle", 2)
        >>> u.shape, bool((u[0] == u[2]).all()), bool((u[0] == u[1]).any())
        (torch.Size([3, 2]), True, False)
    """

    keys: Int[Tensor, " m"]

    def uniform(self, name: str, *shape: int) -> Float[Tensor, "m *shape"]:
        """Numbers of the open interval from 0 to 1, on a grid of 2**24."""
        return self._fresh(name).uniform(self._rows, shape).add_(HALF).clamp_max_(1 - 2 * HALF)

    def normal(self, name: str, *shape: int) -> Float[Tensor, "m *shape"]:
        """Standard normal numbers."""
        return self._fresh(name).normal(self._rows, shape)

    @property
    def _rows(self) -> Int[Tensor, " m"]:
        return torch.arange(len(self.keys), device=self.keys.device)

    def _fresh(self, name: str) -> Rng:
        """The sequence of a purpose from its beginning."""
        return Rng(0, f"corruption/{name}", self.keys.long())
