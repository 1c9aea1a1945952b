"""The judge of small images, by an ensemble trained on the same data; stored in the cache."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import turn
from hardcase.data.sources import load
from hardcase.judges.calibration import PeopleCounts
from hardcase.judges.judge import (
    KIND,
    WEAK,
    Neighbours,
    OnProgress,
    RatedImages,
    TrainedJudge,
    made_judge,
    panel_judge,
    split_rows,
)
from hardcase.judges.networks import (
    PANEL,
    PHOTO_PANEL,
    REFERENCES,
    Density,
    MemberConfig,
    Panel,
    build,
)
from hardcase.judges.rules import Signals, rules_from_exam
from hardcase.judges.training_data import Shares, exam_of_digits, training_batch
from hardcase.randomness import balanced_order, stream
from hardcase.tensors import chunks, fingerprints, from_bytes, per_row, steady, to_bytes
from hardcase.training import cards
from hardcase.training.cards import (
    UNSTATED,
    History,
    TrainingProgress,
    TrainingRecipe,
    geometry,
    stated,
    unfinished_folder,
)
from hardcase.training.loop import AHEAD, GENTLE, Goal, bend, fit
from hardcase.types import Images

VOTES = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "domain": {"something": 1.0, "nearness": 1.0, "likeness": 0.25, "contrast": 0.25},
}
"""Weight of each signal, in units of its spread over synthetic images."""
RATED_DIGITS = RatedImages(
    source="every other one of 500 digits that people rated (V. Riccio, P. Tonella, ICSE 2023)",
    rules={"label_kept": {"scale": 0.8, "offset": -0.17, "low": 0.15, "high": 0.9}},
    data=("mnist5k", "mnist"),
    methods={
        "deepjanus": {"accepted": 26, "right": 26, "losses": 3},
        "deepxplore": {"accepted": 26, "right": 26, "losses": 11},
        "dlfuzz": {"accepted": 32, "right": 31, "losses": 0},
        "feature-perturbation": {"accepted": 15, "right": 11, "losses": 20},
        "sinvad": {"accepted": 14, "right": 11, "losses": 9},
    },
)
"""Fitted to half of the digits, rounded; `methods` are the other half, where an accepted image is
right if both raters confirmed its label. ``hardcase reproduce rated-digits`` makes all of it again.
"""
_MEMBERS = TrainingRecipe(epochs=8, steps=660, batch=128, lr=3e-3, schedule="warm", decay=1e-2)
_DENSITY = TrainingRecipe(epochs=3, steps=800, batch=128, lr=2.5e-3)
MADE = 2**28
"""Bytes of the images that are synthesised before the members are trained, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a panel is trained.

    Args:
        ensemble: The members.
        members: The recipe of each.
        density: The recipe of the density.
        shares: The composition of training batches.
        held_out: Share of the training images that only the rules are fitted to.
        seen: Share of the others that each member is trained on, a different share for each.
        passes: How often members see each synthetic image; 0: each is synthesised anew.
        trainings: How often all members are trained, each time on other synthetic images.
        held_out_families: Families of change (`training_data.FAMILIES`) that its training shows
            neither as keeping nor as losing a label.
    """

    ensemble: tuple[MemberConfig, ...] = PANEL
    members: TrainingRecipe = _MEMBERS
    density: TrainingRecipe = _DENSITY
    shares: Shares = field(default_factory=Shares)
    held_out: float = 0.1
    seen: float = field(default=1.0, metadata=UNSTATED)
    passes: int = field(default=0, metadata=UNSTATED)
    trainings: int = field(default=1, metadata=UNSTATED)
    held_out_families: tuple[str, ...] = field(default=(), metadata=UNSTATED)


USUAL = TrainConfig(passes=3, trainings=3)
"""For small grey images. Filling half of every batch with real images as they are was tried, and
ranked rated digits no better (.931 and .923 against .942, AUROC over 250 digits). So was a
sixteenth of every batch of two digits on top of each other, taught as no digit: of overlays of
images held out from training it found 61 % instead of 34 % and accepted 7 % instead of 20 %, but of
the digits whose label people confirmed (even half) it accepted .56 instead of .70 (a judge each).
"""
THOROUGH = TrainConfig(
    ensemble=PHOTO_PANEL,
    members=TrainingRecipe(
        epochs=48,
        steps=760,
        batch=512,
        lr=0.3,
        optimiser="sgd",
        schedule="warm",
        decay=5e-4,
        half=True,
    ),
    density=TrainingRecipe(epochs=3, steps=1200, batch=512, lr=2e-3),
    shares=Shares(interpolated=0.06, corrupted=0.1, easy=0.9),
    held_out=0.04,
    seen=0.95,
)
"""For colour on a GPU."""
SMALLER = replace(
    THOROUGH,
    ensemble=tuple(
        MemberConfig(view=view, width=16, deep=True) for view in ("plain", "even", "plain")
    ),
    members=replace(THOROUGH.members, epochs=10, batch=128, lr=0.1),
)
"""For colour on a CPU, where there are enough images to learn from: about half an hour."""
ENOUGH = 20_000
"""Training images from which on residual networks read them better than plain ones."""


@dataclass(frozen=True)
class PanelTraining:
    """Trains the density and the members of a panel, fits its rules; `kept` is the folder
    of unfinished work, `counts` are people's answers.
    """

    panel: Panel
    fitted: Images
    config: TrainConfig
    seed: int
    kept: Path
    progress: OnProgress = None
    device: torch.device | str = "cpu"
    counts: PeopleCounts | None = None
    made: dict[int, tuple[Images, Tensor]] = field(default_factory=dict, repr=False)

    def run(self, held_out: Images) -> dict[str, Any]:
        """Train density and members, remember real images, make the rules."""
        panel = self.panel
        histories = [self.learn(number) for number in range(len(panel.members) + 1)]
        panel.eval()
        self._remember(held_out)
        images = [self.fitted.x, held_out.x]
        if self.counts is not None:
            images.append(self.counts.beside(self.fitted, held_out).x)
        panel.learned.copy_(fingerprints(torch.cat(images)).sort().values)
        rng = stream(self.seed, "judge", "examination", device=self.device)
        families = self.config.held_out_families
        exam = exam_of_digits(held_out, panel.density, rng, self.device, families)
        signals = Signals.average(panel.ask(exam.x, exam.expected))
        rules = rules_from_exam(signals, exam, VOTES)
        fixed = RATED_DIGITS.rules
        rules_record = {
            name: {**asdict(rule), **fixed.get(name, {})} for name, rule in rules.items()
        }
        return {
            "seed": self.seed,
            "seconds": sum(history.seconds for history in histories),
            "steps": sum(history.steps for history in histories),
            "warnings": [warning for history in histories for warning in history.warnings],
            "members": panel.hashes(),
            "rules": rules_record,
            "rated": asdict(RATED_DIGITS),
        }

    def learn(self, number: int) -> History:
        """Train the density (number 0) or a member; another process that does it is waited for."""
        name = "density"
        if number:
            name = f"member {number} of {len(self.panel.members)}"
        with turn(self.kept / f"{number}.lock"):
            return fit(
                *self._task(number),
                seed=self.seed + number,
                device=self.device,
                progress=self.progress,
                name=f"judge, {name}",
                kept=self.kept / str(number),
            )

    def _task(self, number: int) -> tuple[nn.Module, Images, Goal, TrainingRecipe]:
        config = self.config
        if not number:
            goal = _likelihood(config.held_out_families)
            return self.panel.density, self.fitted, goal, config.density
        member = self.panel.networks[number - 1]
        images, _ = self._labelled
        recipe = config.members
        targets: Tensor | None = None
        if config.passes:
            images, targets = self._made_for(self._training(number))
            epochs, inside = recipe.rounds(len(self.fitted))
            rounds = -(-epochs * inside * recipe.batch // len(images))
            recipe = replace(recipe, epochs=rounds, steps=0)
        if config.seen < 1:
            rng = stream(self.seed, "judge", "images", number)
            count = max(1, round(config.seen * len(images)))
            images = images.take(torch.randperm(len(images), generator=rng)[:count].sort().values)
        return member, images, self._classification(member.config.attack, targets), recipe

    @cached_property
    def _labelled(self) -> tuple[Images, Float[Tensor, "r k1"]]:
        """Training images and the target of each label; where people named classes, each image has
        its row as its label.
        """
        if self.counts is None:
            return self.fitted, torch.eye(self.panel.classes + 1, device=self.device)
        images, targets = self.counts.labels_of(self.fitted)
        return images, targets.to(self.device)

    def _training(self, number: int) -> int:
        """Return which training a member, counted from 1, belongs to, counted from 0."""
        return (number - 1) // len(self.config.ensemble)

    def _made_for(self, training: int) -> tuple[Images, Float[Tensor, "n k1"]]:
        """Return the images of a training; only those of the latest are in memory."""
        if training not in self.made:
            self.made.clear()
            self.made[training] = self._make(training)
        return self.made[training]

    def _make(self, training: int) -> tuple[Images, Float[Tensor, "n k1"]]:
        """Images that are synthesised once for all members of a training, each in a different
        order: labelled with their row, and their soft targets.
        """
        config = self.config
        source, _ = self._labelled
        size = config.members.batch
        epochs, inside = config.members.rounds(len(source))
        most = MADE // (size * source.x[0].numel())
        count = max(1, min(-(-epochs * inside // config.passes), most))
        order = stream(self.seed, "judge", "order", training)
        turns = -(-count * size // len(source))
        rows = torch.cat([torch.randperm(len(source), generator=order) for _ in range(turns)])
        rows = rows[: count * size]
        rng = stream(self.seed, "judge", "lessons", training, device=self.device)
        images = list[Tensor]()
        targets = list[Tensor]()
        together = size
        if not steady(torch.device(self.device)):
            together = AHEAD * size
        for part in chunks(len(rows), together):
            x = from_bytes(source.x[rows[part]].to(self.device))
            made, target = self._fresh(x, source.y[rows[part]].to(self.device), rng)
            images.append(to_bytes(made).cpu())
            targets.append(target)
            if self.progress is not None:
                what = f"training data of the judge on {source.name}"
                self.progress(TrainingProgress(0, 0, part.stop, len(rows), 0.0, "", what))
        labels = torch.arange(len(rows))
        return replace(source.take(rows), x=torch.cat(images), y=labels), torch.cat(targets)

    def _fresh(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make a training batch of real images."""
        config = self.config
        targets = self._labelled[1][y.long()]
        return training_batch(
            x, targets, self.panel.density, rng, config.shares, config.held_out_families
        )

    def _classification(self, attack: float, targets: Float[Tensor, "n k1"] | None) -> Goal:
        """Cross-entropy against soft targets: of stored images, each named by its row, or of images
        synthesised for each step.
        """

        def loss(net: nn.Module, x: Tensor, target: Tensor, noise: torch.Generator) -> Tensor:
            if targets is not None:
                target = targets[target]
            if attack:
                x = attacked(net, x, target, attack, noise)
            return functional.cross_entropy(net(x), target)

        def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits: Tensor = net(x)
            return logits

        blind = math.log(self.panel.classes + 1)
        if targets is not None:
            return Goal(loss, answer, blind)
        return Goal(loss, answer, blind, self._fresh)

    @torch.no_grad()
    def _remember(self, held_out: Images) -> None:
        """Keep features of real images of every class in turn, their usual nearness and cost."""
        panel = self.panel
        order, _ = balanced_order(self.fitted.y, self.fitted.id, seed=0)
        sample = self.fitted.take(order[: panel.references.shape[1]])
        remembered_rows, others = (
            torch.cat(
                [
                    panel.answers(from_bytes(part.x[rows].to(self.device)))[1]
                    for rows in chunks(len(part), 256)
                ]
            )
            for part in (sample, held_out)
        )
        most = max(1, REFERENCES // panel.classes)
        labels = sample.y.to(self.device)
        parts = zip(
            *(features.chunk(panel.trainings, dim=1) for features in (remembered_rows, others))
        )
        for number, (remembered, unseen) in enumerate(parts):
            neighbours = Neighbours.of(remembered, labels, panel.classes, most=most)
            panel.references[number].copy_(neighbours.features)
            panel.counts.copy_(neighbours.counts)
            panel.typical[number] = neighbours.distances(unseen).amin(1).median()
        panel.density.fit_to(from_bytes(held_out.x.to(self.device)))


def _likelihood(held_out_families: Collection[str]) -> Goal:
    """The negative evidence lower bound of images that are bent a little."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Density)
        return net.bound(x, noise)

    def prepare(x: Tensor, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        if "bending" in held_out_families:
            return x, y
        return bend(x, noise, GENTLE), y

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(net, Density)
        return net.encode(x)

    return Goal(loss, answer, math.inf, prepare)


def attacked(
    net: nn.Module,
    x: Float[Tensor, "m c h w"],
    target: Float[Tensor, "m k1"],
    radius: float,
    rng: torch.Generator,
) -> Float[Tensor, "m c h w"]:
    """`x` one step uphill in the loss, from a random start, within an L2 ball of `radius`.

    E. Wong, L. Rice, J. Kolter, "Fast is better than free: revisiting adversarial training", ICLR
    2020, in L2 instead of L∞.
    """
    start = torch.randn(x.shape, generator=rng, device=x.device)
    shift = start * per_row(
        radius * torch.rand(len(x), generator=rng, device=x.device) / _length(start), x
    )
    here = (x + shift).clamp(0, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(functional.cross_entropy(net(here), target), here)
    shift = here.detach() - x + gradient * per_row(1.25 * radius / _length(gradient), x)
    return (x + shift * per_row((radius / _length(shift)).clamp_max(1), x)).clamp(0, 1)


def _length(x: Tensor) -> Float[Tensor, " m"]:
    return x.flatten(1).square().sum(1).sqrt().clamp_min(1e-12)


NAME = "panel"
_log = logging.getLogger(__name__)


def config_for(
    train: Images, test: Images, *, seed: int, device: torch.device | str
) -> TrainConfig:
    """Choose thorough training for colour where there is a GPU, or where that was done already."""
    if train.x.shape[1] == 1:
        return USUAL
    thorough_is_stored = (folder(train, test, seed=seed, config=THOROUGH) / cards.CARD).exists()
    if thorough_is_stored or torch.device(device).type == "cuda":
        return THOROUGH
    return SMALLER if len(train) >= ENOUGH else USUAL


def card_config(
    train: Images,
    test: Images,
    config: TrainConfig,
    seed: int,
    counts: PeopleCounts | None = None,
) -> dict[str, Any]:
    """Return the configuration that a judge's card states and its folder is named after."""
    channels, size, classes = geometry(train, test)
    fitted, _ = split_rows(train.y, train.id, config.held_out)
    each = max(1, REFERENCES // classes)
    remembered = train.y[fitted].bincount(minlength=classes).clamp_max(each)
    people: dict[str, Any] = {}
    learned = len(train)
    if counts is not None:
        people = {"people": counts.hash}
        learned += len(counts.beside(train).x)
    return {
        "channels": channels,
        "size": size,
        "classes": classes,
        "references": int(remembered.sum()),
        "learned": learned,
        "seed": seed,
        "training": stated(config),
        **people,
    }


def folder(
    train: Images, test: Images, *, seed: int = 0, config: TrainConfig | None = None
) -> Path:
    """Return the folder of the judge of this data, if it was trained."""
    config = config or config_for(train, test, seed=seed, device="cpu")
    return cards.folder_of(KIND, NAME, card_config(train, test, config, seed), train.hash)


def trained(
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    config: TrainConfig | None = None,
    people: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: OnProgress = None,
) -> TrainedJudge:
    """Return the judge of a data set: an ensemble trained on `train`, or from the cache.

    A training that was stopped goes on.

    Args:
        train: Images to train on; never the seeds.
        test: Images that measure it.
        seed: Of everything random.
        config: How it is trained; by default what suits the images and the device.
        people: An npz file of images and how many people named each class (`PeopleCounts`), which
            are then the targets of these images; images that are not in `train` are added.
        device: Where it computes.
        progress: Called with the progress of the training.
    """
    config = config or config_for(train, test, seed=seed, device=device)
    counts: PeopleCounts | None = None
    if people is not None:
        counts = PeopleCounts.read(Path(people), tuple(train.x.shape[1:]), len(train.classes))
    described = card_config(train, test, config, seed, counts)
    unfinished = unfinished_folder(cards.folder_of(KIND, NAME, described, train.hash))

    def learn(net: nn.Module) -> Mapping[str, Any]:
        assert isinstance(net, Panel)
        fitted, held_out = map(train.take, split_rows(train.y, train.id, config.held_out))
        arguments = (config, seed, unfinished, progress, device, counts)
        return PanelTraining(net.to(device), fitted, *arguments).run(held_out)

    judge = made_judge(NAME, described, train, test, build=build, learn=learn, device=device)
    shutil.rmtree(unfinished, ignore_errors=True)
    accuracy = judge.card["accuracy"]
    if accuracy < WEAK:
        _log.warning(
            "the judge of %s takes only %.1f %% of test images for what they are: it will deny or"
            " leave open the label of many good failures",
            train.name,
            100 * accuracy,
        )
    return judge


def for_data(
    name: str,
    *,
    train_on: str = "train",
    offline: bool = False,
    seed: int = 0,
    people: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: OnProgress = None,
) -> TrainedJudge:
    """Return the judge of a data set by name, trained if it is missing.

    Args:
        name: A data set, as ``--data`` names it.
        train_on: The split that it is trained on; it is measured on the other.
        offline: Ask nothing outside this machine.
        seed: Of everything random.
        people: See `trained`.
        device: Where the networks are.
        progress: Called with the progress of the training.
    """
    splits = sorted(("train", "test"), key=lambda split: split != train_on)
    first, second = (load(name, split=split, offline=offline) for split in splits)
    return trained(first, second, seed=seed, people=people, device=device, progress=progress)


def read(folder: Path) -> TrainedJudge:
    """Read a trained judge from its folder.

    Args:
        folder: Folder of a trained judge.
    """
    net, card = cards.load_card(folder, build, kind=KIND)
    return panel_judge(net, card, folder)
