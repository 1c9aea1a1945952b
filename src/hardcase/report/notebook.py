"""A run, or one finding, as a notebook shows it: the funnel and a few images."""

from __future__ import annotations

from html import escape

from hardcase.report.pictures import difference, reduced, uri
from hardcase.report.words import Sheet, triples
from hardcase.runs.results import Finding, Run

FEW = 6
"""Findings that are shown."""
WIDTH = 112
"""Pixels of an image's side."""


def run_html(run: Run) -> str:
    """The summary of a run, with a few of its findings beside their seeds.

    Args:
        run: A stored run.
    """
    rows = triples(Sheet.of(run), FEW) if len(run) else []
    head = escape(repr(run))
    cards = "".join(finding_html(run[row]) for row in rows)
    return f"<div><b>{head}</b><pre>{escape(run.summary())}</pre>{cards}</div>"


def finding_html(finding: Finding) -> str:
    """Seed, finding and difference side by side, and what the model says.

    Args:
        finding: One stored finding.
    """
    seed = finding.seed["image"]["bytes"]
    found = finding.row["image"]["bytes"]
    shown = (
        (finding.classes[finding.row["expected"]], seed),
        (finding.classes[finding.row["predicted"]], found),
        ("difference", difference(seed, found)),
    )
    pictures = "".join(
        f'<figure style="display:inline-block;margin:2px;text-align:center">'
        f'<img alt="{escape(word)}" width="{WIDTH}" style="image-rendering:pixelated" '
        f'src="{uri(reduced(data, WIDTH))}"><figcaption>{escape(word)}</figcaption></figure>'
        for word, data in shown
    )
    return f'<div style="display:inline-block;margin:4px">{pictures}</div>'
