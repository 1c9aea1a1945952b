"""A trained judge and what people have made of it: its rules,
and the error rates that go with every count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.cache import write_atomically
from hardcase.errors import Problem
from hardcase.judges.calibration import Calibration
from hardcase.judges.features import FeaturePanel
from hardcase.judges.panel import WEAK, Panel, Signals
from hardcase.judges.rules import DecisionRule
from hardcase.statistics import Rate
from hardcase.tensors import chunks, from_bytes, steady
from hardcase.types import Findings, Verdicts

FILE = "calibration.json"
ELSEWHERE: dict[str, dict[str, Any]] = {
    "label_kept": {"scale": 0.85, "offset": -0.2, "low": 0.5, "high": 0.92},
    "valid": {"scale": 1.15, "offset": 1.5, "low": 0.92, "high": 0.98},
}
"""For data that nobody has rated: chosen on the MNIST images of V.

Riccio, P. Tonella, ICSE 2023.
"""
MEASURED_ELSEWHERE: dict[str, Any] = {
    "images": 500,
    "valid": {
        "auroc": {"value": 0.969, "low": 0.905, "high": 1.000},
        "tpr": Rate(407, 458).to_json(),
        "tnr": Rate(19, 20).to_json(),
        "undecided": Rate(48, 500).to_json(),
    },
    "label_kept": {
        "auroc": {"value": 0.933, "low": 0.900, "high": 0.962},
        "tpr": Rate(236, 362).to_json(),
        "tnr": Rate(35, 70).to_json(),
        "undecided": Rate(194, 500).to_json(),
    },
    "confirmed": {"precision": Rate(236, 251).to_json(), "recall": Rate(236, 362).to_json()},
}
"""What these thresholds did on the same rated digits, so mildly optimistic,
with a judge taught by the 4,000 training images of mnist5k.
"""
NOTICEABLE = 8 / 255
"""Largest change of any value that cannot change what an image shows, whatever its direction.

Eight grey levels everywhere are less than JPEG does to the same image (root mean square): 6.0
levels against 8.4 at quality 50 on 200 digits (``python -m benchmarks noticeable``), 8.0 against
8.6 at quality 30 on 200 photographs. A comparison with compression, not a study of people.
"""
AT_ONCE = 2**28
"""Numbers of images that are on the judge's device at once."""
NOBODY = slice(0, 0)
NOT_RATED = "no person has rated images of this data; thresholds were chosen on "


@dataclass(frozen=True, slots=True)
class NormJudge:
    """No network at all: only changes too small to change a label are decided, by their norm."""

    def __call__(self, findings: Findings) -> Verdicts:
        nothing = [None] * len(findings)
        return Verdicts(nothing, nothing)

    def about(self) -> dict[str, Any]:
        """What run.json and the report say of it."""
        return {
            "name": "norm",
            "calibrated": False,
            "standing": "only changes of at most 8/255 are decided; nobody judged the others",
        }


def by_norm(verdicts: Verdicts, largest: Sequence[float]) -> Verdicts:
    """The verdicts, with every change that is too small to change a label kept and valid by
    construction; the column ``by`` says which.

    Args:
        verdicts: What a judge said of findings.
        largest: The largest change of a value in each of them, in units of [0, 1].

    Example:
        >>> said = by_norm(Verdicts([None, False], [None, True]), [8 / 255, 0.3])
        >>> said.valid, said.columns["by"]
        ([True, False], ['norm', 'judge'])
    """
    small = [size <= NOTICEABLE + 1e-6 for size in largest]
    valid = [True if own else said for own, said in zip(small, verdicts.valid)]
    kept = [True if own else said for own, said in zip(small, verdicts.label_kept)]
    by = ["norm" if own else "judge" for own in small]
    return replace(verdicts, valid=valid, label_kept=kept, columns={**verdicts.columns, "by": by})


