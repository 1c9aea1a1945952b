"""The gradient of each criterion: a score that pulls every candidate toward something its criterion has not covered.

A criterion's `choose` draws an uncovered target for each row (a unit, a corner, a section, a pair, a bucket); `toward` scores
how near the row is to it: up for an inactive unit, down for a lower corner, toward the centre of a section, past its rivals
for a unit that was never among the strongest, toward a surprise that was never met. Rows are independent.

"Define a gradient for each coverage" is the promise of the project "Adversarial image generation based on various neuron
coverage"; the code known of it changes only which neuron counts as uncovered and always pushes it up.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.measure import Measure
from hardcase.types import Probe


@dataclass(frozen=True, slots=True)
class Toward:
    """An `Objective`: how near each row is to what its aim asks for, times `weight`.

    In a campaign the memory is the shard's own, under the criterion's name, wherever the shard is searched.
    """

    criterion: Measure
    weight: float = 1.0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        live = probe.guides.get(self.criterion.name)
        return self.weight * (live if isinstance(live, Measure) else self.criterion).pull(probe)


def toward(criterion: Measure, *, weight: float = 1.0) -> Toward:
    return Toward(criterion, weight)
