"""Whatever a tagger, detector or segmenter returns, in the one form of its task.

`answering` is for modules of torch and keeps their gradients; `AskedNetwork` is for networks that
can only be asked, as those of ``hardcase_teams``: ONNX and TFLite files, and servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.claims.subjects import ABSENT, Detections, Task, corners, flat_table
from hardcase.errors import HardcaseError, choice, guarded
from hardcase.models.adapters import SURE, logits_of
from hardcase.models.subject import as_logits, in_evaluation_mode
from hardcase.types import Answer, Offer, Tap

__all__ = [
    *("HEADS", "AskedNetwork", "Layout", "Standard", "answering", "standard_outputs"),
]

Head = Literal["auto", "yolo", "ssd", "detr"]
HEADS: tuple[Head, ...] = ("auto", "yolo", "ssd", "detr")
"""Layouts of a detector's tensors that have a name."""
BOX_KEYS = ("boxes", "pred_boxes", "bboxes", "detection_boxes", "bbox")
SCORE_KEYS = ("scores", "logits", "pred_logits", "detection_scores", "score", "probs")
LABEL_KEYS = ("labels", "classes", "detection_classes", "label", "category")
ROWS_FIRST = ("detection_boxes",)
"""Boxes that TensorFlow gives as y0, x0, y1, x1."""
SHARES = 1.5
"""Boxes none of whose numbers is above this are shares of the image."""
EPSILON = 1e-6


class Layout(NamedTuple):
    """How what a network returns is to be read."""

    task: Task
    classes: int = 0
    head: Head = "auto"
    outputs: str = "logits"


def standard_outputs(returned: Any, layout: Layout, size: tuple[int, int]) -> Tensor | Detections:
    """What a network returned for a batch, in the form of its task."""
    if layout.task == "boxes":
        return _detections(returned, layout, size)
    if isinstance(returned, Mapping) and len(returned) == 1:  # whatever it is called
        returned = next(iter(returned.values()))
    if layout.task == "masks":
        return _pixels(returned, size)
    table = logits_of(returned).float()
    if table.ndim != 2:
        raise HardcaseError(
            f"the model returns shape {tuple(table.shape)}; (images, classes) is needed."
        )
    return as_logits(table, layout.outputs)


def _pixels(returned: Any, size: tuple[int, int]) -> Float[Tensor, "m k h w"]:
    scores = logits_of(returned)
    if scores.ndim == 3:  # the class of each pixel
        classes_present = int(scores.max()) + 1
        scores = SURE * functional.one_hot(scores.long(), classes_present).movedim(-1, 1).float()
    if scores.ndim != 4:
        raise HardcaseError(
            f"the model returns shape {tuple(scores.shape)}; (images, classes, height, width) is"
            " needed."
        )
    return drawn_to(scores.float(), size)


def drawn_to(masks: Float[Tensor, "m k h w"], size: tuple[int, int]) -> Float[Tensor, "m k i j"]:
    """Masks in another size; unchanged where they have it."""
    if tuple(masks.shape[2:]) == size:
        return masks
    return functional.interpolate(masks, size, mode="bilinear", align_corners=False)


# Detectors.


def _detections(returned: Any, layout: Layout, size: tuple[int, int]) -> Detections:
    if isinstance(returned, Detections):
        return returned
    if isinstance(returned, list | tuple) and returned:
        each = [_named(answer) for answer in returned]
        if _first_of(each[0], BOX_KEYS):
            return _listed(each, layout)
    named = _named(returned)
    head = layout.head
    if head == "detr" or (head == "auto" and "pred_boxes" in named):
        return _detr(named, layout, size)
    alone = len(named) == 1 and not _first_of(named, BOX_KEYS)
    if head == "yolo" or (head == "auto" and alone):
        return _yolo(next(iter(named.values())), layout, size)
    return _ssd(named, layout, size)


