"""Default witnesses: small networks that must keep the label where the model leaves it.

A witness takes part in the search, so it must not be the judge's: who is independent of whom, and
in which respect, is recorded with every run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.models.fetching import fetched_classifiers, known_as
from hardcase.models.load import lineage_of
from hardcase.models.names import COUNT as OUTPUTS
from hardcase.models.pretrained import PRETRAINED
from hardcase.models.subject import Subject
from hardcase.models.zoo import is_trained, trained_classifier
from hardcase.tensors import fingerprints
from hardcase.training.cards import PATIENCE, TrainingProgress, patient_for
from hardcase.types import Images, Model, is_photographic

_log = logging.getLogger(__name__)

NETWORK = "lenet5"
COLOUR_NETWORK = "vgg16-small"
"""What witnesses of colour are from `MANY` training images on: a LeNet reads half of CIFAR-10."""
MANY = 20_000
SEEDS = (1, 2, 3)
TRAINED_ON = {
    "handwriting": "turned, stretched, sheared, moved, bent; thicker, thinner, fainter strokes",
    "bend-flip": "turned, stretched, sheared, moved, bent, mirrored; darker and brighter",
}
"""What the default witnesses are trained to keep the label under, by the augmentation's name."""
PART = "even content hash"
"""Which training images default witnesses learn from."""
OWN = "trained here, from scratch, and used nowhere else"
ENOUGH = 500
"""Training images from which on surrogates are trained, and ..."""
SURROGATE_PATIENCE = 300.0
"""... seconds that each may take; a search without any begins at once."""
SURROGATES = ("lenet1", "lenet4", "lenet1?seed=1", "lenet4?seed=1")
"""Networks of the zoo whose gradients replace those of a black box on small grey images: none has
the architecture of the usual model.
"""
LARGEST = 64
"""Side of the largest images that a LeNet is a witness of."""
SHARE = 0.1
"""Share of the time of a black box's search that default trainings may take."""


def even_half(images: Images) -> Images:
    """The images whose content hash is even: about half, the same ones whatever their order."""
    return images.take((fingerprints(images.x) % 2 == 0).nonzero().squeeze(1))


def augmentation_for(images: Images) -> str:
    """How default witnesses are taught: as another hand would write, or as another camera sees."""
    return "handwriting" if images.x.shape[1] == 1 else "bend-flip"


def network_for(images: Images) -> str:
    """Which network of the zoo the default witnesses are: LeNet-5, a VGG-16 for much colour."""
    if images.x.shape[1] > 1 and len(images) >= MANY:
        return COLOUR_NETWORK
    return NETWORK


def pretrained_witnesses(
    subject: Model, classes: int, load: Callable[[str], Model]
) -> tuple[Model, ...]:
    """The fetched networks of photographs, except the judge and the network under test."""
    if classes != OUTPUTS:
        raise HardcaseError(
            f"networks of ImageNet's {OUTPUTS:,} classes do not know these {classes}.",
            fix="--witness MODEL, another network of these classes",
        )
    name = catalogued(subject)
    if name != subject.name:
        _log.warning(
            "%s is %s under another name, so that is no witness of this run", subject.name, name
        )
    chosen = roles(name, fetched_classifiers())
    if not chosen.witnesses:
        raise HardcaseError(chosen.note, fix="hardcase fetch model NAME, or --witness MODEL")
    return tuple(load(f"zoo:{name}") for name in chosen.witnesses)


