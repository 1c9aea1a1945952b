"""How far a network supports a claim: a number per row, in logits, above 0 where it makes it.

Values are exact; where a maximum or a count would give no useful slope, the gradient is that of a
smooth stand-in.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.claims.outputs import ABSENT, Detections, overlap
from hardcase.tensors import margin
from hardcase.types import WAYS

__all__ = [
    *("FLOOR", "OVERLAP", "Support", "claim_logits", "class_support", "cut_of", "iou"),
    *("mask_support", "box_support", "tag_support"),
]

FLOOR = -10.0
"""Support where no box of the class is at the place."""
OVERLAP = 0.5
"""Intersection over union from which on a box is at a place."""
NEAR = 0.1
"""Intersection over union from which on a box of the class has merely moved."""
KEPT = 30.0
"""Support of a claim whose object has left the frame: nobody can lose it."""
SHARPEST = 1e-3
"""Least share of a mask, and of what is missing of it, that its log-odds tell."""
BLUNT = 0.05
"""Width of the step at `OVERLAP`, in the gradient alone."""
LOST, MISLOCATED, ALARM = range(len(WAYS))


class Support(NamedTuple):
    """How far claims are supported, and what is said where they are not."""

    value: Float[Tensor, " m"]
    instead: Int[Tensor, " m"]


def cut_of(threshold: float) -> float:
    """The log-odds of a probability from which on a class counts as said."""
    return math.log(threshold / (1 - threshold))


def claim_logits(support: Support, claims: Claims, classes: int) -> Float[Tensor, "m k"]:
    """Supports in the form in which all networks answer, see `hardcase.campaign.claims`."""
    value = support.value.where(claims.inside, torch.full_like(support.value, KEPT))
    empty = value.new_full((len(value), classes + len(WAYS)), ABSENT)
    said = empty.scatter(1, support.instead[:, None], 0.0)
    return said.scatter(1, claims.label[:, None], value[:, None])


def tag_support(logits: Float[Tensor, "m k"], claims: Claims, cut: float) -> Support:
    """There is such an object, or there is none: log-odds minus the threshold's."""
    classes = logits.shape[1] - 1
    above = logits.gather(1, claims.label[:, None]).squeeze(1) - cut
    absent = claims.kind == CLAIM_KINDS.index("has-not")
    instead = torch.where(absent, classes + ALARM, classes + LOST)
    return Support(torch.where(absent, -above, above), instead)


def class_support(logits: Float[Tensor, "m k"], claims: Claims) -> Support:
    """A classifier's word for an object: it is what the image shows most."""
    classes = logits.shape[1] - 1
    others = logits.scatter(1, claims.label[:, None], -torch.inf)
    best = others.argmax(1)
    instead = torch.where(best < classes, best, classes + LOST)
    return Support(-margin(logits, claims.label), instead)


def box_support(found: Detections, claims: Claims, cut: float) -> Support:
    """There is such an object at the claimed place; of other kinds, anywhere.

    A box of another class at the place is what is said instead; so is a box of the class beside
    it.
    """
    classes = found.logits.shape[2] - 1
    anywhere = tag_support(_greatest(found.logits, 1), claims, cut)
    shared = iou(found.boxes, claims.box)  # m d
    label = claims.label[:, None, None].expand(-1, found.logits.shape[1], 1)
    own = found.logits.gather(2, label).squeeze(2) - cut  # m d
    there = shared.detach() >= OVERLAP
    best = own.masked_fill(~there, FLOOR).amax(1).clamp_min(FLOOR)
    gate = torch.nn.functional.logsigmoid((shared - OVERLAP) / BLUNT)
    support = _with_slope_of(best, torch.logsumexp(own + gate, 1))
    with torch.no_grad():
        at_place = found.logits.masked_fill(~there[:, :, None], ABSENT).amax(1)  # m k
        score, other = at_place.scatter(1, claims.label[:, None], ABSENT).max(1)
        beside = (shared >= NEAR) & (shared < OVERLAP) & (own > 0)
        way = torch.where(beside.any(1), classes + MISLOCATED, classes + LOST)
        instead = torch.where((score > cut) & (other < classes), other, way)
    here = claims.kind == CLAIM_KINDS.index("at")
    return Support(
        torch.where(here, support, anywhere.value), torch.where(here, instead, anywhere.instead)
    )


def mask_support(logits: Float[Tensor, "m k h w"], claims: Claims, cut: float) -> Support:
    """The claimed pixels are of the class: log-odds of their share minus the threshold's; of other
    kinds, a pixel anywhere is.
    """
    classes = logits.shape[1] - 1
    flat = logits.flatten(2)  # m k p
    label = claims.label[:, None, None].expand(-1, 1, flat.shape[2])
    own = flat.gather(1, label).squeeze(1)
    lead = own - flat.scatter(1, label, -torch.inf).amax(1)  # m p
    anywhere = tag_support(
        torch.zeros_like(flat[:, :, 0]).scatter(
            1, claims.label[:, None], _greatest(lead[:, :, None], 1)
        ),
        claims,
        0.0,
    )
    if not claims.mask.shape[1]:
        return anywhere
    mask = claims.mask.flatten(1).to(flat.dtype)
    size = mask.sum(1).clamp_min(1.0)
    exact = ((lead.detach() > 0) * mask).sum(1) / size
    soft = (lead.sigmoid() * mask).sum(1) / size
    share = _log_odds(exact) - cut
    support = _with_slope_of(share, _log_odds(soft))
    with torch.no_grad():
        said = flat.argmax(1)
        counts = flat.new_zeros(len(flat), classes + 1).scatter_add_(1, said, mask)
        other = counts.scatter(1, claims.label[:, None], -1.0).argmax(1)
        instead = torch.where(other < classes, other, classes + LOST)
    here = claims.kind == CLAIM_KINDS.index("covers")
    return Support(
        torch.where(here, support, anywhere.value), torch.where(here, instead, anywhere.instead)
    )


def iou(boxes: Float[Tensor, "m d 4"], box: Float[Tensor, "m 4"]) -> Float[Tensor, "m d"]:
    """Intersection over union of boxes with one box per row."""
    return overlap(boxes, box[:, None]).squeeze(2)


def _greatest(values: Tensor, dim: int) -> Tensor:
    """The greatest along an axis; in the gradient all that are nearly as great count."""
    return _with_slope_of(values.amax(dim), torch.logsumexp(values, dim))


def _log_odds(share: Tensor) -> Tensor:
    return share.clamp(SHARPEST, 1 - SHARPEST).logit()


def _with_slope_of(value: Tensor, smooth: Tensor) -> Tensor:
    """`value`, to the bit, with the gradient of `smooth`."""
    if not smooth.requires_grad:
        return value
    return value.detach() + (smooth - smooth.detach())
