"""Names become generators: fresh ones, trained ones, and ones read from a folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase import registry
from hardcase.errors import Problem, choice
from hardcase.generators import diffusion, gan, vae, vqvae
from hardcase.generators.quality import draw_reconstructions, measure, measure_samples
from hardcase.generators.vqvae import train_jointly
from hardcase.tensors import digest, digest_tensors, from_bytes, steady
from hardcase.training import cards, loop
from hardcase.training.loop import (
    History,
    TimeLimit,
    TrainingProgress,
    TrainingRecipe,
    fit,
    geometry,
    own_randomness,
    stated,
)
from hardcase.types import Images

KEPT = 0.8
"""Share of labels that a generator's reconstructions must keep."""

_log = logging.getLogger(__name__)

Judge = Callable[[Tensor], Tensor] | None


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of generators is trained and measured.

    Args:
        kind: The kind that the family's name alone stands for.
        train: Trains a network: (network, images, recipe, options, arguments of the training loop).
        measure: Fills in its card.
        options: What may be set for this family, with its defaults. One that is None is not part
            of a configuration.
    """

    kind: str
    train: Callable[[Any, Images, TrainingRecipe, Mapping[str, Any], Mapping[str, Any]], History]
    measure: Callable[..., Mapping[str, Any]]
    options: Mapping[str, Any]


How = Mapping[str, Any]
"""Arguments of the training loop: seed, name, device, progress, kept, limit."""


def _train_vae(
    net: nn.Module, images: Images, recipe: TrainingRecipe, options: How, how: How
) -> History:
    goals = {True: vae.reconstruct_hierarchical, False: vae.reconstruct}
    goal = goals[isinstance(net, vae.Hierarchical)](images, beta=options["beta"])
    return fit(net, images, goal, recipe, seen=_drawing(net, images, how), **how)


def _train_vqvae(
    net: vqvae.VqVae, images: Images, recipe: TrainingRecipe, options: How, how: How
) -> History:
    """Reconstruction; with a `mix`, ARGUS's discriminators go on from the one that was begun."""
    reduction = options["reduction"] or "mean"
    how = {**how, "seen": _drawing(net, images, how)}
    if options["mix"]:
        net.load_state_dict(options["begun"]().state_dict())
        if options["joint_epochs"] is not None:
            recipe = replace(recipe, epochs=options["joint_epochs"], steps=0)
        weights = (options["latent_weight"], options["image_weight"])
        joint = {**how, "name": f"vqvae with mix {options['mix']}"}
        history = train_jointly(
            net, images, recipe, mix=options["mix"], weights=weights, reduction=reduction, **joint
        )
    else:
        vqvae.start_linear(net, images)
        history = fit(net, images, vqvae.reconstruct(images, reduction), recipe, **how)
    vqvae.healthy(net, images)
    return history


def _drawing(net: nn.Module, images: Images, how: How) -> Callable[[], None]:
    """Draws what the network gives back so far, beside what is kept of its training."""

    def draw() -> None:
        net.eval()
        draw_reconstructions(how["kept"], net, images)
        net.train()

    return draw


def _measure_diffusion(
    net: nn.Module, images: Images, judge: Judge, *, device: torch.device | str
) -> Mapping[str, Any]:
    """Some reconstructions, then samples; fewer where there is no GPU."""
    each = 100 if torch.device(device).type == "cuda" else 5
    some = images.sample(count=min(5 * each, len(images)), seed=0)
    return {
        **measure(net, some, judge, device=device),
        **measure_samples(net, images, judge, device=device, per_class=each),
    }


FAMILIES = {
    "vae": Family("linear", _train_vae, measure, {"beta": 1.0}),
    "vqvae": Family(
        "ema",
        _train_vqvae,
        measure,
        {
            "mix": 0.0,
            "latent_weight": 0.01,
            "image_weight": 0.01,
            "joint_epochs": None,
            "reduction": None,
        },
    ),
    "gan": Family(
        "small",
        lambda net, images, recipe, options, how: gan.train_gan(
            net, images, recipe, flips=bool(options["flips"]), **{**how, "name": "gan"}
        ),
        measure_samples,
        {"flips": False},
    ),
    "diffusion": Family(
        "edm",
        lambda net, images, recipe, options, how: diffusion.train_diffusion(
            net, images, recipe, **{**how, "name": "diffusion"}
        ),
        _measure_diffusion,
        {"minutes": None},
    ),
}


