"""ARGUS's tables: how like its seed, how diverse and how often wrong a generated image is, and what it teaches.

``--set mixes=[0.1,0.3] models=["lenet5"] originals=10 partners=900 epochs=5 joint_epochs=5 rivals=["dlfuzz@adapt"] rival_queries=500
judge=true model_epochs=3 augment=none adaptive=false`` change what is run; ``ablation=[0.1,0.3]`` names the shares without
discriminators. With ``fill=true`` the networks that these name are trained for other processes, and nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.generators import quality
from hardcase.methods.generative import argus_adaptive
from hardcase.randomness import Rng
from hardcase.repair.front import joined_images
from hardcase.searches.interpolation import nearest
from hardcase.statistics import Interval
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images, Seeds
from hardcase_studies.argus_measure import (
    EXTRA,
    RIVALS,
    SAMPLE,
    Bar,
    Measured,
    admit,
    bar,
    decode_mixture,
    equal,
    interpolated,
    measured,
    reconstruction_errors,
    rival,
    weights,
)
from hardcase_studies.argus_paper import ABLATION, PAPER, RETRAINED, published_name
from hardcase_studies.bench import Bench, finite_mean
from hardcase_studies.lab import Lab, LatentModel, labs
from hardcase_studies.retraining import (
    AUGMENTED,
    BEFORE,
    FOUND,
    GENTLE,
    MORE,
    Arm,
    Retraining,
    accuracy,
    against_controls,
    as_images,
    compare,
    correct,
    gain,
    tuned,
)

COLUMNS = [
    "network",
    "method",
    "perturbations an original",
    "MSE of all",
    "SSIM of all",
    "MSE of failing",
    "SSIM of failing",
    "LD",
    "LD at SSIM ≥ 0.877",
    "ER",
    "ER judged",
    "ER at mix 0",
    "SR",
    "LD, kept",
    "ER, kept",
    "SR, kept",
]
NOTES = (
    f"of all: means over generated images, failing or not, as the paper seems to count: up to {SAMPLE} of each original, drawn from all "
    "that were made; of failing: means over the nearest image of each wrong label",
    "ER at mix 0 is the share of correctly classified test images that reconstruction alone gets wrong; the paper has no such number",
    "ER, LD and SR: nothing is set aside, as in the paper, whatever the network says of an original (argus-adaptive sets those aside "
    "whose reconstruction fails); kept: only originals that the network classifies correctly, as they are and reconstructed",
    "SSIM: Gaussian window of 11 pixels with a deviation of 1.5, range 1 (Wang et al. 2004); a box of 7 pixels gives about the same, a "
    "range of 2 about 0.04 more: the paper does not say",
    "intervals: 95 %, over originals of all repeats; each repeat draws its own originals, networks are shared",
)


def comparison(bench: Bench) -> Outcome:
    """Tables 1 and 3 come from the same images, so both are printed."""
    named = [str(name) for name in bench.options.get("models", ())]
    rows: list[list[Cell]] = []
    notes: list[str] = []
    figures: list[str] = []
    under_test = labs(bench, named)
    if bench.options.get("fill"):
        for here in under_test.values():
            _train(here)
        return Outcome("argus-table1", [])
    for name, here in under_test.items():
        one = _trial(here, name)
        more, said = _interpolations(one)
        notes += [*here.notes, *said, one.bar.note]
        rows += more + _rivals(one)
        if bench.options.get("adaptive", True):
            figures.append(draw(here, name, quantised(here), one.groups[0]))
    notes += [
        f"methods are compared at {equal(bench)} perturbations an original, or a few more; the paper has 30,000",
        "diffchaser's peer: our own static rounding to 8 bits; it is scored on the network itself, as in the paper",
    ]
    table = Table("ARGUS, Tables 1 and 3: ours", COLUMNS, rows, [*dict.fromkeys(notes), *NOTES])
    known = {published_name(name) for name in under_test}
    shown = [[model, way, *row.cells()] for (model, way), row in PAPER.items() if model in known]
    columns = ["network", "method", "MSE", "SSIM", "LD", "ER", "SR"]
    return Outcome(
        "argus-table1", [table, Table("the same, as published", columns, shown)], figures
    )


def _train(here: Lab) -> None:
    """Train what the study's options name; a mix of 0 is what all others go on from, and an ablation what has no discriminators."""
    if here.bench.options.get("ablation"):
        quantised(here)
    if not here.bench.options.get("mixes"):
        return
    kind = str(here.bench.options.get("kind", "gradient"))
    quantised(here, kind=kind, reduction=weights(here.bench)["reduction"])
    for mix in filter(None, map(float, here.bench.options.get("mixes", ()))):
        jointly(here, mix)


