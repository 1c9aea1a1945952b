"""Taggers, detectors and segmenters as subjects: they answer claims.

How far a network supports a claim is a number per row, in logits, above 0 where it makes it. Values
are exact; where a maximum or a count would give no useful slope, the gradient is that of a smooth
stand-in.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.claims.outputs import ABSENT, TASKS, Detections, Task, overlap
from hardcase.errors import Problem, choice
from hardcase.models.names import class_map
from hardcase.tensors import digest, margin
from hardcase.types import WAYS, Answer, Model, Offer, Tap

__all__ = [
    *("BOXES", "FLOOR", "OVERLAP", "THRESHOLD", "ClaimModel", "Flattened", "Support"),
    *("box_support", "claim_logits", "class_support", "cut_of", "flat_table", "iou"),
    *("mask_support", "tag_support"),
]

_log = logging.getLogger(__name__)

BOXES = 100
"""Boxes of an image that are looked at: those of the highest scores."""
THRESHOLD = 0.5
"""Probability (of a mask: share of its pixels) from which on something counts as said."""
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


class Flattened(nn.Module):
    """A network whose answers are one table, as all that is put around networks wants them.

    Boxes come first, always `BOXES` of them, then their log-odds; masks have the size of the image.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m n"]:
        return flat_table(self.net(x), x)