MEASURED = 1000
"""Colour images on which a generator is measured on a CPU, at most."""
BEGUN = ("reduction",)
"""Options of a network from its first step on; the others are of a VQ-VAE's joint training."""


def usual_generator(spec: str, channels: int) -> str:
    """The generator that a name without a kind stands for: by how many labels its reconstructions
    keep of images with so many channels.

    Args:
        spec: ``FAMILY`` or ``FAMILY:KIND``.
        channels: Colour channels of the images.
    """
    if channels == 1 or spec not in ("vae", "vqvae"):
        return spec
    return "vqvae:hierarchical"


def build_generator(
    family: str, *, kind: str, channels: int, size: int, classes: int, latent: int, seed: int = 0
) -> nn.Module:
    """A fresh generator for square images; the same seed gives the same weights.

    Args:
        family: ``vae``, ``vqvae``, ``gan`` or ``diffusion``.
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
    piece: float = math.inf,
    **options: Any,
) -> tuple[nn.Module, cards.Card]:
    """The generator trained on these images by its recipe, on `device` in eval mode, and its card;
    kept in the cache.

    `judge` maps images in [0, 1] to logits; with it the card says how often it still sees the
    label. `options` are the family's own: `beta` of a VAE; `mix`, `latent_weight`, `image_weight`,
    `joint_epochs`, `reduction` of a VQ-VAE; `flips` of a GAN; `minutes` of training in all of a
    diffusion model, which then ends there or after its epochs. A VQ-VAE with a `mix` goes on from
    the one without, which is kept too and shared by all that differ in these options.

    Args:
        family: ``vae``, ``vqvae``, ``gan`` or ``diffusion``.
        images_train: What it learns from.
        images_test: What it is measured on.
        kind: The kind within its family; by default the family's first.
        latent: Length of the code; by default the recipe's.
        epochs: Passes over the training images; by default the recipe's.
        batch: Images per training step; by default the recipe's.
        seed: Everything random follows from it.
        judge: Maps images in [0, 1] to logits: does it still see the label?
        progress: Told how the training goes.
        device: Where the networks are.
        piece: Minutes after which training is kept and stopped, to go on in the next call.
        options: The family's own options.
    """
    row = _row(family, kind)
    how = FAMILIES[family]
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

    def begun() -> nn.Module:
        """This very network as the family's usual options train it."""
        return trained_generator(
            family,
            images_train,
            images_test,
            kind=kind,
            latent=latent,
            epochs=epochs,
            batch=batch,
            seed=seed,
            judge=judge,
            progress=progress,
            device=device,
            **{key: value for key, value in options.items() if key in BEGUN},
        )[0]

    kept = loop.beside(cards.folder_of(family, row.facts["kind"], config, images_train.hash))

    def train(net: nn.Module) -> Mapping[str, Any]:
        limit = TimeLimit(total=60 * (settings.get("minutes") or math.inf), piece=60 * piece)
        training = {
            "seed": seed,
            "name": row.name,
            "device": device,
            "progress": progress,
            "kept": kept,
            "limit": limit,
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
    loop.forget(kept)
    return net.to(device), card


def load_generator(
    folder: Path, family: str = "vae", *, data: str | None = None
) -> tuple[nn.Module, cards.Card]:
    """A trained generator read from its folder; with `data`, refused unless it was trained on
    images of that hash.

    Args:
        folder: Where it was kept, with its card.
        family: ``vae``, ``vqvae``, ``gan`` or ``diffusion``.
        data: Hash of the images that it must have been trained on.
    """
    return cards.load_card(folder, _from_config, kind=family, data=data)


def _row(family: str, kind: str | None) -> registry.Part:
    """The row of this kind, or of the kind that the family's name alone stands for."""
    if family not in FAMILIES:
        raise choice("generator", family, list(FAMILIES))
    known = registry.parts("generator")
    kinds = {row.facts["kind"]: row for row in known.values() if row.facts.get("family") == family}
    kind = FAMILIES[family].kind if kind is None else kind
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
    """A hash of what `measure` measures with; a judge is known by what it says of a few images."""
    if judge is None:
        return images.hash
    said = judge(from_bytes(images.x[:64].to(device)))
    return digest([images.hash, digest_tensors({"logits": said})])


def check_labels_kept(card: Mapping[str, Any], *, refuse: bool) -> None:
    """Failures on images whose reconstruction loses the label say more of the generator.

    Args:
        card: The generator's, with the share of labels that it keeps if that was measured.
        refuse: Raise where too few are kept; else only say so.
    """
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
