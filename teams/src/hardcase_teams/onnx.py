"""ONNX files as models, through onnxruntime: ``onnx:FILE.onnx``. The file is tested as it is
deployed, not translated into torch, so it gives no gradients.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.cache import named_path
from hardcase.claims.answers import AskedNetwork, Layout
from hardcase.claims.subjects import Detections, Task
from hardcase.errors import HardcaseError, Unanswered, cancelled_by, reading, within
from hardcase.models.load import Loading, with_outputs
from hardcase.models.subject import LOOPING
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Model, Offer, Tap
from hardcase_teams.arrays import Array, PixelLayout, filled, in_size, joined, layout_of, to_logits

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
            raise HardcaseError(
                f"{self.name} shows no layers; an ONNX file offers {self.offers} only."
            )
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
            raise HardcaseError(f"{self.name} gives {error}.") from error

    def _run(self, array: Array, name: str) -> Array:
        wanted = self._session.get_outputs()[0].name
        with reading(f"{self.name} fails"):
            return np.asarray(_asked(self._session, [wanted], {name: array})[0])

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = _open(self._data, self.path, self.name)


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
            said = _asked(self._session, names, {given.name: filled(array[rows], batch)})
            kept = rows.stop - rows.start
            parts.append({name: np.asarray(one)[:kept] for name, one in zip(names, said)})
        return joined(parts, self.layout, drawn, x)


def _asked(session: Any, names: list[str], given: dict[str, Array]) -> list[Any]:
    """One call of the session, which another thread ends when its time is over: a loop without end
    hears no signal.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    with within(LOOPING), cancelled_by(partial(setattr, options, "terminate", True)):
        try:
            return list(session.run(names, given, options))
        except Exception:
            if options.terminate:
                raise Unanswered("a call took too long and was broken off") from None
            raise


def load(
    spec: str,
    how: Loading,
    *,
    task: Task = "classes",
    outputs: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> Model:
    """The model in the file that ``onnx:FILE.onnx`` names; ``?head=`` says how a detector's tensors
    are read.
    """
    pixels = PixelLayout.of(how)
    if task == "classes":
        path = named_path(spec.partition(":")[2])
        return with_outputs(partial(Onnx, path, len(how.test.classes), spec, pixels), how)
    path = named_path(spec.partition("?")[0].partition(":")[2])
    layout = layout_of(spec, task, outputs)
    return OnnxAnswers(path, len(classes), spec, pixels, layout=layout, class_names=tuple(outputs))


def _read(path: Path) -> bytes:
    """The model in a file, with the weights that it keeps in files beside it."""
    try:
        import onnx
    except ImportError as error:
        raise _not_installed("onnx") from error
    if not path.is_file():
        raise HardcaseError(
            f"there is no file {path}.", fix="onnx:PATH with the path of an .onnx file"
        )
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
        raise HardcaseError(
            f"{name} takes {types}; one input of images is needed.", f"known: {', '.join(KINDS)}"
        )
    return session


def _not_installed(package: str) -> HardcaseError:
    return HardcaseError(
        f"ONNX models need {package}, which is not installed.", fix="pip install 'hardcase[onnx]'"
    )


def _loading(path: Path) -> AbstractContextManager[None]:
    return reading(
        f"{path} cannot be loaded as ONNX",
        "Weights that were exported to a file of their own (model.onnx.data) must lie beside it.",
    )
