"""What known tools count, so that a published number can be compared.

Each convention names options by criterion; what it does not name keeps our default. A convention
that knows nothing of a criterion refuses it. The facts are those of the tools' code, read for the
differences that change numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardcase.errors import Problem, choice

__all__ = ["Options", "convention_of"]

Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Convention:
    """Options that a tool's own way of counting implies, by criterion."""

    name: str
    summary: str
    criteria: Mapping[str, Options]

    def options(self, criterion: str) -> Options:
        if self.name == "default":
            return {}
        if criterion not in self.criteria:
            known = ", ".join(self.criteria)
            raise Problem(
                f"convention {self.name!r} says nothing about {criterion!r}.",
                f"it defines: {known}",
                fix="--convention default",
            )
        return self.criteria[criterion]


_UNIT: Options = {"mode": "unit"}
_GAUGE: Options = {"mode": "unit", "layers": "activated"}
_OPEN: Options = {"top": "corner", "constant": "never"}
_ALL: Options = {"layers": "activated-softmax"}

CONVENTIONS = {
    row.name: row
    for row in (
        Convention(
            "default",
            "channel means of every convolution and dense layer before activation; corners open",
            {},
        ),
        Convention(
            "deepxplore",
            "channels of all layers after activation, pooling and softmax counted; each layer"
            " scaled within an input, then averaged",
            {
                "nc": {
                    "layers": "activated-softmax",
                    "scale": "input",
                    "order": "scale-mean",
                    "threshold": 0.0,
                }
            },
        ),
        Convention(
            "adapt",
            "channels of all layers after activation but the softmax; averaged, then scaled within"
            " an input",
            {
                "nc": {
                    "layers": "activated",
                    "scale": "input",
                    "order": "mean-scale",
                    "epsilon": 1e-6,
                    "threshold": 0.5,
                },
                "tknc": {"layers": "activated", "k": 3},
            },
        ),
        Convention(
            "deepgauge",
            "every unit after activation; the highest value is a corner; NC scaled over the suite"
            " (as CovTesting replicates it)",
            {
                "nc": {**_GAUGE, "scale": "suite", "threshold": 0.5},
                "kmnc": {**_GAUGE, **_OPEN},
                "nbc": {**_GAUGE, "equal": "above"},
                "snac": {**_GAUGE, "equal": "above"},
                "tknc": {**_GAUGE, "k": 2},
                "tknp": {**_GAUGE, "k": 2},
            },
        ),
        Convention(
            "dnn-tip",
            "every unit as given; raw thresholds; values on a bound are corners; constant units"
            " stay in the denominator",
            {
                "nc": {**_UNIT, "threshold": 0.0},
                "kmnc": {**_UNIT, **_OPEN},
                "nbc": {**_UNIT, "equal": "both"},
                "snac": {**_UNIT, "equal": "above"},
                "tknc": dict(_UNIT),
                "lsa": {"per": "all", "most": 300},
                "dsa": {},
                "mdsa": {"per": "all", "squared": True},
                "lsc": {"per": "all", "most": 300, "lower": 0.0, "upper": 2000.0},
                "dsc": {"lower": 0.0, "upper": 2.0},
                "mdsc": {"per": "all", "squared": True, "lower": 0.0, "upper": 2000.0},
            },
        ),
        Convention(
            "neural-coverage",
            "channel means of convolutions and dense layers; sections left-open, so the lowest"
            " value is dropped; ordered patterns",
            {
                "nc": {"scale": "input", "order": "mean-scale", "threshold": 0.5},
                "kmnc": {"cuts": "left-open"},
                "nbc": {},
                "snac": {},
                "tknc": {},
                "tknp": {"ordered": True},
                "nlc": {},
            },
        ),
        Convention(
            "coverage-guided",
            "channels of all layers after activation, pooling and softmax counted; closed sections;"
            " a unit counts for NBC when both corners were seen",
            {
                "nc": {**_ALL, "scale": "input", "order": "scale-mean", "threshold": 0.0},
                "kmnc": {**_ALL, "cuts": "closed", "constant": "all"},
                "nbc": {**_ALL, "count": "both"},
                "snac": dict(_ALL),
            },
        ),
    )
}


def convention_of(name: str) -> Convention:
    """The convention called `name`."""
    if name not in CONVENTIONS:
        raise choice("convention", name, list(CONVENTIONS))
    return CONVENTIONS[name]
