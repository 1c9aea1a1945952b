"""Does risk say more of a network than its accuracy, its loss and its corruption error do?

Networks of many recipes are trained, and what each of them gets right on images from elsewhere is predicted from what was
measured on the test images: once from accuracy, loss and mean corruption error, once from these and `FIGURE`. The figure was
chosen on sixteen networks whose recipes are not among these, and stands here since before any of these was trained.

**Pass**: in two of the three truths the leave-one-recipe-out error with the figure is at most `RATIO` of that without, and
the permutation p of the figure (D. Freedman, D. Lane, Journal of Business & Economic Statistics 1, 1983) is below `LEVEL` after
Holm's correction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from hardcase.conditions import Conditions, condition_box, measure_risk, measure_worst
from hardcase.conditions.box import ConditionBox
from hardcase.conditions.declared import DECLARABLE, DeclaredRange
from hardcase.corruptions import corrupt
from hardcase.data.sources import load
from hardcase.environment import arithmetic
from hardcase.errors import HardcaseError
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.randomness import keys_of, named_randomness, stream
from hardcase.statistics import holm
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, from_bytes, steady, to_bytes
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import classify, fit
from hardcase.types import Images
from hardcase_studies import gating
from hardcase_studies.bench import Bench

FIGURE = "risk"
"""The share of random draws of the whole `scanner` profile that fail, over all images, as its logit.

Sixteen earlier networks chose it. Beyond test accuracy, draws of the whole range explained most of what was left of the accuracy
on other writers' digits (a quarter of its variance), while draws of half the range went along with test accuracy itself. It is
also the figure that a run prints first. Half the range is measured beside it and decides nothing.
"""
LEAST = "least scale, 10 % quantile"
RATIO = 0.90
LEVEL = 0.05
PERMUTATIONS = 9_999
DRAWS = 64
GOOD = 0.99
"""Test accuracy above which a network is a good one."""
BASELINE = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    *("defocus_blur", "gaussian_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("contrast", "elastic_transform"),
)
"""Corruptions whose mean error is a predictor without the figure: all noise and blur, and what resembles the profile."""
OUTSIDE = ("brightness", "fog", "snow", "spatter", "pixelate", "jpeg_compression")
"""Corruptions that are a truth: weather and digital ones, which neither the profile nor `BASELINE` has."""
TRUTHS = ("optdigits", "second source", "corruptions")
"""What counts; no second source of handwritten digits could be had, so the other two must both pass."""


# Recipes: one value of each factor for every recipe, by chance.


def _mlp(channels: int, size: int, classes: int) -> nn.Sequential:
    """Two dense layers of 512."""
    first = nn.Linear(channels * size**2, 512)
    hidden = nn.Linear(512, 512)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), hidden, nn.ReLU(), nn.Linear(512, classes))


def _convolutions(
    channels: int, size: int, classes: int, *, widths: Sequence[int], kernel: int, stride: int
) -> nn.Sequential:
    """Convolutions with maxima between them, or with a stride in place of those; one dense layer of 128."""
    layers = list[nn.Module]()
    before = channels
    for width in widths:
        layers += [nn.Conv2d(before, width, kernel, stride, kernel // 2), nn.ReLU()]
        size = -(-size // 2) if stride == 2 else size // 2
        if stride == 1:
            layers.append(nn.MaxPool2d(2))
        before = width
    layers += [nn.Flatten(), nn.Linear(before * size**2, 128), nn.ReLU(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


def _averaging(channels: int, size: int, classes: int) -> nn.Sequential:
    """Four normalised convolutions and a mean over the image in place of dense layers."""
    layers = list[nn.Module]()
    before = channels
    for number, width in enumerate((16, 16, 32, 64)):
        layers += [
            nn.Conv2d(before, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        if number in (1, 2):
            layers.append(nn.MaxPool2d(2))
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers)


ARCHITECTURES: Mapping[str, Callable[[int, int, int], nn.Sequential]] = {
    "LeNet-4": zoo.lenet4,
    "LeNet-5": zoo.lenet5,
    "LeCun's LeNet-5": zoo.lenet5_lecun,
    "dense": _mlp,
    "wide LeNet": partial(_convolutions, widths=(16, 32), kernel=5, stride=1),
    "strided": partial(_convolutions, widths=(16, 32, 64), kernel=3, stride=2),
    "averaging": _averaging,
    "SINVAD's": zoo.sinvad_cnn,
    "VGG, width 8": partial(zoo.vgg16, width=8),
    "ResNet, width 8": partial(zoo.resnet18, width=8),
}
FACTORS: Mapping[str, Mapping[str, int]] = {
    "architecture": dict(zip(ARCHITECTURES, (6, 6, 3, 3, 8, 6, 8, 6, 6, 4))),
    "augment": {"shift": 26, "none": 14, "handwriting": 16},
    "images": {"all": 38, "half": 13, "a fifth": 5},
    "labels": {"right": 47, "3 % wrong": 6, "10 % wrong": 3},
    "regularised": {"no": 26, "decay": 10, "smoothing": 10, "dropout": 10},
    "afterwards": {"nothing": 40, "pruned 30 %": 4, "pruned 50 %": 4, "5 bits": 5, "4 bits": 3},
}
"""How many of the recipes have each value."""
IMAGES = {"all": 1.0, "half": 0.5, "a fifth": 0.2}
WRONG = {"right": 0.0, "3 % wrong": 0.03, "10 % wrong": 0.1}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network comes to be: a value of each of `FACTORS`."""

    architecture: str
    augment: str
    images: str
    labels: str
    regularised: str
    afterwards: str

    @property
    def spent(self) -> bool:
        """Whether it is one of those that chose the figure: plain trainings of three architectures."""
        plain = Recipe(self.architecture, self.augment, "all", "right", "no", "nothing")
        return self == plain and self.architecture in ("LeNet-4", "LeNet-5", "SINVAD's")

    def __str__(self) -> str:
        usual = Recipe("", "", "all", "right", "no", "nothing")
        words = [self.architecture, f"augmented by {self.augment}"]
        words += [f"{self.images} of the images"] if self.images != usual.images else []
        words += [f"labels {self.labels}"] if self.labels != usual.labels else []
        words += [self.regularised] if self.regularised != usual.regularised else []
        words += [self.afterwards] if self.afterwards != usual.afterwards else []
        return ", ".join(words)


