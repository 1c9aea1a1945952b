"""The run-time type checker that conftest switches on for every function of hardcase.

Functions inside functions are left alone: they would be decorated anew at every call of the outer
one, which took half of the time of many tests.
"""

from functools import partial

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
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
    return _checked(made, typechecker=typechecker)
