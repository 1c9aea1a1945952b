"""TFLite files as models, through ai-edge-litert: ``tflite:FILE.tflite``, and fetched ones."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.cache import named_path
from hardcase.claims.answers import AskedNetwork, Layout, is_sigmoid
from hardcase.claims.subjects import Detections, Task
from hardcase.data.own import file_bytes
from hardcase.errors import HardcaseError
from hardcase.models.fetching import load as load_fetched
from hardcase.models.load import Loading
from hardcase.models.pretrained import PRETRAINED
from hardcase.models.subject import as_logits
from hardcase.tensors import digest
from hardcase_teams.arrays import PixelLayout, in_size, joined, layout_of

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
        answer = joined(parts, self.layout, drawn, x)
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
        raise HardcaseError(
            "TFLite files need ai-edge-litert, which is not installed.",
            fix="pip install 'hardcase[tflite]'",
        ) from error
    if content[4:8] != b"TFL3":
        raise HardcaseError(f"{name} is no TFLite file.")
    try:
        interpreter = Interpreter(model_content=content, num_threads=torch.get_num_threads())
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise HardcaseError(f"{name} cannot be run: {str(error).splitlines()[0]}") from error
    inputs = interpreter.get_input_details()
    if len(inputs) != 1 or len(inputs[0]["shape"]) != 4:
        raise HardcaseError(f"{name} takes {len(inputs)} inputs; one of images is needed.")
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
        raise HardcaseError(
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


def load(
    spec: str,
    how: Loading,
    *,
    task: Task = "classes",
    outputs: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> TfLite:
    """The network in the file that ``tflite:FILE.tflite`` names, or a fetched one as
    ``zoo:NAME``."""
    layout = layout_of(spec, task, outputs)
    form, _, rest = spec.partition("?")[0].partition(":")
    if form == "zoo":
        return fetched_tflite(rest, layout)
    return read_tflite(named_path(rest), spec, layout, classes=outputs, pixels=PixelLayout.of(how))