def recipes(count: int | None = None) -> list[Recipe]:
    """The recipes of the study: all different, none of those that chose the figure; the first `count` of them."""
    for attempt in itertools.count():
        columns = list[list[str]]()
        for name, values in FACTORS.items():
            column = [value for value, times in values.items() for _ in range(times)]
            rng = stream(attempt, "decides", name)
            columns.append([column[i] for i in torch.randperm(len(column), generator=rng).tolist()])
        drawn = [Recipe(*values) for values in zip(*columns, strict=True)]
        if len(set(drawn)) == len(drawn) and not any(recipe.spent for recipe in drawn):
            break
    return drawn if count is None else drawn[:count]


def _trained(recipe: Recipe, train: Images, bench: Bench, number: int) -> Subject:
    """A network of this recipe."""
    seed = bench.seed + number
    images = _spoilt(recipe, train, seed)
    size, classes = train.x.shape[2], len(train.classes)
    with named_randomness(seed, "decides", str(recipe)):
        net = ARCHITECTURES[recipe.architecture](train.x.shape[1], size, classes)
    if recipe.regularised == "dropout":
        *before, last = net
        net = nn.Sequential(*before, nn.Dropout(0.3), last)
    how = TrainingRecipe(
        epochs=bench.size("epochs", 6, 12),
        steps=bench.size("steps", 0, 1500),
        batch=256 if len(train) > 20_000 else 64,
        lr=2e-3,
        augment=recipe.augment,
        decay=0.2 if recipe.regularised == "decay" else 0.0,
        smoothing=0.1 if recipe.regularised == "smoothing" else 0.0,
    )
    goal = classify(classes, smoothing=how.smoothing)
    fit(net, images, goal, how, seed=seed, name=str(recipe), device=bench.device)
    _reduced(net, recipe.afterwards)
    return Subject(net, classes=train.classes, name=str(recipe), device=bench.device)


