"""ARGUS: mix a seed's VQ-VAE code with codes of other classes."""

from __future__ import annotations

from hardcase.errors import Problem
from hardcase.methods.parts import method
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.registry import Preset
from hardcase.searches.boundary import Bisection
from hardcase.searches.interpolation import Interpolation, Partners
from hardcase.types import Budget, Method, Space

__all__ = ["argus", "argus_adaptive"]

PAPER = "Duan, Dwyer and Yang, 2025"


@method(
    "argus",
    paper=PAPER,
    cite="duan2025argus",
    differences="codebook updated by exponential moving averages (the paper trains it by gradient) "
    "and no discriminators by default; seeds whose reconstruction fails are set aside",
    generator="vqvae",
    toy={"mix": 0.7},
    presets={
        "paper": Preset(
            summary="ARGUS with its generator as published: codebook trained by gradient, then "
            "jointly with two discriminators",
            options={"mix": 0.2},
            differences="network sizes and the weights of the adversarial losses, which the paper "
            "does not state, are ours; seeds whose reconstruction fails are set aside",
            facts={"generator": "vqvae:gradient", "joint": True},
        )
    },
)
def argus(space: Space, partners: Partners, *, mix: float = 0.3, queries: int = 30_000) -> Method:
    """Every seed interpolated once with every training image of another class in a VQ-VAE's code.

    Algorithm 1: the interpolated codes are quantised and decoded; λ is `mix`.

    Bin Duan, Matthew B. Dwyer, Guowei Yang. Generating Realistic, Diverse, and Fault-Revealing
    Inputs with Latent Space Interpolation for Testing Deep Neural Networks. 2025.

    Differences from the paper: its own generator is ``vqvae:gradient`` trained jointly at the same
    λ, which ``@paper`` uses: 50 epochs, the rate cut every 20, codebook losses .25 and .75, then
    with a latent and an image discriminator, partners being of another class. The weights of the
    two adversarial losses are not stated; ours are 0.01 (``hardcase train vqvae --latent-weight``
    trains others, which ``--generator vqvae:FOLDER`` then uses). Seeds whose reconstruction already
    fails would count as errors of the mixture.

    Args:
        mix: Interpolation weight of the partner's code.
    """
    if not 0 < mix <= 1:
        raise Problem(f"mix is {mix}; a share of the partner lies above 0 and at most at 1.")
    return Method(
        space=space,
        search=Interpolation(partners=partners, mix=mix),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        keep="best-per-label",
        budget=Budget(queries=1 + queries),
        details={"mix": mix},
    )


@method(
    "argus-adaptive",
    paper="ours, after ARGUS",
    cite="duan2025argus",
    differences="bisection of the interpolation weight replaces ARGUS's fixed one; code positions "
    "that are not needed return to the seed's code",
    generator="vqvae",
)
def argus_adaptive(
    space: Space,
    partners: Partners,
    *,
    rounds: int = 3,
    halvings: int = 7,
    blocks: tuple[int, ...] = (8, 1),
) -> Method:
    """Smallest interpolation weight, over the fewest code positions, that reaches each other class.

    Our variant of ARGUS, for near partners of every other class. Same generator, same black box;
    bisection replaces the fixed λ, so that each wrong label is reached with as little of the
    partner as possible. Then places of the code grid return to the seed's own code, in blocks of
    the sizes `blocks`, wherever the wrong label stays; ``blocks=()`` leaves that out.

    Args:
        rounds: Nearest partners that are tried per class.
        halvings: Bisection steps per partner.
        blocks: How many code positions are taken back at once, one pass each.
    """
    if rounds < 1 or halvings < 0 or any(size < 1 for size in blocks):
        raise Problem(
            f"rounds is {rounds}, halvings {halvings}, blocks {blocks}; "
            "one round and blocks of 1 are the least."
        )
    walk = Bisection(partners=partners, rounds=rounds, halvings=halvings, blocks=blocks)
    most = walk.questions(partners.take(partners.label.new_zeros(1)).shape[1:])
    return Method(
        space=space,
        search=walk,
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        keep="best-per-label",
        budget=Budget(queries=1 + (len(partners.by_class) - 1) * most),
    )
