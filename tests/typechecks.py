"""The run-time type checker that conftest switches on for every function of hardcase.

Functions inside functions are left alone: they would be decorated anew at every call of the outer
one, which took half of the time of many tests. Where no annotation has a shape, beartype checks
the same types alone: jaxtyping binds the arguments of every call anew to remember its shapes.
"""

from functools import partial
from inspect import isclass, isfunction
from typing import get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, install_import_hook

check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))
_checked = jaxtyping.jaxtyped


def switch_on():
    """Check the arguments and shapes of what is imported from now on."""
    jaxtyping.jaxtyped = _outer
    install_import_hook(["hardcase", "hardcase_studies", "hardcase_teams"], "typechecks.check")


def _outer(made=None, *, typechecker):
    """`jaxtyping.jaxtyped`, for what is defined at the top of a module or in a class there."""
    if made is None:
        return partial(_outer, typechecker=typechecker)
    if "<locals>" in made.__qualname__:
        return made
    hints = _hints(made) if isfunction(made) else None
    if hints is None:
        return _checked(made, typechecker=typechecker)
    checked = typechecker(made)
    return _checked(checked, typechecker=None) if any(map(_has_shape, hints)) else checked


def _hints(function):
    """The types of arguments and result; None where only type checkers know one of the names."""
    try:
        hints, known = function.__annotations__.values(), function.__globals__
        return [eval(hint, known) if isinstance(hint, str) else hint for hint in hints]
    except NameError:
        return None


def _has_shape(hint):
    if isclass(hint) and issubclass(hint, AbstractArray):
        return True
    parts = hint if isinstance(hint, list) else get_args(hint)
    return any(map(_has_shape, parts))
