"""The laws that parts must pass, shipped so that third parties run the same ones on theirs.

``check_method(resolve("method", "mine.py:method"))`` (or a function that builds one),
``check_space(my_space)``, ``check_criterion(...)`` and ``check_judge(my_judge, pairs)`` raise
AssertionError with what they saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.testing.judges import check_judge as check_judge
    from hardcase.testing.methods import check_method as check_method
    from hardcase.testing.parts import (
        check_criterion as check_criterion,
        check_pull as check_pull,
        check_space as check_space,
    )
    from hardcase.testing.toys import World as World, toy_world as toy_world

__getattr__, __dir__, __all__ = lazy(__name__)
