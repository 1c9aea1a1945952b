"""Networks that are no classifiers: what they answer, in one form per task, and how far it supports
a claim.

A tagger answers log-odds per class (``m k``), a segmenter log-odds or logits per class and pixel
(``m k h w``); a detector answers `Detections`. Boxes are XYXY in pixels of the image that was asked
about, whatever form or size the network itself has.

How far a network supports a claim is a number per row, in logits, above 0 where it makes it. Values
are exact; where a maximum or a count would give no useful slope, the gradient is that of a smooth
stand-in.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.errors import HardcaseError, choice
from hardcase.models.names import class_map
from hardcase.tensors import digest, margin
from hardcase.types import WAYS, Answer, Model, Offer, Tap

__all__ = [
    *("ABSENT", "TASKS", "Annotation", "Detections", "FoundObjects", "Task"),
    *("average_precision", "corners", "overlap", "strongest"),
    *("BOXES", "FLOOR", "OVERLAP", "THRESHOLD", "ClaimModel", "Flattened", "Support"),
    *("box_support", "claim_logits", "class_support", "cut_of", "flat_table", "iou"),
    *("mask_support", "tag_support"),
]

Task = Literal["classes", "tags", "boxes", "masks"]
TASKS: tuple[Task, ...] = ("classes", "tags", "boxes", "masks")
"""What a network answers; `--task` names one of them."""

ABSENT = -30.0
"""Log-odds of what a network does not answer: padding, and classes below its own cut."""


@dataclass(frozen=True, slots=True)
class Detections:
    """Boxes of a batch, padded to the same number per image.

    Args:
        boxes: Corners as x0, y0, x1, y1, in pixels of the image.
        logits: Log-odds that the box holds an object of the class; `ABSENT` in padding.
    """

    boxes: Float[Tensor, "m d 4"]
    logits: Float[Tensor, "m d k"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """What is known of one image.

    Args:
        labels: Class of each object; for tags, the classes that are present.
        boxes: Box of each object, XYXY in pixels; no rows where the data has no boxes.
        mask: Class of each pixel (255: none); no pixels where the data has no masks.
    """

    labels: Int[Tensor, " o"]
    boxes: Float[Tensor, "b 4"]
    mask: Int[Tensor, "h w"]


def overlap(
    first: Float[Tensor, "*batch n 4"], second: Float[Tensor, "*batch o 4"]
) -> Float[Tensor, "*batch n o"]:
    """Intersection over union of every box of `first` with every box of `second`, both XYXY."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    shared = (high - low).clamp_min(0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).clamp_min(0).prod(-1) for each in (first, second)]
    union = areas[0][..., :, None] + areas[1][..., None, :] - shared
    return shared / union.clamp_min(torch.finfo(union.dtype).tiny)