def _spoilt(recipe: Recipe, train: Images, seed: int) -> Images:
    """The training images of a recipe: a part of them, some with a wrong label."""
    rng = stream(seed, "decides", "images", str(recipe))
    kept = round(IMAGES[recipe.images] * len(train))
    images = train.take(torch.randperm(len(train), generator=rng)[:kept])
    wrong = torch.rand(kept, generator=rng) < WRONG[recipe.labels]
    other = torch.randint(1, len(train.classes), (kept,), generator=rng)
    y = torch.where(wrong, (images.y + other) % len(train.classes), images.y)
    return replace(images, y=y)


@torch.no_grad()
def _reduced(net: nn.Module, how: str) -> None:
    """Set the smallest weights to 0, or round them to 16 or 32 steps per layer."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    if how.startswith("pruned"):
        share = int(how.split()[1]) / 100
        sizes = torch.cat([layer.weight.abs().flatten() for layer in layers])
        least = sizes.kthvalue(max(1, round(share * len(sizes)))).values
        for layer in layers:
            layer.weight.masked_fill_(layer.weight.abs() <= least, 0)
    elif how.endswith("bits"):
        most = 2 ** (int(how.split()[0]) - 1) - 1
        for layer in layers:
            step = layer.weight.abs().max() / most
            layer.weight.copy_((layer.weight / step).round() * step)


# Images from elsewhere.


def optdigits(size: int = 28) -> tuple[UInt8[Tensor, "n 1 h w"], Int[Tensor, " n"]]:
    """The 1,797 digits of 13 other writers that come with scikit-learn, as MNIST shows digits.

    E. Alpaydin, C. Kaynak, "Optical recognition of handwritten digits", UCI, 1998: 8x8 pixels, enlarged to 20 of 28 and
    centred by mass.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.from_numpy(found.images).float()[:, None] / 16
    side = round(size * 20 / 28)
    x = functional.interpolate(x, (side, side), mode="bicubic", antialias=False).clamp(0, 1)
    return to_bytes(_centred(x, size)), torch.from_numpy(found.target).long()


