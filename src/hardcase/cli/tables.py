"""What ``hardcase list`` can show: where each table is, and the two that live here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of ``hardcase list metrics``."""

    name: str
    summary: str
    needs: str
    paper: str = ""
    laws: tuple[str, ...] = ()


_WILSON = "Wilson's interval, JASA 1927"

METRICS = (
    Measure(name="usable", summary="seeds that the subject classifies rightly, of all seeds", needs="labels"),
    Measure(name="attempted", summary="usable seeds that were searched from", needs="a run"),
    Measure(name="failing", summary="seeds with a finding that leaves their label, of those attempted", needs="a run", paper=_WILSON),
    Measure(name="valid", summary="seeds with a failing finding that looks like the data", needs="a judge", paper=_WILSON),
    Measure(name="label_kept", summary="seeds with a failing finding that still is what the seed was", needs="a judge", paper=_WILSON),
    Measure(name="confirmed", summary="seeds with one finding that is failing, valid and label kept", needs="a judge", paper=_WILSON),
    Measure(name="distinct", summary="groups of confirmed findings that look like one fault", needs="a judge"),
    Measure(name="distance", summary="how far a finding is from its seed in the method's own space", needs="a run"),
    Measure(name="l2", summary="Euclidean distance of a finding from its seed in pixels", needs="a run"),
    Measure(name="linf", summary="largest change of a pixel of a finding", needs="a run"),
    Measure(name="queries", summary="images given to the subject, per seed and per finding", needs="a run"),
    Measure(name="gradients", summary="images whose gradient was asked for, per seed", needs="a run"),
)  # fmt: skip

JUDGES = (
    Measure(
        name="panel",
        summary="valid and label kept, by classifiers that took no part in any search, neighbours and a likelihood",
        needs="the train split of the data; hardcase train judge",
        laws=("refuses a search that used its members", "learns nothing from the seeds' split"),
    ),
    Measure(
        name="distinct",
        summary="groups of confirmed findings that look like one fault, in the panel's features",
        needs="a panel",
        paper="Campello, Moulavi and Sander: HDBSCAN, PAKDD 2013",
    ),
)

WHERE = {
    "methods": "hardcase.methods.catalogue:METHODS",
    "criteria": "hardcase.criteria.catalogue:CRITERIA",
    "metrics": "hardcase.cli.tables:METRICS",
    "data": "hardcase.data.catalogue:TABLE",
    "models": "hardcase.zoo.catalogue:MODELS",
    "generators": "hardcase.generators.catalogue:GENERATORS",
    "spaces": "hardcase.spaces.catalogue:SPACES",
    "searches": "hardcase.searches.catalogue:SEARCHES",
    "judges": "hardcase.judges.catalogue:JUDGES",
    "experiments": "hardcase.experiments.catalogue:EXPERIMENTS",
}


def rows(kind: str) -> list[Any]:
    """The rows of a table, whether it is kept by name or in order."""
    module, _, name = WHERE[kind].partition(":")
    table: Mapping[str, Any] | Iterable[Any] = getattr(import_module(module), name)
    return list(table.values() if isinstance(table, Mapping) else table)