def _named(returned: Any) -> dict[str, Tensor]:
    """The tensors in whatever a network returned, by name or number."""
    if isinstance(returned, Tensor | np.ndarray):
        returned = {"0": returned}
    elif isinstance(returned, tuple | list):
        returned = {str(number): part for number, part in enumerate(returned)}
    elif not isinstance(returned, Mapping):
        keys = (*BOX_KEYS, *SCORE_KEYS, *LABEL_KEYS)
        returned = {key: getattr(returned, key, None) for key in keys}
    kinds = Tensor | np.ndarray
    return {
        str(name): torch.as_tensor(part)
        for name, part in returned.items()
        if isinstance(part, kinds)
    }


def _first_of(named: Mapping[str, Tensor], keys: Sequence[str]) -> str:
    """The first of these names that there is."""
    return next((key for key in keys if key in named), "")


def _listed(each: Sequence[Mapping[str, Tensor]], layout: Layout) -> Detections:
    """One dictionary for each image, as torchvision's detectors return them."""
    detections = list[Detections]()
    for answer in each:
        boxes, scores = answer[_key(answer, BOX_KEYS)], answer[_key(answer, SCORE_KEYS)]
        odds = _table(scores, answer.get(_first_of(answer, LABEL_KEYS)), layout.classes)
        detections.append(Detections(boxes.reshape(1, -1, 4).float(), odds[None]))
    return together(detections)


def together(parts: Sequence[Detections]) -> Detections:
    """The boxes of several batches as one batch, filled up to the same number."""
    most = max(part.boxes.shape[1] for part in parts)
    pads = [(0, 0, 0, most - part.boxes.shape[1]) for part in parts]
    return Detections(
        torch.cat([functional.pad(part.boxes, pad) for part, pad in zip(parts, pads)]),
        torch.cat(
            [functional.pad(part.logits, pad, value=ABSENT) for part, pad in zip(parts, pads)]
        ),
    )


def _key(named: Mapping[str, Any], keys: Sequence[str]) -> str:
    named_key = _first_of(named, keys)
    if not named_key:
        raise HardcaseError(
            f"the detector returns {', '.join(named) or 'nothing'}; {keys[0]} are needed.",
            fix="boxes, scores and labels, or ?head=yolo, ssd or detr",
        )
    return named_key


def _table(scores: Tensor, labels: Tensor | None, classes: int) -> Float[Tensor, "*rows d k"]:
    """Log-odds of every class from probabilities: of all classes, or of the one that is named."""
    odds = scores.float().logit(eps=EPSILON)
    if labels is None or scores.ndim > labels.ndim:
        return odds
    if not classes:
        raise HardcaseError(
            "the detector names one class for each box; how many classes it has is not known.",
            fix="--set model.classes=NAME,NAME,...: the names of its outputs",
        )
    long_labels = labels.long()
    in_range = (long_labels >= 0) & (long_labels < classes)
    odds = torch.where(in_range, odds, odds.new_tensor(ABSENT))
    empty = odds.new_full((*odds.shape, classes), ABSENT)
    return empty.scatter(-1, long_labels.clamp(0, classes - 1)[..., None], odds[..., None])


def _detr(named: Mapping[str, Tensor], layout: Layout, size: tuple[int, int]) -> Detections:
    """Boxes as centre and size in shares, and logits: with one for "no object" a softmax, else
    sigmoids.
    """
    boxes, scores = named.get("pred_boxes"), named.get("logits", named.get("pred_logits"))
    if boxes is None or scores is None:
        rows = [part for part in named.values() if part.ndim == 3]
        fours = [part for part in rows if part.shape[2] == 4]
        shares = [part for part in fours if bool(((part >= 0) & (part <= 1)).all())]
        boxes = next(iter(shares or fours), None)
        scores = next((part for part in rows if part is not boxes), None)
    if boxes is None or scores is None:
        raise HardcaseError(
            f"the detector returns {', '.join(named)}; logits and pred_boxes are needed."
        )
    placed = _in_pixels(corners(boxes.float()), size)
    if layout.classes and scores.shape[2] == layout.classes:
        return Detections(placed, scores.float())
    return Detections(placed, softmax_odds(scores.float())[..., :-1])


