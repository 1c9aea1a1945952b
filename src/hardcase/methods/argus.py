"""ARGUS: mix a seed's VQ-VAE code with codes of other classes."""

from __future__ import annotations

from dataclasses import replace

from hardcase.errors import Problem
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.boundary import Bisection
from hardcase.searches.interpolation import Interpolation, Partners
from hardcase.types import Budget, Method, Space


def argus(*, space: Space, partners: Partners, mix: float = 0.3, queries: int = 30_000) -> Method:
    """Algorithm 1: every seed with every other-class training image, one interpolation each, quantised and decoded.

    Bin Duan, Matthew B. Dwyer, Guowei Yang. Generating Realistic, Diverse, and Fault-Revealing Inputs with Latent Space
    Interpolation for Testing Deep Neural Networks. 2025. λ is `mix`.

    Differences from the paper: by default the VQ-VAE's codebook follows its users (EMA, started from encoder outputs)
    and no discriminators are used; the paper's own setting is the generator ``vqvae:gradient`` trained jointly at the same
    λ (``hardcase train vqvae --kind gradient --mix 0.3``). Seeds whose reconstruction already fails are set aside and
    counted, since they would count as errors of the mixture; images are rounded to 8 bits.
    """
    if not 0 < mix <= 1:
        raise Problem(f"mix is {mix}; a share of the partner lies above 0 and at most at 1.")
    return Method(
        name="argus",
        space=space,
        search=Interpolation(partners=partners, mix=mix),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="scores",
        keep="best-per-label",
        budget=Budget(queries=1 + queries),
        details={"mix": mix},
    )


def argus_paper(
    *, space: Space, partners: Partners, mix: float = 0.2, queries: int = 30_000
) -> Method:
    """Algorithm 1 with the generator as published: 50 epochs with the rate cut every 20, codebook losses .25 and .75, then
    trained jointly with a latent and an image discriminator at the same `mix`, partners being of another class.

    The weights of the two adversarial losses are not stated; ours are 0.01 (``hardcase train vqvae --latent-weight ...``
    trains others, which ``--generator vqvae:FOLDER`` then uses).
    """
    return replace(
        argus(space=space, partners=partners, mix=mix, queries=queries), name="argus@paper"
    )


def argus_adaptive(
    *,
    space: Space,
    partners: Partners,
    rounds: int = 3,
    halvings: int = 7,
    blocks: tuple[int, ...] = (8, 1),
) -> Method:
    """Our variant of ARGUS: for near partners of every other class, the smallest share that makes the subject say that class.

    Same generator, same black box; bisection replaces the fixed λ, so that each wrong label is reached with as little of
    the partner as possible. Then places of the code grid return to the seed's own code, in blocks of the sizes `blocks`,
    wherever the wrong label stays; ``blocks=()`` leaves that out.
    """
    if rounds < 1 or halvings < 0 or any(size < 1 for size in blocks):
        raise Problem(
            f"rounds is {rounds}, halvings {halvings}, blocks {blocks}; one round and blocks of 1 are the least."
        )
    walk = Bisection(partners=partners, rounds=rounds, halvings=halvings, blocks=blocks)
    most = walk.questions(partners.take(partners.label.new_zeros(1)).shape[1:])
    return Method(
        name="argus-adaptive",
        space=space,
        search=walk,
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        keep="best-per-label",
        budget=Budget(queries=1 + (len(partners.by_class) - 1) * most),
    )
