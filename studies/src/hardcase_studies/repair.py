"""Does the search in the training loop repair a network, and more than random draws of the same conditions do?

Every arm trains on from the same network for the same steps, with its rate chosen in the same way on the same validation
part. All are measured on test images that took no part in training and validation, and attacked together: what breaks one
is tried on all. A training is the unit of every interval.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from hardcase.conditions import ConditionBox, Conditions, condition_box
from hardcase.conditions.risk import answered
from hardcase.data.files import ImageSet
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.imaging.resample import affine
from hardcase.models.load import Loading, load_model
from hardcase.models.subject import Subject
from hardcase.randomness import Rng
from hardcase.repair.folder import repairable
from hardcase.repair.front import joined_images, split_validation, with_network
from hardcase.repair.hardest import climb, seeds_at
from hardcase.repair.loop import RepairRecipe, Source, Trained, train_on
from hardcase.repair.measures import AttackSize, ProofSize, attack_all, measure_values
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes, to_bytes, to_grid
from hardcase.types import Images
from hardcase_studies.bench import Bench
from hardcase_studies.lab import accuracy

BEFORE = "before"
MORE = "more epochs"
RANDOM = "random draws"
LONGER = "random draws, equal seconds"
FOUND = "findings added once"
AUGMIX = "AugMix"
WORST = "worst of four draws"
SEARCHED = "gradient steps"
PLAIN = "worst of four, strokes left out"
ARMS = (BEFORE, MORE, RANDOM, LONGER, FOUND, AUGMIX, WORST, SEARCHED, PLAIN)
SHORT = (BEFORE, MORE, RANDOM, LONGER, WORST, SEARCHED)
"""What tells whether search adds anything to random draws: ``--set arms=short``."""
FIGURES = (
    *("error", "risk", "excess risk", "worst case", "least scale, 10 %", "least scale, median"),
    *("other conditions", "corruptions", "optdigits error", "printed digits error"),
    *("attack added", "seconds", "epochs"),
)
STROKES = ("stroke", "fading")
"""What differs between writers; without them a proof must look at other writers."""
FOUNDS = 1000
"""Training images that are searched for findings, at most."""

Values = dict[str, dict[str, NDArray[np.float64]]]
"""By arm and figure, one number per training."""


def run(bench: Bench) -> Outcome:
    """``--repeats 8``; ``--set seeds=1000 attacked=300 epochs=8 arms=short part=0:4`` change what is run.

    With ``part=0:4`` to ``part=3:4`` four processes share the trainings of one folder; the command without it reads them.
    """
    count = bench.repeats or (8 if bench.full else 2)
    part, _, parts = str(bench.options.get("part", "0:1")).partition(":")
    numbers = [i for i in range(count) if i % int(parts) == int(part)]
    cells = list[list[float]]()
    for number in numbers:
        bench.say(f"training {number + 1} of {count}")
        cells.append(
            bench.cell(f"training {number}", partial(_training, bench, number), but=("part",))
        )
    arms = _arms_of(bench)
    table = np.array(cells).reshape(len(cells), len(arms), len(FIGURES))
    values = {
        arm: {name: table[:, i, j] for j, name in enumerate(FIGURES)} for i, arm in enumerate(arms)
    }
    return Outcome("repair", [_goals(bench, values), _arms(bench, values), _beside(values)])


def _arms_of(bench: Bench) -> tuple[str, ...]:
    return SHORT if bench.options.get("arms") == "short" else ARMS


def _training(bench: Bench, number: int) -> list[float]:
    """All arms of one training: every figure of every arm, arm by arm."""
    train = load(bench.data, split="train")
    test = load(bench.data, split="test")
    model = str(bench.options.get("model", "lenet5" if train.shape[0] == 1 else "resnet18"))
    how = Loading(train=train, test=test, device=bench.device)
    before = repairable(load_model(f"zoo:{model}?seed={bench.seed + number}", how))
    declared = Conditions.load("scanner" if train.shape[0] == 1 else "handheld")
    box = condition_box(declared, train.shape)
    arms = _trained(bench, before, train, box, number)
    subjects = {BEFORE: before} | {
        name: with_network(before, done, name) for name, done in arms.items()
    }
    seeds = test.sample(count=bench.size("seeds", 400, 2000), seed=bench.seed)
    size = ProofSize(samples=bench.size("draws", 32, 64), alone=bench.size("alone", 1, 4))
    attack = AttackSize(
        restarts=bench.size("restarts", 2, 4),
        gradients=bench.size("gradients", 12, 30),
        queries=bench.size("queries", 20, 60),
        samples=bench.size("attack_draws", 64, 64),
    )
    few = seeds.first(bench.size("attacked", 60, 400))
    bench.say("attacking all networks together")
    attacked = attack_all(subjects, few, box, attack, seed=bench.seed)
    outside = _outside(test)
    numbers = list[float]()
    for name, subject in subjects.items():
        bench.say(f"measuring {name}")
        found = measure_values(subject, seeds, box, size, seed=bench.seed, outside=outside)
        least = attacked[name].least.double().clamp_max(1)
        done = arms.get(name)
        numbers += [
            1 - accuracy(subject, test),
            float(found.risk.mean()),
            float((found.risk - found.clean).mean()),
            float(attacked[name].failing.double().mean()),
            float(least.quantile(0.1)),
            float(least.quantile(0.5)),
            float(np.mean([one.mean() for one in found.elsewhere.values()])),
            float(np.mean([one.mean() for one in found.corruptions.values()])),
            *(float(one.mean()) for one in found.outside.values()),
            *[math.nan] * (2 - len(found.outside)),
            attacked[name].added,
            0.0 if done is None else done.seconds,
            0.0 if done is None else float(len(done.losses)),
        ]
    return numbers


def _trained(
    bench: Bench, before: Subject, train: Images, box: ConditionBox, number: int
) -> dict[str, Trained]:
    """Every arm but the first, trained on from the same network."""
    epochs = bench.size("epochs", 12, 10)
    recipe = RepairRecipe(
        epochs=epochs,
        batch=bench.size("batch", 64, 128),
        patience=1000,
        seed=bench.seed + number,
    )
    learn, valid = split_validation(train, recipe)
    # other programs may share the processor, but not a GPU
    clock = time.process_time if before.device.type == "cpu" else time.monotonic

    def arm(name: str, box: ConditionBox = box, **how: object) -> Trained:
        source = how.pop("source", None)
        added = how.pop("added", None)
        images = joined_images(learn, added) if isinstance(added, Images) else learn
        kept = bench.out / "trainings" / f"{number}-{name.replace(' ', '-').replace(',', '')}"
        kept.mkdir(parents=True, exist_ok=True)
        bench.say(f"training {number + 1}: {name}")
        changed: Source | None = source if callable(source) else None
        own = replace(recipe, **how)  # type: ignore[arg-type]  # fields of the recipe
        began = clock()
        done = train_on(before, images, valid, box, own, source=changed, kept=kept, log=bench.say)
        return replace(done, seconds=clock() - began)

    done = {
        MORE: arm(MORE, draws=0, steps=0),
        RANDOM: arm(RANDOM, draws=1, steps=0),
        WORST: arm(WORST, draws=4, steps=0),
        SEARCHED: arm(SEARCHED, draws=1, steps=3),
    }
    longer = round(epochs * done[WORST].seconds / max(done[RANDOM].seconds, 1e-3))
    done[LONGER] = arm(LONGER, draws=1, steps=0, epochs=max(longer, epochs))
    arms = _arms_of(bench)
    if FOUND in arms:
        found = _findings(before, learn, box, recipe.seed)
        done[FOUND] = arm(FOUND, draws=0, steps=0, added=found)
        done[AUGMIX] = arm(AUGMIX, draws=1, steps=0, source=augmix)
        kept = {n: one for n, one in box.conditions.ranges.items() if n not in STROKES}
        plain = condition_box(Conditions(kept, name="without strokes"), train.shape)
        done[PLAIN] = arm(PLAIN, box=plain, draws=4, steps=0)
    return {name: done[name] for name in arms if name != BEFORE}


def _findings(before: Subject, train: ImageSet, box: ConditionBox, seed: int) -> Images:
    """Failing images that a gradient search finds from training images, under their labels."""
    some = train.sample(count=min(FOUNDS, len(train)), seed=seed).images()
    x = from_bytes(some.x).to(before.device)
    y = some.y.to(before.device)
    none = torch.zeros(len(some), dtype=torch.int64, device=before.device)
    origin = seeds_at(x, y, torch.zeros(len(some), box.size, device=before.device), none)

    def logits(images: Tensor) -> Tensor:
        answer: Tensor = before(images).logits
        return answer

    z = climb(logits, box, origin, steps=40, step_size=0.1)
    with torch.no_grad():
        made = to_grid(box.decode(z, origin))
        failed = answered(logits(made), y).failed.cpu()
    if not bool(failed.any()):
        raise HardcaseError("no finding on training images: there is nothing to add.")
    rows = failed.nonzero().squeeze(1)
    return replace(some.take(rows), x=to_bytes(made).cpu()[rows])


def _outside(test: Images) -> dict[str, Images]:
    """Digits of other writers and of typefaces, for networks that read digits."""
    if test.classes != tuple("0123456789") or test.shape[0] != 1:
        return {}
    from hardcase_studies.decides import optdigits, printed

    found = {"optdigits": optdigits(test.shape[1]), "printed digits": printed(test.shape[1])}
    return {
        name: Images(x, y, tuple(f"{name}/{i}" for i in range(len(y))), test.classes, name)
        for name, (x, y) in found.items()
    }


# AugMix, the control that knows nothing of the declared conditions.


def augmix(
    logits: Callable[[Tensor], Tensor],
    x: Float[Tensor, "n c h w"],
    y: Tensor,
    keys: Tensor,
    *,
    width: int = 3,
    depth: int = 3,
) -> Float[Tensor, "n 1 c h w"]:
    """Mix each image with chains of simple changes of itself.

    D. Hendrycks, N. Mu, E. D. Cubuk, B. Zoph, J. Gilmer, B. Lakshminarayanan, "AugMix", ICLR 2020: three chains of one to
    three changes at severity 3, mixed by Dirichlet and Beta weights. Differences: no equalisation; one mixed copy whose answers
    are held to those of the image, in place of the Jensen-Shannon divergence of three.
    """
    rng = Rng(0, "augmix", keys.to(x.device))
    rows = torch.arange(len(x), device=x.device)
    weights = -(rng.uniform(rows, (width,)) + 1e-7).log()  # exponential: even on the simplex
    weights = weights / weights.sum(1, keepdim=True)
    total = torch.zeros_like(x)
    for chain in range(width):
        made = x
        steps = 1 + rng.integers(rows, depth)
        for step in range(depth):
            changed = _simple(made, rng, rows)
            made = torch.where((step < steps)[:, None, None, None], changed, made)
        total = total + weights[:, chain, None, None, None] * made
    share = rng.uniform(rows)[:, None, None, None]
    return to_grid(share * x + (1 - share) * total)[:, None]


def _simple(x: Tensor, rng: Rng, rows: Tensor) -> Tensor:
    """One of rotation, two shears, two shifts, posterising, solarising and autocontrast."""
    kind = rng.integers(rows, 8)
    level = 0.3 * (0.1 + 0.9 * rng.uniform(rows))  # up to 3 of 10
    signed = level * (2.0 * rng.integers(rows, 2) - 1)
    angle = math.radians(30) * signed * (kind == 0)
    turned = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).reshape(-1, 2, 2)
    turned[:, 0, 1] += 0.3 * signed * (kind == 1)
    turned[:, 1, 0] += 0.3 * signed * (kind == 2)
    shift = torch.stack([2 / 3 * signed * (kind == 3), 2 / 3 * signed * (kind == 4)], 1)
    moved = affine(x, torch.cat([turned, shift[:, :, None]], 2), outside="zeros")
    per = level[:, None, None, None]
    levels = 2 ** (8 - (4 * per / 0.3).floor())
    posterised = (x * (levels - 1)).round() / (levels - 1)
    solarised = torch.where(x > 1 - per, 1 - x, x)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretched = (x - low) / (high - low).clamp_min(1e-3)
    for number, other in ((5, posterised), (6, solarised), (7, stretched)):
        moved = torch.where((kind == number)[:, None, None, None], other, moved)
    return moved


# Tables.


def _interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of trainings with Student's interval; none below three."""
    mean = float(values.mean())
    if len(values) < 3:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    return mean, mean - half, mean + half


