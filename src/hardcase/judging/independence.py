"""Whether a judge may judge a run: the same kind of images, no network of its own in the search, seeds it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hardcase.errors import Problem
from hardcase.judging.judge import Judge
from hardcase.judging.schooling import fingerprints
from hardcase.results import Run
from hardcase.store import read_images
from hardcase.subject import Subject

KNOWN = 0.01
"""Share of seeds that a judge may have learned from; data sets do hold some images twice."""


def check(run: Run, judge: Judge) -> None:
    """Raise the problem that forbids it."""
    _fits(run, judge)
    _took_no_part(run, judge)
    _never_seen(run, judge)


def _fits(run: Run, judge: Judge) -> None:
    config = judge.card["configuration"]
    own = (config["channels"], config["size"], config["size"], config["classes"])
    given = (*run.record["image"], len(run.record["classes"]))
    if own != given:
        shapes = ["{} x {} x {} with {} classes".format(*shape) for shape in (given, own)]
        raise Problem(
            f"the run has images of {shapes[0]}; the judge was made for {shapes[1]}.",
            fix="hardcase judge RUN without --judge trains one for the run's own data",
        )


def _took_no_part(run: Run, judge: Judge) -> None:
    used = _hashes(run.record.get("hashes") or {})
    own = {**judge.card["members"], "panel": judge.card["weights"]}
    names = {digest: name for name, digest in own.items()}
    names |= {Subject(net).hash: f"member {i}" for i, net in enumerate(judge.panel.members, 1)}
    for role, digest in used.items():
        if digest in names:
            raise Problem(
                f"the search used a network of this judge: its {role} is the judge's {names[digest]}.",
                "It would confirm its own mistakes.", fix="train another judge: hardcase train judge --seed N, then --judge",
            )  # fmt: skip


def _never_seen(run: Run, judge: Judge) -> None:
    seeds = read_images(run.seeds["image"])
    count = int(torch.isin(fingerprints(seeds), judge.panel.learned.cpu()).sum())
    if count > KNOWN * len(seeds):
        raise Problem(
            f"the judge has learned from {count} of the {len(seeds)} seeds.",
            "It knows them by heart and would find their neighbours valid whatever was done to them.",
            fix="a judge trained on another split: hardcase judge RUN without --judge picks it",
        )


def _hashes(record: Mapping[str, Any]) -> dict[str, str]:
    """Every network hash of a run, by the role it played."""
    flat: dict[str, str] = {}
    for role, value in record.items():
        if role == "data" or value is None:
            continue
        inner = (
            value
            if isinstance(value, Mapping)
            else dict(enumerate(value, 1))
            if isinstance(value, list)
            else {"": value}
        )
        flat |= {f"{role} {name}".strip(): str(digest) for name, digest in inner.items()}
    return flat