def printed(size: int = 28) -> tuple[UInt8[Tensor, "n 1 h w"], Int[Tensor, " n"]]:
    """Digits of the typefaces that come with matplotlib, as MNIST shows digits."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = [
        path
        for name in ("DejaVuS*", "STIXGeneral*", "cmr10*", "cmss10*", "cmtt10*", "cmb10*")
        for path in sorted(folder.glob(f"{name}.ttf"))
        if "Display" not in path.name
    ]
    drawn = list[Tensor]()
    side = round(size * 20 / 28)
    for path in files:
        font = ImageFont.truetype(str(path), 64)
        for digit in "0123456789":
            canvas = Image.new("L", (96, 96))
            ImageDraw.Draw(canvas).text((16, 8), digit, fill=255, font=font)
            figure = canvas.crop(canvas.getbbox())
            scale = side / max(figure.size)
            small = [max(1, round(length * scale)) for length in figure.size]
            figure = figure.resize((small[0], small[1]), Image.Resampling.LANCZOS)
            image = torch.from_numpy(np.array(figure)).float()[None, None] / 255
            drawn.append(_centred(image, size))
    return to_bytes(torch.cat(drawn)), torch.arange(10).repeat(len(files))


def _centred(x: Float[Tensor, "n 1 h w"], size: int) -> Float[Tensor, "n 1 s s"]:
    """The images on a black square, moved by whole pixels until their mass is in the middle."""
    height, width = x.shape[2:]
    top, left = (size - height) // 2, (size - width) // 2
    x = functional.pad(x, (left, size - width - left, top, size - height - top))
    place = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    mass = x.sum((1, 2, 3)).clamp_min(1e-6)
    down = (x.sum((1, 3)) @ place / mass).round().long().tolist()
    right = (x.sum((1, 2)) @ place / mass).round().long().tolist()
    moved = [one.roll((-i, -j), (1, 2)) for one, i, j in zip(x, down, right, strict=True)]
    return torch.stack(moved)


# What is measured of a network.


@dataclass(frozen=True, eq=False)
class Exam:
    """Everything that a network is asked, prepared once.

    Args:
        sets: Images and labels by name: the test images, those from elsewhere, and corrupted test images.
        seeds: Test images whose risk is measured.
        boxes: The declared conditions by the name of the figure.
        searched: How many of the seeds are searched for the least scale; 0: none.
    """

    sets: Mapping[str, tuple[Tensor, Tensor]]
    seeds: Images
    boxes: Mapping[str, ConditionBox]
    searched: int = 0

    @classmethod
    def of(cls, test: Images, bench: Bench) -> Exam:
        size = test.x.shape[2]
        sets = {"test": (test.x, test.y), "optdigits": optdigits(size), "printed": printed(size)}
        sets = {name: (x.to(bench.device), y.to(bench.device)) for name, (x, y) in sets.items()}
        keys = keys_of(test.id).to(bench.device)
        x, y = sets["test"]
        severity = (torch.arange(len(x), device=x.device) % 5 + 1).float()
        for name in (*BASELINE, *OUTSIDE):
            bench.say(f"corrupting test images: {name}")
            parts = [
                to_bytes(corrupt(from_bytes(x[rows]), name, severity[rows], keys[rows]))
                for rows in chunks(len(x), 1000)
            ]
            sets[name] = torch.cat(parts), y
        profile = Conditions.load("scanner")
        declared = {"risk": profile, "risk, half the range": _halved(profile)}
        boxes = {name: condition_box(one, test.shape) for name, one in declared.items()}
        seeds = test.sample(count=bench.size("seeds", 150, 2000), seed=bench.seed)
        searched = bench.size("searched", 40, 500) if bench.options.get("worst") else 0
        return cls(sets, seeds, boxes, searched)

    def marks(self, subject: Subject) -> list[float]:
        """Shares right of every set, every risk, worst case and least scale, and the loss, as in `names`."""
        found = list[float]()
        loss = math.nan
        for name, (x, y) in self.sets.items():
            with torch.inference_mode():
                parts = [subject(from_bytes(x[rows])).logits for rows in chunks(len(x), 2048)]
            logits = torch.cat(parts)
            found.append(float((logits.argmax(1) == y).double().mean()))
            if name == "test":
                loss = float(functional.cross_entropy(logits, y))
        rows = 512 if steady(subject.device) else 2**16
        for box in self.boxes.values():
            table = measure_risk(subject, self.seeds, box, samples=DRAWS, rows=rows)
            found.append(table.value)
        if self.searched:
            some = self.seeds.first(self.searched)
            worst = measure_worst(subject, some, self.boxes["risk"], queries=0, alone=False)
            least = worst.least_scale.clamp(1 / 64, 1).double()
            found += [float((worst.least_scale <= 1).double().mean()), float(least.quantile(0.1))]
        return [*found, loss]

    @property
    def names(self) -> list[str]:
        searched = ["worst case", LEAST] if self.searched else []
        return [*self.sets, *self.boxes, *searched, "loss"]

    def logit(self, name: str, share: Float[Tensor, " r"], trainings: int) -> NDArray[np.float64]:
        """Logits of shares, half a case added on either side."""
        if name == "worst case":
            cases = self.searched
        else:
            cases = len(self.seeds) * DRAWS if name in self.boxes else len(self.sets[name][1])
        hits = share.double() * cases * trainings
        return ((hits + 0.5) / (cases * trainings - hits + 0.5)).log().numpy()


def _halved(conditions: Conditions) -> Conditions:
    """The same with every range half as far from the unchanged image."""
    ranges = dict[str, DeclaredRange]()
    for name, one in conditions.ranges.items():
        neutral = DECLARABLE[name].neutral
        low, high = (neutral + (end - neutral) / 2 for end in (one.low, one.high))
        ranges[name] = replace(one, low=low, high=high)
    return Conditions(ranges, name=f"half of {conditions.name}")


# Whether the figure adds anything.


def left_out_error(y: NDArray[np.float64], x: NDArray[np.float64]) -> float:
    """Return the root mean square error of least squares on every row, fitted without that row."""
    design = np.column_stack([np.ones(len(y)), x])
    hat = design @ np.linalg.pinv(design)
    residual = (y - hat @ y) / (1 - np.diag(hat))
    return float(np.sqrt(np.mean(residual**2)))


def permutation_p(
    y: NDArray[np.float64],
    x: NDArray[np.float64],
    figure: NDArray[np.float64],
    count: int = PERMUTATIONS,
) -> float:
    """Return Freedman and Lane's p of a predictor beside others, two-sided.

    Residuals of the model without it are permuted and fitted again; the statistic is the partial correlation.
    """
    design = np.column_stack([np.ones(len(y)), x])
    residuals = np.eye(len(y)) - design @ np.linalg.pinv(design)
    own = residuals @ figure
    error = residuals @ y
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(np.tile(error, (count, 1)), axis=1) @ residuals

    def size(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        sizes: NDArray[np.float64] = np.abs(rows @ own) / np.linalg.norm(rows, axis=-1)
        return sizes

    return float((1 + (size(shuffled) >= size(error) - 1e-12).sum()) / (count + 1))


def run(bench: Bench) -> Outcome:
    """``--set recipes=20``, ``trainings=1``, ``epochs=3`` and ``seeds=100`` are the sizes; ``worst=true`` also searches
    for the worst case.

    ``--set part='"1/4"'`` only measures every fourth network and keeps it; without it all that are kept are read. ``--set gate=true``
    asks something else: whether the gate tells two networks apart (`hardcase_studies.gating`).
    """
    if bench.options.get("gate"):
        return gating.run(bench)
    chosen = recipes(bench.size("recipes", 12, 56))
    trainings = bench.size("trainings", 1, 2)
    cells = [(recipe, number) for recipe in chosen for number in range(trainings)]
    part, _, parts = str(bench.options.get("part", "1/1")).partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise HardcaseError(
            f"part={part}/{parts} is no part of a whole.", fix="--set 'part=\"1/4\"'"
        )
    train, test = load(bench.data, split="train"), load(bench.data, split="test")
    with arithmetic("strict", torch.device(bench.device).type):
        exam = Exam.of(test, bench)
        own = cells[int(part) - 1 :: int(parts)]
        found = [_marks(bench, exam, train, recipe, number) for recipe, number in own]
    if len(own) < len(cells):
        row: list[Cell] = [f"{part}/{parts}", f"{len(own)} of {len(cells)}"]
        return Outcome("a part of the networks", [Table("Measured", ["part", "networks"], [row])])
    marks = torch.tensor(found, dtype=torch.float64).reshape(len(chosen), trainings, -1).mean(1)
    shares = {name: marks[:, i] for i, name in enumerate(exam.names)}
    return _judged(exam, chosen, trainings, shares)


def _marks(bench: Bench, exam: Exam, train: Images, recipe: Recipe, number: int) -> list[float]:
    """The marks of one training, measured now unless they are kept."""
    name = f"{recipe}, training {number + 1}"

    def make() -> list[float]:
        bench.say(name)
        return exam.marks(_trained(recipe, train, bench, number))

    return bench.cell(name, make, but=("part",))


def _judged(
    exam: Exam, chosen: Sequence[Recipe], trainings: int, shares: Mapping[str, Float[Tensor, " r"]]
) -> Outcome:
    logs = {name: shares[name].log().numpy() for name in ("loss", LEAST) if name in shares}
    logits = {
        name: exam.logit(name, share, trainings)
        for name, share in shares.items()
        if name not in logs
    }
    figures = ["risk", "risk, half the range"]
    if exam.searched:
        logits[LEAST] = logs[LEAST]
        figures += ["worst case", LEAST]
    corrupted = torch.stack([1 - shares[name] for name in BASELINE]).mean(0)
    logits["corruption error"] = exam.logit(BASELINE[0], corrupted, trainings)
    logits["corruptions"] = np.mean([logits[name] for name in OUTSIDE], axis=0)
    loss = logs["loss"]
    baseline = np.column_stack([logits["test"], loss, logits["corruption error"]])
    good = shares["test"].numpy() > GOOD
    had = [name for name in TRUTHS if name in logits]
    tests = [_tested(logits[name], baseline, logits[FIGURE]) for name in had]
    corrected = holm([p for _, _, p, _ in tests])
    rows = list[list[Cell]]()
    passed = 0
    for name, (without, beside, p, sign), adjusted in zip(had, tests, corrected, strict=True):
        passes = beside <= RATIO * without and adjusted < LEVEL
        passed += passes
        ratio = beside / without
        rows.append([name, without, beside, ratio, p, adjusted, sign, "yes" if passes else "no"])
    rows += [[name, *["not had"] * 7] for name in TRUTHS if name not in had]
    needed = 2
    verdict = "adds something" if passed >= needed else "is not shown to add anything"
    word = f"the figure {verdict} to accuracy, loss and corruption error: it passes in {passed} of {len(had)} truths, {needed} are needed"
    notes = [
        word,
        f"{len(chosen)} recipes, {int(good.sum())} of them above {GOOD:.0%} on test images; {trainings} trainings of each, averaged",
        f"passes: error with the figure at most {RATIO:.2f} of that without, and p below {LEVEL} after Holm; {PERMUTATIONS:,} permutations",
        f"the figure: logit of the share of {DRAWS} draws of the scanner profile that fail, on each of {len(exam.seeds)} test images",
        "without: logit test accuracy, log test loss, logit mean error under "
        + ", ".join(BASELINE),
        "corruptions: mean logit accuracy under " + ", ".join(OUTSIDE) + ", severities 1 to 5",
        f"optdigits: 1,797 digits of 13 writers; printed digits of {len(exam.sets['printed'][1]) // 10} typefaces decide nothing",
    ]
    columns = [
        *("truth", "error without", "error with the figure", "ratio"),
        *("p", "p after Holm", "slope", "passes"),
    ]
    tables = [Table("What the figure adds", columns, rows, notes)]
    tables.append(_others(logits, baseline, had, figures))
    tables.append(_ranks({**logits, "test loss": loss}, good, had, figures))
    tables.append(_each(chosen, {**shares, "corruption error": corrupted}, logits["corruptions"]))
    return Outcome("a figure that decides", tables)


def _tested(
    y: NDArray[np.float64], baseline: NDArray[np.float64], figure: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Errors without and with a figure, its p, and its slope."""
    both = np.column_stack([baseline, figure])
    slope = np.linalg.lstsq(np.column_stack([np.ones(len(y)), both]), y, rcond=None)[0][-1]
    without = left_out_error(y, baseline)
    return without, left_out_error(y, both), permutation_p(y, baseline, figure), float(slope)


