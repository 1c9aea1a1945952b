"""Gradient attacks in pixel space: the yardsticks every other method is measured against."""

from __future__ import annotations

import math

from hardcase.errors import Problem
from hardcase.objectives import CrossEntropy, Margin, TargetMargin
from hardcase.oracles import LeavesLabel, Reaches
from hardcase.searches.carlini_wagner import CarliniWagner
from hardcase.searches.gradient import Direction, GradientAscent, sign, unit
from hardcase.spaces.pixel import L2, Linf, Pixels
from hardcase.types import Budget, Method


def pgd(
    *,
    norm: str = "linf",
    epsilon: float = 0.3,
    stride: float | None = None,
    gradients: int = 40,
    target: int | None = None,
) -> Method:
    """Projected gradient descent: steps uphill in the loss, pulled back into a norm ball around the seed.

    Aleksander Madry, Aleksandar Makelov, Ludwig Schmidt, Dimitris Tsipras, Adrian Vladu. Towards Deep Learning Models
    Resistant to Adversarial Attacks. ICLR 2018. https://arxiv.org/abs/1706.06083

    Differences from the reference: every look is rounded to 8 bits (straight-through for the gradient), a seed stops at
    its first failure, and the L∞ radius is rounded down to whole grey levels so that the stored image obeys it.
    """
    _positive(epsilon=epsilon)
    balls: dict[str, tuple[Linf | L2, Direction]] = {
        "linf": (Linf(epsilon), sign),
        "l2": (L2(epsilon), unit),
    }
    if norm not in balls:
        raise Problem(f"norm is {norm!r}; it is one of {', '.join(balls)}.")
    ball, direction = balls[norm]
    stride = 2.5 * epsilon / gradients if stride is None else stride
    jitter = epsilon if norm == "linf" else epsilon / 100
    return Method(
        name="pgd",
        space=Pixels(ball),
        search=GradientAscent(stride=max(stride, 0.5 / 255), direction=direction, jitter=jitter),
        objective=CrossEntropy() if target is None else TargetMargin(target),
        oracle=LeavesLabel() if target is None else Reaches(target),
        needs="gradients",
        budget=Budget(gradients=gradients),
    )


def fgsm(*, epsilon: float = 0.3, target: int | None = None) -> Method:
    """The fast gradient sign method: one step of `epsilon` along the sign of the loss's gradient.

    Ian Goodfellow, Jonathon Shlens, Christian Szegedy. Explaining and Harnessing Adversarial Examples. ICLR 2015.
    https://arxiv.org/abs/1412.6572
    """
    _positive(epsilon=epsilon)
    return Method(
        name="fgsm",
        space=Pixels(Linf(epsilon)),
        search=GradientAscent(stride=epsilon, direction=sign),
        objective=CrossEntropy() if target is None else TargetMargin(target),
        oracle=LeavesLabel() if target is None else Reaches(target),
        needs="gradients",
        budget=Budget(gradients=1),
    )


def cw(
    *,
    steps: int = 60,
    rounds: int = 6,
    stride: float = 0.02,
    confidence: float = 0.0,
    target: int | None = None,
) -> Method:
    """Carlini and Wagner's L2 attack: the smallest change that fails, its trade-off weight found by bisection.

    Nicholas Carlini, David Wagner. Towards Evaluating the Robustness of Neural Networks. IEEE S&P 2017.
    https://arxiv.org/abs/1608.04644

    Differences from the reference: the box is kept by clamping instead of a tanh change of variable, the image is
    rounded to 8 bits inside the loop, and the weight starts at 1 and grows tenfold instead of starting at 0.001.
    """
    _positive(stride=stride)
    return Method(
        name="cw",
        space=Pixels(L2(math.inf)),
        search=CarliniWagner(stride=stride, steps=steps, rounds=rounds, confidence=confidence),
        objective=Margin() if target is None else TargetMargin(target),
        oracle=LeavesLabel() if target is None else Reaches(target),
        until="budget",
        needs="gradients",
        budget=Budget(gradients=steps * rounds),
    )


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise Problem(f"{name} is {value}; it must be above 0.")
