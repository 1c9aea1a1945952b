"""A run in columns: everything about its findings and seeds except the pictures, which nobody decodes until they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from hardcase.results import Run

_NUMBERS = ("expected", "predicted", "confidence", "queries", "distance", "l2", "linf")


@dataclass(frozen=True, slots=True)
class Sheet:
    """Axis `t`: findings. `label`: the subject leaves the seed's label; only those enter the funnel."""

    id: list[str]
    seed: list[str]
    kind: list[str]
    label: Bool[np.ndarray, " t"]
    expected: Int[np.ndarray, " t"]
    predicted: Int[np.ndarray, " t"]
    confidence: Float[np.ndarray, " t"]
    queries: Int[np.ndarray, " t"]
    distance: Float[np.ndarray, " t"]
    l2: Float[np.ndarray, " t"]
    linf: Float[np.ndarray, " t"]
    seeds: dict[str, dict[str, Any]]
    verdicts: Mapping[str, Mapping[str, Any]] | None

    @staticmethod
    def of(run: Run) -> Sheet:
        table = run.findings
        kind = table.column("kind").to_pylist()
        return Sheet(
            id=table.column("id").to_pylist(),
            seed=table.column("seed").to_pylist(),
            kind=kind,
            label=np.array([word == "label" for word in kind], dtype=bool),
            **{name: table.column(name).to_numpy() for name in _NUMBERS},
            seeds={row["id"]: row for row in run.seeds.drop_columns(["image"]).to_pylist()},
            verdicts=run.verdicts,
        )

    def __len__(self) -> int:
        return len(self.id)

    def verdict(self, row: int) -> str | None:
        """One word for what the judge said: confirmed, invalid, label lost, undecided; None where nobody judged."""
        said = (self.verdicts or {}).get(self.id[row])
        if said is None:
            return None
        if said["valid"] and said["label_kept"]:
            return "confirmed"
        if said["valid"] is False:
            return "not valid"
        return "label lost" if said["label_kept"] is False else "undecided"

    def facts(self, row: int) -> dict[str, Any]:
        """What the page says of one finding."""
        seed = self.seeds.get(self.seed[row], {})
        whole = {name: int(getattr(self, name)[row]) for name in ("expected", "predicted", "queries")}
        real = {name: float(getattr(self, name)[row]) for name in ("confidence", "distance", "l2", "linf")}
        return {
            "id": self.id[row], "seed": self.seed[row], "kind": self.kind[row], **whole, **real,
            "seed_confidence": seed.get("confidence"), "verdict": self.verdict(row),
        }  # fmt: skip