def flat_table(answer: object, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m n"]:
    """What a network answers about images as one table."""
    if isinstance(answer, Detections):
        found = _exactly(answer, BOXES)
        return torch.cat([found.boxes.flatten(1), found.logits.flatten(1)], 1)
    if isinstance(answer, Tensor) and answer.ndim == 4:
        if answer.shape[2:] != x.shape[2:]:
            answer = nn.functional.interpolate(answer, x.shape[2:], mode="bilinear")
        flat: Tensor = answer.flatten(1)
        return flat
    if not isinstance(answer, Tensor) or answer.ndim != 2:
        form = f"a {type(answer).__name__}"
        if isinstance(answer, Tensor):
            form = f"a tensor of shape {tuple(answer.shape)}"
        raise Problem(
            f"the model answers {form}.",
            "A tagger answers (images, classes), a segmenter (images, classes, height, width),"
            " a detector boxes with scores.",
            fix="--task, or a factory that returns one of these",
        )
    return answer


def _exactly(found: Detections, count: int) -> Detections:
    """The `count` best boxes of each image; where there are fewer, empty ones beside them."""
    boxes, logits = found.boxes, found.logits
    missing = count - boxes.shape[1]
    if missing > 0:
        boxes = nn.functional.pad(boxes, (0, 0, 0, missing))
        logits = nn.functional.pad(logits, (0, 0, 0, missing), value=ABSENT)
    if missing < 0:
        best = logits.detach().amax(2).topk(count, dim=1).indices[:, :, None]
        boxes = boxes.gather(1, best.expand(-1, -1, 4))
        logits = logits.gather(1, best.expand(-1, -1, logits.shape[2]))
    return Detections(boxes, logits)


class ClaimModel:
    """A network that answers whether it makes claims.

    Args:
        model: Answers flat tables of its task, see `Flattened`; of the task ``classes`` logits.
        task: What it answers.
        classes: Names of the data's classes, in the order of labels.
        outputs: Names of the network's classes; empty: those of the data.
        threshold: Probability from which on a class is said.
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        classes: Sequence[str],
        *,
        outputs: Sequence[str] = (),
        threshold: float = THRESHOLD,
    ) -> None:
        if task not in TASKS:
            raise choice("task", task, TASKS)
        if not 0 < threshold < 1:
            raise Problem(f"a threshold of {threshold} is no probability.", fix="threshold=0.5")
        if model.offers == "label":
            raise Problem(
                f"{model.name} tells labels alone, and claims need scores.",
                fix="leave out subject.label_only",
            )
        self.task = task
        self.threshold = threshold
        self.class_names = tuple(classes)
        self.columns = _columns(classes, outputs)
        self._ask(model)

    def _ask(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.weights: str = getattr(model, "weights", "")
        self.hash = digest([model.hash, self.task, repr(self.threshold), repr(self.columns)])

    def around(self, model: Model) -> ClaimModel:
        """Another network that is asked in the same way, such as this one with other weights."""
        made = copy.copy(self)
        made._ask(model)
        return made

    def __repr__(self) -> str:
        return f"ClaimModel({self.name!r}: {self.task} from {self.threshold:g} on, {self.model!r})"

    @property
    def offers(self) -> Offer:
        return self.model.offers

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def tally(self) -> Any:
        return getattr(self.model, "tally", None)

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        """Which classes it says there are: log-odds per class, and nothing of how claims are
        lost.
        """
        answer = self.model(x, taps)
        said = self.read(answer.logits, x)
        if isinstance(said, Detections):
            said = said.logits.amax(1)
        plain = said[:, :-1].flatten(2).amax(2) if said.ndim == 4 else said[:, :-1]
        nothing = plain.new_full((len(plain), len(WAYS)), ABSENT)
        return Answer(torch.cat([plain, nothing], 1), answer.activations)

    def about(
        self,
        x: Float[Tensor, "m c h w"],
        taps: Mapping[str, Tap] | None = None,
        *,
        claims: Claims,
    ) -> Answer:
        """Whether it makes a claim about each image, see `hardcase.campaign.claims`."""
        answer = self.model(x, taps)
        support = self.support(self.read(answer.logits, x), claims)
        finite = answer.logits.isfinite().all(1)
        value = support.value.where(finite, torch.full_like(support.value, torch.nan))
        logits = claim_logits(support._replace(value=value), claims, len(self.class_names))
        return Answer(logits, answer.activations)

    def support(self, said: Tensor | Detections, claims: Claims) -> Support:
        """How far it supports claims, given what it said in the data's classes."""
        cut = cut_of(self.threshold)
        if isinstance(said, Detections):
            return box_support(said, claims, cut)
        if said.ndim == 4:
            return mask_support(said, claims, cut)
        if self.task == "classes":
            return class_support(said, claims)
        return tag_support(said, claims, cut)

    def read(self, table: Float[Tensor, "m n"], x: Float[Tensor, "m c h w"]) -> Tensor | Detections:
        """A flat table in the form of the task, under the data's classes and one for the rest."""
        if self.task == "boxes":
            boxes = table[:, : 4 * BOXES].reshape(len(table), BOXES, 4)
            logits = table[:, 4 * BOXES :].reshape(len(table), BOXES, -1)
            return Detections(boxes, self._ours(logits, 2))
        if self.task == "masks":
            return self._ours(table.reshape(len(table), -1, *x.shape[2:]), 1)
        return self._ours(table, 1)

    def _ours(self, logits: Tensor, dim: int) -> Tensor:
        """Logits of the data's classes, and the greatest of all others."""
        count = logits.shape[dim]
        columns = self.columns or tuple(range(len(self.class_names)))
        if max(columns, default=-1) >= count:
            raise Problem(
                f"the model has {count} classes, the data has {len(self.class_names)}.",
                fix="--set subject.classes=NAME,NAME,...: the names of its outputs",
            )
        known: Int[Tensor, " k"] = torch.tensor(columns, device=logits.device)
        own = logits.index_select(dim, known.clamp_min(0))
        shape = [1] * logits.ndim
        shape[dim] = -1
        own = own.masked_fill((known < 0).reshape(shape), ABSENT)
        rest = [i for i in range(count) if i not in columns]
        if rest:
            other = logits.index_select(dim, torch.tensor(rest, device=logits.device))
            other = other.amax(dim, keepdim=True)
        else:  # of one class alone, a pixel is of it or not
            alone = self.task == "masks" and count == 1
            other = torch.full_like(own.narrow(dim, 0, 1), 0.0 if alone else ABSENT)
        return torch.cat([own, other], dim)


def _columns(classes: Sequence[str], outputs: Sequence[str]) -> tuple[int, ...]:
    """The output that means each class, -1 where none does; nothing where they are the same."""
    if not outputs or tuple(outputs) == tuple(classes):
        return ()
    found = list[int]()
    for name in classes:
        try:
            found.append(class_map([name], outputs).outputs[0])
        except Problem:
            found.append(-1)
    if all(at < 0 for at in found):
        raise Problem(
            f"none of the data's {len(found)} classes is one of the model's {len(outputs)}.",
            f"The data's are {', '.join(classes[:5])}; the model's {', '.join(outputs[:5])}.",
            fix="--set subject.classes=NAME,NAME,...: the names of its outputs",
        )
    missing = [name for name, at in zip(classes, found) if at < 0]
    if missing:
        _log.warning(
            "%d of the data's %d classes are none of the model's, which claims nothing of them: %s",
            *(len(missing), len(found), ", ".join(missing[:10])),
        )
    return tuple(found)


# How far a network supports claims.


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
    return _for_kind("at", claims, Support(support, instead), anywhere)


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
    return _for_kind("covers", claims, Support(support, instead), anywhere)


def _for_kind(kind: str, claims: Claims, own: Support, other: Support) -> Support:
    """One support for claims of a kind, another for the rest."""
    here = claims.kind == CLAIM_KINDS.index(kind)
    return Support(*(torch.where(here, *pair) for pair in zip(own, other)))


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