def _text(values: NDArray[np.float64], scale: float = 100.0, form: str = ".2f") -> str:
    mean, low, high = (scale * one for one in _interval(values))
    if math.isnan(low):
        return f"{mean:{form}}"
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def _goals(bench: Bench, values: Values) -> Table:
    """The figures that were to be reached, and whether they were."""
    worst = values[WORST]
    before = values[BEFORE]
    lower = {
        name: 1 - worst[name] / np.maximum(before[name], 1e-9)
        for name in ("excess risk", "worst case")
    }
    above = {arm: worst["worst case"] - values[arm]["worst case"] for arm in (RANDOM, LONGER)}
    error = worst["error"] - before["error"]
    margin = 0.2 if before["error"].mean() < 0.05 else 0.5
    rows: list[list[Cell]] = [
        _goal("excess risk lower by, %", lower["excess risk"], ">=", 65),
        _goal("worst case lower by, %", lower["worst case"], ">=", 35),
        _goal("worst case above random draws, points", above[RANDOM], "<", 0),
        _goal("worst case above random draws at equal seconds, points", above[LONGER], "<", 0),
        _goal(f"error above before, points (non-inferior by {margin})", error, "<=", margin),
    ]
    for name in ("optdigits error", "printed digits error"):
        if np.isnan(worst[name]).any():
            continue
        if PLAIN in values:
            lost = values[PLAIN][name] - values[MORE][name]
            rows.append(
                _goal(f"{name} above more epochs, strokes left out, points", lost, "<=", 0.5)
            )
        gained = values[MORE][name] - worst[name]
        rows.append(_goal(f"{name} below more epochs, points", gained, ">=", 2))
    notes = [
        f"{len(error)} trainings on {bench.data}; Student's interval over trainings",
        "a goal is reached if the interval lies on its side; missed if it lies on the other; else open",
        "ResNet-18 on CIFAR-10: --data cifar10",
    ]
    return Table("Goals", ["figure", "measured", "goal", "it is"], rows, notes)


