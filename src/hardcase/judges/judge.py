"""A trained judge and what people have made of it: its rules, and the error rates that go with every count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from hardcase.cache import write_atomically
from hardcase.errors import Problem
from hardcase.judges.calibration import Calibration
from hardcase.judges.features import FeaturePanel
from hardcase.judges.panel import Panel
from hardcase.judges.rules import Rule, share

# --- A trained judge and what people have made of it: its rules, and the error rates that go with every count.

FILE = "calibration.json"
ELSEWHERE: dict[str, dict[str, Any]] = {
    "label_kept": {"scale": 0.85, "offset": -0.2, "low": 0.5, "high": 0.95},
    "valid": {"scale": 1.15, "offset": 1.5, "low": 0.92, "high": 0.98},
}
"""For data that nobody has rated: chosen on the MNIST images of V. Riccio, P. Tonella, ICSE 2023."""
MEASURED_ELSEWHERE: dict[str, Any] = {
    "images": 500,
    "valid": {
        "auroc": {"value": 0.980, "low": 0.936, "high": 1.000},
        "tpr": share(409, 458), "tnr": share(19, 20), "undecided": share(46, 500),
    },
    "label_kept": {
        "auroc": {"value": 0.908, "low": 0.873, "high": 0.940},
        "tpr": share(182, 362), "tnr": share(30, 70), "undecided": share(254, 500),
    },
    "confirmed": {"precision": share(182, 193), "recall": share(182, 362)},
}  # fmt: skip
"""What these thresholds did on the same rated digits, so mildly optimistic, with a judge taught by the 4,000 training images of mnist5k."""
UNCALIBRATED = (
    "uncalibrated: no person has rated images of this data; thresholds were chosen on rated digits"
)


@dataclass(frozen=True, slots=True)
class Judge:
    """A panel, its card and folder, the two rules by which it answers, and its calibration (None: nobody was asked)."""

    panel: Panel | FeaturePanel
    card: Mapping[str, Any]
    folder: Path
    label_kept: Rule
    valid: Rule
    calibration: Mapping[str, Any] | None

    @property
    def rules(self) -> dict[str, Rule]:
        return {"label_kept": self.label_kept, "valid": self.valid}

    @property
    def standing(self) -> str:
        """One sentence on how far its answers can be trusted."""
        if self.calibration is None:
            return UNCALIBRATED
        kept, valid = (self.calibration[name]["auroc"] for name in ("label_kept", "valid"))
        return (
            f"calibrated on {self.calibration['images']} images rated by people: AUROC {_value(kept)} for label kept, "
            f"{_value(valid)} for valid"
        )


def _value(auroc: Mapping[str, Any]) -> str:
    return f"{auroc['value']:.2f} ({auroc['low']:.2f} to {auroc['high']:.2f})"


def judge_of(net: nn.Module, card: Mapping[str, Any], folder: Path) -> Judge:
    """The judge that this network and card are, with the calibration that lies beside them in `folder`."""
    assert isinstance(net, Panel)
    made = {name: Rule.from_card(card["rules"][name]) for name in ELSEWHERE}
    plain = {name: replace(made[name], **ELSEWHERE[name]) for name in made}
    judge = Judge(net, card, folder, plain["label_kept"], plain["valid"], None)
    stored = _read(judge.folder / FILE)
    if stored is None or stored.get("weights") != card["weights"]:
        return judge
    return calibrated(
        judge,
        Calibration({n: Rule.from_card(r) for n, r in stored["rules"].items()}, stored["measured"]),
    )


def calibrated(judge: Judge, found: Calibration) -> Judge:
    return replace(
        judge,
        label_kept=found.rules["label_kept"],
        valid=found.rules["valid"],
        calibration=found.measured,
    )


def keep_calibration(judge: Judge, found: Calibration) -> Path:
    """Store a calibration beside the judge it belongs to."""
    rules = {name: rule.to_card() for name, rule in found.rules.items()}
    text = json.dumps(
        {"weights": judge.card["weights"], "rules": rules, "measured": found.measured}, indent=2
    )
    return write_atomically(judge.folder / FILE, text.encode())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Problem(
            f"{path} cannot be read: {error}", fix="delete it and calibrate again"
        ) from error