@dataclass(frozen=True, slots=True)
class PanelJudge:
    """A trained panel as a judge: its networks, the two rules by which it answers, its calibration.

    Args:
        panel: Networks that took no part in any search, and the signals they give.
        card: What the panel is and how it was taught.
        folder: Where it is kept.
        label_kept: The rule for "still shows what its seed showed".
        valid: The rule for "looks like the data".
        calibration: What people's ratings made of it; None if nobody was asked.
        chosen_on: What its thresholds were chosen on, as long as nobody was asked.
        elsewhere: How its thresholds did on rated images of other data; None if that is not known.
    """

    panel: Panel | FeaturePanel
    card: Mapping[str, Any]
    folder: Path
    label_kept: DecisionRule
    valid: DecisionRule
    calibration: Mapping[str, Any] | None
    chosen_on: str = "rated digits"
    elsewhere: Mapping[str, Any] | None = field(default_factory=lambda: MEASURED_ELSEWHERE)

    @property
    def rules(self) -> dict[str, DecisionRule]:
        return {"label_kept": self.label_kept, "valid": self.valid}

    def __call__(self, findings: Findings) -> Verdicts:
        """The verdicts on some findings, with the signals that led to them."""
        place = self.panel.learned.device
        size = max(findings.x[:1].numel(), 1)
        how = {} if steady(place) else {"batch": max(64, min(4096, 2**26 // size // 64 * 64))}
        asked = list[Signals]()
        seen = list[Tensor]()
        for rows in list(chunks(len(findings), max(256, AT_ONCE // size // 256 * 256))) or [NOBODY]:
            x = from_bytes(findings.x[rows].to(place))
            signals, features = self.panel.read(x, findings.expected[rows].to(place), **how)
            asked.append(signals)
            seen.append(features.cpu())
        signals = Signals.join(asked)
        answers: dict[str, Sequence[bool | None]] = {}
        columns: dict[str, Sequence[Any]] = {"seen": signals.seen.tolist()}
        for name, rule in self.rules.items():
            probability = rule.probability(signals)
            answers[name] = rule.answers(probability)
            columns[f"p_{name}"] = probability.tolist()
            columns |= {each: getattr(signals, each).tolist() for each in rule.signals}
        return Verdicts(answers["valid"], answers["label_kept"], columns, torch.cat(seen))

    def about(self) -> dict[str, Any]:
        """What run.json and the report say of this judge."""
        card = self.card
        return {
            "name": card["name"],
            "weights": card["weights"],
            "data": card["data"],
            "accuracy": card["accuracy"],
            "measured_images": card["measured_images"],
            "members": card["members"],
            "calibrated": self.calibration is not None,
            "standing": self.standing,
            "rules": {name: rule.to_card() for name, rule in self.rules.items()},
            "calibration": self.calibration,
            "elsewhere": None if self.calibration is not None else self.elsewhere,
            **{name: card[name] for name in ("encoders", "lineages") if name in card},
        }

    @property
    def standing(self) -> str:
        """One sentence on how far its answers can be trusted."""
        share = self.card["accuracy"]
        read = f"reads {share:.1%} of {self.card['measured_images']} real images rightly"
        weak = f"; weak judge: it {read}" if share < WEAK else ""
        if self.calibration is None:
            return f"uncalibrated, {read}: {NOT_RATED}{self.chosen_on}{weak and '; weak judge'}"
        kept, valid = (self.calibration[name]["auroc"] for name in ("label_kept", "valid"))
        return (
            f"calibrated on {self.calibration['images']} images rated by people: AUROC"
            f" {_value(kept)} for label kept, {_value(valid)} for valid{weak}"
        )


def _value(auroc: Mapping[str, Any]) -> str:
    if auroc["value"] is None:
        return "not measured"
    return f"{auroc['value']:.2f} ({auroc['low']:.2f} to {auroc['high']:.2f})"


def judge_of(net: nn.Module, card: Mapping[str, Any], folder: Path) -> PanelJudge:
    """The judge that this network and card are, with the calibration that lies beside them in
    `folder`.
    """
    assert isinstance(net, Panel)
    made = {name: DecisionRule.from_card(card["rules"][name]) for name in ELSEWHERE}
    plain = {name: replace(made[name], **ELSEWHERE[name]) for name in made}
    return with_kept_calibration(
        PanelJudge(net, card, folder, plain["label_kept"], plain["valid"], None)
    )


def with_kept_calibration(judge: PanelJudge) -> PanelJudge:
    """The judge as people's ratings made it, if they are kept in its folder for these weights."""
    stored = _read(judge.folder / FILE)
    if stored is None or stored.get("weights") != judge.card["weights"]:
        return judge
    return calibrated(
        judge,
        Calibration(
            {n: DecisionRule.from_card(r) for n, r in stored["rules"].items()}, stored["measured"]
        ),
    )


def calibrated(judge: PanelJudge, found: Calibration) -> PanelJudge:
    return replace(
        judge,
        label_kept=found.rules["label_kept"],
        valid=found.rules["valid"],
        calibration=found.measured,
    )


def keep_calibration(judge: PanelJudge, found: Calibration) -> Path:
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