# Which of the fetched networks judges a run on photographs, and which are witnesses in its search:
# the most accurate one of another model family than the model's is the judge; the others that do
# not share the judge's model family are witnesses. With one network only it is the judge.


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the judge (perhaps none) and of the witnesses, and what to tell the user."""

    judge: str
    witnesses: tuple[str, ...]
    note: str


def roles(subject: str, present: Sequence[str]) -> Roles:
    """Divide the networks that are `present` between judge and witnesses of a run on `subject`.

    Example:
        >>> roles("zoo:efficientnet-lite0", ["resnet50-imagenet", "efficientnet-lite1"]).judge
        'resnet50-imagenet'
    """
    family = lineage_of(subject)
    rows = [PRETRAINED[name] for name in present if PRETRAINED[name].accuracy is not None]
    others = [row for row in rows if row.name != subject.removeprefix("zoo:")]
    ranked = sorted(
        others, key=lambda row: (row.lineage != family, row.accuracy or 0.0), reverse=True
    )
    strange = [row for row in ranked if row.lineage != family]
    if not strange:
        best = _best_of_another(family)
        why = "no network of another family is on this machine to check labels of photographs"
        return Roles("", (), f"{why}: hardcase fetch model {best}; a witness is a second one")
    judge = strange[0]
    witnesses = tuple(row.name for row in ranked if row.lineage != judge.lineage)
    siblings = [name for name in witnesses if PRETRAINED[name].lineage == family]
    note = ""
    if not witnesses:
        second = _best_of_another(judge.lineage, subject)
        note = f"{judge.name} checks labels, and no other network is on this machine"
        note += f": hardcase fetch model {second}" if second else ""
    elif siblings:
        note = f"of the model's own lineage: {', '.join(siblings)}"
    return Roles(judge.name, witnesses, note)


def _best_of_another(family: str, but: str = "") -> str:
    """The most accurate network that may be fetched and is of another family; perhaps none."""
    rows = [row for row in PRETRAINED.values() if row.lineage != family and row.accuracy]
    free = [row for row in rows if row.licensed and row.name != but.removeprefix("zoo:")]
    return max(free, key=lambda row: row.accuracy or 0.0).name if free else ""


@dataclass(frozen=True, kw_only=True)
class WitnessSelection:
    """How the witnesses of a run are loaded or trained.

    `images` gives the images of a split, `load` the network of a name, when they are needed;
    `search_seconds` says how long the search of a black box takes at most.
    """

    subject: Model
    shape: Sequence[int]
    classes: int
    images: Callable[[str], Images]
    load: Callable[[str], Model]
    progress: Callable[[TrainingProgress], None] | None = None
    search_seconds: Callable[[], float] | None = None

    def named(self, wanted: Sequence[Model | str]) -> tuple[Model, ...]:
        """The networks that the user passed or named; ``default[:EPOCHS]`` names the default
        witnesses."""
        if tuple(wanted) == ("none",):
            return ()
        networks = list[Model]()
        for spec in wanted:
            if not isinstance(spec, str):
                networks.append(spec)
            elif spec.partition(":")[0] == "default":
                networks += self.default(spec.partition(":")[2])
            else:
                networks.append(self.load(spec))
        return tuple(networks)

    def default(self, epochs: str = "", *, named: bool = True) -> tuple[Model, ...]:
        """Networks trained on the data; for photographs those that others have trained. The
        default witnesses if the user has `named` none: none if none are available, a single network
        if their training is costly.
        """
        if epochs and not (epochs.isdecimal() and int(epochs)):
            raise HardcaseError(
                f"--witness default:{epochs} names no number of epochs.", fix="--witness default:24"
            )
        costly = is_photographic(self.shape)
        networks: tuple[Model, ...]
        try:
            if costly:
                networks = pretrained_witnesses(self.subject, self.classes, self.load)
            else:
                train, test = self.images("train"), self.images("test")
                epochs_wanted = int(epochs) if epochs else None
                if len(train) < ENOUGH and not (named or _are_trained(train, test, epochs_wanted)):
                    count = f"{len(train)} training images are too few (at least {ENOUGH})"
                    raise HardcaseError(f"{count} for networks that must keep a label")
                with patient_for(PATIENCE if named else self._patience()):
                    networks = default_witnesses(
                        train,
                        test,
                        epochs=epochs_wanted,
                        device=self.subject.device,
                        progress=self.progress,
                    )
        except HardcaseError as problem:
            if named:
                raise
            text = problem.what.rstrip(".")
            more = "" if costly else "; --witness default trains some all the same"
            _log.warning("this run has no witness: %s%s", text, more)
            return ()
        if costly and not named and len(networks) > 1:
            words = "one witness of %d, %s: each costs as much as the model"
            _log.warning(f"{words}; --witness default asks all", len(networks), networks[0].name)
            return networks[:1]
        return networks

    def _patience(self) -> float:
        """Seconds that the training of a default witness may take."""
        if self.search_seconds is None:
            return PATIENCE
        return min(PATIENCE, SHARE * self.search_seconds() / len(SEEDS))

    def verifiers(self, witnesses: tuple[Model, ...], *, named: bool) -> tuple[Model, ...]:
        """Networks that check generated images: witnesses, or default ones if none is `named`."""
        why = "--witness default, or networks of your own, do"
        if not witnesses and not named:
            try:
                return self.default()
            except HardcaseError as problem:
                why = problem.what
        if not witnesses:
            _log.warning("nobody but the model checks generated images; %s", why)
        return witnesses


def _are_trained(train: Images, test: Images, epochs: int | None) -> bool:
    """Whether the cache holds all default witnesses."""
    part = even_half(train)
    how: dict[str, Any] = {"epochs": epochs, "augment": augmentation_for(train)}
    if not len(part) or max(train.x.shape[2:]) > LARGEST:
        return False
    return all(is_trained(network_for(train), part, test, seed=seed, **how) for seed in SEEDS)


def surrogates_for(
    subject: Model,
    shape: Sequence[int],
    train: Callable[[], ImageSet],
    load: Callable[[str], Model],
    *,
    seconds: float = math.inf,
) -> tuple[Model, ...]:
    """Surrogates for a method that asks a black box, trained as a model; perhaps none, where that
    takes more than a small part of the `seconds` of the search.
    """
    if shape[0] != 1 or is_photographic(shape):
        return ()
    try:
        count = len(train())
        if count < ENOUGH:
            _log.warning(
                "%d training images are too few for surrogates (%d): the search is an evolution",
                *(count, ENOUGH),
            )
            return ()
        with patient_for(min(SURROGATE_PATIENCE, SHARE * seconds / len(SURROGATES))):
            networks = [load(f"zoo:{name}") for name in SURROGATES]
    except HardcaseError as problem:
        text = problem.what.rstrip(".")
        more = "--set method.search=surrogates trains them all the same"
        _log.warning("the model has no surrogates: %s; %s", text, more)
        return ()
    weights = getattr(subject, "weights", "")
    return tuple(model for model in networks if getattr(model, "weights", None) != weights)


def catalogued(model: Model) -> str:
    """The name of a model in the catalogue, if it was fetched under another name; else its name."""
    if model.name.startswith(("zoo:", "witness:")):  # named by the catalogue, or trained here
        return model.name
    return known_as(model.name, getattr(model, "weights", ""))


def default_witnesses(
    train: Images,
    test: Images,
    *,
    seeds: Sequence[int] = SEEDS,
    epochs: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[TrainingProgress], None] | None = None,
) -> tuple[Subject, ...]:
    """Three networks of other images than a model's, trained on half of `train`; cached."""
    side = max(train.x.shape[2:])
    if side > LARGEST:
        raise HardcaseError(
            f"there are no default witnesses for images of {side} pixels: "
            f"a LeNet reads at most {LARGEST}.",
            fix="--witness MODEL, a pretrained network that is not the model",
        )
    part = even_half(train)
    name = network_for(train)
    kind = "" if name == NETWORK else f"{name} "
    how: dict[str, Any] = {"augment": augmentation_for(train), "epochs": epochs, "device": device}
    networks = []
    for number, seed in enumerate(seeds, 1):
        tell = progress and partial(_told_as, progress, f"witness {number} of {len(seeds)}")
        net, card = trained_classifier(name, part, test, seed=seed, progress=tell, **how)
        witness = Subject(net, classes=test.classes, name=f"witness:{kind}{seed}", device=device)
        witness.card = card
        networks.append(witness)
    return tuple(networks)


