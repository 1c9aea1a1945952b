"""Coverage criteria: diagnostics of an image set and guides of a search, never a pass mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.criteria.criterion import (
        CoverageResult as CoverageResult,
        CriterionPlan as CriterionPlan,
        Measure as Measure,
        Rule as Rule,
        Spec as Spec,
        build_criteria as build_criteria,
        parse as parse,
        requirements as requirements,
        toward as toward,
    )
    from hardcase.criteria.mcdc import ssc as ssc, svc as svc, vsc as vsc, vvc as vvc
    from hardcase.criteria.network import (
        LayerGraph as LayerGraph,
        Selection as Selection,
        select as select,
        trace_layers as trace_layers,
    )
    from hardcase.criteria.neuron import (
        kmnc as kmnc,
        layer_snac as layer_snac,
        nbc as nbc,
        nc as nc,
        snac as snac,
        tknc as tknc,
        tknp as tknp,
    )
    from hardcase.criteria.profile import Profile as Profile, fit_profile as fit_profile
    from hardcase.criteria.surprise import (
        Distance as Distance,
        Likelihood as Likelihood,
        Mahalanobis as Mahalanobis,
    )
    from hardcase.criteria.surprise_coverage import (
        dsa as dsa,
        dsc as dsc,
        lsa as lsa,
        lsc as lsc,
        mdsa as mdsa,
        mdsc as mdsc,
    )
    from hardcase.criteria.trace import lscd as lscd, neighbour as neighbour, nlc as nlc

__getattr__, __dir__, __all__ = lazy(__name__)
