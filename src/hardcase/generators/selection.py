"""The generator of a campaign: the one that was named or the method's own, and its space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hardcase.errors import Problem, choice
from hardcase.generators.adapters import Inverted, coder, from_diffusers, supplied_card
from hardcase.generators.build import (
    check_labels_kept,
    families,
    load_generator,
    trained_generator,
    usual_generator,
)
from hardcase.generators.quality import measure
from hardcase.generators.staged import Decoder, Recalled, Supplied
from hardcase.models.load import from_file
from hardcase.models.subject import Subject
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, latent
from hardcase.spaces.pixel import Pixels
from hardcase.training.loop import PATIENCE, TrainingProgress, patient_for
from hardcase.types import Images, Model, Space

__all__ = ["Generator", "GeneratorSelection"]

MEASURED = 500
"""Images with which a generator of the user's own is measured."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator that is ready: its network (None for raw pixels), its family and its card."""

    family: str
    net: nn.Module | None = None
    card: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class GeneratorSelection:
    """How the generator of a campaign is found or trained, and which space it opens."""

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

    def usual(self, own: str) -> str:
        """The family that a method takes by itself; a small GAN makes no photographs."""
        if own == "gan" and self.shape[0] > 1:
            return "vqvae"
        return own

    def make(self, named: str) -> Generator:
        """The generator called `named`: FAMILY[:KIND|FOLDER] or FILE.py:FACTORY."""
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
            known = [*families(), *([] if self.perturbs else ["pixels", "diffusers:PATH"])]
            raise choice(f"generator for {self.method}", family, [*known, "FILE.py:FACTORY"])
        kind = "" if rest == self.data else rest
        if self.perturbs and family == "vae":
            kind = _conditional(kind)
        elif not kind:
            family, _, kind = usual_generator(family, self.shape[0]).partition(":")
        return self._trained(family, kind)

    def _trained(self, family: str, kind: str) -> Generator:
        """A generator of ours, from the folder that `kind` names or trained on the data."""
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
            check_labels_kept(card, refuse=self.refuse)
        return Generator(family, net.to(self.subject.device), card)

    def _with_places(self, net: nn.Module, name: str) -> Generator:
        """A generator of the user's own, whose activations are perturbed."""
        generator = Supplied(net.to(self.subject.device))
        if generator.shape != self.shape:
            raise Problem(f"{name} makes images of {generator.shape}; the data has {self.shape}.")
        return Generator("supplied", generator, supplied_card(net, name))

    def _measured(self, net: nn.Module, name: str) -> Generator:
        """A generator of the user's own, in whose codes is searched; it is measured as ours are."""
        device = self.subject.device
        classes = len(self.example.classes)
        made = coder(net.to(device).eval(), shape=self.shape, classes=classes)
        some = self.example.sample(count=min(MEASURED, len(self.example)), seed=0)
        quality = measure(made, some, self._logits, device=device)
        card = {**supplied_card(net, name), **quality}
        check_labels_kept(card, refuse=self.refuse)
        return Generator("own", made, card)

    @property
    def _logits(self) -> Callable[[Tensor], Tensor] | None:
        """The subject's logits, where the subject is a network of this process."""
        subject = self.subject
        return (lambda x: subject(x).logits) if isinstance(subject, Subject) else None

    def space(self, made: Generator) -> Space:
        """The space that a generator opens: places of its layers, or its codes."""
        if made.net is None:
            return Pixels()
        classes = len(self.example.classes)
        if self.perturbs:
            net = self._placed(made)
            return Activations(net, early_places(net, classes=classes), classes=classes)
        if made.family == "vqvae":
            return Grid(made.net)  # type: ignore[arg-type]  # a VqVae, by its family
        if made.family == "gan":  # its codes are found by descent
            return latent(Inverted(made.net, shape=self.shape, classes=classes))
        return latent(made.net)

    def _placed(self, made: Generator) -> Any:
        """The network as a generator with places; most have them themselves."""
        if made.family == "vae":
            return Decoder(made.net)  # type: ignore[arg-type]  # a Vae, by its family
        if made.family == "vqvae":
            return Recalled(made.net, self.images(self.split))  # type: ignore[arg-type]  # likewise
        return made.net


def _conditional(kind: str) -> str:
    """The kind of VAE whose samples have labels."""
    if kind in ("linear", "conv", "hierarchical"):
        raise Problem(
            f"a VAE of kind {kind} is not told the class, so it cannot make labelled seeds.",
            fix="--generator vae:conditional",
        )
    return kind or "conditional"
