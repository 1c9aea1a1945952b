"""Coverage criteria: diagnostics of an image set and guides of a search, never a pass mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.criteria.criterion import (
        CoverageResult,
        CriterionPlan,
        Measure,
        Rule,
        Spec,
        build_criteria,
        parse,
        requirements,
        toward,
    )
    from hardcase.criteria.mcdc import ssc, svc, vsc, vvc
    from hardcase.criteria.network import LayerGraph, Selection, select, trace_layers
    from hardcase.criteria.neuron import kmnc, layer_snac, nbc, nc, snac, tknc, tknp
    from hardcase.criteria.profile import Profile, fit_profile
    from hardcase.criteria.surprise import Distance, Likelihood, Mahalanobis
    from hardcase.criteria.surprise_coverage import dsa, dsc, lsa, lsc, mdsa, mdsc
    from hardcase.criteria.trace import lscd, neighbour, nlc

__getattr__, __dir__, __all__ = lazy(__name__)
