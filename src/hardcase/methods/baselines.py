"""Baselines of ours, after Latte and Mimicry: toward other classes in a VQ-VAE's code, or by
another class's conditioning in the later stages of a conditional GAN.
"""

from __future__ import annotations

from hardcase.errors import Problem
from hardcase.methods.parts import method
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.interpolation import AnchoredSteps, GrowingMix, Partners
from hardcase.spaces.activations import Activations, InStages, Styles, conditioned_stages
from hardcase.types import Budget, Method, Space

__all__ = ["latte", "style_mixing"]


@method(
    "latte",
    paper="ours, after Duan, Dwyer and Yang, 2026 (Latte)",
    cite="duan2026latte",
    differences="built from the abstract alone: how many anchors and how long a step, and our "
    "VQ-VAE, are ours; seeds whose reconstruction fails are set aside",
    generator="vqvae",
    toy={"anchors": 20, "step_sizes": (0.5, 0.8)},
)
def latte(
    space: Space,
    partners: Partners,
    *,
    anchors: int = 100,
    step_sizes: tuple[float, ...] = (0.2, 0.4, 0.6),
) -> Method:
    """One step in a VQ-VAE's code toward each of a few random training images of other classes.

    A baseline of ours, after Bin Duan, Matthew B. Dwyer, Guowei Yang. Latent Anchor-Driven Test
    Generation for Deep Neural Networks. 2026. https://arxiv.org/abs/2606.04310

    The seed's code z moves once, to z + t (anchor - z), and is then quantised and decoded: no step
    builds on another. Differences: of the paper only the abstract was at hand, which states neither
    the number of anchors nor the step sizes t. ARGUS, by the same authors, visits every partner at
    one t instead.

    Args:
        space: Where candidates live, e.g. ``hc.spaces.Grid(vqvae)``.
        anchors: Anchors drawn for each seed, with replacement.
        step_sizes: The values of t, tried for each anchor.
    """
    if anchors < 1 or not step_sizes or not all(0 < t <= 1 for t in step_sizes):
        raise Problem(
            f"anchors is {anchors}, step_sizes {step_sizes}; there is at least one anchor, and"
            " steps lie above 0 and at most at 1."
        )
    return Method(
        space=space,
        search=AnchoredSteps(partners=partners, anchors=anchors, step_sizes=step_sizes),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        keep="best-per-label",
        budget=Budget(queries=1 + anchors * len(step_sizes)),
    )


@method(
    "style-mixing",
    paper="ours, after Weißl et al., 2024 (Mimicry)",
    cite="weissl2024mimicry",
    differences="a class-conditional GAN instead of a StyleGAN, so that styles are the class's "
    "scales and shifts; every other class is tried, whatever its probability",
    generator="gan",
    seeds="generator",
    toy={"untouched": 0},
)
def style_mixing(
    space: Activations, *, untouched: int = 1, steps: int = 4, halvings: int = 3
) -> Method:
    """Samples of a conditional GAN whose later stages turn, step by step, to another class.

    A baseline of ours, after Oliver Weißl et al. Targeted Deep Learning System Boundary Testing.
    2024. https://arxiv.org/abs/2408.06258 (first version: Deep Learning System Boundary Testing
    through Latent Space Style Mixing)

    The seed's latent code and class stay in the early stages. For every other class the mix grows
    from the last stage on until the label flips; bisection then finds the smallest such mix.
    Differences: Mimicry mixes styles of a StyleGAN, which carry a second latent code too, switches
    whole layers at once, and tries the classes to which the subject gives some probability.

    Args:
        space: Activations of a conditional generator.
        untouched: Conditioned stages, counted from the first, that keep the seed's class.
        steps: Mixes that are tried per stage.
        halvings: Bisection steps after the first failing mix.
    """
    stages = conditioned_stages(space.generator, space.classes)
    if not 0 <= untouched < len(stages) or steps < 1 or halvings < 0:
        raise Problem(
            f"untouched is {untouched}, steps {steps}, halvings {halvings}; the generator has"
            f" {len(stages)} stages that are told the class, and one of them is mixed at least."
        )
    assert isinstance(space.generator, InStages)
    mixed = stages[untouched:]
    per_class = len(mixed) * steps + halvings
    return Method(
        space=Styles(space.generator, mixed, classes=space.classes),
        search=GrowingMix(steps=steps, halvings=halvings),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        keep="best-per-label",
        budget=Budget(queries=1 + (space.classes - 1) * per_class),
        details={"stages": list(mixed)},
    )