def _goal(name: str, values: NDArray[np.float64], sign: str, goal: float) -> list[Cell]:
    _mean, low, high = (100 * one for one in _interval(values))
    if sign == ">=":
        reached, missed = low >= goal, high < goal
    else:
        reached, missed = (high < goal if sign == "<" else high <= goal), low > goal
    word = "reached" if reached else "missed" if missed else "open"
    return [name, _text(values), f"{sign} {goal:g}", word]


def _arms(bench: Bench, values: Values) -> Table:
    rows: list[list[Cell]] = [
        [
            arm,
            *(
                _text(own[name], *((1.0, ".3g") if "least" in name or name in FIGURES[-2:] else ()))
                for name in FIGURES
            ),
        ]
        for arm, own in values.items()
    ]
    notes = [
        "in per cent, least scales as shares of the declared range, seconds of training (of the processor, where there is no GPU)",
        "attack added: images that only the second half of the attack broke",
        "every arm: the same steps, validation images and rates to choose from; gradient steps are chosen by errors under a search",
    ]
    return Table("Arms", ["arm", *FIGURES], rows, notes)


def _beside(values: Values) -> Table:
    """What the search adds to random draws: only that is credited to it."""
    rows: list[list[Cell]] = []
    for name, other in product(FIGURES[:10], (RANDOM, LONGER, WORST)):
        difference = values[SEARCHED][name] - values[other][name]
        if not np.isnan(difference).any():
            scaled = () if "least" not in name else (1.0, ".3f")
            rows.append([f"{name}, against {other}", _text(difference, *scaled)])
    return Table("Gradient steps minus", ["figure", "points"], rows)
