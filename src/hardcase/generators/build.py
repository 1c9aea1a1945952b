"""Names become generators: fresh ones, trained ones, and ones read from a folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase import registry
from hardcase.errors import Problem, choice
from hardcase.generators.quality import Family
from hardcase.tensors import digest, digest_tensors, from_bytes, steady
from hardcase.training import cards, loop
from hardcase.training.loop import (
    TrainingProgress,
    TrainingRecipe,
    geometry,
    own_randomness,
    stated,
)
from hardcase.types import Images

__all__ = [
    "build_generator",
    "check_labels_kept",
    "families",
    "load_generator",
    "trained_generator",
    "usual_generator",
]

KEPT = 0.8
"""Share of labels that a generator's reconstructions must keep."""
MEASURED = 1000
"""Colour images on which a generator is measured on a CPU, at most."""
BEGUN = ("reduction",)
"""Options of a network from its first step on; the others are of a VQ-VAE's joint training."""

_log = logging.getLogger(__name__)

Judge = Callable[[Tensor], Tensor] | None


def usual_generator(spec: str, channels: int) -> str:
    """The generator that a name without a kind stands for, for images with so many channels."""
    if channels == 1 or spec not in ("vae", "vqvae"):
        return spec
    return "vqvae:hierarchical"


def build_generator(
    family: str, *, kind: str, channels: int, size: int, classes: int, latent: int, seed: int = 0
) -> nn.Module:
    """A fresh generator for square images; the same seed gives the same weights.

    Args:
        family: ``vae``, ``vqvae``, ``gan`` or that of a plug-in.
        kind: The kind within its family, see ``hardcase list generators``.
        channels: Colour channels of the images.
        size: Side of the square images in pixels.
        classes: Number of classes.
        latent: Length of the code.
        seed: Everything random follows from it.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> sizes = {"channels": 1, "size": 28, "classes": 10, "latent": 8}
        >>> vae = hc.generators.build_generator("vae", kind="linear", **sizes)
        >>> vae.decode(torch.zeros(2, 8)).shape
        torch.Size([2, 1, 28, 28])
    """
    return _from_config(dict(locals()))


def trained_generator(
    family: str,
    images_train: Images,
    images_test: Images,
    *,
    kind: str | None = None,
    latent: int | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    judge: Callable[[Tensor], Tensor] | None = None,
    progress: Callable[[TrainingProgress], None] | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> tuple[nn.Module, cards.Card]:
    """The generator trained on these images by its recipe (eval mode), and its card; cached.

    A VQ-VAE with a `mix` goes on from the one without, which is kept too and shared by all that
    differ in these options.

    Args:
        family: ``vae``, ``vqvae``, ``gan`` or that of a plug-in.
        images_train: What it learns from.
        images_test: What it is measured on.
        kind: The kind within its family; by default the family's first.
        latent: Length of the code; by default the recipe's.
        epochs: Passes over the training images; by default the recipe's.
        batch: Images per training step; by default the recipe's.
        seed: Everything random follows from it.
        judge: Maps images in [0, 1] to logits; with it the card says how often it still sees the
            label.
        progress: Told how the training goes.
        device: Where the networks are.
        options: The family's own: `beta` of a VAE; `mix`, `latent_weight`, `image_weight`,
            `joint_epochs`, `reduction` of a VQ-VAE; `flips` of a GAN.
    """
    asked = {key: value for key, value in locals().items() if key != "options"}
    row = _row(family, kind)
    how: Family = row.facts["how"]
    for key in options:
        if key not in how.options:
            raise choice(f"option of {family}", key, list(how.options))
    channels, size, classes = geometry(images_train, images_test)
    recipe: TrainingRecipe = row.facts["recipe"]
    if channels > 1:
        recipe = row.facts.get("colour", recipe)
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs, steps=0)
    recipe = replace(recipe, batch=batch or recipe.batch)
    settings = {**how.options, **options}
    config = {
        "family": family,
        "kind": row.facts["kind"],
        "channels": channels,
        "size": size,
        "classes": classes,
        "latent": latent or row.facts["latent"],
        **{key: value for key, value in settings.items() if value is not None},
        "seed": seed,
        "recipe": stated(recipe),
    }
    unfinished = loop.unfinished_folder(
        cards.folder_of(family, row.facts["kind"], config, images_train.hash)
    )

    def begun() -> nn.Module:
        """This very network as the family's usual options train it."""
        first = {key: value for key, value in options.items() if key in BEGUN}
        return trained_generator(**asked, **first)[0]

    def train(net: nn.Module) -> Mapping[str, Any]:
        training = {
            "seed": seed,
            "name": row.name,
            "device": device,
            "progress": progress,
            "kept": unfinished,
            "limit": 60 * (settings.get("minutes") or math.inf),
        }
        history = how.train(net, images_train, recipe, {**settings, "begun": begun}, training)
        return {"seed": seed, **asdict(history)}

    shown = images_test
    if channels > 1 and steady(torch.device(device)):
        shown = images_test.sample(count=min(MEASURED, len(images_test)), seed=0)
    net, card = cards.cached(
        family,
        row.facts["kind"],
        config,
        data=images_train.hash,
        build=_from_config,
        train=train,
        measure=lambda net: how.measure(net.to(device), shown, judge, device=device),
        measured_on=_yardstick(shown, judge, device),
    )
    loop.remove_unfinished(unfinished)
    return net.to(device), card


