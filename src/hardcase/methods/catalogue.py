"""The methods that can be named, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One line of ``hardcase list methods``. `where` is ``module:function`` in this folder.

    The function's keyword arguments are the method's options (``--set method.NAME=...``), except those that the
    campaign fills in by name: `space` (of a `generator` of this kind), `subject`, `peers`, `profile`, `target`.
    """

    name: str
    summary: str
    needs: str
    paper: str
    where: str
    budget: str
    cite: str
    generator: str = ""
    peers: str = "none"
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
        Recipe(
            name="sinvad",
            summary="genetic search for the nearest failing code in a VAE's latent space",
            needs="label",
            paper="Kang, Feldt and Yoo, SBST 2020 and TOSEM 2023",
            where="sinvad:sinvad",
            budget="3,051 queries a seed",
            cite="kang2020sinvad",
            generator="vae",
            differences="mutation size per seed; failure against the verified label, on the 8-bit image",
        ),
    )
}
