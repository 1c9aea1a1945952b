"""Networks under test: loading, calling, wrapping and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.models.adapters import (
        Cached as Cached,
        LabelOnly as LabelOnly,
        Retrying as Retrying,
    )
    from hardcase.models.health import Health as Health
    from hardcase.models.load import (
        Loading as Loading,
        load_model as load_model,
        model_of as model_of,
    )
    from hardcase.models.quantised import bfloat16 as bfloat16, float16 as float16, int8 as int8
    from hardcase.models.subject import Subject as Subject
    from hardcase.models.zoo import (
        build_classifier as build_classifier,
        trained_classifier as trained_classifier,
    )
    from hardcase_teams.http import Http as Http
    from hardcase_teams.onnx import Onnx as Onnx

__getattr__, __dir__, __all__ = lazy(__name__)