def corners(boxes: Float[Tensor, "*rows 4"]) -> Float[Tensor, "*rows 4"]:
    """XYXY of boxes given as centre, width and height."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


class FoundObjects(NamedTuple):
    """The objects that a detector names, strongest first; padding has a score of `ABSENT`."""

    boxes: Float[Tensor, "m d 4"]
    labels: Int[Tensor, "m d"]
    scores: Float[Tensor, "m d"]
    kept: Bool[Tensor, "m d"]


@torch.no_grad()
def strongest(detections: Detections, *, iou: float = 0.5, most: int = 100) -> FoundObjects:
    """One box for each object: non-maximum suppression within each class."""
    boxes, logits = detections.boxes, detections.logits
    classes = logits.shape[2]
    scores, at = logits.flatten(1).topk(min(most, logits[0].numel()), dim=1)
    labels = at % classes
    rows = (at // classes)[..., None].expand(-1, -1, 4)
    chosen = boxes.gather(1, rows)
    clash = (overlap(chosen, chosen) > iou) & (labels[:, :, None] == labels[:, None, :])
    clash = clash.triu(1)  # of two, the one that comes later is weaker
    unsuppressed = torch.ones_like(labels, dtype=torch.bool)
    for number in range(unsuppressed.shape[1]):
        unsuppressed &= ~(unsuppressed[:, number, None] & clash[:, number])
    return FoundObjects(chosen, labels, scores, unsuppressed)


def average_precision(
    objects: FoundObjects, annotations: Sequence[Annotation], classes: int, *, iou: float = 0.5
) -> Float[Tensor, " k"]:
    """Average precision of every class: the area below the falling envelope of precision over
    recall; NaN of classes without an object.

    As COCO matches them: from the strongest on, each box takes the object of its class that it
    overlaps most and that none took before. Differences: every recall counts, not 101 of them.
    """
    result = torch.full((classes,), torch.nan)
    for label in range(classes):
        wanted = sum(int((each.labels == label).sum()) for each in annotations)
        if wanted:
            scores, right = _matched(objects, annotations, label, iou)
            hits = right[scores.argsort(descending=True, stable=True)].cumsum(0)
            precision = hits / torch.arange(1, len(hits) + 1)
            envelope = precision.flip(0).cummax(0).values.flip(0)
            steps = hits.diff(prepend=hits.new_zeros(1))
            result[label] = (envelope * steps).sum() / wanted
    return result


def _matched(
    candidates: FoundObjects, annotations: Sequence[Annotation], label: int, iou: float
) -> tuple[Float[Tensor, " d"], Int[Tensor, " d"]]:
    """Score of every box of a class in all images, and whether it finds an object."""
    scores: list[Tensor] = [torch.zeros(0)]
    right = list[int]()
    for row, each in enumerate(annotations):
        rows = candidates.kept[row] & (candidates.labels[row] == label)
        scores.append(candidates.scores[row, rows].cpu())
        objects = each.boxes[each.labels == label]
        table = overlap(candidates.boxes[row, rows].cpu(), objects)
        for line in table:  # in the order of their scores
            best = int(line.argmax()) if len(line) else -1
            hit = best >= 0 and float(line[best]) >= iou
            right.append(int(hit))
            if hit:
                table[:, best] = -1.0  # taken
    return torch.cat(scores), torch.tensor(right, dtype=torch.int64)


# Subjects that answer claims.

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
        detections = _exactly(answer, BOXES)
        return torch.cat([detections.boxes.flatten(1), detections.logits.flatten(1)], 1)
    if isinstance(answer, Tensor) and answer.ndim == 4:
        if answer.shape[2:] != x.shape[2:]:
            answer = nn.functional.interpolate(answer, x.shape[2:], mode="bilinear")
        flat: Tensor = answer.flatten(1)
        return flat
    if not isinstance(answer, Tensor) or answer.ndim != 2:
        form = f"a {type(answer).__name__}"
        if isinstance(answer, Tensor):
            form = f"a tensor of shape {tuple(answer.shape)}"
        raise HardcaseError(
            f"the model answers {form}.",
            "A tagger answers (images, classes), a segmenter (images, classes, height, width),"
            " a detector boxes with scores.",
            fix="--task, or a factory that returns one of these",
        )
    return answer


def _exactly(detections: Detections, count: int) -> Detections:
    """The `count` best boxes of each image; where there are fewer, empty ones beside them."""
    boxes, logits = detections.boxes, detections.logits
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
            raise HardcaseError(
                f"a threshold of {threshold} is no probability.", fix="threshold=0.5"
            )
        if model.offers == "label":
            raise HardcaseError(
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
        copied = copy.copy(self)
        copied._ask(model)
        return copied

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
        answers = self.read(answer.logits, x)
        if isinstance(answers, Detections):
            answers = answers.logits.amax(1)
        plain = answers[:, :-1].flatten(2).amax(2) if answers.ndim == 4 else answers[:, :-1]
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

    def support(self, answer: Tensor | Detections, claims: Claims) -> Support:
        """How far it supports claims, given what it said in the data's classes."""
        cut = cut_of(self.threshold)
        if isinstance(answer, Detections):
            return box_support(answer, claims, cut)
        if answer.ndim == 4:
            return mask_support(answer, claims, cut)
        if self.task == "classes":
            return class_support(answer, claims)
        return tag_support(answer, claims, cut)

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
            raise HardcaseError(
                f"the model has {count} classes, the data has {len(self.class_names)}.",
                fix="--set model.classes=NAME,NAME,...: the names of its outputs",
            )
        column_of: Int[Tensor, " k"] = torch.tensor(columns, device=logits.device)
        selected = logits.index_select(dim, column_of.clamp_min(0))
        shape = [1] * logits.ndim
        shape[dim] = -1
        selected = selected.masked_fill((column_of < 0).reshape(shape), ABSENT)
        rest = [i for i in range(count) if i not in columns]
        if rest:
            other = logits.index_select(dim, torch.tensor(rest, device=logits.device))
            other = other.amax(dim, keepdim=True)
        else:  # of one class alone, a pixel is of it or not
            alone = self.task == "masks" and count == 1
            other = torch.full_like(selected.narrow(dim, 0, 1), 0.0 if alone else ABSENT)
        return torch.cat([selected, other], dim)


