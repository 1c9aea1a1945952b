"""Names become generators: fresh ones, trained ones, ones read from a folder, and a run's."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase import registry
from hardcase.errors import HardcaseError, choice
from hardcase.generators.adapters import (
    CachedCodes,
    Decoder,
    Inverted,
    UserGenerator,
    coder,
    from_diffusers,
    supplied_card,
)
from hardcase.generators.quality import Family, measure
from hardcase.models.load import from_file
from hardcase.models.subject import Subject
from hardcase.randomness import named_randomness
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, latent
from hardcase.spaces.pixel import Pixels
from hardcase.tensors import digest, digest_tensors, from_bytes, steady
from hardcase.training import cards
from hardcase.training.cards import (
    PATIENCE,
    History,
    TrainingProgress,
    TrainingRecipe,
    geometry,
    patient_for,
    stated,
)
from hardcase.types import Images, Model, Space

KEPT = 0.8
"""Share of labels that a generator's reconstructions must keep."""
MEASURED = 1000
"""Colour images on which a generator is measured on a CPU, at most."""
BEGUN = ("reduction",)
"""Options of a network from its first step on; the others are of a VQ-VAE's joint training."""

_log = logging.getLogger(__name__)

Judge = Callable[[Tensor], Tensor] | None


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

    A VQ-VAE with a `mix` continues the VQ-VAE without it, which is cached too and shared by all
    that differ in these options.

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
        progress: Called with the progress of the training.
        device: Where the networks are.
        options: Options of the family: `beta` of a VAE; `mix`, `latent_weight`, `image_weight`,
            `joint_epochs`, `reduction` of a VQ-VAE; `flips` of a GAN.
    """
    arguments = {key: value for key, value in locals().items() if key != "options"}
    row = _row(family, kind)
    family_parts: Family = row.facts["how"]
    for key in options:
        if key not in family_parts.options:
            raise choice(f"option of {family}", key, list(family_parts.options))
    channels, size, classes = geometry(images_train, images_test)
    recipe: TrainingRecipe = row.facts["recipe"]
    if channels > 1:
        recipe = row.facts.get("colour", recipe)
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs, steps=0)
    if batch is not None:
        recipe = replace(recipe, batch=batch)
    settings = {**family_parts.options, **options}
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
        first = {key: value for key, value in options.items() if key in BEGUN}
        return trained_generator(**arguments, **first)[0]

    def train(net: nn.Module, how: Mapping[str, Any]) -> History:
        limit = 60 * (settings.get("minutes") or math.inf)
        training = {**how, "name": row.name, "limit": limit}
        begun_settings = {**settings, "begun": begun}
        return family_parts.train(net, images_train, recipe, begun_settings, training)

    shown = images_test
    if channels > 1 and steady(torch.device(device)):
        shown = images_test.sample(count=min(MEASURED, len(images_test)), seed=0)
    return cards.fitted_network(
        family,
        row.facts["kind"],
        config,
        train,
        data=images_train.hash,
        build=_from_config,
        measure=lambda net: family_parts.measure(net, shown, judge, device=device),
        measured_on=_yardstick(shown, judge, device),
        device=device,
        progress=progress,
    )


def load_generator(
    folder: Path, family: str = "vae", *, data: str | None = None
) -> tuple[nn.Module, cards.Card]:
    """A trained generator read from its folder.

    Args:
        folder: Its folder, with its card.
        family: ``vae``, ``vqvae``, ``gan`` or that of a plug-in.
        data: Hash of the images that it must have been trained on; by default any.
    """
    return cards.load_card(folder, _from_config, kind=family, data=data)


def families() -> dict[str, dict[str, registry.Part]]:
    """The rows of generators that can be trained, by family and kind."""
    by_family = dict[str, dict[str, registry.Part]]()
    for row in registry.parts("generator").values():
        if "how" in row.facts:
            by_family.setdefault(row.facts["family"], {})[row.facts["kind"]] = row
    return by_family


def _row(family: str, kind: str | None) -> registry.Part:
    """The row of this kind, or of the kind that the family's name alone stands for."""
    every_kind = families()
    studies = {
        "diffusion": family not in every_kind,
        "vae:hierarchical": kind not in every_kind.get(family, ()),
    }
    for name in (family, f"{family}:{kind}"):
        if studies.get(name):
            raise HardcaseError(
                f"{name} needs what the extra 'studies' brings, which is not installed.",
                fix="pip install 'hardcase[studies]'",
            )
    if family not in every_kind:
        raise choice("generator", family, sorted(every_kind))
    kinds = every_kind[family]
    if kind is None:
        kind = next(iter(kinds.values())).facts["how"].kind
    if kind not in kinds:
        raise choice(f"kind of {family}", kind, list(kinds))
    return kinds[kind]


def _from_config(config: Mapping[str, Any]) -> nn.Module:
    row = _row(config["family"], config["kind"])
    shape = (config[key] for key in ("channels", "size", "classes", "latent"))
    with named_randomness(config["seed"], "generators", row.name):
        net: nn.Module = row.make(*shape, **row.preset)
        return net


def _yardstick(images: Images, judge: Judge, device: torch.device | str) -> str:
    """A hash of what `measure` measures with; a judge is identified by its answers on sample
    images."""
    if judge is None:
        return images.hash
    logits = judge(from_bytes(images.x[:64].to(device)))
    return digest([images.hash, digest_tensors({"logits": logits})])


