"""An examination for a panel: made images of which it is known whether they are valid and have kept their label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.judges.blends import Codes, blend
from hardcase.judges.changes import bend, mirror, retouch
from hardcase.judges.ruins import RUINS, ruin
from hardcase.tensors import from_bytes
from hardcase.types import Images

SURE = 0.85
"""A blend or a ruin counts where it is at least so much one thing or the other; between, nobody can say."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Images, the class each should show, and the truth: 1 yes, 0 no, -1 not known."""

    x: Float[Tensor, "m c h w"]
    expected: Int[Tensor, " m"]
    valid: Int[Tensor, " m"]
    label_kept: Int[Tensor, " m"]


@torch.no_grad()
def examination(images: Images, codes: Codes, rng: torch.Generator, device: torch.device | str = "cpu") -> Examination:
    """Each image four times: changed, blended with another one, and ruined twice."""
    x, y = from_bytes(images.x.to(device)), images.y.to(device).long()
    bent = [mirror(bend(x, rng), rng) for _ in range(4)]
    between, share = blend(bent[1], bent[1].roll(1, 0), codes, rng)
    differ = (y != y.roll(1, 0)).long()
    spoiled, lost = zip(*(_ruined(one, codes, rng) for one in bent[2:]))
    ones, gone = torch.ones_like(y), torch.cat(lost)
    return Examination(
        x=retouch(torch.cat([bent[0], between, *spoiled]), rng),
        expected=torch.cat([y] * 4),
        valid=torch.cat([ones, ones * _sure(share.where(share > 0.5, 1 - share)), _flip(_sure(gone))]),
        label_kept=torch.cat([ones, torch.where(differ > 0, _sure(share), ones), _flip(_sure(gone))]),
    )


def _ruined(x: Tensor, codes: Codes, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Every kind of ruin on an equal part of the images."""
    parts = [ruin(part, codes, rng, kind=kind) for kind, part in zip(RUINS, x.tensor_split(len(RUINS))) if len(part)]
    return torch.cat([made for made, _ in parts]), torch.cat([lost for _, lost in parts])


def _sure(share: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
    """1 where the share is large, 0 where it is small, -1 between."""
    return torch.where(share >= SURE, 1, torch.where(share <= 1 - SURE, 0, -1))


def _flip(truth: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
    return torch.where(truth < 0, truth, 1 - truth)
