"""Declared conditions: seconds of risk and worst case on 1,000 digits, the share of it inside decoder and networks, and how
often intervals cover: of the mean where one image in a hundred carries most of the risk, and of rare volumes by splitting.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from benchmarks.figures import Figure
from hardcase.conditions import Conditions, condition_box, measure_risk, measure_worst
from hardcase.conditions.box import ConditionBox
from hardcase.conditions.rare import REPEATS as RARE_REPEATS, Score, find_levels, split
from hardcase.data.sources import load
from hardcase.models.fetching import fetched_classifiers
from hardcase.models.load import Loading, load_model
from hardcase.randomness import Rng, keys_of
from hardcase.statistics import bounded_mean_interval, log_interval
from hardcase.tensors import chunks, from_bytes, to_bytes, to_grid
from hardcase.types import Images, Model, Seeds

COMMAND = "python -m benchmarks conditions"
IMAGES = 1000
DRAWS = 64
PHOTOGRAPHS = 50
FETCHED = "efficientnet-lite0"
REPEATS = 4000
EXPERIMENTS = 1000
TOYS = ("half-space", "two modes", "plateaus", "one carries all")


def figures() -> Iterator[Figure]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = load("mnist5k", split="train"), load("mnist5k", split="test")
    model = load_model("zoo:lenet5", Loading(train=train, test=test, device=device, seed=0))
    images = test.sample(count=min(IMAGES, len(test)), seed=0)
    box = condition_box(Conditions.load("scanner"), images.shape)
    measure_risk(model, images.first(32), box, samples=16)
    begun = perf_counter()
    table = measure_risk(model, images, box, samples=DRAWS)
    risk = perf_counter() - begun
    begun = perf_counter()
    measure_worst(model, images, box, table=table)
    both = risk + perf_counter() - begun
    whole = f"{len(images)} digits, scanner, LeNet-5, {device}"
    yield _figure("conditions-risk", risk, f"seconds, {DRAWS} draws and costs: {whole}", "goal 20")
    yield _figure(
        "conditions-worst", both, f"seconds with curves and worst case: {whole}", "goal 90"
    )
    share = _bare(model, images, box) / _seconds(model, images, box)
    yield _figure("conditions-inside", share, "inside decoder and networks", "goal 0.85")
    yield from _photographs(device)
    for count in (50, 200, 1000):
        ours, student = _coverage(count)
        told = f"of {REPEATS} intervals over {count} images cover the mean"
        yield _figure(f"conditions-coverage-{count}", ours, told, "goal 0.94")
        yield _figure(f"conditions-coverage-{count}-t", student, told, "Student's, for comparison")
    for name, chance in ((name, chance) for name in TOYS for chance in (1e-3, 1e-6)):
        covered, ratio = _splitting(name, chance)
        told = f"of {EXPERIMENTS} intervals over {RARE_REPEATS} repeats of splitting: {name}, {chance:g}"
        yield _figure(f"conditions-rare-{name}-{chance:g}", covered, told, "goal 0.93")
        yield _figure(f"conditions-rare-{name}-{chance:g}-mean", ratio, "mean over truth", "goal 1")


def _photographs(device: str, count: int = PHOTOGRAPHS) -> Iterator[Figure]:
    """Seconds of risk of made photographs, where a network for photographs was fetched; 1,000 of them on a GPU."""
    if FETCHED not in fetched_classifiers():
        print(f"photographs are not measured: hardcase fetch model {FETCHED}")
        return
    count = 20 * count if device == "cuda" else count
    noise = torch.rand(count, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    x = to_bytes(torch.nn.functional.interpolate(noise, (224, 224), mode="bicubic").clamp(0, 1))
    model = load_model(f"zoo:{FETCHED}", Loading(device=device))
    answers = [model(from_bytes(x[part]).to(model.device)).logits for part in chunks(count, 50)]
    y = torch.cat(answers).argmax(1).cpu()
    ids = tuple(f"made/{i}" for i in range(count))
    images = Images(x, y, ids, tuple(map(str, range(answers[0].shape[1]))), "made photographs")
    box = condition_box(Conditions.load("handheld"), images.shape)
    measure_risk(model, images.first(1), box, samples=2)
    begun = perf_counter()
    measure_risk(model, images, box, samples=DRAWS)
    told = f"seconds, {DRAWS} draws: {count} photographs, handheld, {FETCHED}, {device}"
    goal = "goal 60" if device == "cuda" else "goal 240"
    yield _figure("conditions-risk-photographs", perf_counter() - begun, told, goal)


def _toy(name: str, chance: float) -> Score:
    """A score of known chance to fail: of two directions together, of either, in steps, or of every fourth chain alone."""
    limit = float(stats.norm.isf(min(1.0, 4 * chance) if name == "one carries all" else chance))
    far = float(stats.norm.isf(0.1 * chance / 1.1))
    near = float(stats.norm.isf(chance / 1.1))

    def score(g: Tensor, chain: Tensor) -> Tensor:
        value, threshold = g[:, 0], torch.full_like(g[:, 0], limit)
        if name == "half-space":
            value = (g[:, 0] + g[:, 1]) / 2**0.5
        if name == "two modes":
            value = torch.maximum(g[:, 0], g[:, 1] - far + near)
            threshold = torch.full_like(value, near)
        if name == "one carries all":
            threshold = torch.where(chain % 4 == 0, threshold, torch.inf)
        seen = (4 * value).floor() / 4 if name == "plateaus" else value
        return seen.masked_fill(value > threshold, torch.inf)

    return score


def _splitting(name: str, chance: float) -> tuple[float, float]:
    """How often intervals of splitting cover a known chance, and the mean estimate over it."""
    images = 4 if name == "one carries all" else 1
    score = _toy(name, chance)
    pilot = Rng.numbered(0, f"{name} levels", EXPERIMENTS * images)
    levels = find_levels(lambda g, chain: score(g, chain % images), 3, pilot, floor=chance)
    shape = (EXPERIMENTS, 1, images, levels.shape[1])
    levels = levels.reshape(shape).expand(-1, RARE_REPEATS, -1, -1).flatten(0, 2)
    found = split(score, 3, Rng.numbered(0, name, len(levels)), levels)
    estimates = found.reshape(EXPERIMENTS, RARE_REPEATS, images).mean(2).numpy()
    bounds = [log_interval(row, floor=1e-6) for row in estimates]
    covered = float(np.mean([low <= chance <= high for low, high in bounds]))
    return covered, float(estimates.mean() / chance)


def _figure(name: str, value: float, unit: str, against: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, command=COMMAND)


def _seconds(model: Model, images: Images, box: ConditionBox) -> float:
    begun = perf_counter()
    measure_risk(model, images, box, samples=DRAWS)
    return perf_counter() - begun


def _bare(model: Model, images: Images, box: ConditionBox) -> float:
    """Seconds of decoding and answering the same draws, and nothing else."""
    x = from_bytes(images.x).to(model.device)
    y = images.y.to(model.device)
    rng = Rng(0, "conditions", keys_of(images.id).to(model.device))
    drawn = box.draw(rng, torch.arange(len(x), device=model.device), DRAWS)
    z = drawn.z.flatten(0, 1)
    number = torch.arange(len(x), device=x.device)
    seeds = Seeds(torch.zeros(len(x), box.size, device=x.device), x, y, number)
    of = number.repeat_interleave(DRAWS)
    begun = perf_counter()
    with torch.inference_mode():
        for part in chunks(len(z), 512):
            model(to_grid(box.decode(z[part], seeds.take(of[part]))))
    return perf_counter() - begun


def _coverage(count: int) -> tuple[float, float]:
    """How often Gaffke's and Student's intervals cover the mean.

    Chances of failing go over twelve orders of magnitude; one image in a hundred carries most of the risk.
    """
    rng = np.random.default_rng(count)
    mean = 0.01 * 0.65 + 0.99 * (1e-2 - 1e-12) / (10 * np.log(10))
    hits = np.zeros(2)
    for _ in range(REPEATS):
        heavy = rng.random(count) < 0.01
        chance = np.where(heavy, rng.uniform(0.3, 1, count), 10 ** rng.uniform(-12, -2, count))
        values = rng.binomial(DRAWS, chance) / DRAWS
        low, high = bounded_mean_interval(values)
        half = stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5
        hits += [low <= mean <= high, abs(values.mean() - mean) <= half]
    ours, student = hits / REPEATS
    return float(ours), float(student)