def load_generator(
    folder: Path, family: str = "vae", *, data: str | None = None
) -> tuple[nn.Module, cards.Card]:
    """A trained generator read from its folder.

    Args:
        folder: Where it was kept, with its card.
        family: ``vae``, ``vqvae``, ``gan`` or that of a plug-in.
        data: Hash of the images that it must have been trained on; by default any.
    """
    return cards.load_card(folder, _from_config, kind=family, data=data)


def families() -> dict[str, dict[str, registry.Part]]:
    """The rows of generators that can be trained, by family and kind."""
    found = dict[str, dict[str, registry.Part]]()
    for row in registry.parts("generator").values():
        if "how" in row.facts:
            found.setdefault(row.facts["family"], {})[row.facts["kind"]] = row
    return found


def _row(family: str, kind: str | None) -> registry.Part:
    """The row of this kind, or of the kind that the family's name alone stands for."""
    known = families()
    studies = {
        "diffusion": family not in known,
        "vae:hierarchical": kind not in known.get(family, ()),
    }
    for name in (family, f"{family}:{kind}"):
        if studies.get(name):
            raise Problem(
                f"{name} comes with the distribution hardcase-studies, which is not installed.",
                fix="pip install hardcase[studies]",
            )
    if family not in known:
        raise choice("generator", family, sorted(known))
    kinds = known[family]
    if kind is None:
        kind = next(iter(kinds.values())).facts["how"].kind
    if kind not in kinds:
        raise choice(f"kind of {family}", kind, list(kinds))
    return kinds[kind]


def _from_config(config: Mapping[str, Any]) -> nn.Module:
    row = _row(config["family"], config["kind"])
    shape = (config[key] for key in ("channels", "size", "classes", "latent"))
    with own_randomness(config["seed"], "generators", row.name):
        net: nn.Module = row(*shape)
        return net


def _yardstick(images: Images, judge: Judge, device: torch.device | str) -> str:
    """A hash of what `measure` measures with; a judge is known by its answers to a few images."""
    if judge is None:
        return images.hash
    logits = judge(from_bytes(images.x[:64].to(device)))
    return digest([images.hash, digest_tensors({"logits": logits})])


def check_labels_kept(card: Mapping[str, Any], *, refuse: bool) -> None:
    """Failures on images whose reconstruction loses the label say more of the generator."""
    kept = card.get("reconstruction_agreement")
    if kept is None or kept >= KEPT:
        return
    what = f"the generator's reconstructions keep only {kept:.0%} of the labels."
    why = "What is found in its codes would say more of the generator than of the model."
    if not refuse:
        _log.warning("%s %s", what, why)
        return
    raise Problem(
        what,
        why,
        fix="--method natural, which needs no generator; a better one by --generator, or"
        " hardcase train; or --allow-low-accuracy",
    )
