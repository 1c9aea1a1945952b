"""ONNX files as subjects, through onnxruntime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.models.external import external_files
from hardcase.models.subject import as_logits
from hardcase.tensors import digest
from hardcase.types import Answer, Offer, Tap

# How images are laid out for a model that is only known by the shape it declares, and what its
# answers mean.

Array = npt.NDArray[np.generic]
SURE = 30.0
"""The lead in logits of a class that is all a model names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """How images become a model's input: normalised per channel;
    whole numbers 0..255 where the model takes bytes.
    """

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
        """`x` as an array of `kind` in the layout that `shape` (with its batch axis;
        None is any size) asks for.
        """
        pixels = x.detach().float().cpu()
        if kind.kind in "iu":
            return _laid_out((pixels * 255).round(), shape).astype(kind)
        mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (self.mean, self.std))
        return _laid_out((pixels - mean) / std, shape).astype(kind)


def _laid_out(x: Tensor, shape: Sequence[int | None]) -> Array:
    """Channels first, channels last, without channels, or flat:
    whatever fits the declared shape.
    """
    forms = (x, x.permute(0, 2, 3, 1), x.flatten(1), *([x[:, 0]] if x.shape[1] == 1 else []))
    for form in forms:
        if form.ndim == len(shape) and all(
            want in (None, -1, size) for want, size in zip(shape[1:], form.shape[1:])
        ):
            return np.ascontiguousarray(form.numpy())
    declared = " x ".join("any" if size in (None, -1) else str(size) for size in shape[1:])
    raise Problem(
        f"the model takes inputs of {declared}; the images are"
        f" {' x '.join(map(str, x.shape[1:]))}.",
        "Tried channels first, channels last and flat.",
        fix="data of the model's own size, or a model that resizes inside",
    )


def to_logits(answer: Array, rows: int, *, classes: int, outputs: str) -> Float[Tensor, "m k"]:
    """A model's answer for `rows` images as logits; whole numbers are labels,
    of which only the class is known.
    """
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


# ONNX files as subjects, through onnxruntime.

KINDS = {
    "tensor(float)": "f4",
    "tensor(double)": "f8",
    "tensor(float16)": "f2",
    "tensor(uint8)": "u1",
}


@dataclass
class Onnx:
    """A model in an ONNX file. It offers scores (labels, if it gives whole numbers),
    no gradients.

    Args:
        path: The ONNX file.
        classes: Classes of the data.
        name: Name in run folders and reports.
        pixels: How the file wants images laid out.
        outputs: ``logits`` or ``probabilities``.
        hash: Hash of the file.
    """

    path: Path
    classes: int
    name: str = "onnx"
    pixels: PixelLayout = field(default_factory=PixelLayout)
    outputs: str = "logits"

    hash: str = ""

    def __post_init__(self) -> None:
        """Open the file; its hash covers the weights beside it,
        and what is done to input and output.
        """
        self._session = _open(self.path, self.name)
        self.hash = digest(
            [*(path.read_bytes() for path in self.files()), repr(self.pixels), self.outputs]
        )

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def offers(self) -> Offer:
        return "label" if "int" in self._session.get_outputs()[0].type else "scores"

    def files(self) -> list[Path]:
        """The file itself and the files with weights that it names."""
        return [self.path, *(path for path in external_files(self.path) if path.is_file())]

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise Problem(f"{self.name} shows no layers; an ONNX file offers {self.offers} only.")
        given = self._session.get_inputs()[0]
        shape = [size if isinstance(size, int) else None for size in given.shape]
        array = self.pixels.array(x, shape, np.dtype(KINDS[given.type]))
        try:
            return Answer(self._answers(array, shape[0], given.name))
        except ValueError as error:
            raise Problem(f"{self.name} gives {error}.") from error

    def _answers(self, array: Array, batch: int | None, name: str) -> Tensor:
        """In one call, or in calls of the size that the file demands, the last one filled up."""
        if batch is None:
            parts = [self._run(array, name)]
        else:
            missing = -len(array) % batch
            full = (
                np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
                if missing
                else array
            )
            parts = [
                self._run(full[start : start + batch], name) for start in range(0, len(full), batch)
            ]
        whole = np.concatenate(parts)[: len(array)]
        return to_logits(whole, len(array), classes=self.classes, outputs=self.outputs)

    def _run(self, array: Array, name: str) -> Array:
        try:
            answer: Array = self._session.run([self._session.get_outputs()[0].name], {name: array})[
                0
            ]
        except Exception as error:  # onnxruntime raises classes of its own
            raise Problem(f"{self.name} fails: {(str(error).splitlines() or [''])[0]}") from error
        return np.asarray(answer)

    def __reduce__(self) -> tuple[Any, ...]:
        """The model travels with its files, so that another machine needs none of them."""
        home = self.path.parent
        files = {str(path.relative_to(home)): path.read_bytes() for path in self.files()}
        return _unpacked, (
            files,
            self.path.name,
            self.classes,
            self.name,
            self.pixels,
            self.outputs,
        )


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def _unpacked(files: Mapping[str, bytes], first: str, *rest: Any) -> Onnx:
    folder = tempfile.TemporaryDirectory(prefix="hardcase-")
    _FOLDERS.append(folder)  # until this process ends
    for name, data in files.items():
        path = Path(folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Onnx(Path(folder.name) / first, *rest)


def _open(path: Path, name: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise Problem(
            "ONNX models need onnxruntime, which is not installed.",
            fix="pip install 'hardcase[onnx]'",
        ) from error
    if not path.is_file():
        raise Problem(f"there is no file {path}.", fix="onnx:PATH with the path of an .onnx file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime raises classes of its own
        why = (str(error).splitlines() or [""])[0]
        raise Problem(
            f"{path} cannot be loaded as ONNX: {why}",
            "Weights that were exported to a file of their own (model.onnx.data) must lie"
            " beside it.",
        ) from error
    given = session.get_inputs()
    if len(given) != 1 or given[0].type not in KINDS:
        types = ", ".join(f"{one.name}: {one.type}" for one in given)
        raise Problem(
            f"{name} takes {types}; one input of images is needed.", f"known: {', '.join(KINDS)}"
        )
    return session