def _others(
    logits: Mapping[str, NDArray[np.float64]],
    baseline: NDArray[np.float64],
    had: Sequence[str],
    figures: Sequence[str],
) -> Table:
    """What else was measured, in the same way."""
    rows = list[list[Cell]]()
    for truth in (*had, "printed"):
        for figure in figures:
            if truth in had and figure == FIGURE:
                continue
            without, beside, p, slope = _tested(logits[truth], baseline, logits[figure])
            rows.append([f"{truth}: {figure}", without, beside, beside / without, p, slope])
    columns = ["truth and figure", "error without", "error with it", "ratio", "p", "slope"]
    return Table("Beside it (descriptive)", columns, rows, ["no correction; decides nothing"])


def _ranks(
    logits: Mapping[str, NDArray[np.float64]],
    good: NDArray[np.bool_],
    had: Sequence[str],
    figures: Sequence[str],
) -> Table:
    """Spearman's correlation of every figure with every truth."""
    own = {"test accuracy": logits["test"]}
    own |= {name: logits[name] for name in ("test loss", "corruption error", *figures)}
    truths = (*had, "printed")
    rows = list[list[Cell]]()
    for name, figure in own.items():
        row: list[Cell] = [name]
        for truth in truths:
            for chosen in (np.ones_like(good), good):
                enough = int(chosen.sum()) > 3
                value = stats.spearmanr(figure[chosen], logits[truth][chosen])[0] if enough else 0
                row.append(f"{value:+.2f}" if enough else "too few")
        rows.append(row)
    columns = ["figure", *(f"{truth}{who}" for truth in truths for who in ("", ", good ones"))]
    return Table("Rank correlations", columns, rows, [f"good ones: above {GOOD:.0%} on test"])


def _each(
    chosen: Sequence[Recipe],
    shares: Mapping[str, Float[Tensor, " r"]],
    outside: NDArray[np.float64],
) -> Table:
    names = {"test": "test accuracy", "loss": "test loss"}
    shown = ["test", "loss", "corruption error", "risk", "risk, half the range"]
    shown += [name for name in ("worst case", LEAST) if name in shares]
    shown += ["optdigits", "printed"]
    rows = list[list[Cell]]()
    for i, recipe in enumerate(chosen):
        own = [float(shares[name][i]) for name in shown]
        rows.append([str(recipe), *own, float(1 / (1 + np.exp(-outside[i])))])
    columns = ["recipe", *(names.get(name, name) for name in shown), "corruptions"]
    return Table("Every recipe", columns, rows)
