"""The law of judges: a verdict belongs to an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.judges.judge import ask
from hardcase.types import ImagePairs, Judge

__all__ = ["check_judge"]

Answer = tuple[str, float | None]
"""A verdict, and the probability beside it."""


def check_judge(judge: Judge, pairs: ImagePairs, others: ImagePairs | None = None) -> None:
    """Check that no verdict of a judge hangs on what else it is asked about, in what order, or how
    often.

    Args:
        judge: Any callable from `hardcase.ImagePairs` to `hardcase.Verdicts`.
        pairs: Images that it is asked about; two at least.
        others: Images that they are mixed with; by default noise under the same labels.

    Raises:
        AssertionError: If a verdict, or a probability, differs.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> from hardcase.testing import check_judge
        >>> images = torch.arange(2 * 64, dtype=torch.uint8).reshape(2, 1, 8, 8)
        >>> pairs = hc.ImagePairs(images, images, torch.tensor([0, 1]))
        >>> def bright(pairs):
        ...     return hc.Verdicts([("lost", "kept")[x.float().mean() > 60] for x in pairs.x])
        >>> check_judge(bright, pairs)
    """
    count = len(pairs)
    assert count >= 2, "a law about company needs two images"
    if others is None:
        rng = torch.Generator().manual_seed(0)
        noise = torch.randint(256, pairs.x.shape, generator=rng, dtype=torch.uint8)
        others = ImagePairs(noise, pairs.original, pairs.expected)
    rows = torch.arange(count)
    first = _answers(judge, pairs)
    backwards = rows.flip(0)
    _compare(first, _answers(judge, pairs[backwards]), backwards, "in another order")
    doubled = ImagePairs.join([pairs, pairs])
    _compare(first, _answers(judge, doubled), rows.repeat(2), "when the run is doubled")
    half = rows[: count // 2]
    _compare(first, _answers(judge, pairs[half]), half, "in half of the run")
    for row in rows[:, None]:
        _compare(first, _answers(judge, pairs[row]), row, "by itself")
    mixed = _answers(judge, ImagePairs.join([others, pairs, others]))
    _compare(first, mixed[len(others) : len(others) + count], rows, "among other images")


def _answers(judge: Judge, pairs: ImagePairs) -> list[Answer]:
    verdicts = ask(judge, pairs)
    chances: Sequence[float | None] = verdicts.p_kept or [None] * len(pairs)
    return list(zip(verdicts.verdict, chances, strict=True))


def _compare(
    first: Sequence[Answer], again: Sequence[Answer], rows: Int[Tensor, " m"], when: str
) -> None:
    for row, answer in zip(rows.tolist(), again, strict=True):
        assert first[row] == answer, f"image {row} is {first[row]}, and {answer} {when}"
