"""A trained judge and what people have made of it: its rules, and the error rates that go with every count."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from hardcase import registry
from hardcase.cache import write_atomically
from hardcase.errors import Problem
from hardcase.judges.calibration import Calibration
from hardcase.judges.panel import Panel
from hardcase.judges.rules import Rule, share
from hardcase.types import Images
from hardcase.usercode import guarded

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

    panel: Panel
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


Answers = Mapping[str, Sequence[bool | None] | Tensor]
"""What a judge says of images: ``valid`` and ``label_kept`` of each; None where it is undecided."""


@runtime_checkable
class AnyJudge(Protocol):
    """What every judge can do: say of images whether they are valid and have kept their label.

    A function will do. A judge that also has ``features(x)`` groups confirmed findings in them;
    for others groups are made by pixels.
    """

    def __call__(self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], /) -> Answers: ...


@dataclass(frozen=True, slots=True)
class SuppliedJudge:
    """A judge of the user's own, by name. Of its error rates and its independence nothing is known.

    Args:
        name: What reports call it.
        ask: The judge itself.
    """

    name: str
    ask: AnyJudge

    @property
    def standing(self) -> str:
        """One sentence on how far its answers can be trusted."""
        return (
            f"supplied judge {self.name}: its error rates, and whether it took part in the search, "
            "are not known"
        )

    def answers(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]
    ) -> dict[str, list[bool | None]]:
        """``valid`` and ``label_kept`` of each image, checked.

        Raises:
            Problem: If the judge raises, or does not answer both questions of each image.
        """
        with guarded(f"judge {self.name}"):
            said = self.ask(x, expected)
        if not isinstance(said, Mapping) or not {"valid", "label_kept"} <= said.keys():
            raise Problem(
                f"judge {self.name} must return a mapping with 'valid' and 'label_kept'.",
                fix="return {'valid': [...], 'label_kept': [...]}",
            )
        return {name: self._column(name, said[name], len(x)) for name in ("valid", "label_kept")}

    def features(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
        """What confirmed findings are grouped by: the judge's own features, or pixels."""
        own = getattr(self.ask, "features", None)
        if own is None:
            return x.flatten(1)
        with guarded(f"features of judge {self.name}"):
            seen: Tensor = own(x)
        return seen

    def _column(self, question: str, said: Any, count: int) -> list[bool | None]:
        values = said.tolist() if isinstance(said, Tensor) else list(said)
        fair = all(value is None or value in (True, False) for value in values)
        if len(values) != count or not fair:
            raise Problem(
                f"judge {self.name} must say True, False or None of each of {count} images; "
                f"its {question!r} has {len(values)} values."
                if fair
                else f"judge {self.name} says something else than True, False or None in "
                f"{question!r}.",
            )
        return [None if value is None else bool(value) for value in values]


def supplied_judge(spec: str, images: Callable[[str], Images]) -> SuppliedJudge:
    """The judge that ``file.py:name`` or an installed package names.

    A function of ``(x, expected)`` is the judge itself; a class is made first, with the training
    and the test images if its parameters are called `train` and `test`.

    Args:
        spec: The name of the judge.
        images: Gives the images of a split, if they are needed.
    """
    row = registry.resolve("judge", spec)
    if not isinstance(row.make, type) and not set(row.given) <= {"train", "test"}:
        return SuppliedJudge(spec, row.make)
    with guarded(f"making judge {spec}"):
        made = row(*(images(split) for split in row.given))
    if not callable(made):
        raise Problem(f"judge {spec} cannot be called with images and their expected labels.")
    return SuppliedJudge(spec, made)


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
