"""A run in columns and in words: numbers as people read them, and which failures are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from hardcase import environment, statistics
from hardcase.campaign.record import seconds
from hardcase.runs.results import Run
from hardcase.statistics import accepted_by

WORDS = {
    "kept": "accepted",
    "lost": "label lost",
    "unsure": "unsure",
    "foreign": "no image of this data",
}
"""What networks say of a failure, as a page calls it."""
BY_PERSON = {**WORDS, "kept": "confirmed", "foreign": "refused"}
"""The same of what a person says, who alone confirms."""
_NUMBERS = ("expected", "predicted", "confidence", "queries", "distance", "l2", "linf")


class Sheet:
    """The failures of a run in columns, axis `t`; and its images by name.

    `label`: the model leaves the original's label; only those enter the search results."""

    def __init__(self, run: Run) -> None:
        table = run.findings
        self.run = run
        self.id: list[str] = table["id"].to_pylist()
        self.seed: list[str] = table["original"].to_pylist()
        self.kind: list[str] = table["kind"].to_pylist()
        self.label: Bool[np.ndarray, " t"] = np.array([k == "label" for k in self.kind], dtype=bool)
        self.expected: Int[np.ndarray, " t"] = table["expected"].to_numpy()
        self.predicted: Int[np.ndarray, " t"] = table["predicted"].to_numpy()
        self.confidence: Float[np.ndarray, " t"] = table["confidence"].to_numpy()
        self.queries: Int[np.ndarray, " t"] = table["queries"].to_numpy()
        self.distance: Float[np.ndarray, " t"] = table["distance"].to_numpy()
        self.l2: Float[np.ndarray, " t"] = table["l2"].to_numpy()
        self.linf: Float[np.ndarray, " t"] = table["linf"].to_numpy()
        self.seeds: dict[str, dict[str, Any]] = {row["id"]: row for row in run.seeds.to_pylist()}
        self.verdicts = run.verdicts
        self.changes = run.changes()

    def __len__(self) -> int:
        return len(self.id)

    @property
    def small(self) -> int:
        """Findings that changed too little to change a label."""
        return sum(verdict.get("by") == "norm" for verdict in (self.verdicts or {}).values())

    def verdict(self, row: int) -> str | None:
        """A word or two for a verdict (`WORDS`); None where nobody judged."""
        verdict = (self.verdicts or {}).get(self.id[row])
        if verdict is None:
            return None
        if verdict["by"] == "person":
            return f"{BY_PERSON[verdict['verdict']]} by a person"
        return WORDS[verdict["verdict"]]

    def is_accepted(self, row: int) -> bool:
        """Whether a failure counts as keeping its label, by whomever."""
        return accepted_by(self.verdicts or {}, self.id[row])

    def visible_change(self, row: int) -> dict[str, float | None]:
        """The measured numbers of how visible a failure's change is; none where nobody judged."""
        verdict = (self.verdicts or {}).get(self.id[row], {})
        return {name: verdict.get(name) for name in ("noise", "saturated", "p_kept")}

    def facts(self, row: int) -> dict[str, Any]:
        """What the page says of one failure.

        `row` and `seed_row` are its place and its original's place in the run's tables: images are
        looked up by them, because names are cleaned before they are shown."""
        seed = self.seeds.get(self.seed[row], {})
        numbers = {name: getattr(self, name)[row].item() for name in _NUMBERS}
        return {
            "id": self.id[row],
            "row": row,
            "seed": self.seed[row],
            "seed_row": self.run.seed_rows.get(self.seed[row]),
            "kind": self.kind[row],
            **numbers,
            "seed_confidence": seed.get("confidence"),
            "support": self._support(row) if self.run.record.get("claims") else None,
            "verdict": self.verdict(row),
            "accepted": self.is_accepted(row),
            **self.visible_change(row),
            "change": self.changes[row],
        }

    def _support(self, row: int) -> dict[str, float]:
        """How far the model supports a claim, in logits: of the image and of the failure."""
        seed = float(self.seeds[self.seed[row]]["confidence"])
        shares = np.clip([seed, 1 - float(self.confidence[row])], 1e-6, 1 - 1e-6)
        return dict(zip(("seed", "finding"), np.log(shares / (1 - shares)).tolist()))


