"""Latte: single steps in a VQ-VAE's code, from a seed toward images of other classes."""

from __future__ import annotations

from hardcase.errors import Problem
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.registry import method
from hardcase.searches.interpolation import AnchoredSteps, Partners
from hardcase.types import Budget, Method, Space

__all__ = ["latte"]


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
        partners: Codes of training images, as `hc.spaces.partners` collects them.
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
