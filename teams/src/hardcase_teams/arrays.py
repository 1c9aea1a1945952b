"""Images as the arrays that a runtime other than torch takes, and its arrays as answers: what ONNX,
TFLite and servers share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.claims.answers import Layout, checked_head, drawn_to, standard_outputs, together
from hardcase.claims.subjects import Detections, Task
from hardcase.errors import HardcaseError
from hardcase.models.adapters import SURE
from hardcase.models.load import Loading
from hardcase.models.subject import as_logits

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """How images become a model's input: normalised, or bytes where the model takes them."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise HardcaseError(
                f"mean has {len(self.mean)} values and std has {list(self.std)}; they need equal"
                " lengths and std above 0."
            )

    @classmethod
    def of(cls, how: Loading) -> PixelLayout:
        """The normalisation that was said."""
        return cls(mean=tuple(how.mean), std=tuple(how.std))

    def array(
        self, x: Float[Tensor, "m c h w"], shape: Sequence[int | None], kind: np.dtype[np.generic]
    ) -> Array:
        """`x` as an array of `kind` in the layout that `shape` (None: any size) asks for."""
        pixels = x.detach().float().cpu()
        if kind.kind in "iu":
            return _laid_out((pixels * 255).round(), shape).astype(kind)
        mean = torch.tensor(self.mean).reshape(1, -1, 1, 1)
        std = torch.tensor(self.std).reshape(1, -1, 1, 1)
        return _laid_out((pixels - mean) / std, shape).astype(kind)


def _laid_out(x: Tensor, shape: Sequence[int | None]) -> Array:
    """Channels first, channels last, none, or flat: whatever fits the declared shape."""
    forms = [x, x.permute(0, 2, 3, 1), x.flatten(1)]
    if x.shape[1] == 1:
        forms.append(x[:, 0])
    for form in forms:
        if form.ndim == len(shape) and all(
            want in (None, -1, size) for want, size in zip(shape[1:], form.shape[1:])
        ):
            return np.ascontiguousarray(form.numpy())
    declared = " x ".join(str(size or "any").replace("-1", "any") for size in shape[1:])
    raise HardcaseError(
        f"the model takes inputs of {declared}; the images are"
        f" {' x '.join(map(str, x.shape[1:]))}.",
        "Tried channels first, channels last and flat.",
        fix="data of the model's own size, or a model that resizes inside",
    )


def to_logits(answer: Array, rows: int, *, classes: int, outputs: str) -> Float[Tensor, "m k"]:
    """A model's answer for `rows` images as logits; whole numbers are labels."""
    if answer.dtype.kind in "iu":
        labels = torch.from_numpy(answer.reshape(rows, -1).astype(np.int64))
        if labels.shape[1] != 1 or int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ValueError(
                f"labels of shape {answer.shape} from {answer.min()} to {answer.max()}"
            )
        return SURE * torch.nn.functional.one_hot(labels[:, 0], classes).float()
    if answer.ndim < 2 or answer.shape[0] != rows or answer.size == 0:
        raise ValueError(
            f"an answer of shape {answer.shape} for {rows} images; it must be (images, classes)"
        )
    scores = torch.from_numpy(answer.reshape(rows, -1).astype(np.float32))
    return as_logits(scores, outputs)


def filled(array: Array, batch: int | None) -> Array:
    """`array` with its last row repeated until it has `batch` rows."""
    missing = max((batch or 0) - len(array), 0)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


# Taggers, detectors and segmenters.


def layout_of(spec: str, task: Task, outputs: Sequence[str]) -> Layout:
    """How the tensors of the model called `spec` are read; ``?head=`` names a detector's."""
    head = dict(parse_qsl(spec.partition("?")[2])).get("head", "auto")
    return Layout(task, len(outputs), checked_head(head))


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
    return drawn_to(answer, (height, width)) if answer.ndim == 4 else answer


def joined(
    parts: Sequence[Mapping[str, Array]], layout: Layout, drawn: Tensor, x: Tensor
) -> Tensor | Detections:
    """Answers of several calls as one, in pixels of the images."""
    height, width = drawn.shape[2:]
    each = [standard_outputs(dict(part), layout, (height, width)) for part in parts]
    if isinstance(each[0], Tensor):
        return resized(torch.cat([one for one in each if isinstance(one, Tensor)]), drawn, x)
    return resized(together([one for one in each if isinstance(one, Detections)]), drawn, x)