def quantised(here: Lab, **options: Any) -> LatentModel:
    """A VQ-VAE; ``--set epochs=N joint_epochs=N batch=N`` shorten its training, ``kind=…`` chooses it."""
    chosen = here.bench.options.get("kind")
    return autoencoder(here, "vqvae", **{**({"kind": chosen} if chosen else {}), **options})


def jointly(here: Lab, mix: float) -> LatentModel:
    """ARGUS's generator at this share: pre-trained, then trained with both discriminators, by the losses as the text has them."""
    kind = str(here.bench.options.get("kind", "gradient"))
    return quantised(here, kind=kind, mix=mix, **weights(here.bench))


def autoencoder(here: Lab, family: str, **options: Any) -> LatentModel:
    """A generator of this family, trained as the options of the bench say."""
    chosen = here.bench.options
    if options.get("mix"):
        rounds = chosen.get("joint_epochs", None if here.bench.full else 5)
        options = {"joint_epochs": rounds, **options}
    return here.generator(family, epochs=chosen.get("epochs"), batch=chosen.get("batch"), **options)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A network under test with its originals and the judge of what is made of them."""

    here: Lab
    name: str
    groups: list[Images]
    bar: Bar


def _trial(here: Lab, name: str) -> _Trial:
    judge = bar(here)
    groups = here.originals()
    if judge.judge is not None:
        admit(judge.judge, [here.subject], groups)
    return _Trial(here, name, groups, judge)


def _interpolations(one: _Trial) -> tuple[list[list[Cell]], list[str]]:
    bench = one.here.bench
    rows: list[list[Cell]] = []
    notes: list[str] = []
    for mix in map(float, bench.options.get("mixes", [0.1, 0.2, 0.3])):
        bench.say(f"{one.name}: mix {mix}, trained jointly")
        try:
            own = jointly(one.here, mix)
        except HardcaseError as problem:
            head: list[Cell] = [one.name, f"ARGUS {mix}: collapsed in training"]
            rows.append([*head, *[""] * (len(COLUMNS) - len(head))])
            notes.append(f"ARGUS {mix}: {problem.what}")
            continue
        rows += _at(one, own, mix, f"ARGUS {mix}")
        notes.append(own.note)
    ablation = list(map(float, bench.options.get("ablation", [0.1, 0.2, 0.3, 0.4, 0.5])))
    adaptive = bool(bench.options.get("adaptive", True))
    if not ablation and not adaptive:
        return rows, notes
    plain = quantised(one.here)
    notes.append(plain.note)
    for mix in ablation:
        bench.say(f"{one.name}: mix {mix}, no discriminators")
        rows += _at(one, plain, mix, f"ARGUS {mix}, ablation: no discriminators")
    if not adaptive:
        return rows, notes
    bench.say(f"{one.name}: adaptive")
    for label, blocks in (("argus-adaptive", (8, 1)), ("argus-adaptive, nothing taken back", ())):
        method = argus_adaptive(space=plain.space, partners=plain.codes, blocks=blocks)
        done = measured(one.here.subject, method, one.groups)
        rows.append([one.name, label, *_cells(done, plain, one, None)])
    return rows, notes


def _at(one: _Trial, own: LatentModel, mix: float, label: str) -> list[list[Cell]]:
    """With every partner; and, where that is more than the rivals make, with as many as they."""
    count = equal(one.here.bench)
    done = interpolated(one.here, own, mix, one.groups, bar=one.bar)
    rows: list[list[Cell]] = [[one.name, label, *_cells(done, own, one, mix)]]
    more = len(done.made) and float(done.made.max()) > count
    if more and one.here.bench.options.get("rivals", True):
        done = interpolated(one.here, own, mix, one.groups, count=count, bar=one.bar)
        rows.append([one.name, f"{label}, equal number", *_cells(done, own, one, mix)])
    return rows


def _rivals(one: _Trial) -> list[list[Cell]]:
    """The paper's rivals as it ran them: one network; DiffChaser with the 8-bit copy, scored on the network itself."""
    bench = one.here.bench
    rows: list[list[Cell]] = []
    asked = bench.options.get("rivals", True)
    usual = (*RIVALS, *EXTRA) if asked else ()
    for name in asked if isinstance(asked, list) else usual:
        bench.say(f"{one.name}: {name}")
        done = rival(one.here, name, one.groups, equal(bench), bar=one.bar)
        rates = [_percent(done.seeds.er), _judged(done), "", _share(done.seeds.sr)]
        rows.append([one.name, name, *_made(done), *_failing(done), *rates, *_kept(done)])
    return rows