def check_agreement(card: Mapping[str, Any], *, refuse: bool) -> None:
    """Failures on images whose reconstruction loses the label say more of the generator."""
    agreement = card.get("reconstruction_agreement")
    if agreement is None or agreement >= KEPT:
        return
    what = f"the generator's reconstructions keep only {agreement:.0%} of the labels."
    why = "What is found in its codes would say more of the generator than of the model."
    if not refuse:
        _log.warning("%s %s", what, why)
        return
    raise HardcaseError(
        what,
        why,
        fix="--method natural, which needs no generator; a better one by --generator, or"
        " hardcase train; or --allow-low-accuracy",
    )


# The generator of a campaign: the one that was named or the method's own, and its space.

MEASURED_IMAGES = 500
"""Images with which a user's generator is measured."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator that is ready: its network (None for raw pixels), its family and its card."""

    family: str
    net: nn.Module | None = None
    card: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GeneratorSelection:
    """How the generator of a run is loaded or trained, and which space it opens."""

    method: str
    perturbs: bool
    subject: Model
    example: Images
    images: Callable[[str], Images]
    data: str
    split: str = "test"
    training: Mapping[str, Any] = field(default_factory=dict)
    refuse: bool = True
    progress: Callable[[TrainingProgress], None] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = self.example.x.shape[1:]
        return channels, height, width

    def make(self, named: str | None, own: str) -> Generator:
        """The generator called `named`, FAMILY[:KIND|FOLDER] or FILE.py:FACTORY, else the method's
        `own`; in colour, a name without a kind stands for one that fits photographs.
        """
        colour = self.example.shape[0] > 1
        if not named:
            named = "vqvae" if own == "gan" and colour else own
        family, _, rest = named.partition(":")
        if family == "pixels":
            return Generator(family)
        if family.endswith(".py"):
            net = from_file(Path(family), rest)
            if self.perturbs:
                return self._with_places(net, named)
            return self._measured(net, named)
        if family == "diffusers" and not self.perturbs:
            return self._measured(from_diffusers(Path(rest).expanduser()), named)
        if family not in families():
            kinds = [*families(), *([] if self.perturbs else ["pixels", "diffusers:PATH"])]
            raise choice(f"generator for {self.method}", family, [*kinds, "FILE.py:FACTORY"])
        kind = "" if rest == self.data else rest
        if self.perturbs and family == "vae":
            kind = _conditional(kind)
        elif colour and not kind and family in ("vae", "vqvae"):
            family, kind = "vqvae", "hierarchical"
        folder = Path(kind).expanduser()
        if kind and (folder / "card.json").is_file():
            net, card = load_generator(folder, family, data=self.images("train").hash)
        else:
            with patient_for(PATIENCE):
                net, card = trained_generator(
                    family,
                    self.images("train"),
                    self.images("test"),
                    kind=kind or None,
                    judge=self._logits,
                    progress=self.progress,
                    device=self.subject.device,
                    **self.training,
                )
        if not self.perturbs or family == "vqvae":
            check_agreement(card, refuse=self.refuse)
        return Generator(family, net.to(self.subject.device), card)

    def _with_places(self, net: nn.Module, name: str) -> Generator:
        """A user's generator, whose activations are perturbed."""
        generator = UserGenerator(net.to(self.subject.device))
        if generator.shape != self.shape:
            raise HardcaseError(
                f"{name} makes images of {generator.shape}; the data has {self.shape}."
            )
        return Generator("supplied", generator, supplied_card(net, name))

    def _measured(self, net: nn.Module, name: str) -> Generator:
        """A user's generator, in whose codes is searched; it is measured as ours are."""
        device = self.subject.device
        classes = len(self.example.classes)
        adapted = coder(net.to(device).eval(), shape=self.shape, classes=classes)
        sample = self.example.sample(count=min(MEASURED_IMAGES, len(self.example)), seed=0)
        quality = measure(adapted, sample, self._logits, device=device)
        card = {**supplied_card(net, name), **quality}
        check_agreement(card, refuse=self.refuse)
        return Generator("own", adapted, card)

    @property
    def _logits(self) -> Callable[[Tensor], Tensor] | None:
        """The model's logits, where the model is a network of this process."""
        subject = self.subject
        return (lambda x: subject(x).logits) if isinstance(subject, Subject) else None

    def space(self, generator: Generator) -> Space:
        """The space that a generator opens: places of its layers, or its codes."""
        if generator.net is None:
            return Pixels()
        classes = len(self.example.classes)
        if self.perturbs:
            net = self._placed(generator)
            return Activations(net, early_places(net, classes=classes), classes=classes)
        if generator.family == "vqvae":
            return Grid(generator.net)  # type: ignore[arg-type]  # a VqVae, by its family
        if generator.family == "gan":  # its codes are found by descent
            return latent(Inverted(generator.net, shape=self.shape, classes=classes))
        return latent(generator.net)

    def _placed(self, generator: Generator) -> Any:
        """The network as a generator with places; most have them themselves."""
        if generator.family == "vae":
            return Decoder(generator.net)  # type: ignore[arg-type]  # a Vae, by its family
        if generator.family == "vqvae":
            return CachedCodes(generator.net, self.images(self.split))  # type: ignore[arg-type]  # likewise
        return generator.net


def _conditional(kind: str) -> str:
    """The kind of VAE whose samples have labels."""
    if kind in ("linear", "conv", "hierarchical"):
        raise HardcaseError(
            f"a VAE of kind {kind} does not know the class: it cannot generate labelled images.",
            fix="--generator vae:conditional",
        )
    return kind or "conditional"
