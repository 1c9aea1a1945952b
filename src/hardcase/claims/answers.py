"""Whatever a tagger, detector or segmenter returns, in the one form of its task.

`answering` is for modules of torch and keeps their gradients; the classes below are for networks
that can only be asked: ONNX and TFLite files, and servers.
"""

from __future__ import annotations

import zipfile
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.claims.outputs import ABSENT, Detections, Task, corners
from hardcase.claims.subjects import flat_table
from hardcase.data.own import file_bytes
from hardcase.errors import Problem, choice
from hardcase.models.adapters import logits_of
from hardcase.models.http import Http, decode, encode, name_of
from hardcase.models.onnx import KINDS, SURE, Array, Onnx, PixelLayout, filled
from hardcase.models.pretrained.catalogue import PRETRAINED
from hardcase.models.pretrained.fetching import load as load_fetched
from hardcase.models.subject import as_logits, in_evaluation_mode
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Offer, Tap

__all__ = [
    *("HEADS", "AskedNetwork", "HttpAnswers", "Layout", "OnnxAnswers", "Standard"),
    *("TfLite", "answering", "standard_outputs"),
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
        raise Problem(f"the model returns shape {tuple(table.shape)}; (images, classes) is needed.")
    return as_logits(table, layout.outputs)


def _pixels(returned: Any, size: tuple[int, int]) -> Float[Tensor, "m k h w"]:
    scores = logits_of(returned)
    if scores.ndim == 3:  # the class of each pixel
        known = int(scores.max()) + 1
        scores = SURE * functional.one_hot(scores.long(), known).movedim(-1, 1).float()
    if scores.ndim != 4:
        raise Problem(
            f"the model returns shape {tuple(scores.shape)}; (images, classes, height, width) is"
            " needed."
        )
    scores = scores.float()
    if tuple(scores.shape[2:]) == size:
        return scores
    return functional.interpolate(scores, size, mode="bilinear", align_corners=False)


# Detectors.


def _detections(returned: Any, layout: Layout, size: tuple[int, int]) -> Detections:
    if isinstance(returned, Detections):
        return returned
    if isinstance(returned, list | tuple) and returned and _first_of(returned[0], BOX_KEYS):
        return _listed([_named(one) for one in returned], layout)
    named = _named(returned)
    head = layout.head
    box_key = next((key for key in BOX_KEYS if key in named), "")
    if head == "auto" and "pred_boxes" in named:
        head = "detr"
    if head == "detr":
        return _detr(named, layout, size)
    if head == "yolo" or (head == "auto" and not box_key and len(named) == 1):
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


def _first_of(thing: Any, keys: Sequence[str]) -> str:
    """The first of these names that a dictionary or an object has."""
    if isinstance(thing, Mapping):
        return next((key for key in keys if key in thing), "")
    if isinstance(thing, Tensor | np.ndarray | str):
        return ""
    return next((key for key in keys if getattr(thing, key, None) is not None), "")


def _listed(each: Sequence[Mapping[str, Tensor]], layout: Layout) -> Detections:
    """One dictionary for each image, as torchvision's detectors return them."""
    parts = [
        (one[_key(one, BOX_KEYS)], one[_key(one, SCORE_KEYS)], one.get(_first_of(one, LABEL_KEYS)))
        for one in each
    ]
    return together(
        [
            Detections(b.reshape(1, -1, 4).float(), _table(s, k, layout.classes)[None])
            for b, s, k in parts
        ]
    )


def together(found: Sequence[Detections]) -> Detections:
    """The boxes of several batches as one batch, filled up to the same number."""
    most = max(one.boxes.shape[1] for one in found)
    pads = [(0, 0, 0, most - one.boxes.shape[1]) for one in found]
    return Detections(
        torch.cat([functional.pad(one.boxes, pad) for one, pad in zip(found, pads)]),
        torch.cat([functional.pad(one.logits, pad, value=ABSENT) for one, pad in zip(found, pads)]),
    )


def _key(named: Mapping[str, Any], keys: Sequence[str]) -> str:
    found = _first_of(named, keys)
    if not found:
        raise Problem(
            f"the detector returns {', '.join(named) or 'nothing'}; {keys[0]} are needed.",
            fix="boxes, scores and labels, or ?head=yolo, ssd or detr",
        )
    return found


def _table(scores: Tensor, labels: Tensor | None, classes: int) -> Float[Tensor, "*rows d k"]:
    """Log-odds of every class from probabilities: of all classes, or of the one that is named."""
    odds = scores.float().logit(eps=EPSILON)
    if labels is None or scores.ndim > labels.ndim:
        return odds
    if not classes:
        raise Problem(
            "the detector names one class for each box; how many classes it has is not known.",
            fix="--set subject.classes=NAME,NAME,...: the names of its outputs",
        )
    whole = labels.long()
    known = (whole >= 0) & (whole < classes)
    odds = torch.where(known, odds, odds.new_tensor(ABSENT))
    empty = odds.new_full((*odds.shape, classes), ABSENT)
    return empty.scatter(-1, whole.clamp(0, classes - 1)[..., None], odds[..., None])


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
        raise Problem(f"the detector returns {', '.join(named)}; logits and pred_boxes are needed.")
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
        raise Problem(f"head=yolo needs (images, numbers, boxes), not {tuple(table.shape)}.")
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
        boxes, scores = table[..., :4], table[..., 4]
        return Detections(
            _in_pixels(boxes, size), _table(scores, table[..., 5].round(), layout.classes)
        )
    if layout.classes and numbers not in widths:
        raise Problem(
            f"the detector gives {numbers} numbers for each box; with {layout.classes} classes it"
            f" would be {' or '.join(map(str, widths))}.",
            fix="--set subject.classes=NAME,NAME,...: the names of its outputs",
        )
    scores = table[..., 4:]
    if layout.classes and numbers == 5 + layout.classes:
        scores = table[..., 4:5] * table[..., 5:]
    return Detections(
        _in_pixels(corners(table[..., :4]), size), scores.logit(eps=EPSILON).clamp_min(ABSENT)
    )


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
    pairs = [part for part in parts if part.ndim == 2 and boxes is not None]
    pairs = [part for part in pairs if boxes is not None and part.shape == boxes.shape[:2]]
    if boxes is None or len(pairs) != 2:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise Problem(
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
        with torch.no_grad(), in_evaluation_mode(net):
            said = logits_of(net(example.to(place)))
        if is_sigmoid(said):
            layout = layout._replace(outputs="sigmoid")
    return Standard(net, layout)


def checked_head(name: str) -> Head:
    """The layout of this name."""
    if name not in HEADS:
        raise choice("head", name, HEADS)
    return name


def is_sigmoid(said: Tensor) -> bool:
    """Whether these are probabilities of classes that do not exclude each other."""
    within = bool(((said >= 0) & (said <= 1)).all())
    return within and bool((said > 0).any())


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
            raise Problem(f"{self.name} shows no layers; it offers {self.offers} only.")
        with torch.no_grad():
            plain = x.detach().float().cpu()
            return Answer(flat_table(self.ask(plain), plain).to(x.device))


def in_size(x: Float[Tensor, "m c h w"], shape: Sequence[int | None]) -> Float[Tensor, "m c i j"]:
    """Images in the size that a network's input has, channels first or last; 8-bit as before."""
    axes = [size for size in shape[1:] if size and size > 3]
    if len(shape) != 4 or len(axes) != 2 or tuple(axes) == tuple(x.shape[2:]):
        return x
    height, width = axes
    drawn = functional.interpolate(
        x, (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    return drawn.clamp(0, 1)


def resized(answer: Tensor | Detections, asked: Tensor, x: Tensor) -> Tensor | Detections:
    """Boxes and masks of images that were drawn to another size, in pixels of the images."""
    if asked.shape == x.shape:
        return answer
    height, width = x.shape[2:]
    if isinstance(answer, Detections):
        share = torch.tensor([width / asked.shape[3], height / asked.shape[2]] * 2)
        return Detections(answer.boxes * share, answer.logits)
    if answer.ndim == 4:
        return functional.interpolate(answer, (height, width), mode="bilinear", align_corners=False)
    return answer


@dataclass
class OnnxAnswers(AskedNetwork, Onnx):
    """A tagger, detector or segmenter in an ONNX file.

    Args:
        layout: How its tensors are read.
        class_names: Names of its outputs; else those that the file states.
    """

    layout: Layout = field(default_factory=lambda: Layout("boxes"))
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        stated = self._session.get_modelmeta().custom_metadata_map.get("names", "")
        if not self.class_names and stated:
            with suppress(ValueError, SyntaxError):
                table = literal_eval(stated)
                named = table if isinstance(table, dict) else dict(enumerate(table))
                self.class_names = tuple(str(named.get(i, i)) for i in range(max(named) + 1))
        count = self.layout.classes or len(self.class_names)
        self.layout = self.layout._replace(classes=count)
        self.hash = digest([self.hash, repr(self.layout)])

    def ask(self, x: Float[Tensor, "m c h w"]) -> Tensor | Detections:
        given = self._session.get_inputs()[0]
        batch, *rest = [size if isinstance(size, int) else None for size in given.shape]
        drawn = in_size(x, [batch, *rest])
        array = self.pixels.array(drawn, [batch, *rest], np.dtype(KINDS[given.type]))
        names = [output.name for output in self._session.get_outputs()]
        parts = []
        for rows in chunks(len(array), batch or len(array)):
            said = self._session.run(names, {given.name: filled(array[rows], batch)})
            kept = rows.stop - rows.start
            parts.append({name: np.asarray(one)[:kept] for name, one in zip(names, said)})
        return _joined(parts, self.layout, drawn, x)


def _joined(
    parts: Sequence[Mapping[str, Array]], layout: Layout, drawn: Tensor, x: Tensor
) -> Tensor | Detections:
    """Answers of several calls as one, in pixels of the images."""
    height, width = drawn.shape[2:]
    each = [standard_outputs(dict(part), layout, (height, width)) for part in parts]
    if isinstance(each[0], Tensor):
        return resized(torch.cat([one for one in each if isinstance(one, Tensor)]), drawn, x)
    return resized(together([one for one in each if isinstance(one, Detections)]), drawn, x)


NOTHING = ("???", "background", "unlabeled")


@dataclass
class TfLite(AskedNetwork):
    """A network in a TFLite file: a classifier, tagger or segmenter, or a detector that ends in
    TensorFlow's own post-processing. It is asked one image at a time.

    Args:
        content: The file.
        name: Name in run folders and reports.
        layout: How its tensors are read.
        class_names: Names of its outputs; else those that lie in the file, as metadata.
        pixels: How it wants images laid out; where it takes bytes, they are whole numbers 0..255.
    """

    content: bytes
    name: str = "tflite"
    layout: Layout = field(default_factory=lambda: Layout("boxes"))
    class_names: tuple[str, ...] = ()
    pixels: PixelLayout = field(default_factory=PixelLayout)
    hash: str = ""

    def __post_init__(self) -> None:
        self._interpreter = _open_tflite(self.content, self.name)
        names = self.class_names or names_in_tflite(self.content)
        if self.layout.task == "boxes" and names and names[0].lower() in NOTHING:
            names = names[1:]  # such detectors count objects only
        self.class_names = names
        self.layout = self.layout._replace(classes=len(names))
        words = (repr(self.layout), repr(self.pixels), repr(names))
        self.hash = digest([self.content, *words])

    def ask(self, x: Float[Tensor, "m c h w"]) -> Tensor | Detections:
        interpreter = self._interpreter
        (given,) = interpreter.get_input_details()
        shape = [None, *(int(size) for size in given["shape"][1:])]
        drawn = in_size(x if x.shape[1] == 3 else x.expand(-1, 3, -1, -1), shape)
        array = self.pixels.array(drawn, shape, np.dtype(given["dtype"]))
        parts = []
        for row in range(len(array)):
            interpreter.set_tensor(given["index"], array[row : row + 1])
            interpreter.invoke()
            said = [
                interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()
            ]
            parts.append({str(number): one for number, one in enumerate(said)})
        if self.layout.task == "masks":
            parts = [{"logits": part["0"].transpose(0, 3, 1, 2)} for part in parts]
        if self.layout.task in ("tags", "classes"):
            parts = [{"logits": part["0"].reshape(1, -1)} for part in parts]
        answer = _joined(parts, self.layout, drawn, x)
        if self.layout.task == "classes" and isinstance(answer, Tensor) and is_sigmoid(answer):
            return as_logits(answer, "probabilities")
        return answer

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_interpreter"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._interpreter = _open_tflite(self.content, self.name)


def _open_tflite(content: bytes, name: str) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise Problem(
            "TFLite files need ai-edge-litert, which is not installed.",
            fix="pip install 'hardcase[tflite]'",
        ) from error
    if content[4:8] != b"TFL3":
        raise Problem(f"{name} is no TFLite file.")
    try:
        interpreter = Interpreter(model_content=content, num_threads=torch.get_num_threads())
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise Problem(f"{name} cannot be run: {str(error).splitlines()[0]}") from error
    inputs = interpreter.get_input_details()
    if len(inputs) != 1 or len(inputs[0]["shape"]) != 4:
        raise Problem(f"{name} takes {len(inputs)} inputs; one of images is needed.")
    return interpreter


def names_in_tflite(content: bytes) -> tuple[str, ...]:
    """The names of the classes that a TFLite file carries behind its network, one a line."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as packed:
            lists = [one for one in packed.infolist() if one.filename.endswith(".txt")]
            if not lists or lists[0].file_size > 2**20:
                return ()
            return lines_of(packed.read(lists[0]))
    except zipfile.BadZipFile:
        return ()


def lines_of(text: bytes) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.decode("utf-8", "replace").split("\n") if line)


def read_tflite(
    path: Path, name: str, layout: Layout, *, classes: Sequence[str], pixels: PixelLayout
) -> TfLite:
    """The network in a file; a text of its name beside it may name its classes, one a line."""
    if not path.is_file():
        raise Problem(
            f"there is no file {path}.", fix="tflite:PATH with the path of a .tflite file"
        )
    beside = path.with_suffix(".txt")
    if not classes and beside.is_file():
        classes = lines_of(file_bytes(beside))
    return TfLite(file_bytes(path), name, layout, tuple(classes), pixels)


def fetched_tflite(name: str, layout: Layout) -> TfLite:
    """A TFLite file that was fetched, by its name in the catalogue."""
    state = load_fetched(name)[0].state_dict()
    row = PRETRAINED[name]
    content, text = (state[part].numpy().tobytes() for part in ("file", "labels"))
    pixels = PixelLayout(mean=row.mean, std=row.std)
    return TfLite(content, f"zoo:{name}", layout, lines_of(text), pixels)


@dataclass
class HttpAnswers(AskedNetwork, Http):
    """A tagger, detector or segmenter behind an address: a detector gives tensors called boxes,
    scores and labels, others one tensor.

    Args:
        layout: How its tensors are read.
        class_names: Names of its outputs.
    """

    layout: Layout = field(default_factory=lambda: Layout("boxes"))
    class_names: tuple[str, ...] = ()

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        return Http.__call__(self, x, taps)

    def _answer(self, array: Array, until: float, *, binary: bool) -> Array:
        headers, body = encode(array, self.input_spec, *self.output_specs, binary=binary)
        path = self.client.place.path
        answered, content = self.client.ask(
            "POST", path, headers, body, rows=len(array), until=until
        )
        name = name_of(array)
        said = {one.name: decode(answered, content, one, name=name) for one in self.output_specs}
        wrong = [one.shape for one in said.values() if len(one) != len(array)]
        if wrong:
            raise ValueError(f"an answer of shape {wrong[0]} for {len(array)} images")
        rows = torch.zeros(len(array), *self.image)
        height, width = self.image[1:]
        table = flat_table(standard_outputs(said, self.layout, (height, width)), rows)
        return np.asarray(table)