def _cells(done: Measured, own: LatentModel, one: _Trial, mix: float | None) -> list[Cell]:
    """A row from the number of perturbations on; ER means nothing where images were searched for (no `mix`)."""
    wrong = reconstruction_errors(own, one.here.subject, one.here.right.first(1000))
    at_zero = f"{100 * float(wrong.float().mean()):.2f} %" if len(wrong) else ""
    rates: list[Cell] = ["", ""] if mix is None else [_percent(done.seeds.er), _judged(done)]
    whole = [*_made(done), *_failing(done), *rates, at_zero, _share(done.seeds.sr)]
    return [*whole, *(_kept(done) if mix is not None else ["", "", ""])]


def _kept(done: Measured) -> list[Cell]:
    """LD, ER and SR of the originals that the network classifies correctly before anything is mixed."""
    own = done.seeds.take(done.kept)
    return [_spread(own.ld), _percent(own.er), _share(own.sr)]


def _failing(done: Measured) -> list[Cell]:
    error = done.seeds.mse[done.seeds.mse.isfinite()]
    first = f"{float(error.mean()):.4f}" if len(error) else ""
    return [first, *(_spread(values) for values in (done.seeds.ssim, done.seeds.ld, done.alike))]


def _spread(
    values: Tensor,
    scale: float = 1,
    digits: int = 3,
    unit: str = "",
    within: tuple[float, float] = (-inf, inf),
) -> str:
    """Mean and interval; no interval of a single value, nothing where there is none."""
    found = finite_mean(values, within=within)
    if not isfinite(found.value):
        return ""
    return found.scaled(scale).text(f".{digits}f", unit)


def _percent(values: Tensor) -> str:
    return _spread(values, 100, 2, " %", within=(0, 1))


def _share(succeeded: Tensor) -> str:
    """SR: a share of the originals, with Wilson's interval."""
    return _spread(succeeded > 0, 100, 1, " %")


def _judged(done: Measured) -> str:
    return "" if done.judged is None else _percent(done.judged)


def _made(done: Measured) -> list[Cell]:
    """How many images, and how like their originals all of them are."""
    if not len(done.made):
        return ["", "", ""]
    return [round(float(done.made.mean())), f"{float(done.mse.nanmean()):.4f}", _spread(done.ssim)]


