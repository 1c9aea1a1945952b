"""What a repair came to, in words: the decision first, then the figures that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.wording.numbers import difference, percent, points
from hardcase.wording.summary import WIDTH, short_name, wrapped

__all__ = ["figure_lines", "headline", "repair_lines"]

WORDS = {
    "repaired": "REPAIRED",
    "not repaired": "NOT REPAIRED",
    "regressed elsewhere": "REGRESSED ELSEWHERE",
    "inconclusive": "INCONCLUSIVE",
}
"""The first word of a repair, by its verdict."""


def headline(record: Mapping[str, Any]) -> str:
    """Return the decision of a repair and why, in one sentence.

    Args:
        record: Its repair.json.
    """
    proof = record["proof"]
    verdict = str(record["verdict"])
    model = short_name(str(record["parents"]["model"]))
    rate = _primary(proof)
    where = f"samples of {record['conditions'].get('name', 'declared')} conditions"
    shares = f"{percent(rate['after'])} instead of {percent(rate['before'])}"
    fell = f"{model} fails in {shares} of {where}: {_change(rate)}"
    text = fell
    if verdict == "not repaired":
        text = f"{model}: {proof['reasons'][0]}"
    elif verdict == "regressed elsewhere":
        text = f"{fell}, but {proof['reasons'][0]}"
    elif verdict == "inconclusive":
        text = f"{proof['images']:,} images do not tell: {proof['reasons'][0]}"
    return f"{WORDS[verdict]}  {text}"


def repair_lines(record: Mapping[str, Any], *, folder: str = "") -> list[str]:
    """Return the last screen of a repair.

    Args:
        record: Its repair.json.
        folder: Where the page is, if that is told.
    """
    proof = record["proof"]
    lines = [*wrapped(headline(record), indent=0), ""]
    lines += [line for text in proof["reasons"][1:] for line in wrapped(text, indent=0)]
    lines += figure_lines(record)
    if proof["bound"]:
        lines += wrapped(proof["bound"], indent=0)
    lines += ["", f"weights  {record['model']}"]
    if folder:
        lines.append(f"page     {folder}/report.html")
    return lines


def figure_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the figures that decide as a table, line by line."""
    proof = record["proof"]
    name = record["conditions"].get("name", "declared")
    lines = [_line(f"{proof['images']:,} images", "before", "after", "change")]
    for row in proof["rows"]:
        if not row["decides"]:
            continue
        row_name = f"{name} conditions" if row["name"] == "failure rate" else row["name"]
        row_name = row_name.removeprefix("error on ")
        margin = ""
        if row["name"] != "failure rate":
            margin = f", margin {points(row['margin'])}"
        lines.append(
            _line(
                f"  {row_name}",
                percent(row["before"]),
                percent(row["after"]),
                f"{_change(row)}{margin}",
            )
        )
    return [line[:WIDTH] for line in lines]


def _line(name: str, before: str, after: str, change: str) -> str:
    return f"{name:<30}{before:<10}{after:<10}{change}".rstrip()


def _primary(proof: Mapping[str, Any]) -> Mapping[str, Any]:
    primary: Mapping[str, Any] = next(row for row in proof["rows"] if row["name"] == "failure rate")
    return primary


def _change(row: Mapping[str, Any]) -> str:
    value = row["after"] - row["before"]
    return difference({"value": value, "low": row["low"], "high": row["high"]})
