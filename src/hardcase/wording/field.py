"""What the images of a field say about conditions: what was found, then what cannot be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardcase.wording.numbers import percent, rate

__all__ = ["accuracy_sentence", "field_headline", "field_lines", "field_sentences"]

UNEXPLAINED = 0.02
"""A share of the distance below which nothing is said of what is left."""


def field_headline(record: Mapping[str, Any]) -> str:
    """Return what a fit has come to, in one sentence.

    Args:
        record: Its figures.
    """
    count = len(record["conditions"])
    images = f"{record['field_images']:,} images"
    if not count and record["explained"]:
        return f"NOTHING FOUND  the field's {images} look like the labelled ones"
    if not count:
        return f"UNEXPLAINED  the field's {images} differ, and no condition explains how"
    names = ", ".join(
        f"{condition['condition']} {condition['declared']}" for condition in record["conditions"]
    )
    if record["explained"]:
        return f"FITTED  {names}"
    return f"PARTLY FITTED  {names}; {percent(record['unexplained'])} stays unexplained"


def field_sentences(record: Mapping[str, Any]) -> list[str]:
    """Return all that a fit says, the decision first.

    Args:
        record: Its figures.
    """
    lines = [field_headline(record)]
    lines += [_found(condition) for condition in record["conditions"]]
    for pair in record["together"]:
        first, second = pair["conditions"]
        lines.append(f"{first} and {second} go together (correlation {pair['correlation']:+.1f}).")
    lines += _equal(record["conditions"])
    if record["not_needed"]:
        least = ", ".join(_detectable(condition) for condition in record["not_needed"])
        lines.append(f"Not needed; what would have shown: {least}.")
    lines.append(_left(record))
    if record["accuracy"]:
        lines.append(accuracy_sentence(record["accuracy"]))
    return [*lines, *record["notes"]]


def field_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the last screen of a fit."""
    headline, *rest = field_sentences(record)
    return [headline, "", *(f"  {line}" for line in rest)]


def accuracy_sentence(accuracy: Mapping[str, Any]) -> str:
    """Return which accuracy to expect in the field, or why none is said.

    Args:
        accuracy: What a record says of it.
    """
    unmodified = percent(accuracy["unmodified"])
    if accuracy.get("refused"):
        return (
            f"No accuracy is expected, since {accuracy['refused']}. It is {unmodified} on labelled"
            f" images, and {percent(accuracy['fitted'])} under the fitted conditions alone."
        )
    return f"Expected accuracy in the field: {rate(accuracy)}; on labelled images {unmodified}."


def _found(row: Mapping[str, Any]) -> str:
    width, low, high = (_amount(row[key]) for key in ("width", "low", "high"))
    unit = f" {row['unit']}".rstrip()
    return f"{row['condition']}: {width}{unit} on average ({low} to {high})."


def _detectable(row: Mapping[str, Any]) -> str:
    if row["detectable"] is None:
        return f"{row['condition']} at no width"
    return f"{row['condition']} {_amount(row['detectable'])} {row['unit']}".rstrip()


def _equal(conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    sentences = []
    for row in conditions:
        for names in row["instead"]:
            sentences.append(f"{', '.join(names)} explain the field as well.")
    return list(dict.fromkeys(sentences))


def _left(record: Mapping[str, Any]) -> str:
    share = percent(record["unexplained"])
    if record["explained"]:
        if not record["conditions"]:
            return "What differs is within chance."
        return f"{share} of the squared distance is left, within chance and form."
    names = ", ".join(record["least_explained"][:3])
    return f"{share} of the squared distance is left. Look at the least explained images: {names}."


def _amount(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
