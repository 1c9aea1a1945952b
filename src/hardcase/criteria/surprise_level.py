"""Factories of the criteria that compare whole traces: options in, plan out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hardcase.criteria.anatomy import Anatomy
from hardcase.criteria.building import Plan
from hardcase.criteria.dispersion import Dispersion
from hardcase.criteria.neighbour import Novelty
from hardcase.criteria.nlc import Spread
from hardcase.criteria.profile import Profile
from hardcase.criteria.surprise import Distance, Likelihood, Mahalanobis, SurpriseModel
from hardcase.criteria.surprise_coverage import MeanSurprise, SurpriseBuckets
from hardcase.criteria.traces import Traces
from hardcase.criteria.units import Selection, select
from hardcase.errors import Problem

Given = Mapping[str, Any]
Fit = Callable[[Traces, Given], SurpriseModel]


def lsa(anatomy: Anatomy, given: Given) -> Plan:
    return _mean(anatomy, given, _likelihood)


def dsa(anatomy: Anatomy, given: Given) -> Plan:
    return _mean(anatomy, given, _distance)


def mdsa(anatomy: Anatomy, given: Given) -> Plan:
    return _mean(anatomy, given, _mahalanobis)


def lsc(anatomy: Anatomy, given: Given) -> Plan:
    return _buckets(anatomy, given, _likelihood)


def dsc(anatomy: Anatomy, given: Given) -> Plan:
    return _buckets(anatomy, given, _distance)


def mdsc(anatomy: Anatomy, given: Given) -> Plan:
    return _buckets(anatomy, given, _mahalanobis)


def neighbour(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda _: Novelty(selection, given["threshold"]))


def nlc(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda _: Spread(selection))


def lscd(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda p: Dispersion.fit(selection, _traces(p, selection)), traces=(selection,))


def _mean(anatomy: Anatomy, given: Given, fit: Fit) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    distances = (selection,) if fit is _distance else ()
    return Plan(
        selection,
        lambda profile: MeanSurprise(selection, _model(profile, selection, given, fit)),
        traces=(selection,),
        distances=distances,
    )


def _buckets(anatomy: Anatomy, given: Given, fit: Fit) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    if given["n"] < 1 + given["overflow"]:
        raise Problem(f"surprise coverage with n={given['n']} has no bucket between its bounds.")

    def make(profile: Profile | None) -> SurpriseBuckets:
        model = _model(profile, selection, given, fit)
        lower, upper = _bounds(model, given)
        return SurpriseBuckets(selection, model, lower, upper, given["n"], given["overflow"])

    return Plan(selection, make, traces=(selection,), distances=(selection,) if fit is _distance else ())


def _model(profile: Profile | None, selection: Selection, given: Given, fit: Fit) -> SurpriseModel:
    assert profile is not None
    options = tuple((key, given[key]) for key in ("per", "floor", "most", "search", "squared") if key in given)
    model: SurpriseModel = profile.once((fit, selection, options), lambda: fit(_traces(profile, selection), given))
    return model


def _bounds(model: SurpriseModel, given: Given) -> tuple[float, float]:
    named = {key: given[key] for key in ("lower", "upper")}
    if "train" in named.values():
        seen = model.training()
        seen = seen[seen.isfinite()]
        if not len(seen):
            raise Problem(
                "the training traces have no surprise of their own, so bounds must be given.", fix="lower=0,upper=..."
            )
        named = {
            k: (float(seen.amin() if k == "lower" else seen.amax()) if v == "train" else v) for k, v in named.items()
        }
    lower, upper = (_number(key, value) for key, value in named.items())
    if not upper > lower:
        raise Problem(
            f"surprise coverage needs lower < upper; they are {lower:g} and {upper:g}.", fix="lower=0,upper=..."
        )
    return lower, upper


def _number(key: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError as error:
        raise Problem(f"{key}={value} is neither a number nor 'train'.") from error


def _likelihood(traces: Traces, given: Given) -> SurpriseModel:
    return Likelihood.fit(traces, floor=given["floor"], per_class=given["per"] == "class", most=given["most"])


def _distance(traces: Traces, given: Given) -> SurpriseModel:
    return Distance.fit(traces, search=given["search"])


def _mahalanobis(traces: Traces, given: Given) -> SurpriseModel:
    return Mahalanobis.fit(traces, per_class=given["per"] == "class", squared=given["squared"])


def _traces(profile: Profile | None, selection: Selection) -> Traces:
    assert profile is not None
    return profile.trace(selection)
