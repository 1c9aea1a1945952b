"""Networks under test: how they are loaded, asked, wrapped and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.models.health import Health
    from hardcase.models.http import Http
    from hardcase.models.load import Loading, load_model, model_of
    from hardcase.models.onnx import Onnx
    from hardcase.models.quantised import bfloat16, float16, int8
    from hardcase.models.subject import Subject
    from hardcase.models.wrappers import Cached, LabelOnly, Retrying
    from hardcase.models.zoo import build_classifier, trained_classifier

__getattr__, __dir__, __all__ = lazy(__name__)