def ablation(bench: Bench) -> Outcome:
    """Table 4, on the bench's own data: with everything, without the quantiser (a plain VAE), without discriminators."""
    mix = float(bench.options.get("mix", 0.2))
    ((name, here),) = labs(bench, named_model(bench), most=1).items()
    one = _trial(here, name)
    plain = "conv" if here.train.x.shape[1] > 1 else "linear"
    variants: Mapping[str, Callable[[], LatentModel]] = {
        "full": lambda: jointly(here, mix),
        "no VQ": lambda: autoencoder(here, "vae", kind=plain),
        "no discriminators": lambda: quantised(here),
    }
    notes = here.notes
    rows: list[list[Cell]] = []
    for label, make in variants.items():
        try:
            own = make()
        except HardcaseError as problem:
            head: list[Cell] = [name, f"{label}, mix {mix}: collapsed in training"]
            rows.append([*head, *[""] * (len(COLUMNS) - len(head))])
            notes.append(f"{label}: {problem.what}")
            continue
        notes.append(f"{label}: {own.note}")
        done = interpolated(here, own, mix, one.groups, bar=one.bar)
        rows.append([name, f"{label}, mix {mix}", *_cells(done, own, one, mix)])
    paper = [[label, *row.cells()] for label, row in ABLATION.items()]
    title = "the same, as published (ResNet18 on CIFAR-10)"
    published = Table(title, ["method", "MSE", "SSIM", "LD", "ER", "SR"], paper)
    ours = Table("ARGUS, Table 4: ours", COLUMNS, rows, [*notes, one.bar.note, *NOTES])
    return Outcome("argus-table4", [ours, published])


def named_model(bench: Bench) -> list[str]:
    return [str(bench.options["model"])] if "model" in bench.options else []


RANDOM = "random: test images moved into training"
AGAIN = "training images again"


