"""Natural failures: another appearance of the image that the model alone misreads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from hardcase.errors import HardcaseError
from hardcase.methods.parts import method
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.registry import built, with_parts
from hardcase.searches.black_box import Evolution, SurrogateGradients
from hardcase.searches.gradient import AdamAscent
from hardcase.spaces.appearance import Appearance, appearance
from hardcase.types import Budget, Method, Model, Space

PAPER = "ours, after DeepXplore (Pei et al. 2017), Song et al. 2018 and stAdv (Xiao et al. 2018)"
CITE = ("pei2017deepxplore", "song2018unrestricted", "xiao2018spatially")
TARGET_MARGIN = 12.0
"""The margin that witnesses must keep, in logits; chosen on the development half of mnist5k."""
SMALL = 64
"""Up to this side an image counts as small: figures bend, and light hardly matters."""


@method("natural", paper=PAPER, cite=CITE, witnesses="default", toy={"space": "warp*light"})
def natural(
    shape: tuple[int, int, int],
    *,
    space: str = "auto",
    gradients: int | None = None,
    step_size: float = 0.1,
    bisections: int = 6,
    target_margin: float | None = None,
    search: str = "",
    objective: str = "",
) -> Method:
    """Bend and relight the original image until the model leaves a label that others keep.

    Adam on the code of a space of appearance raises the logit margin of the best wrong class; with
    witnesses, what they lack to keep the label is subtracted. From the first (witnessed) failure
    the way back to the seed is halved, so that the change that is stored is about the smallest on
    that way.

    Args:
        space: A product of warp, camera, light, weather, focus and sensor; ``auto`` takes a warp
            for small images and warp and light for photographs. A user's space is ``file.py:name``.
        gradients: Budget per original; 100 for small images, 60 for photographs by default.
        step_size: Step of Adam, in units of each coordinate's natural range.
        bisections: Halvings of the way back toward the original.
        target_margin: Logits by which witnesses should keep the label where the budget allows; by
            default 12 for small images, for photographs no more than the run's margin.
    """
    built_space = _space(space, shape)
    usual = (60, 0.0)
    if max(shape[1:]) <= SMALL:
        usual = (100, TARGET_MARGIN)
    if gradients is None:
        gradients = usual[0]
    if target_margin is None:
        target_margin = usual[1]
    built_method = Method(
        space=built_space,
        target_margin=target_margin,
        search=AdamAscent(step_size=step_size, bisections=bisections),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="gradients",
        budget=Budget(queries=1 + gradients + bisections, gradients=gradients),
        details={"space": _record(built_space), "options": {"gradients": gradients}},
    )
    return with_parts(built_method, search=search, objective=objective)


@method(
    "natural-blackbox", paper=PAPER, cite=CITE, witnesses="default", toy={"space": "warp*light"}
)
def natural_blackbox(
    shape: tuple[int, int, int],
    subject: Model | None = None,
    surrogates: Sequence[Model] = (),
    *,
    space: str = "auto",
    queries: int | None = None,
    search: Literal["auto", "surrogates", "evolution"] = "auto",
    step_size: float = 0.1,
    noise: float | None = None,
    pairs: int = 10,
    spread: float = 0.4,
    bisections: int = 8,
) -> Method:
    """`natural` by queries alone, with scores or with labels.

    Where networks that stand in for the model can be had (small grey images with a training
    split), their gradients are followed, corrected by the model's answers, together with the
    witnesses' gradients. Elsewhere it is an evolution strategy whose spread grows until something
    fails.

    Args:
        subject: The network under test; a run fills it in.
        surrogates: Networks whose gradients stand for the model's; a run fills them in.
        space: As for `natural`.
        queries: Budget per original; by default 400, with surrogates and scores 200.
        search: ``surrogates``, ``evolution``, or whichever can be had.
        step_size: Step of Adam, in units of each coordinate's natural range.
        noise: Distance of the extra query from the current point, to learn what surrogates miss;
            by default 0.03, with labels alone 0.05.
        pairs: Antithetic pairs of candidates per step of the evolution strategy.
        spread: First standard deviation of its candidates, in units of the natural range.
        bisections: Halvings of the way back toward the original.
    """
    if search == "surrogates" and not surrogates:
        raise HardcaseError(
            "nobody can stand in for this model: only small grey images with a training split have"
            " such networks.",
            fix="--set method.search=evolution",
        )
    space_built = _space(space, shape)
    evolving = Method(
        space=space_built,
        search=Evolution(pairs=pairs, spread=spread, growth=1.5, most=1.5, bisections=bisections),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        budget=Budget(queries=queries or 400),
        details={
            "space": _record(space_built),
            "options": {"queries": queries or 400, "search": "evolution"},
        },
    )
    if search == "evolution" or not surrogates:
        return evolving
    usual, source = 200, SurrogateGradients(count=len(surrogates), noise=noise or 0.03)
    if subject is not None and subject.offers == "label":
        usual = 400
        source = replace(source, noise=noise or 0.05, learns=False, scale=4.0)
    return replace(
        evolving,
        target_margin=TARGET_MARGIN,
        search=AdamAscent(step_size=step_size, bisections=bisections, source=source),
        closed=True,
        surrogates=tuple(surrogates),
        budget=Budget(queries=queries or usual),
        details={
            "space": _record(space_built),
            "surrogates": [surrogate.hash for surrogate in surrogates],
            "options": {"queries": queries or usual, "search": "surrogates"},
        },
    )


def _space(text: str, shape: tuple[int, int, int]) -> Space:
    if text == "auto":
        text = "warp*light"
        if max(shape[1:]) <= SMALL and shape[0] == 1:
            text = "warp"
    if text.rpartition(":")[0].endswith(".py"):
        named_space: Space = built("space", text, shape)
        return named_space
    return appearance(text, shape=shape)


def _record(space: Space) -> dict[str, Any]:
    """What run.json says of the space, for whoever builds it again."""
    if isinstance(space, Appearance):
        return space.to_record()
    return {"name": space.name}
