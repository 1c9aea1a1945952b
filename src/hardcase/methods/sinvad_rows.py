"""The rows of SINVAD and its variants. No torch."""

from __future__ import annotations

from typing import Any

_SINVAD: dict[str, str] = {
    "paper": "Kang, Feldt and Yoo, SBST 2020 and TOSEM 2023",
    "cite": "kang2020sinvad",
    "generator": "vae",
}
_SAME = "mutation size per seed; failure against the verified label, on the 8-bit image"

ROWS: tuple[dict[str, Any], ...] = (
    {
        **_SINVAD,
        "name": "sinvad",
        "summary": "the nearest failing code in a VAE's latent space, along steps between neighbouring classes",
        "needs": "label",
        "where": "sinvad:sinvad",
        "budget": "123 queries a seed, about 63 used",
        "differences": "starts from training codes of other classes and halves instead of breeding; same goal, same black box",
    },
    {
        **_SINVAD,
        "name": "sinvad@paper",
        "summary": "genetic search for the nearest failing code in a VAE's latent space",
        "needs": "label",
        "where": "sinvad:sinvad_paper",
        "budget": "15,051 queries a seed, ends after 13 generations without progress",
        "differences": _SAME,
    },
    {
        **_SINVAD,
        "name": "sinvad-between",
        "summary": "the nearest code whose image one network gets wrong and the others get right",
        "needs": "scores",
        "where": "sinvad:sinvad_between",
        "budget": "201 queries a seed, each also asked of the peers",
        "peers": "quantised",
        "differences": "walks to the subject's boundary with near classes instead of breeding",
    },
    {
        **_SINVAD,
        "name": "sinvad-between@code",
        "summary": "genetic search for images that one network gets wrong and another right",
        "needs": "scores",
        "where": "sinvad:sinvad_between_code",
        "budget": "150,051 queries a seed, ends after 7 generations without progress",
        "peers": "quantised",
        "differences": _SAME,
    },
    {
        **_SINVAD,
        "name": "sinvad-surprise",
        "summary": "hill climbing in a VAE's latent space to a given surprise, or beyond that of all training images",
        "needs": "activations",
        "where": "sinvad:sinvad_surprise",
        "budget": "5,000 queries a seed, three passes over the coordinates",
        "differences": "one density a class, whitened once; a seed stops when it has arrived",
    },
    {
        **_SINVAD,
        "name": "sinvad-surprise@paper",
        "summary": "hill climbing to surprise 111 by one density over all training traces",
        "needs": "activations",
        "where": "sinvad:sinvad_surprise_paper",
        "budget": "5,000 queries a seed, three passes over the coordinates",
        "differences": "the 100 most varying units; a seed stops when it has arrived",
    },
)
