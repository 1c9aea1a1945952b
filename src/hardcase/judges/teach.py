"""How a panel is taught: density, members, memory, and the rules it learns from made images."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase import companions, registry
from hardcase.cache import turn
from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.judges.calibration import calibrate, read_people
from hardcase.judges.judge import ELSEWHERE, PanelJudge, calibrated, judge_of, keep_calibration
from hardcase.judges.panel import (
    PANEL,
    PHOTO_PANEL,
    WEAK,
    Density,
    Member,
    Panel,
    Seat,
    per_class,
    seats,
)
from hardcase.judges.rules import DecisionRule, learned
from hardcase.judges.synthetic import (
    OFTEN,
    RUINS,
    SHARED,
    Codec,
    blend,
    cover,
    examination,
    mirror,
    retouch,
    ruin,
    ruins_of,
)
from hardcase.randomness import balanced_order, stream
from hardcase.tensors import chunks, fingerprints, from_bytes, per_row, steady, to_bytes
from hardcase.training import cards
from hardcase.training.augmentation import GENTLE, bend, crop
from hardcase.training.loop import (
    AHEAD,
    UNSTATED,
    Goal,
    History,
    TrainingProgress,
    TrainingRecipe,
    beside,
    fit,
    forget,
    geometry,
    own_randomness,
    stated,
)
from hardcase.types import Images

# What a member of the panel is taught: changed images, images between classes, and images of
# nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of a batch is blended and ruined; the rest is only changed. `kinds` of ruin are
    drawn for a batch. `easy` is the share of the rest that is merely moved, mirrored and covered in
    one place.
    """

    blended: float = 0.125
    ruined: float = 0.25
    kinds: int = 3
    easy: float = field(default=0.0, metadata=UNSTATED)


def lesson(
    x: Float[Tensor, "m c h w"],
    y: Int[Tensor, " m"],
    classes: int,
    codes: Codec,
    rng: torch.Generator,
    shares: Shares,
    untaught: Collection[str] = (),
) -> tuple[Float[Tensor, "m c h w"], Float[Tensor, "m k1"]]:
    """Made images and what should be said of each: shares of the classes,
    and of "nothing" in the last column.
    """
    with torch.no_grad():
        truth = functional.one_hot(y.long(), classes + 1).float()
        cuts = _cuts(len(x), shares)
        easy = round(shares.easy * cuts[0])
        moved = mirror(crop(x[:easy], 4, rng), rng) if easy else x[:0]
        if easy and "retouching" not in untaught:
            moved = cover(moved, rng)
        x = x[easy:]
        x = mirror(x if "bending" in untaught else bend(x, rng), rng)
        after = [cut - easy for cut in cuts]
        plain, between, *ruined = zip(
            x.tensor_split(after), truth[easy:].tensor_split(after), strict=True
        )
        made = [
            plain,
            _between(*between, (x, truth[easy:]), codes, rng),
            *(_nothing(*part, codes, rng, untaught) for part in ruined),
        ]
        images, targets = (torch.cat(part) for part in zip(*made, strict=True))
        images = images if "retouching" in untaught else retouch(images, rng)
        return torch.cat([moved, images]), torch.cat([truth[:easy], targets])


