"""The methods that can be named, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hardcase.methods.sinvad_rows import ROWS as SINVAD
from hardcase.methods.whitebox import ROWS as WHITEBOX


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One line of ``hardcase list methods``. `where` is ``module:function`` in this folder.

    The function's keyword arguments are the method's options (``--set method.NAME=...``), except those that the
    campaign fills in by name: `space` (of a `generator` of this kind), `partners` (codes of training images in that
    space), `subject`, `peers`, `profile`, `target`. `peers`
    says what other models it compares with: "none", "wanted" (it has a form without) or "quantised" (an 8-bit copy of the
    subject where none is given). `joint`: the generator is trained with discriminators at the option `mix`. `seeds` come
    from the "data" or are fresh samples of the "generator".
    """

    name: str
    summary: str
    needs: str
    paper: str
    where: str
    budget: str
    cite: str
    generator: str = ""
    joint: bool = False
    peers: str = "none"
    seeds: str = "data"
    differences: str = ""
    laws: tuple[str, ...] = (
        "finds known failures",
        "every finding fails by its own oracle",
        "images in [0, 1]",
        "same seed, same findings",
        "nothing outside is changed",
        "budget holds",
        "one seed or many",
    )


METHODS = {
    row.name: row
    for row in (
        Recipe(
            name="pgd",
            summary="projected gradient descent in an L∞ or L2 ball around the seed",
            needs="gradients",
            paper="Madry et al., ICLR 2018",
            where="pgd:pgd",
            budget="40 gradients a seed",
            cite="madry2018pgd",
            differences="8-bit rounding inside the loop; a seed stops at its first failure",
        ),
        Recipe(
            name="fgsm",
            summary="one step along the sign of the gradient",
            needs="gradients",
            paper="Goodfellow et al., ICLR 2015",
            where="pgd:fgsm",
            budget="1 gradient a seed",
            cite="goodfellow2015fgsm",
            differences="the L∞ radius is rounded down to whole grey levels; networks see 8-bit pictures",
        ),
        Recipe(
            name="cw",
            summary="the smallest L2 change that fails, its weight found by bisection",
            needs="gradients",
            paper="Carlini and Wagner, IEEE S&P 2017",
            where="pgd:cw",
            budget="360 gradients a seed",
            cite="carlini2017cw",
            differences="box by clamping instead of tanh; 8-bit rounding inside the loop",
        ),
        *(Recipe(**row) for row in SINVAD),
        Recipe(
            name="argus",
            summary="every seed mixed with every other-class training image in a VQ-VAE's code, once",
            needs="scores",
            paper="Duan, Dwyer and Yang, 2025",
            where="argus:argus",
            budget="30,001 queries a seed, or as many as there are partners",
            cite="duan2025argus",
            generator="vqvae",
            differences="codebook follows its users (the paper trains it by gradient) and no discriminators by default; "
            "seeds whose reconstruction fails are set aside",
        ),
        Recipe(
            name="argus@paper",
            summary="ARGUS with its generator as published: codes trained by gradient, then jointly with two discriminators",
            needs="scores",
            paper="Duan, Dwyer and Yang, 2025",
            where="argus:argus_paper",
            budget="30001 queries a seed",
            cite="duan2025argus",
            generator="vqvae:gradient",
            joint=True,
            differences="network sizes and the weights of the adversarial losses, which the paper does not state, are ours; "
            "seeds whose reconstruction fails are set aside",
        ),
        Recipe(
            name="argus-adaptive",
            summary="the smallest share, and the fewest places, of near partners that make the subject say each other class",
            needs="label",
            paper="ours, after ARGUS",
            where="argus:argus_adaptive",
            budget="at most 721 queries a seed with ten classes and 7x7 codes",
            cite="duan2025argus",
            generator="vqvae",
            differences="bisection of the share replaces ARGUS's fixed one; places that are not needed return to the seed's code",
        ),
        Recipe(
            name="diffchaser",
            summary="small changes of pixels, bred until a network and its 8-bit copy disagree",
            needs="scores",
            paper="Xie, Ma, Wang, Li, Liu and Li, IJCAI 2019",
            where="diffchaser:diffchaser",
            budget="1961 queries a seed, each also asked of the copy",
            cite="xie2019diffchaser",
            peers="quantised",
            differences="population, rates and limits are ours; 8-bit pictures; our own static 8-bit copy; drift can be capped",
        ),
        Recipe(
            name="feature-perturbation",
            summary="fresh seeds from a conditional GAN, changed by perturbing its early activations",
            needs="gradients",
            paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
            where="feature_perturbation:feature_perturbation",
            budget="300 gradients a seed",
            cite="dunn2021features",
            generator="gan",
            seeds="generator",
            differences="small Adam steps in units of each stage's spread, the norm bound enforced, and a way back to the seed; "
            "the paper states neither optimiser nor step and only records the norm",
        ),
        Recipe(
            name="feature-perturbation@paper",
            summary="feature perturbation whose norm is only recorded; a seed ends at its first failure",
            needs="gradients",
            paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
            where="feature_perturbation:feature_perturbation_paper",
            budget="200 gradients a seed",
            cite="dunn2021features",
            generator="gan",
            seeds="generator",
            differences="optimiser, step and cap, which the paper does not state, are ours",
        ),
        *(Recipe(**row) for row in WHITEBOX),
    )
}
