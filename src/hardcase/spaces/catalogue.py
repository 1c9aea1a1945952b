"""The spaces in which candidates can live, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRow:
    """One line of ``hardcase list spaces``. `where` is ``module:class`` in this folder."""

    name: str
    summary: str
    needs: str
    where: str
    paper: str = ""
    laws: tuple[str, ...] = ("an encoded image decodes to itself or close to it", "projecting twice is projecting once", "rows independent")  # fmt: skip


SPACES = {
    row.name: row
    for row in (
        SpaceRow(
            name="pixels",
            summary="the image itself, kept in [0, 1] and in an L∞ or L2 ball around its seed",
            needs="nothing",
            where="pixel:Pixels",
        ),
        SpaceRow(
            name="vae",
            summary="the mean code of a variational autoencoder, with L1 distances",
            needs="a VAE trained on the same data",
            where="latent:Latent",
            paper="Kang, Feldt and Yoo, SBST 2020",
        ),
        SpaceRow(
            name="conditional vae",
            summary="the mean code of a conditional VAE, always decoded as the seed's own class",
            needs="a conditional VAE trained on the same data",
            where="latent:Labelled",
            paper="Sohn, Lee and Yan, NeurIPS 2015",
        ),
        SpaceRow(
            name="vqvae",
            summary="the continuous code grid of a VQ-VAE, quantised when it is decoded, with L2 distances",
            needs="a VQ-VAE trained on the same data",
            where="latent:Grid",
            paper="van den Oord et al., NeurIPS 2017; Duan, Dwyer and Yang, 2025 (ARGUS)",
        ),
        SpaceRow(
            name="activations",
            summary="changes of a conditional generator's early activations, in units of their usual spread",
            needs="a conditional GAN or VAE trained on the same data, or a generator of one's own",
            where="activations:Activations",
            paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
        ),
        SpaceRow(
            name="light",
            summary="the whole image evenly brighter or darker",
            needs="nothing",
            where="pixel:Light",
            paper="Pei, Cao, Yang and Jana, SOSP 2017",
        ),
        SpaceRow(
            name="occlusion",
            summary="one rectangle with free content, at a given or a random place",
            needs="nothing",
            where="pixel:Occlusion",
            paper="Pei, Cao, Yang and Jana, SOSP 2017",
        ),
        SpaceRow(
            name="blackout",
            summary="small squares inside which pixels may only grow darker",
            needs="nothing",
            where="pixel:Blackout",
            paper="Pei, Cao, Yang and Jana, SOSP 2017",
        ),
        SpaceRow(
            name="unclipped",
            summary="pixels whose walk may leave [0, 1]; every image looked at is clipped",
            needs="nothing",
            where="pixel:Unclipped",
            paper="Pei, Cao, Yang and Jana, SOSP 2017",
        ),
    )
}
