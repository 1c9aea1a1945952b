"""The generators that can be trained, as a table. No torch: ``hardcase list generators`` reads it at once.

A family (``vae``) is what ``hardcase train`` and ``--generator`` name; each of its kinds is a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from hardcase.training.recipe import TrainingRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A row. `where` is ``module:function`` in this folder, called with (channels, size, classes, latent).

    `colour` is the recipe for images of several channels, where it is another one.
    """

    family: str
    kind: str
    summary: str
    needs: str
    paper: str
    where: str
    latent: int
    recipe: TrainingRecipe
    colour: TrainingRecipe | None = None
    laws: tuple[str, ...] = (
        "images in [0, 1]",
        "deterministic",
        "global random state untouched",
        "rows independent",
    )

    @property
    def name(self) -> str:
        return f"{self.family}-{self.kind}"

    def recipe_for(self, channels: int) -> TrainingRecipe:
        return self.recipe if channels == 1 or self.colour is None else self.colour


_SINVAD = "Kang, Feldt and Yoo, TOSEM 2024"

GENERATORS = {
    row.name: row
    for row in (
        Generator(
            family="vae",
            kind="linear",
            summary="variational autoencoder with one hidden layer of 1600 units on either side",
            needs="square images",
            paper=_SINVAD,
            where="vae:linear",
            latent=400,
            recipe=TrainingRecipe(epochs=10, steps=1500, batch=64, lr=1e-3),
        ),
        Generator(
            family="vae",
            kind="conv",
            summary="variational autoencoder with eight convolutions on either side",
            needs="square images of 4x4 or more",
            paper=_SINVAD,
            where="vae:conv",
            latent=800,
            recipe=TrainingRecipe(epochs=10, steps=1200, batch=64, lr=3e-3, schedule="warm"),
        ),
        Generator(
            family="vae",
            kind="conditional",
            summary="linear variational autoencoder that is told the label when it encodes and decodes",
            needs="square images with labels",
            paper="Sohn, Lee and Yan, NeurIPS 2015; named as future work by SINVAD, TOSEM 2024",
            where="vae:conditional",
            latent=400,
            recipe=TrainingRecipe(epochs=10, steps=1500, batch=64, lr=1e-3),
        ),
        Generator(
            family="vae",
            kind="hierarchical",
            summary="codes at several sizes of the picture, in the manner of VDVAE; train it on a GPU",
            needs="square images whose side can be halved twice",
            paper="Child, ICLR 2021; as SINVAD uses it, Kang, Feldt and Yoo, TOSEM 2024",
            where="vae:hierarchical",
            latent=1024,
            recipe=TrainingRecipe(epochs=60, steps=3000, batch=128, lr=1e-3, schedule="warm"),
        ),
        Generator(
            family="vqvae",
            kind="ema",
            summary="discrete codes on a grid of a quarter of the picture (half of a small colour one); codes follow their users",
            needs="square images whose side is a multiple of 4",
            paper="van den Oord et al., NeurIPS 2017; as ARGUS uses it",
            where="vqvae:ema",
            latent=64,
            recipe=TrainingRecipe(epochs=15, steps=1500, batch=64, lr=1e-3),
        ),
        Generator(
            family="vqvae",
            kind="gradient",
            summary="the same with a codebook trained by the loss, as ARGUS states it",
            needs="square images whose side is a multiple of 4",
            paper="Duan, Dwyer and Yang, 2025 (ARGUS)",
            where="vqvae:gradient",
            latent=64,
            recipe=TrainingRecipe(epochs=50, steps=1500, batch=64, lr=1e-3, schedule="stairs"),
        ),
        Generator(
            family="gan",
            kind="small",
            summary="images of a given class; its activations can be perturbed; minutes on a CPU",
            needs="square images whose side is a multiple of 4, with labels",
            paper="Miyato and Koyama, ICLR 2018",
            where="gan:small",
            latent=32,
            recipe=TrainingRecipe(epochs=1, steps=1200, batch=64, lr=1e-3),
            laws=("images in [0, 1]", "deterministic", "global random state untouched"),
        ),
        Generator(
            family="gan",
            kind="conditional",
            summary="the same, much wider, colour against a residual critic; train it on a GPU",
            needs="square images whose side is a multiple of 4, with labels",
            paper="Miyato and Koyama, ICLR 2018",
            where="gan:conditional",
            latent=64,
            recipe=TrainingRecipe(epochs=12, steps=1200, batch=128, lr=2e-4),
            colour=TrainingRecipe(epochs=40, batch=128, lr=2e-4, augment="flip"),
            laws=("images in [0, 1]", "deterministic", "global random state untouched"),
        ),
    )
}
