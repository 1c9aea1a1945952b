"""The stored tests of a run, one by one, for test runners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from hardcase import png
from hardcase.errors import Problem
from hardcase.results import Run
from hardcase.tensors import from_bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """One test: what it should be, what the tested model took it for."""

    id: str
    seed: str
    expected: int
    predicted: int
    classes: tuple[str, ...]
    data: bytes

    @property
    def image(self) -> Float[Tensor, "c h w"]:
        """The picture, in [0, 1]."""
        return from_bytes(png.decode(self.data))

    @property
    def name(self) -> str:
        return f"{self.classes[self.expected]}-{self.classes[self.predicted]}-{self.id}"


def stored(run: Run, *, confirmed: bool = False) -> list[Stored]:
    """The tests on which the model left the seed's label; with `confirmed`, only those the judge confirmed."""
    said = run.verdicts
    if confirmed and said is None:
        raise Problem(f"no judge has seen the tests of {run.folder}.", fix=f"hardcase judge {run.folder}")
    rows = run.findings.select(["id", "seed", "kind", "expected", "predicted", "image"]).to_pylist()
    return [
        Stored(row["id"], row["seed"], row["expected"], row["predicted"], run.classes, row["image"]["bytes"])
        for row in rows
        if row["kind"] == "label" and (not confirmed or _confirmed((said or {}).get(row["id"], {})))
    ]


def _confirmed(said: dict[str, Any]) -> bool:
    return bool(said.get("valid") and said.get("label_kept"))