def _columns(classes: Sequence[str], outputs: Sequence[str]) -> tuple[int, ...]:
    """The output that means each class, -1 where none does; nothing where they are the same."""
    if not outputs or tuple(outputs) == tuple(classes):
        return ()
    columns = list[int]()
    for name in classes:
        try:
            columns.append(class_map([name], outputs).outputs[0])
        except HardcaseError:
            columns.append(-1)
    if all(at < 0 for at in columns):
        raise HardcaseError(
            f"none of the data's {len(columns)} classes is one of the model's {len(outputs)}.",
            f"The data's are {', '.join(classes[:5])}; the model's {', '.join(outputs[:5])}.",
            fix="--set model.classes=NAME,NAME,...: the names of its outputs",
        )
    missing = [name for name, at in zip(classes, columns) if at < 0]
    if missing:
        _log.warning(
            "%d of the data's %d classes are none of the model's, which claims nothing of them: %s",
            *(len(missing), len(columns), ", ".join(missing[:10])),
        )
    return tuple(columns)


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
    logits = empty.scatter(1, support.instead[:, None], 0.0)
    return logits.scatter(1, claims.label[:, None], value[:, None])


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


def box_support(detections: Detections, claims: Claims, cut: float) -> Support:
    """There is such an object at the claimed place; of other kinds, anywhere.

    A box of another class at the place is what is said instead; so is a box of the class beside
    it.
    """
    classes = detections.logits.shape[2] - 1
    anywhere = tag_support(_greatest(detections.logits, 1), claims, cut)
    shared = iou(detections.boxes, claims.box)  # m d
    label = claims.label[:, None, None].expand(-1, detections.logits.shape[1], 1)
    shared_label = detections.logits.gather(2, label).squeeze(2) - cut  # m d
    there = shared.detach() >= OVERLAP
    best = shared_label.masked_fill(~there, FLOOR).amax(1).clamp_min(FLOOR)
    gate = torch.nn.functional.logsigmoid((shared - OVERLAP) / BLUNT)
    support = _with_slope_of(best, torch.logsumexp(shared_label + gate, 1))
    with torch.no_grad():
        at_place = detections.logits.masked_fill(~there[:, :, None], ABSENT).amax(1)  # m k
        score, other = at_place.scatter(1, claims.label[:, None], ABSENT).max(1)
        near_miss = (shared >= NEAR) & (shared < OVERLAP) & (shared_label > 0)
        way = torch.where(near_miss.any(1), classes + MISLOCATED, classes + LOST)
        instead = torch.where((score > cut) & (other < classes), other, way)
    return _for_kind("at", claims, Support(support, instead), anywhere)


def mask_support(logits: Float[Tensor, "m k h w"], claims: Claims, cut: float) -> Support:
    """The claimed pixels are of the class: log-odds of their share minus the threshold's; of other
    kinds, a pixel anywhere is.
    """
    classes = logits.shape[1] - 1
    flat = logits.flatten(2)  # m k p
    label = claims.label[:, None, None].expand(-1, 1, flat.shape[2])
    odds_of_label = flat.gather(1, label).squeeze(1)
    lead = odds_of_label - flat.scatter(1, label, -torch.inf).amax(1)  # m p
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
        predicted = flat.argmax(1)
        counts = flat.new_zeros(len(flat), classes + 1).scatter_add_(1, predicted, mask)
        other = counts.scatter(1, claims.label[:, None], -1.0).argmax(1)
        instead = torch.where(other < classes, other, classes + LOST)
    return _for_kind("covers", claims, Support(support, instead), anywhere)


def _for_kind(kind: str, claims: Claims, claimed: Support, other: Support) -> Support:
    """One support for claims of a kind, another for the rest."""
    here = claims.kind == CLAIM_KINDS.index(kind)
    return Support(*(torch.where(here, *pair) for pair in zip(claimed, other)))


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