def softmax_odds(logits: Float[Tensor, "*rows k"]) -> Float[Tensor, "*rows k"]:
    """Log-odds of each class against all others."""
    log = logits.log_softmax(-1).clamp_max(-EPSILON)
    odds = log - torch.log(-torch.expm1(log))
    return odds.clamp_min(ABSENT)


def _yolo(table: Tensor, layout: Layout, size: tuple[int, int]) -> Detections:
    """One tensor of centre, size and scores: ``4 + classes`` numbers a box, with an objectness one
    more; or six, corners, score and class, where the network suppresses weaker boxes itself.
    """
    if table.ndim != 3:
        raise HardcaseError(f"head=yolo needs (images, numbers, boxes), not {tuple(table.shape)}.")
    table = table.float()
    widths: tuple[int, ...] = ()
    if layout.classes:
        widths = (4 + layout.classes, 5 + layout.classes)
    if table.shape[2] not in (*widths, 6) and (
        table.shape[1] in widths or table.shape[1] < table.shape[2]
    ):
        table = table.transpose(1, 2)  # m d n
    numbers = table.shape[2]
    if numbers == 6 and layout.classes not in (1, 2):
        odds = _table(table[..., 4], table[..., 5].round(), layout.classes)
        return Detections(_in_pixels(table[..., :4], size), odds)
    if layout.classes and numbers not in widths:
        raise HardcaseError(
            f"the detector gives {numbers} numbers for each box; with {layout.classes} classes it"
            f" would be {' or '.join(map(str, widths))}.",
            fix="--set model.classes=NAME,NAME,...: the names of its outputs",
        )
    scores = table[..., 4:]
    if layout.classes and numbers == 5 + layout.classes:
        scores = table[..., 4:5] * table[..., 5:]
    odds = scores.logit(eps=EPSILON).clamp_min(ABSENT)
    return Detections(_in_pixels(corners(table[..., :4]), size), odds)


def _ssd(named: Mapping[str, Tensor], layout: Layout, size: tuple[int, int]) -> Detections:
    """Boxes as corners, and scores of all classes, or of one that is named."""
    box_key, score_key, label_key = (
        _first_of(named, keys) for keys in (BOX_KEYS, SCORE_KEYS, LABEL_KEYS)
    )
    if not (box_key and score_key):
        return _post_processed(list(named.values()), layout, size)
    boxes, scores = named[box_key].float(), named[score_key]
    if box_key in ROWS_FIRST:
        boxes = boxes[..., [1, 0, 3, 2]]
    labels = named.get(label_key)
    if score_key.endswith("logits"):
        return Detections(_in_pixels(boxes, size), scores.float())
    odds = _table(scores, labels, layout.classes)
    if odds.shape[2] == layout.classes + 1:  # the first of all is nothing
        odds = odds[..., 1:]
    return Detections(_in_pixels(boxes, size), odds)


def _post_processed(parts: list[Tensor], layout: Layout, size: tuple[int, int]) -> Detections:
    """The four tensors of TensorFlow's own post-processing: boxes as y0, x0, y1, x1 in shares,
    class and score of each, and how many there are.
    """
    boxes = next((part for part in parts if part.ndim == 3 and part.shape[2] == 4), None)
    pairs = [part for part in parts if boxes is not None and part.shape == boxes.shape[:2]]
    if boxes is None or len(pairs) != 2:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise HardcaseError(
            f"the detector returns {shapes}; boxes, classes and scores are needed.",
            fix="?head=yolo, ssd or detr",
        )
    labels, scores = pairs
    if bool((labels != labels.round()).any()):
        labels, scores = scores, labels
    counts = [part.reshape(-1) for part in parts if part.numel() == len(boxes)]
    if counts:
        beyond = torch.arange(scores.shape[1]) >= counts[0][:, None]
        scores = scores.masked_fill(beyond, 0.0)
    placed = boxes.float()[..., [1, 0, 3, 2]]
    return Detections(_in_pixels(placed, size), _table(scores, labels, layout.classes))