def retraining(bench: Bench) -> Outcome:
    """Table 2: the accuracy on test images after ten more epochs with so many images added.

    ``--set added=1000 originals=300 retrain_epochs=10 retrain_batch=64 mixes=[0.1,0.2,0.3] failing=false`` change what is run.
    All arms add the same number and are scored on the same images: the test set less what the arm "random" moves into training.
    A study that was stopped goes on; several processes fill one folder, each with ``fill=true`` and some repeats, ``only=[0,1]``.
    """
    ((model, here),) = labs(bench, named_model(bench), most=1).items()
    added = int(bench.options.get("added", min(1000, len(here.test) // 5)))
    moved = here.test.sample(count=added, seed=bench.seed)
    taken = set(moved.id)
    left = here.test.take(torch.tensor([i for i, n in enumerate(here.test.id) if n not in taken]))
    controls = against_controls(here.train, moved, added)
    arms = {RANDOM: controls[FOUND], "augmented": controls[AUGMENTED], AGAIN: controls[MORE]}
    sizes = dict.fromkeys(arms, added)
    notes = here.notes
    for mix in map(float, bench.options.get("mixes", [0.1, 0.2, 0.3])):
        bench.say(f"ARGUS {mix}")
        try:
            own = jointly(here, mix)
        except HardcaseError as problem:
            notes.append(f"ARGUS {mix}: {problem.what}")
            continue
        notes.append(own.note)
        taught = _teaching(here, own, mix)
        if not bench.options.get("failing", True):
            del taught["failing"]
        for label, images in taught.items():
            if len(images) < MIN_ADDED:
                notes.append(f"ARGUS {mix}: {len(images)} {label} images, nothing to train with")
                continue
            name = f"ARGUS {mix}, {label}"
            sizes[name] = min(added, len(images))
            arms[name] = against_controls(here.train, images, added)[FOUND]
    batch = int(bench.options.get("retrain_batch", GENTLE.batch))
    recipe = replace(GENTLE, epochs=bench.size("retrain_epochs", 5, 10), batch=batch)
    how = Retraining(repeats=bench.repeats or 5, seed=bench.seed, recipe=recipe)
    bench.say(f"retraining: {len(arms)} arms, {how.repeats} repeats")
    if bench.options.get("fill"):
        for repeat in bench.options.get("only", range(how.repeats)):
            for arm in arms:
                _retrained(here, arm, arms[arm], left, how, int(repeat))
        return Outcome("argus-table2", [])
    before = compare(here.subject, here.train, {}, {"test": left}, how)[BEFORE]["test"]
    results = {BEFORE: before}
    for arm, more in arms.items():
        rights = [_retrained(here, arm, more, left, how, one) for one in range(how.repeats)]
        results[arm] = torch.stack(rights)
    rows: list[list[Cell]] = [
        [arm, sizes.get(arm, 0), _points(accuracy(right)), *(
            _points(gain(right, results[other]), "+") if arm not in (BEFORE, other) else ""
            for other in (BEFORE, AGAIN)
        )]
        for arm, right in results.items()
    ]  # fmt: skip
    notes += [
        f"scored on {len(left)} test images; {how.repeats} repeats of {recipe.epochs} epochs, batch {batch}, rate {recipe.lr:g}",
        "generated: drawn from all images that Algorithm 1 makes of training images, failing or not; failing: only those the network misreads",
        "95 % intervals are of new test images and new repeats (t); before: Wilson's",
    ]
    columns = ["added", "images", "accuracy, %", "points above before", "points above images again"]
    ours = Table(f"Table 2: retraining {model} on {here.train.name}", columns, rows, notes)
    return Outcome("argus-table2", [ours, _published_retraining()])


MIN_ADDED = 10
PART = ("only", "fill")
"""Options that only choose what a process retrains."""


def _retrained(
    here: Lab, arm: str, more: Arm, left: Images, how: Retraining, repeat: int
) -> Bool[Tensor, " n"]:
    """Which images a repeat of an arm gets right, trained now unless the study's folder knows it."""

    def right() -> list[float]:
        seed = how.seed + repeat
        net = tuned(here.subject, joined_images(here.train, more(seed)), how.recipe, seed=seed)
        return [float(one) for one in correct(net, left)]

    return torch.tensor(here.bench.cell(f"{arm} {repeat}", right, but=PART)).bool()


def _points(found: Interval, sign: str = "") -> str:
    return found.text(f"{sign}.2f")


def _published_retraining() -> Table:
    paper: list[list[Cell]] = [
        [f"{model}, {added}", before, value]
        for model, (before, after) in RETRAINED.items()
        for added, value in after.items()
    ]
    return Table("the same, as published", ["added", "before, %", "after, %"], paper)


def _teaching(here: Lab, own: LatentModel, mix: float) -> dict[str, Images]:
    """Images made of training images under their labels: any of them, and those that fail."""
    bench = here.bench
    seeds = here.train.sample(count=bench.size("originals", 60, 300), seed=bench.seed)
    done = interpolated(here, own, mix, [seeds], count=3000 if bench.full else 300)
    origin, place = done.there.nonzero(as_tuple=True)
    names = tuple(f"made/{i:06d}" for i in range(len(origin)))
    made = Images(done.sample[origin, place], seeds.y[origin], names, seeds.classes, seeds.name)
    return {"generated": made, "failing": as_images(done.findings, here.train)}


@torch.no_grad()
def draw(here: Lab, name: str, own: LatentModel, images: Images) -> str:
    """``mixes-NAME.png``: originals, partners, then the mixture at 0, 0.1 ... 0.5, then what the adaptive form found."""
    subject = here.subject
    x = from_bytes(images.x.to(subject.device))
    y = images.y.to(subject.device)
    z = own.space.encode(x, y, Rng.numbered(0, "space", len(x), device=x.device))[0]
    near = nearest(own.codes, Seeds(z, x, y, y), 1)[:, :, 0]  # n k
    goal = (y + 1 + torch.arange(len(y), device=y.device) % 3) % near.shape[1]
    goal = torch.where(goal == y, (goal + 1) % near.shape[1], goal)
    partner = near[torch.arange(len(y), device=y.device), goal][:, None]
    rows = [images.x] + [
        to_bytes(decode_mixture(own, x, y, partner, share))
        for share in (1.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    found = measured(
        subject, argus_adaptive(space=own.space, partners=own.codes), [images]
    ).findings
    best = torch.full_like(images.x, quality.PAPER)
    for seed, label, picture in zip(found.seed.tolist(), found.predicted.tolist(), found.x):
        if label == int(goal[seed]):
            best[seed] = picture
    path = f"mixes-{name}.png"
    quality.write(here.bench.out / path, [*rows, best])
    return path