def triples(sheet: Sheet, count: int) -> list[int]:
    """One finding of every distinct group of accepted ones; until there are groups, spread over
    class pairs."""
    rows = np.flatnonzero(sheet.label)
    accepted = [row for row in rows.tolist() if sheet.is_accepted(row)]
    if not accepted:
        return list(map(int, rows[spread(_pair(sheet)[rows], sheet.l2[rows], count)]))
    rows = np.array(accepted)
    names = [(sheet.verdicts or {})[sheet.id[row]].get("group") for row in accepted]
    positions = {name: i for i, name in enumerate(dict.fromkeys(names)) if name is not None}
    # a row without a group is a group of its own
    group = np.array([positions.get(name, -1 - row) for row, name in zip(accepted, names)])
    chosen = spread(group, sheet.l2[rows], min(count, len(np.unique(group))))
    return list(map(int, rows[chosen]))


def spread(
    group: Int[np.ndarray, " t"], size: Float[np.ndarray, " t"], count: int
) -> Int[np.ndarray, " s"]:
    """At most `count` rows: the smallest of every group first, then the second smallest of each,
    and so on."""
    order = np.lexsort((size, group))
    place = np.arange(len(order))
    first = np.ones(len(order), dtype=bool)
    first[1:] = group[order][1:] != group[order][:-1]
    rank = place - np.maximum.accumulate(np.where(first, place, 0)) if len(order) else place
    return np.asarray(order[np.lexsort((size[order], rank))][:count])


def _pair(sheet: Sheet) -> Int[np.ndarray, " t"]:
    return np.asarray(sheet.expected.astype(np.int64) * 1_000_000 + sheet.predicted)


Rate = dict[str, Any]
MISSING = "–"


def rate(hits: int | None, total: int | None) -> Rate | None:
    """A share with its counts and its 95 % interval; None if it was not counted."""
    if hits is None or total is None:
        return None
    return statistics.Rate(hits, total).to_json()


Told = Callable[[int | None, int | None], Rate | None]
"""Tells a share of the images of one run."""


def rates_of(run: Run) -> Told:
    """As `rate`, with the interval of this run's seeds: claims may share their image."""

    def told(hits: int | None, total: int | None) -> Rate | None:
        rate = run.rate(hits, total)
        return None if rate is None else rate.to_json()

    return told


def share(value: Rate | None) -> str:
    """87 of 96 (90.6 %, 83.1 % to 95.0 %): a rate with its interval."""
    if value is None:
        return "not judged"
    counted = f"{number(value['hits'])} of {number(value['total'])}"
    if value["share"] is None:
        return counted
    span = f"{percent(value['low'])} to {percent(value['high'])}"
    return f"{counted} ({percent(value['share'])}, {span})"


def percent(value: float | None) -> str:
    """One decimal; 0 % and 100 % only where nothing was rounded away."""
    if value is None or not math.isfinite(value):
        return MISSING
    if min(abs(value), abs(1 - value)) < 1e-9:
        return f"{100 * round(value)}\u00a0%"
    return f"{min(max(100 * value, 0.1), 99.9):.1f}\u00a0%"


def number(value: float | None) -> str:
    """Whole numbers with thousands set apart by commas, others with three significant digits or two
    decimals."""
    if value is None or not math.isfinite(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def decimal(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.2f}"


def plural(count: int, word: str) -> str:
    return f"{number(count)} {word}" if count == 1 else f"{number(count)} {word}s"


def duration(value: float | None) -> str:
    """As the terminal says it, in words that stay on one line."""
    return MISSING if value is None else environment.duration(value, "\u00a0")


def moment(text: str) -> str:
    """A stored time as people write it: 1 March 2026, 10:01 UTC."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return f"{time.day} {time:%B %Y, %H:%M} UTC"


def budget(limits: Mapping[str, Any]) -> str:
    """The limits of a run in words, or nothing if it had none."""
    limits_set = {name: value for name, value in limits.items() if value is not None}
    texts = []
    for name, unit in (("queries", "query"), ("gradients", "gradient")):
        for key, scope in ((name, "per image"), (f"total_{name}", "in total")):
            if key in limits_set:
                texts.append(
                    f"{number(limits_set[key])} {unit if limits_set[key] == 1 else name} {scope}"
                )
    if "findings" in limits_set:
        texts.append(f"{plural(limits_set['findings'], 'finding')}")
    if "time" in limits_set:
        texts.append(duration(seconds(limits_set["time"])))
    return listed(texts)


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def lines(value: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Nested facts (a card) as lines of name and text."""
    texts = []
    for name, inner in value.items():
        full = f"{above}{name}".replace("_", " ")
        if isinstance(inner, Mapping):
            texts += lines(inner, f"{full} · ")
        elif isinstance(inner, bool):
            texts.append((full, "yes" if inner else "no"))
        elif isinstance(inner, int | float):
            texts.append((full, number(inner)))
        elif isinstance(inner, list | tuple):
            texts.append((full, ", ".join(map(str, inner))))
        elif inner is not None:
            texts.append((full, str(inner)))
    return texts
