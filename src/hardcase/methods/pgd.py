"""Gradient attacks in pixel space: the yardsticks every other method is measured against."""

from __future__ import annotations

import math
from typing import Literal

from hardcase.errors import HardcaseError
from hardcase.methods.parts import method
from hardcase.objectives import CrossEntropy, Margin, targeted_objective
from hardcase.oracles import failure_oracle
from hardcase.registry import with_parts
from hardcase.searches.gradient import CarliniWagner, GradientAscent, sign, unit
from hardcase.spaces.pixel import L2, Linf, Pixels
from hardcase.types import Budget, Method


@method(
    "pgd",
    paper="Madry et al., ICLR 2018",
    cite="madry2018pgd",
    differences="8-bit rounding inside the loop; an image stops at its first failure",
)
def pgd(
    target: int | None = None,
    shape: tuple[int, int, int] | None = None,
    *,
    norm: Literal["linf", "l2"] = "linf",
    epsilon: float | None = None,
    step_size: float | None = None,
    gradients: int = 40,
    space: str = "",
    search: str = "",
    objective: str = "",
) -> Method:
    """Projected gradient descent in an L∞ or L2 ball around the image.

    Aleksander Madry, Aleksandar Makelov, Ludwig Schmidt, Dimitris Tsipras, Adrian Vladu. Towards
    Deep Learning Models Resistant to Adversarial Attacks. ICLR 2018.
    https://arxiv.org/abs/1706.06083

    Differences from the reference: every candidate is rounded to 8 bits (straight-through for the
    gradient), a seed stops at its first failure, and the L∞ radius is rounded down to whole grey
    levels so that the stored image obeys it.

    Args:
        norm: ``linf`` or ``l2``.
        epsilon: Radius of the ball, in units of [0, 1]; by default 0.3 for grey images, and for
            colour 8/255, in L2 0.5.
        step_size: Size of a step; by default 2.5 times the radius over the number of steps.
        space: Another space: its name, or ``file.py:name``.
    """
    epsilon = _radius(epsilon, norm, shape)
    if step_size is None:
        step_size = 2.5 * epsilon / gradients
    step = max(step_size, 0.5 / 255)
    ball: Linf | L2 = Linf(epsilon)
    walk = GradientAscent(step_size=step, direction=sign, jitter=epsilon)
    if norm == "l2":
        ball = L2(epsilon)
        walk = GradientAscent(step_size=step, direction=unit, jitter=epsilon / 100)
    base = Method(
        space=Pixels(ball),
        search=walk,
        objective=targeted_objective(target, CrossEntropy()),
        oracle=failure_oracle(target),
        needs="gradients",
        budget=Budget(gradients=gradients),
        details={"options": {"epsilon": epsilon, "step_size": step_size}},
    )
    return with_parts(base, space=space, search=search, objective=objective, shape=shape)


@method(
    "fgsm",
    paper="Goodfellow et al., ICLR 2015",
    cite="goodfellow2015fgsm",
    differences="the L∞ radius is rounded down to whole grey levels; networks see 8-bit images",
)
def fgsm(
    target: int | None = None,
    shape: tuple[int, int, int] | None = None,
    *,
    epsilon: float | None = None,
) -> Method:
    """Fast gradient sign method: a single step of `epsilon` along the sign of the loss gradient.

    Ian Goodfellow, Jonathon Shlens, Christian Szegedy. Explaining and Harnessing Adversarial
    Examples. ICLR 2015. https://arxiv.org/abs/1412.6572

    Args:
        epsilon: Size of the step, in units of [0, 1]; by default 0.3 for grey images, 8/255 for
            colour.
    """
    epsilon = _radius(epsilon, "linf", shape)
    return Method(
        space=Pixels(Linf(epsilon)),
        search=GradientAscent(step_size=epsilon, direction=sign),
        objective=targeted_objective(target, CrossEntropy()),
        oracle=failure_oracle(target),
        needs="gradients",
        budget=Budget(gradients=1),
        details={"options": {"epsilon": epsilon}},
    )


@method(
    "cw",
    paper="Carlini and Wagner, IEEE S&P 2017",
    cite="carlini2017cw",
    differences="box constraint by clamping instead of tanh; steps shrink with the nearest failure;"
    " 8-bit rounding inside the loop",
    toy={"steps": 20, "rounds": 3},
    explained_by=(CarliniWagner,),
)
def cw(
    target: int | None = None,
    *,
    steps: int = 60,
    rounds: int = 6,
    step_size: float = 0.02,
    confidence: float = 0.0,
) -> Method:
    """Smallest L2 perturbation that fails, its trade-off weight by bisection.

    Carlini and Wagner's L2 attack.

    Nicholas Carlini, David Wagner. Towards Evaluating the Robustness of Neural Networks. IEEE S&P
    2017. https://arxiv.org/abs/1608.04644

    Differences from the reference: pixels stay in [0, 1] by clamping instead of a tanh change of
    variable, the image is rounded to 8 bits inside the loop, and the weight starts at 1 and grows
    tenfold instead of starting at 0.001. Once an image has failed, its steps are no larger than
    half the change of a typical pixel of its nearest failure.
    """
    if not step_size > 0:
        raise HardcaseError(f"step_size is {step_size}; it must be above 0.")
    return Method(
        space=Pixels(L2(math.inf)),
        search=CarliniWagner(
            step_size=step_size, steps=steps, rounds=rounds, confidence=confidence
        ),
        objective=targeted_objective(target, Margin()),
        oracle=failure_oracle(target),
        until="budget",
        needs="gradients",
        budget=Budget(gradients=steps * rounds),
    )


RADIUS = {"linf": (0.3, 8 / 255), "l2": (0.3, 0.5)}
"""The default radius of grey images and of colour images: as usual on digits and on photographs."""


def _radius(stated: float | None, norm: str, shape: tuple[int, int, int] | None) -> float:
    """The user's radius, or the default radius of this kind of images."""
    if stated is None:
        return RADIUS[norm][shape is not None and shape[0] == 3]
    if not stated > 0:
        raise HardcaseError(f"epsilon is {stated}; it must be above 0.")
    if norm == "linf" and stated > 1:
        raise HardcaseError(
            f"epsilon is {stated:g}; images range over 0..1, so more than 1 limits nothing.",
            f"{stated:g} grey levels are written {stated:g}/255.",
            fix=f"--set method.epsilon={stated:g}/255",
        )
    return stated
