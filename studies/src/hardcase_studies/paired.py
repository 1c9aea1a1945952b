"""Does a method show a planted fault? The same seeds on the faulty and on the clean network.

A seed's outcome is whether its finding moved the trait half of the way to the other class's kind; a
seed without a finding did not. The difference of the two outcomes is taken seed by seed, so that
how the seeds were chosen is the same on both sides.

The test permutes *seeds*: each seed's difference is averaged over the trainings and its sign is
flipped. The trainings are fixed, so a p-value speaks of these networks; that another training shows
the fault too is asked for apart (`Verdict.detected`), and the interval resamples both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.randomness import stream
from hardcase.statistics import Interval, Rate, holm, newcombe_paired
from hardcase_studies.inference import sign_flip
from hardcase_study.agreement import crossed_interval

LEAST = 0.09
"""The least difference of shares that is called a detection: the weakest of the paper's Table 2."""
LEVEL = 0.05
PLACEBOS = 100


@dataclass(frozen=True, slots=True)
class Pairs:
    """Outcomes of one method and one fault: a row for each training, a column for each seed.

    `effect` is how far the trait went on the faulty network beyond the clean one, in the trait's
    own unit, positive toward the other class.
    """

    faulty: Bool[Tensor, "r s"]
    clean: Bool[Tensor, "r s"]
    effect: Float[Tensor, "r s"]

    @property
    def difference(self) -> Float[Tensor, "r s"]:
        return self.faulty.double() - self.clean.double()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the pairs say; `p` is Holm's where several cells were tested together.

    `positive` counts the trainings in which the difference is above 0.
    """

    difference: Interval
    effect: float
    p: float
    positive: Rate

    @property
    def detected(self) -> bool:
        """Significant, large enough, and in every training."""
        every = self.positive.hits == self.positive.of
        return self.p <= LEVEL and self.difference.value >= LEAST and every


def verdicts(cells: Sequence[Pairs], *, seed: int = 0) -> list[Verdict]:
    """One verdict a cell; p-values are corrected together.

    The one primary test, fixed beforehand: a sign-flip permutation of per-seed differences, each
    averaged over the trainings, both directions pooled; exact up to 14 seeds, else 20,000 draws.
    """
    tests = [sign_flip(cell.difference.mean(0), rng=stream(seed, "sign flips")) for cell in cells]
    corrected = holm([test.p for test in tests])
    return [
        Verdict(
            _interval(cell, seed),
            float(cell.effect.double().mean()),
            p,
            Rate(int((cell.difference.mean(1) > 0).sum()), len(cell.faulty)),
        )
        for cell, p in zip(cells, corrected, strict=True)
    ]


def _interval(cell: Pairs, seed: int) -> Interval:
    """Over seeds and trainings; over seeds alone where there is one training or no spread."""
    values = cell.difference
    if values.shape[1] < 2:
        raise HardcaseError("one seed has no interval.", fix="more tests")
    if len(values) < 2 or float(values.std()) == 0:
        return newcombe_paired(cell.faulty[0], cell.clean[0])
    return crossed_interval(values)


def placebo(outcomes: Bool[Tensor, "d s"], *, seed: int = 0) -> Rate:
    """How often a method that asks no network "detects" a fault: it must not be above 5 %.

    Two replacements of the same seeds stand in for the faulty and for the clean network's tests.
    """
    rng = stream(seed, "placebo")
    changes = outcomes[::2].double() - outcomes[1::2].double()
    tests = [sign_flip(change, rng=rng, permutations=2000) for change in changes]
    return Rate(sum(test.p <= LEVEL for test in tests), len(tests))
