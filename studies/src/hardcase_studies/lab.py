"""What studies are made with: data, networks under test, generators and codes, each made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hardcase.context import Context
from hardcase.criteria.criterion import profile_for
from hardcase.criteria.profile import Profile
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.generators.build import trained_generator
from hardcase.methods.neurons import Profiles
from hardcase.models.health import answers, usable
from hardcase.models.load import Loading, load_model
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.spaces.latent import Grid, Library, latent, partners
from hardcase.suite.coverage import coverage
from hardcase.tensors import from_bytes
from hardcase.types import Images, Method, Model, Space
from hardcase_studies.bench import Bench

PHOTOGRAPH = 64
"""Images with longer sides are photographs, whose networks are fetched and not trained here."""
LOST = 0.1
"""Share of labels that reconstruction may lose before a generator is called unfit."""


def read_rightly(model: Model, images: Images) -> Bool[Tensor, " n"]:
    """Which images a network reads rightly."""
    return answers(model, images).argmax(1).cpu() == images.y


def read_by_all(models: Sequence[Model], images: Images) -> Images:
    """The images that every one of the networks reads rightly."""
    right = torch.stack([read_rightly(model, images) for model in models]).all(0)
    return images.take(right.nonzero().squeeze(1))


def accuracy(model: Model, images: Images) -> float:
    """The share of images that a network reads rightly."""
    return float(read_rightly(model, images).double().mean())


@dataclass(frozen=True)
class Uncoded:
    """A space whose codes are not stored: then no seed is set aside for what its own code shows."""

    space: Space
    keeps_code: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return self.space.name

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "space"), name)


@dataclass(frozen=True, eq=False)
class LatentModel:
    """A trained generator as a space, with the codes of training images."""

    net: nn.Module
    space: Space
    card: Mapping[str, Any]
    train: Images
    device: str = "cpu"
    limit: int = 30_000

    @cached_property
    def codes(self) -> Library:
        """Codes of training images, to walk toward or to mix with."""
        return partners(self.space, self.train, device=self.device, limit=self.limit)

    @property
    def note(self) -> str:
        """What a table must say of it."""
        made = self.card["configuration"]
        size = f", latent {made['latent']}" if made.get("latent") else ""
        joint = f", with discriminators at {made['mix']}" if made.get("mix") else ""
        return (
            f"{made['family']} {made['kind']}{size}{joint}: "
            f"SSIM {self.card['ssim']:.3f}, MSE {self.card['mse']:.4f}, "
            f"{100 * self.card['reconstruction_accuracy']:.1f} % of reconstructions right "
            f"({100 * self.card['judge_accuracy']:.1f} % of the images)"
        )


class Lab:
    """The world of a study. Whatever it needs is loaded or trained when it is first asked for.

    Args:
        bench: What the study is given.
        models: Names of the network under test and of its peers, as ``--model`` takes them;
            without any, a zoo network that suits the data.
        splits: Training and test images, where they are at hand.
        subject: The network under test, where it is at hand.
    """

    def __init__(
        self,
        bench: Bench,
        models: Sequence[str] = (),
        *,
        splits: tuple[Images, Images] | None = None,
        subject: Subject | None = None,
    ) -> None:
        self.bench = bench
        self._names = tuple(models)
        if splits is not None:
            self.train, self.test = splits
        if subject is not None:
            self.subject = subject

    @cached_property
    def train(self) -> Images:
        """The training images, or as many of them as ``--set train_images=N`` says."""
        images = load(self.bench.data, split="train")
        count = self.bench.options.get("train_images")
        return images if count is None else images.sample(count=int(count), seed=0)

    @cached_property
    def test(self) -> Images:
        return load(self.bench.data, split="test")

    @cached_property
    def subject(self) -> Subject:
        """The network under test."""
        return self._loaded(self._names[0]) if self._names else self.network()[0]

    @cached_property
    def peers(self) -> tuple[Subject, ...]:
        """Networks that the subject is compared with."""
        return tuple(self._loaded(name) for name in self._names[1:])

    @property
    def models(self) -> tuple[Subject, ...]:
        return (self.subject, *self.peers)

    @property
    def named(self) -> tuple[Subject, ...]:
        """Those that were named, and nobody where none was."""
        return self.models if self._names else ()

    @cached_property
    def latent(self) -> LatentModel:
        """The VAE of a study; ``--set kind=… latent=… vae_epochs=…`` choose another."""
        usual = "hierarchical" if self.train.x.shape[1] > 1 else "linear"
        made = self.generator(
            "vae",
            kind=str(self.bench.options.get("kind", usual)),
            latent=self.bench.options.get("latent"),
            epochs=self.bench.options.get("vae_epochs"),
            limit=10_000,
        )
        lost = made.card["judge_accuracy"] - made.card["reconstruction_accuracy"]
        if lost > LOST:
            self.bench.say(
                f"warning: reconstructions lose {lost:.1%} of the labels; "
                "what is found says more of the VAE"
            )
        return made

    @property
    def space(self) -> Space:
        return self.latent.space

    @property
    def codes(self) -> Library:
        return self.latent.codes

    @cached_property
    def profile(self) -> Profiles:
        """What methods make criteria with."""
        return Profiles(from_bytes(self.test.x[:1]), lambda: self.train)

    @cached_property
    def right(self) -> Images:
        """The test images that the subject classifies correctly."""
        return usable(self.subject, self.test)

    @property
    def notes(self) -> list[str]:
        """What a table must say about data and networks."""
        told = [f"data {self.train.name}, {len(self.train)} training images"]
        told[0] += f", device {self.bench.device}"
        for model in self.models:
            share = accuracy(model, self.test)
            told.append(f"{model.name}: {share:.2%} of {len(self.test)} test images right")
        if "latent" in self.__dict__:
            told.append(self.latent.note)
        return told

    def network(
        self,
        name: str | None = None,
        *,
        seed: int | None = None,
        epochs: str = "epochs",
        train: Images | None = None,
        adversarial: str | None = None,
        augment: str | None = None,
        role: str | None = None,
    ) -> tuple[Subject, Mapping[str, Any]]:
        """A zoo network and its card.

        Args:
            name: Which; by default ``--set model=…``, the paper's with ``--full``, LeNet-5
                otherwise, an AlexNet for colour.
            seed: Of its training; the bench's by default.
            epochs: The option that says how long it is trained; its recipe does if there is none.
            train: What it learns from, if not the lab's training images.
            adversarial: The ball of adversarial training, such as ``linf:0.1``.
            augment: What is done to training images; its recipe says so if nothing is given.
            role: What the subject is called, if not by its network.
        """
        known = str(name or self.bench.options.get("model", self._usual())).removeprefix("zoo:")
        net, card = trained_classifier(
            known,
            self.train if train is None else train,
            self.test,
            seed=self.bench.seed if seed is None else seed,
            epochs=self.bench.options.get(epochs),
            adversarial=adversarial,
            augment=augment,
            device=self.bench.device,
        )
        called = role or f"zoo:{known}"
        return Subject(net, classes=self.test.classes, name=called, device=self.bench.device), card

    def trained(self, family: str, **options: Any) -> tuple[nn.Module, Mapping[str, Any]]:
        """A generator of this family and its card, judged by the network under test."""
        self.bench.say(f"generator {family} {options or ''}")
        return trained_generator(
            family,
            self.train,
            self.test,
            judge=lambda x: self.subject(x).logits,
            device=self.bench.device,
            **options,
        )

    def generator(self, family: str, *, limit: int = 30_000, **options: Any) -> LatentModel:
        """A generator as a space; `limit` training images have their codes collected."""
        net, card = self.trained(family, **options)
        # mypy cannot know which network a family trains
        space: Space = Grid(net) if family == "vqvae" else latent(net)  # type: ignore[arg-type]
        return LatentModel(net, space, card, self.train, self.bench.device, limit)

    def method(
        self, name: str, settings: Mapping[str, Any] | None = None
    ) -> tuple[Method, tuple[Model, ...]]:
        """The method called `name` for the subject, and the peers it falls back on."""
        ready = Context.of(
            self.subject, self.test, name, options=settings, train=self.train, data=self.bench.data
        )
        return ready.method, ready.peers

    def seeds(self, count: int, seed: int) -> Images:
        """So many class-balanced test images that all models classify correctly, or fewer."""
        drawn = self.test.sample(count=min(len(self.test), 4 * count), seed=seed)
        return read_by_all(self.models, drawn).first(count)

    def originals(self) -> list[Images]:
        """For each repeat, test images of every class; none is set aside, whatever the network says of it."""
        count = int(self.bench.options.get("originals", len(self.test.classes)))
        repeats = self.bench.repeats or 3
        return [self.test.sample(count=count, seed=self.bench.seed + i) for i in range(repeats)]

    def fit_profile(self, criteria: Sequence[str]) -> Profile:
        """What these criteria know of the training images."""
        return profile_for(self.subject, self.train, list(criteria))

    def covered(
        self, images: Images, criteria: Sequence[str], profile: Profile | None
    ) -> dict[str, float]:
        """What each criterion says about `images`, on the subject."""
        records = coverage(self.subject, images, list(criteria), profile=profile)
        for row in records:
            if "note" in row:
                self.bench.say(row["note"])
        return {name: float(row["value"]) for name, row in zip(criteria, records, strict=True)}

    def _usual(self) -> str:
        if self.train.x.shape[1] > 1:
            return "alexnet"
        return "sinvad-cnn" if self.bench.full else "lenet5"

    def _loaded(self, name: str) -> Subject:
        self.bench.say(f"network {name}")
        how = Loading(train=self.train, test=self.test, device=self.bench.device, seed=0)
        model = load_model(name, how)
        if not isinstance(model, Subject):
            raise HardcaseError(
                f"{name} shows no layers and gradients, which this experiment needs.",
                fix="a torch model",
            )
        return model


def labs(bench: Bench, names: Sequence[str] = (), *, most: int | None = None) -> dict[str, Lab]:
    """A lab for each network under test, with the same data.

    ``--set model_epochs=N augment=none`` trains networks for so long and on images as they are: ARGUS's own are weaker than ours
    (LeNet-5 at 98.1 %, ResNet18 at 85 %). ``model_seed=N`` starts them from other weights.
    """
    first = Lab(bench)
    splits = (first.train, first.test)
    made = {}
    for name in names or _argus_networks(first.train, full=bench.full)[:most]:
        bench.say(f"network {name}")
        if ":" in name:
            made[name] = Lab(bench, [name], splits=splits)
            continue
        subject, _ = first.network(
            name,
            seed=int(bench.options.get("model_seed", 0)),
            epochs="model_epochs",
            augment=bench.options.get("augment"),
        )
        made[name] = Lab(bench, splits=splits, subject=subject)
    return made


def _argus_networks(train: Images, *, full: bool) -> Sequence[str]:
    if train.x.shape[1] == 1:
        return ("lenet5", "lenet4") if full else ("lenet5",)
    if train.x.shape[-1] > PHOTOGRAPH:
        return ("zoo:resnet50-imagenet",)
    return ("resnet18", "vgg16") if full else ("resnet18-small",)