def _in_pixels(boxes: Float[Tensor, "m d 4"], size: tuple[int, int]) -> Float[Tensor, "m d 4"]:
    """Boxes that are shares of the image in its pixels; others are in pixels already."""
    if not boxes.numel() or float(boxes.detach().abs().max()) > SHARES:
        return boxes
    height, width = size
    return boxes * boxes.new_tensor([width, height, width, height])


# Modules of torch.


class Standard(nn.Module):
    """A module whose answers have the form of its task; gradients pass where the network's do."""

    def __init__(self, net: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.net = net
        self.layout = layout

    def forward(self, x: Float[Tensor, "m c h w"]) -> Tensor | Detections:
        height, width = x.shape[2:]
        return standard_outputs(self.net(x), self.layout, (height, width))

    def extra_repr(self) -> str:
        return repr(self.layout)


def answering(
    net: nn.Module,
    task: Task,
    *,
    classes: Sequence[str] = (),
    head: str = "auto",
    example: Float[Tensor, "m c h w"] | None = None,
) -> nn.Module:
    """A module that answers in the form of its task.

    Args:
        net: Whatever the user has: a tagger that ends in logits or sigmoids, one of torchvision's
            or Hugging Face's detectors or segmenters, or a network that answers in our form.
        task: What it answers.
        classes: Names of its outputs; else as many as it states itself.
        head: Layout of a detector's tensors, one of `HEADS`.
        example: A few normalised images, which show whether a tagger ends in sigmoids.

    Example:
        >>> import torch
        >>> layers = torch.nn.Flatten(), torch.nn.Linear(16, 3), torch.nn.Sigmoid()
        >>> net = torch.nn.Sequential(*layers)
        >>> x = torch.rand(2, 1, 4, 4)
        >>> bool((answering(net, "tags", example=x)(x) - net(x).logit()).abs().max() < 1e-4)
        True
    """
    if isinstance(net, Standard):
        return net
    layout = Layout(task, len(classes) or stated_classes(net), checked_head(head))
    if task == "tags" and example is not None:
        place = next((weight.device for weight in net.parameters()), example.device)
        with guarded("the model"), torch.no_grad(), in_evaluation_mode(net):
            logits = logits_of(net(example.to(place)))
        if is_sigmoid(logits):
            layout = layout._replace(outputs="sigmoid")
    return Standard(net, layout)


def checked_head(name: str) -> Head:
    """The layout of this name."""
    if name not in HEADS:
        raise choice("head", name, HEADS)
    return name


def is_sigmoid(scores: Tensor) -> bool:
    """Whether these are probabilities of classes that do not exclude each other."""
    within = bool(((scores >= 0) & (scores <= 1)).all())
    return within and bool((scores > 0).any())


def stated_classes(net: nn.Module) -> int:
    """The number of classes that a network states, of itself or of its last layers; 0 if none."""
    table = getattr(getattr(net, "config", None), "id2label", None)
    if table:
        return len(table)
    for module in (net, *net.modules()):
        for name in ("num_classes", "cls_score", "num_columns"):
            value = getattr(module, name, None)
            count = getattr(value, "out_features", value)
            if isinstance(count, int):
                return count
    return 0


# Networks that can only be asked.


class AskedNetwork:
    """What networks share that can only be asked: they answer flat tables, without gradients."""

    offers: Offer = "scores"
    name: str
    hash: str
    layout: Layout
    class_names: tuple[str, ...]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def ask(self, x: Float[Tensor, "m c h w"]) -> Tensor | Detections:
        """Its answer in the form of its task."""
        raise NotImplementedError

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise HardcaseError(f"{self.name} shows no layers; it offers {self.offers} only.")
        with torch.no_grad():
            plain = x.detach().float().cpu()
            return Answer(flat_table(self.ask(plain), plain).to(x.device))
