"""ONNX files as subjects, through onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem, reading
from hardcase.models.subject import as_logits
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Offer, Tap

Array = npt.NDArray[np.generic]
SURE = 30.0
"""The lead in logits of a class that is all a model names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """How images become a model's input: normalised, or bytes where the model takes them."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise Problem(
                f"mean has {len(self.mean)} values and std has {list(self.std)}; they need equal"
                " lengths and std above 0."
            )

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
    raise Problem(
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


KINDS = {
    "tensor(float)": "f4",
    "tensor(double)": "f8",
    "tensor(float16)": "f2",
    "tensor(uint8)": "u1",
}


@dataclass
class Onnx:
    """A model in an ONNX file. It offers scores (labels, if it gives whole numbers), no gradients.

    It holds the file whole, with weights that lie beside it, so that its hash covers them and
    another machine needs none of the files.

    Args:
        path: The ONNX file.
        classes: Classes of the data.
        name: Name in run folders and reports.
        pixels: How the file wants images laid out.
        outputs: ``logits``, ``probabilities``, ``sigmoid`` or ``binary``.
        hash: Hash of the file.
    """

    path: Path
    classes: int
    name: str = "onnx"
    pixels: PixelLayout = field(default_factory=PixelLayout)
    outputs: str = "logits"
    hash: str = ""

    def __post_init__(self) -> None:
        self._data = _read(self.path)
        self._session = _open(self._data, self.path, self.name)
        self.hash = digest([self._data, repr(self.pixels), self.outputs])

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def offers(self) -> Offer:
        if "int" in self._session.get_outputs()[0].type:
            return "label"
        return "scores"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise Problem(f"{self.name} shows no layers; an ONNX file offers {self.offers} only.")
        given = self._session.get_inputs()[0]
        batch, *rest = [size if isinstance(size, int) else None for size in given.shape]
        array = self.pixels.array(x, [batch, *rest], np.dtype(KINDS[given.type]))
        # in calls of the size that the file demands, the last one filled up
        parts = [
            self._run(filled(array[rows], batch), given.name)
            for rows in chunks(len(array), batch or len(array))
        ]
        try:
            whole = np.concatenate(parts)[: len(array)]
            return Answer(to_logits(whole, len(x), classes=self.classes, outputs=self.outputs))
        except ValueError as error:
            raise Problem(f"{self.name} gives {error}.") from error

    def _run(self, array: Array, name: str) -> Array:
        wanted = self._session.get_outputs()[0].name
        with reading(f"{self.name} fails"):
            return np.asarray(self._session.run([wanted], {name: array})[0])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = _open(self._data, self.path, self.name)


def _read(path: Path) -> bytes:
    """The model in a file, with the weights that it keeps in files beside it."""
    try:
        import onnx
    except ImportError as error:
        raise _not_installed("onnx") from error
    if not path.is_file():
        raise Problem(f"there is no file {path}.", fix="onnx:PATH with the path of an .onnx file")
    with _loading(path):
        return bytes(onnx.load_model(str(path)).SerializeToString())


def _open(data: bytes, path: Path, name: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise _not_installed("onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    with _loading(path):
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()
    if len(given) != 1 or given[0].type not in KINDS:
        types = ", ".join(f"{tensor.name}: {tensor.type}" for tensor in given)
        raise Problem(
            f"{name} takes {types}; one input of images is needed.", f"known: {', '.join(KINDS)}"
        )
    return session


def _not_installed(package: str) -> Problem:
    return Problem(
        f"ONNX models need {package}, which is not installed.", fix="pip install 'hardcase[onnx]'"
    )


def _loading(path: Path) -> AbstractContextManager[None]:
    return reading(
        f"{path} cannot be loaded as ONNX",
        "Weights that were exported to a file of their own (model.onnx.data) must lie beside it.",
    )
