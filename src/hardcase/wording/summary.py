"""The last screen of a run: the decision first, then the figures that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hardcase.wording.numbers import difference, percent, points, rate, span

__all__ = ["WIDTH", "Decision", "Word", "decide", "figures", "short_name", "summary_lines"]

Word = Literal["PASS", "FAIL", "INCONCLUSIVE", "MEASURED", "FAILED"]
WIDTH = 100
"""Characters of a line, at most."""
COLUMN = 21
"""Characters of a column of the table of failure rates."""


class Decision(NamedTuple):
    """What a run comes to: its first word, and one sentence that says why."""

    word: Word
    sentence: str

    def __str__(self) -> str:
        return f"{self.word}  {self.sentence}"


def short_name(model: str) -> str:
    """Return what a summary calls a model.

    Example:
        >>> short_name("zoo:lenet5"), short_name("work/net.py:make"), short_name("w.pt@net.py:make")
        ('lenet5', 'net.py:make', 'w.pt')
    """
    name = model.rpartition("@")[0] or model
    name = name.rpartition("/")[2]
    return name.removeprefix("zoo:")


def conditions_name(record: Mapping[str, Any]) -> str:
    """Return what a summary calls the conditions of a run: ``scanner conditions``."""
    declared = record.get("conditions")
    if not declared:
        return "unmodified images"
    name = declared.get("name", "declared")
    return f"{name} conditions"


def decide(
    record: Mapping[str, Any], *, limit: float | None, margin: float, others: Sequence[Any] = ()
) -> Decision:
    """Return the decision of a run.

    Args:
        record: Its run.json.
        limit: The declared limit of the failure rate, if there is one.
        margin: By how much the failure rate may exceed that of a declared baseline.
        others: Outcomes of further limits, each with ``outcome`` and ``text``.
    """
    failed = failure_of(record)
    if failed is not None:
        return failed
    risk = record.get("risk")
    if not risk:
        return Decision("INCONCLUSIVE", "the failure rate has not been measured yet")
    model = short_name(str(record.get("model", "the model")))
    found = [_baseline(record, model, one, margin) for one in risk.get("baselines", ())[:1]]
    if limit is not None:
        found.append(_limit(record, model, limit))
    found += [Decision(WORDS[one.outcome], one.text) for one in others]
    if not found:
        return _measured(record, model)
    order: tuple[Word, ...] = ("FAIL", "INCONCLUSIVE", "PASS")
    return min(found, key=lambda one: order.index(one.word))


WORDS: Mapping[str, Word] = {
    "pass": "PASS",
    "fail": "FAIL",
    "cannot tell": "INCONCLUSIVE",
    "inconclusive": "INCONCLUSIVE",
}
"""The first word of each outcome of a limit."""


def failure_of(record: Mapping[str, Any]) -> Decision | None:
    """Return that a phase of a run has failed, and why; None where none has."""
    names = {"measure": "the measurement", "search": "the search", "check": "the label check"}
    for name, phase in (record.get("phases") or {}).items():
        if phase.get("status") == "failed":
            why = str(phase.get("why", "unknown")).rstrip(".")
            return Decision("FAILED", f"{names.get(name, name)} did not finish: {why}")
    return None


def _baseline(
    record: Mapping[str, Any], model: str, one: Mapping[str, Any], margin: float
) -> Decision:
    found = one["difference"]
    where = f"under {conditions_name(record)}" if record.get("conditions") else "on the images"
    figures = f"{difference(found)[:-1]}; limit {100 * margin:+.1f})"
    other = short_name(one["name"])
    if found["low"] > margin:
        return Decision("FAIL", f"{model} fails more often than {other} {where}: {figures}")
    if found["high"] <= margin:
        more = "less often" if found["high"] < 0 else "no more often"
        return Decision("PASS", f"{model} fails {more} than {other} {where}: {figures}")
    needed = _needed(found, margin, one["images"])
    text = f"{model} cannot be ranked against {other} {where}: {figures}. {needed}"
    return Decision("INCONCLUSIVE", text)


def _limit(record: Mapping[str, Any], model: str, limit: float) -> Decision:
    risk = record["risk"]
    text = (
        f"{model} fails in {percent(risk['value'])} of {_of(record)}"
        f" ({span(risk['low'], risk['high'])}; limit {_short(limit)})"
    )
    if risk["low"] > limit:
        return Decision("FAIL", text)
    if risk["high"] <= limit:
        return Decision("PASS", text)
    return Decision("INCONCLUSIVE", f"{text}. {_needed(risk, limit, risk['images'])}")


def _of(record: Mapping[str, Any]) -> str:
    if not record.get("conditions"):
        return "the images"
    return f"samples of {conditions_name(record)}"


def _short(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".")


def _needed(found: Mapping[str, Any], limit: float, images: int) -> str:
    """How many images would decide, by the width of the interval at hand."""
    half = (found["high"] - found["low"]) / 2
    distance = abs(found["value"] - limit)
    if distance <= half / 10:
        return f"More than {100 * images:,} images would be needed"
    count = round(images * (1.3 * half / distance) ** 2)
    return f"Decide with about {max(count, images + 1):,} images"


def _measured(record: Mapping[str, Any], model: str) -> Decision:
    risk = record["risk"]
    low, high = percent(risk["low"]), percent(risk["high"])
    interval = span(risk["low"], risk["high"])
    text = (
        f"{model} fails in {percent(risk['value'])} of {_of(record)} ({interval})."
        f" A limit up to {low} would fail, from {high} on pass."
    )
    return Decision("MEASURED", text)


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return the table of failure rates of a measured run, line by line."""
    risk = record.get("risk")
    if not risk:
        return []
    beside = list(risk.get("baselines", ()))[:1]
    names = [short_name(str(record.get("model", "")))]
    rows = [("unmodified images", [rate(risk["unmodified"])])]
    if record.get("conditions"):
        rows.append((conditions_name(record), [rate(risk)]))
    if beside:
        one = beside[0]
        names += [short_name(one["name"]), "difference"]
        own = points(one["unmodified_difference"]["value"])
        rows[0][1].extend([percent(one["unmodified"]["value"]), own])
        if record.get("conditions"):
            rows[1][1].extend([percent(one["value"]), points(one["difference"]["value"])])
    lines = [_row("failure rate", names)]
    lines += [_row(f"  {name}", cells) for name, cells in rows]
    region = risk.get("worst_region")
    if region:
        found = f"at least {100 * region['low']:.0f} %: {region['words']}"
        lines.append(_row("  worst region found", [found]))
    effects = risk.get("effects") or []
    if effects:
        largest = effects[0]
        found = f"{largest['condition']}: {difference(largest)}".replace("+", "")
        lines.append(_row("  largest effect", [found]))
    return [line[:WIDTH] for line in lines]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<24}{''.join(f'{cell:<{COLUMN}}' for cell in cells)}".rstrip()


def summary_lines(
    record: Mapping[str, Any],
    decision: Decision,
    *,
    search: Sequence[str] = (),
    checked: Sequence[str] = (),
    report: str = "",
) -> list[str]:
    """Return the last screen: the decision, the table, what the search and the check say.

    Args:
        record: The run's run.json.
        decision: What the run comes to.
        search: What the search says, in lines.
        checked: What the label check says, in lines.
        report: The command that opens the report.
    """
    lines = [*wrapped(str(decision), indent=0), "", *figures(record)]
    parts = {"search": search, "label check": checked, "report": [report] if report else []}
    lines.append("")
    for name, texts in parts.items():
        for i, text in enumerate(part for one in texts for part in wrapped(one, indent=13)):
            lines.append(f"{name if i == 0 else '':<13}{text}")
    return lines


def wrapped(text: str, *, indent: int) -> list[str]:
    """Return a sentence in lines that leave room for an indent."""
    from textwrap import wrap

    return wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False)