def _told_as(
    progress: Callable[[TrainingProgress], None], what: str, step: TrainingProgress
) -> None:
    progress(replace(step, what=what))


def _lineage(model: Model) -> str:
    """The entry of run.json on a network's origin: its model family, or that it is unknown."""
    name = catalogued(model)
    if name.startswith("witness:"):  # of a network and an image, or of the usual one and an image
        network, _, _ = name.removeprefix("witness:").rpartition(" ")
        name = f"zoo:{network or NETWORK}"
    if name.startswith("zoo:") and name.removeprefix("zoo:") not in PRETRAINED:
        return f"{name.removeprefix('zoo:')}, trained here"
    return lineage_of(name) or "not known"


def witness_record(
    subject: Model, witnesses: Sequence[Model], margin: float, train: Images | None
) -> dict[str, Any] | None:
    """What run.json says of witnesses; `train` if they learned from it. None without any."""
    if not witnesses:
        return None
    learned: dict[str, Any] | str = "not known"
    trained_on = "not known"
    if train is not None and all(network.name.startswith("witness:") for network in witnesses):
        even = int((fingerprints(train.x) % 2 == 0).sum())
        learned = {"data": train.hash, "part": PART, "images": even, "of": len(train)}
        trained_on = TRAINED_ON[augmentation_for(train)]
    return {
        "models": [network.name for network in witnesses],
        "margin": margin,
        "independence": {
            "networks": "no witness is the subject",
            "lineage": {
                "model": _lineage(subject),
                "witnesses": [_lineage(network) for network in witnesses],
            },
            "training_images": learned,
            "trained_on": trained_on,
        },
    }