def _cuts(count: int, shares: Shares) -> list[int]:
    """Where a batch is cut: after the images that are only changed, after the blended ones,
    between kinds of ruin.
    """
    blended, ruined = (int(count * share) for share in (shares.blended, shares.ruined))
    start = count - ruined
    return [start - blended, *(start + ruined * i // shares.kinds for i in range(shares.kinds))]


def _between(
    x: Tensor,
    truth: Tensor,
    others: tuple[Tensor, Tensor],
    codes: Codec,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Blends with any image, and every second one with the nearest image of another class: shapes
    on the boundary.
    """
    if not len(x):
        return x, truth
    others_x, others_truth = others
    gap = torch.cdist(codes.encode(x[::2]), codes.encode(others_x))
    own = truth[::2] @ others_truth.T > 0
    near = gap.masked_fill(own, torch.inf).argmin(1)
    other = x.roll(1, 0)
    second = truth.roll(1, 0)
    other[::2] = others_x[near]
    second[::2] = others_truth[near]
    made, share = blend(x, other, codes, rng)
    return made, share[:, None] * truth + (1 - share[:, None]) * second


def _nothing(
    x: Tensor, truth: Tensor, codes: Codec, rng: torch.Generator, untaught: Collection[str]
) -> tuple[Tensor, Tensor]:
    """Ruined images; what is not lost still belongs to the class,
    shared with the image laid beside it.
    """
    if not len(x):
        return x, truth
    kinds = [kind for kind in (*RUINS, *OFTEN) if kind not in ruins_of(untaught)]
    kind = kinds[int(torch.randint(len(kinds), (1,), generator=rng, device=rng.device))]
    made, lost = ruin(x, codes, rng, kind=kind)
    own = (truth + truth.roll(1, 0)) / 2 if kind in SHARED else truth
    target = (1 - lost[:, None]) * own
    target[:, -1] += lost
    return made, target


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
    (slope,) = torch.autograd.grad(functional.cross_entropy(net(here), target), here)
    shift = here.detach() - x + slope * per_row(1.25 * radius / _length(slope), x)
    return (x + shift * per_row((radius / _length(shift)).clamp_max(1), x)).clamp(0, 1)


def _length(x: Tensor) -> Float[Tensor, " m"]:
    return x.flatten(1).square().sum(1).sqrt().clamp_min(1e-12)


# How a panel is taught: density, members, what it remembers, and the rules it learns from made
# images.

VOTES = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "valid": {"something": 1.0, "nearness": 1.0, "likeness": 0.25, "contrast": 0.25},
}
"""How much each signal counts, in units of its spread over made images."""
Tell = Callable[[TrainingProgress], None] | None
Lessons = tuple[Images, Float[Tensor, "n k1"]]
"""Made images, each labelled with its row, and what should be said of each."""
_MEMBERS = TrainingRecipe(epochs=8, steps=660, batch=128, lr=3e-3, schedule="warm", decay=1e-2)
_DENSITY = TrainingRecipe(epochs=3, steps=800, batch=128, lr=2.5e-3)
MADE = 2**28
"""Bytes of the images that are made before the members learn, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schooling:
    """How a panel is trained. `held_out` is the share of the training images that only the rules
    learn from, `seen` the share of the others that each member learns from, another one each. With
    `passes` the images of the lessons are made once for all members, which see each of them so
    often; without, each is seen once. Of the families of change in `untaught`
    (`synthetic.FAMILIES`) it learns neither that they keep a label nor that they lose it.
    """

    places: tuple[Seat, ...] = PANEL
    members: TrainingRecipe = _MEMBERS
    density: TrainingRecipe = _DENSITY
    shares: Shares = field(default_factory=Shares)
    held_out: float = 0.1
    seen: float = field(default=1.0, metadata=UNSTATED)
    passes: int = field(default=0, metadata=UNSTATED)
    untaught: tuple[str, ...] = field(default=(), metadata=UNSTATED)


USUAL = Schooling(passes=3)
THOROUGH = Schooling(
    places=PHOTO_PANEL,
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
    shares=Shares(blended=0.06, ruined=0.1, easy=0.9),
    held_out=0.04,
    seen=0.95,
)
"""For colour on a GPU."""


def schooling_for(
    train: Images, test: Images, *, seed: int, device: torch.device | str
) -> Schooling:
    """How the judge of these images is made: thoroughly for colour where there is a GPU, or where
    that was done already.
    """
    if train.x.shape[1] == 1:
        return USUAL
    kept = (folder(train, test, seed=seed, schooling=THOROUGH) / cards.CARD).exists()
    return THOROUGH if kept or torch.device(device).type == "cuda" else USUAL


def teach(
    panel: Panel,
    taught: Images,
    held_out: Images,
    schooling: Schooling,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Train density and members, remember real images, learn the rules;
    returns entries of the card. In the folder `kept` a training that is stopped is kept.
    """
    learn = _learner(
        panel, taught, schooling, seed=seed, device=device, progress=progress, kept=kept
    )
    histories = [learn(number) for number in range(len(panel.members) + 1)]
    panel.eval()
    _remember(panel, taught, held_out, device)
    return {
        "seed": seed,
        "seconds": sum(history.seconds for history in histories),
        "steps": sum(history.steps for history in histories),
        "warnings": [warning for history in histories for warning in history.warnings],
        "members": panel.hashes(),
        "rules": {
            name: rule.to_card()
            for name, rule in made_rules(
                panel, held_out, seed=seed, device=device, untaught=schooling.untaught
            ).items()
        },
    }


def _learner(
    panel: Panel,
    taught: Images,
    schooling: Schooling,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell,
    kept: Path | None,
) -> Callable[[int], History]:
    """What trains the density (number 0) or a member; another process that does it is waited
    for.
    """
    lessons = cache(
        partial(_lessons, panel, taught, schooling, seed=seed, device=device, progress=progress)
    )

    def goal_of(number: int) -> tuple[nn.Module, Images, Goal, TrainingRecipe]:
        if not number:
            return panel.density, taught, _likelihood(schooling.untaught), schooling.density
        member = panel.members[number - 1]
        assert isinstance(member, Member)
        images = taught
        goal = _fresh(panel, member.seat, schooling)
        recipe = schooling.members
        if schooling.passes:
            images, targets = lessons()
            goal = _prepared(panel, member.seat, targets)
            epochs, inside = recipe.rounds(len(taught))
            recipe = replace(
                recipe, epochs=-(-epochs * inside * recipe.batch // len(images)), steps=0
            )
        if schooling.seen < 1:
            images = _some(images, schooling.seen, stream(seed, "judge", "images", number))
        return member, images, goal, recipe

    def learn(number: int) -> History:
        name = f"member {number} of {len(panel.members)}" if number else "density"
        with nullcontext() if kept is None else turn(kept / f"{number}.lock"):
            return fit(
                *goal_of(number),
                seed=seed + number,
                name=f"judge, {name}",
                device=device,
                progress=progress,
                kept=None if kept is None else kept / str(number),
            )

    return learn


def help_with(train: Images, test: Images, *, seed: int = 0, progress: Tell = None) -> None:
    """Train members of the judge that another process is training, from the last on, until that
    process works at the next one; it finds them finished.

    Args:
        train: As for `trained`, by both processes.
        test: See `train`.
        seed: See `train`.
        progress: Told how the training goes.
    """
    schooling = schooling_for(train, test, seed=seed, device="cpu")
    taught, _ = parts(train, schooling.held_out)
    config = _config(train, test, taught, schooling, seed)
    home = cards.folder_of(KIND, NAME, config, train.hash)
    kept = beside(home)
    panel = build(config)
    if not kept.is_dir():  # finished, or not begun
        return
    learn = _learner(
        panel, taught, schooling, seed=seed, device="cpu", progress=progress, kept=kept
    )
    learn(0)
    for number in range(len(panel.members), 0, -1):
        with turn(kept / f"{number}.lock", wait=False) as free:
            pass
        if not free or not kept.is_dir():
            return
        learn(number)


def made_rules(
    panel: Panel,
    held_out: Images,
    *,
    seed: int,
    device: torch.device | str,
    untaught: Collection[str] = (),
) -> dict[str, DecisionRule]:
    """The rules that tell changed from blended and ruined images apart,
    on images that no member has seen.
    """
    rng = stream(seed, "judge", "examination", device=device)
    exam = examination(held_out, panel.density, rng, device, untaught)
    signals = panel.ask(exam.x, exam.expected)
    rules = {}
    for name, votes in VOTES.items():
        truth: Tensor = getattr(exam, name)
        known = truth >= 0
        rules[name] = learned(votes, signals[known], truth[known] > 0)
    return rules


def _some(images: Images, share: float, rng: torch.Generator) -> Images:
    """A random share of the images, in their order."""
    rows = torch.randperm(len(images), generator=rng)[: max(1, round(share * len(images)))]
    return images.take(rows.sort().values)


def _likelihood(untaught: Collection[str]) -> Goal:
    """The negative lower bound of images that are bent a little."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Density)
        return net.bound(x, noise)

    def prepare(x: Tensor, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        return x if "bending" in untaught else bend(x, noise, GENTLE), y

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(net, Density)
        return net.encode(x)

    return Goal(loss, answer, math.inf, prepare, plain=True)


def _lessons(
    panel: Panel,
    taught: Images,
    schooling: Schooling,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell,
) -> Lessons:
    """The lessons that all members learn from, each in an order of its own."""
    size = schooling.members.batch
    epochs, inside = schooling.members.rounds(len(taught))
    most = MADE // (size * taught.x[0].numel())
    count = max(1, min(-(-epochs * inside // schooling.passes), most))
    order = stream(seed, "judge", "order")
    turns = -(-count * size // len(taught))
    rows = torch.cat([torch.randperm(len(taught), generator=order) for _ in range(turns)])
    rows = rows[: count * size]
    rng = stream(seed, "judge", "lessons", device=device)
    images = list[Tensor]()
    targets = list[Tensor]()
    for part in chunks(len(rows), size if steady(torch.device(device)) else AHEAD * size):
        x = from_bytes(taught.x[rows[part]].to(device))
        y = taught.y[rows[part]].to(device)
        made, target = lesson(
            x, y, panel.classes, panel.density, rng, schooling.shares, schooling.untaught
        )
        images.append(to_bytes(made).cpu())
        targets.append(target)
        if progress is not None:
            what = f"lessons of the judge on {taught.name}"
            progress(TrainingProgress(0, 0, part.stop, len(rows), 0.0, "", what))
    made_of = taught.take(rows)
    return replace(made_of, x=torch.cat(images), y=torch.arange(len(rows))), torch.cat(targets)


def _prepared(panel: Panel, seat: Seat, targets: Float[Tensor, "n k1"]) -> Goal:
    """Cross-entropy of lessons, each known by its row, against what should be said of it."""

    def loss(net: nn.Module, x: Tensor, row: Tensor, noise: torch.Generator) -> Tensor:
        return _taught(net, x, targets[row], seat, noise)

    return Goal(loss, _said, math.log(panel.classes + 1), plain=True)


def _fresh(panel: Panel, seat: Seat, schooling: Schooling) -> Goal:
    """Cross-entropy of images made for each step against what should be said of them."""

    def prepare(x: Tensor, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        return lesson(
            x, y, panel.classes, panel.density, noise, schooling.shares, schooling.untaught
        )

    def loss(net: nn.Module, x: Tensor, target: Tensor, noise: torch.Generator) -> Tensor:
        return _taught(net, x, target, seat, noise)

    return Goal(loss, _said, math.log(panel.classes + 1), prepare, plain=True)


def _taught(
    net: nn.Module, x: Tensor, target: Tensor, seat: Seat, noise: torch.Generator
) -> Float[Tensor, ""]:
    made = attacked(net, x, target, seat.attack, noise) if seat.attack else x
    return functional.cross_entropy(net(made), target)


def _said(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits: Tensor = net(x)
    return logits


@torch.no_grad()
def _remember(panel: Panel, taught: Images, held_out: Images, device: torch.device | str) -> None:
    """Features of real images of every class in turn, their usual nearness and cost,
    and what was learned from.
    """
    order, _ = balanced_order(taught.y, taught.id, seed=0)
    sample = taught.take(order[: len(panel.references)])
    features, held_out_features = (
        panel.features(from_bytes(part.x.to(device))) for part in (sample, held_out)
    )
    panel.remember(features, sample.y.to(device), held_out_features)
    panel.density.settle(from_bytes(held_out.x.to(device)))
    panel.learned.copy_(fingerprints(torch.cat([taught.x, held_out.x])).sort().values)


def parts(train: Images, share: float) -> tuple[Images, Images]:
    """What members learn from and what is held out, the classes balanced in the latter."""
    order, _ = balanced_order(train.y, train.id, seed=0)
    count = max(1, min(round(share * len(train)), 3000))
    return train.take(order[count:].sort().values), train.take(order[:count])


# A judge for any data set, from its training images alone; kept in the cache.

KIND = "judge"
NAME = "panel"
_log = logging.getLogger(__name__)


_SERRA = """@inproceedings{serra2020complexity,
  author    = {Joan Serrà and David Álvarez and Vicenç Gómez and Olga Slizovskaia and
               José F. Núñez and Jordi Luque},
  title     = {Input Complexity and Out-of-Distribution Detection with Likelihood-Based
               Generative Models},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2020},
  url       = {https://arxiv.org/abs/1909.11480}
}"""
_WONG = """@inproceedings{wong2020fast,
  author    = {Eric Wong and Leslie Rice and J. Zico Kolter},
  title     = {Fast is Better than Free: Revisiting Adversarial Training},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year      = {2020},
  url       = {https://arxiv.org/abs/2001.03994}
}"""
_RICCIO = """@inproceedings{riccio2023validity,
  author    = {Vincenzo Riccio and Paolo Tonella},
  title     = {When and Why Test Generators for Deep Learning Produce Invalid Inputs: an
               Empirical Study},
  booktitle = {International Conference on Software Engineering (ICSE)},
  year      = {2023},
  url       = {https://arxiv.org/abs/2212.11368}
}"""


@registry.judge(
    "panel",
    needs="the training split of the data; hardcase train judge",
    paper=(
        "Riccio and Tonella, ICSE 2023 (the study it is measured against); "
        "Serrà et al., ICLR 2020; Wong, Rice and Kolter, ICLR 2020"
    ),
    cite=(_RICCIO, _SERRA, _WONG),
    laws=(
        "took no part in the search",
        "never saw the seeds",
        "never used in a search",
    ),
)
def trained(
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    schooling: Schooling | None = None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> PanelJudge:
    """The judge of this data set, trained on `train` (which must not hold the seeds) or from the
    cache; `test` measures it. A training that was stopped goes on.
    """
    schooling = schooling or schooling_for(train, test, seed=seed, device=device)
    taught, held_out = parts(train, schooling.held_out)
    config = _config(train, test, taught, schooling, seed)
    kept = beside(cards.folder_of(KIND, NAME, config, train.hash))

    def school(net: nn.Module) -> Mapping[str, Any]:
        assert isinstance(net, Panel)
        return teach(
            net.to(device),
            taught,
            held_out,
            schooling,
            seed=seed,
            device=device,
            progress=progress,
            kept=kept,
        )

    net, card = cards.cached(
        KIND,
        NAME,
        config,
        data=train.hash,
        build=build,
        train=school,
        measure=lambda net: _measure(net.to(device), test, device),
        measured_on=test.hash,
    )
    forget(kept)
    if card["accuracy"] < WEAK:
        _log.warning(
            "the judge of %s takes only %.1f %% of test images for what they are: it will deny or"
            " leave open the label of many good tests",
            train.name,
            100 * card["accuracy"],
        )
    return judge_of(net.to(device), card, cards.folder_of(KIND, NAME, config, train.hash))


def folder(
    train: Images, test: Images, *, seed: int = 0, schooling: Schooling | None = None
) -> Path:
    """Where the judge of this data is kept, if it was trained."""
    schooling = schooling or schooling_for(train, test, seed=seed, device="cpu")
    taught, _ = parts(train, schooling.held_out)
    return cards.folder_of(KIND, NAME, _config(train, test, taught, schooling, seed), train.hash)


def made(card: Mapping[str, Any]) -> dict[str, DecisionRule]:
    """The rules of a card as they were before people were asked."""
    return {name: DecisionRule.from_card(rule) for name, rule in card["rules"].items()}


def _config(
    train: Images, test: Images, taught: Images, schooling: Schooling, seed: int
) -> dict[str, Any]:
    channels, size, classes = geometry(train, test)
    references = int(taught.y.bincount(minlength=classes).clamp_max(per_class(classes)).sum())
    return {
        "channels": channels,
        "size": size,
        "classes": classes,
        "references": references,
        "learned": len(train),
        "seed": seed,
        "schooling": stated(schooling),
    }


def build(config: Mapping[str, Any]) -> Panel:
    with own_randomness(config["seed"], "judges"):
        return Panel(
            seats(config["schooling"]["places"]),
            **{
                name: config[name]
                for name in ("channels", "size", "classes", "references", "learned")
            },
        )


def _measure(net: nn.Module, test: Images, device: torch.device | str) -> Mapping[str, Any]:
    assert isinstance(net, Panel)
    seen = net.ask(from_bytes(test.x.to(device)), test.y.to(device)).seen.cpu()
    return {"accuracy": int((seen == test.y).sum()) / len(test), "measured_images": len(test)}


def for_data(
    name: str,
    *,
    learn_from: str = "train",
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> PanelJudge:
    """The judge of a data set by name, trained if it is missing;
    it learns from one split and is measured on the other.

    Args:
        name: A data set, as ``--data`` names it.
        learn_from: The split that it learns from.
        offline: Ask nothing outside this machine.
        seed: Everything random follows from it.
        device: Where the networks are.
        progress: Told how the training goes.
    """
    other = "test" if learn_from == "train" else "train"
    first, second = (load(name, split=split, offline=offline) for split in (learn_from, other))
    return trained(first, second, seed=seed, device=device, progress=progress)


def read(folder: Path) -> PanelJudge:
    """A judge from its folder.

    Args:
        folder: Folder of a trained judge.
    """
    net, card = cards.load_card(folder, build, kind=KIND)
    assert isinstance(net, Panel)
    return judge_of(net, card, folder)


def calibrate_on(
    judge: PanelJudge, file: Path, *, seed: int = 0, device: torch.device | str = "cpu"
) -> PanelJudge:
    """Fit the judge's rules to labels of people, measure it, and keep both beside the judge.

    Args:
        file: An npz file of rated images, or the folder of a study.

    Raises:
        TooFewRated: If people have not rated enough to fit a judge to.
    """
    config = judge.card["configuration"]
    try:
        given = _rated_arrays(file)
    except Problem:
        raise
    except FileNotFoundError:
        raise Problem(f"there is no file {file}.") from None
    except Exception as error:  # damaged archives raise many kinds
        raise Problem(f"{file} is not an npz file of plain arrays: {error}") from error
    shape = (config["channels"], config["size"], config["size"])
    people = read_people(given, where=str(file), shape=shape, classes=config["classes"])
    signals = judge.panel.to(device).ask(
        from_bytes(people.x.to(device)), people.expected.to(device)
    )
    rules = made(judge.card)
    usual = {} if "encoders" in judge.card else ELSEWHERE
    plain = {name: replace(rule, **usual.get(name, {})) for name, rule in rules.items()}
    rng = stream(seed, "judge", "calibration")
    found = calibrate(signals, people, rules, rng, plain=plain)
    keep_calibration(judge, found)
    return calibrated(judge, found)


def _rated_arrays(file: Path) -> dict[str, Any]:
    """Images rated by people: the arrays of an npz file, or those of a study."""
    if file.is_dir():
        return dict(companions.reader().rated(file))
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}
