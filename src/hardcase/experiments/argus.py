"""ARGUS's Tables 1, 3 and 4: how like its seed, how diverse and how often wrong a generated image is.

``--set mixes=[0.1,0.3] models=["lenet5"] originals=10 partners=900 joint=[0.2] epochs=5 rivals=false rival_queries=500 int8=fx
judge=true model_epochs=3`` change what is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from hardcase.experiments.argus_judged import SAMPLE, Bar, admit, bar
from hardcase.experiments.argus_measured import Measured, measured
from hardcase.experiments.argus_methods import RIVALS, equal, interpolated, rival, weights
from hardcase.experiments.argus_paper import ABLATION, PAPER
from hardcase.experiments.argus_pictures import draw
from hardcase.experiments.argus_world import (
    Painter,
    interval,
    networks,
    originals,
    painter,
    reconstruction_errors,
)
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.searching import usable
from hardcase.methods.argus import argus_adaptive
from hardcase.models.subject import Subject
from hardcase.types import Images

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
]
NOTES = (
    f"of all: means over generated images, failing or not, as the paper seems to count: up to {SAMPLE} of each original, drawn from all "
    "that were made; of failing: means over the nearest image of each wrong label",
    "ER at mix 0 is the share of rightly classified test images that reconstruction alone gets wrong; the paper has no such number",
    "originals whose reconstruction fails are set aside; the paper keeps them",
    "intervals: 95 %, bootstrap over originals of all repeats; each repeat draws its own originals, networks are shared",
)


def comparison(bench: Bench) -> Outcome:
    """Tables 1 and 3 come from the same images, so both are printed."""
    train, test, subjects, notes = networks(
        bench, [str(name) for name in bench.options.get("models", ())]
    )
    judge = bar(bench, train, test)
    ours: list[list[Cell]] = []
    figures: list[str] = []
    for name, subject in subjects.items():
        here = _Here(
            bench,
            name,
            subject,
            train,
            test,
            originals(bench, subject, test),
            usable(subject, test),
            judge,
        )
        if judge.judge is not None:
            admit(judge.judge, [subject], here.groups)
        plain = painter(bench, train, test, subject)
        rows, more = _interpolations(here, plain)
        notes += [plain.note, *more]
        ours += rows + _rivals(here)
        figures.append(draw(bench, name, subject, plain, here.groups[0]))
    said = f"methods are compared at {equal(bench)} perturbations an original, or a few more; the paper has 30,000"
    peer = (
        "torch's FX int8 network"
        if bench.options.get("int8") == "fx"
        else "our own static rounding to 8 bits"
    )
    more = [
        judge.note,
        said,
        f"diffchaser's peer: {peer}; it is scored on the network itself, as in the paper",
    ]
    table = Table("ARGUS, Tables 1 and 3: ours", COLUMNS, ours, [*notes, *more, *NOTES])
    shown = [
        [model, method, *row.cells()]
        for (model, method), row in PAPER.items()
        if model in {name.removesuffix("-lecun") for name in subjects}
    ]
    paper = Table(
        "the same, as published", ["network", "method", "MSE", "SSIM", "LD", "ER", "SR"], shown
    )
    return Outcome("argus", [table, paper], figures)


@dataclass(frozen=True, slots=True)
class _Here:
    """A network, its originals, the test images that it gets right, and the judge."""

    bench: Bench
    name: str
    subject: Subject
    train: Images
    test: Images
    groups: list[Images]
    right: Images
    bar: Bar


def _interpolations(here: _Here, plain: Painter) -> tuple[list[list[Cell]], list[str]]:
    bench, rows, notes = here.bench, list[list[Cell]](), list[str]()
    for mix in map(float, bench.options.get("mixes", [0.1, 0.2, 0.3, 0.4, 0.5])):
        bench.say(f"{here.name}: mix {mix}")
        rows += _at(here, plain, mix, f"ARGUS {mix}")
    bench.say(f"{here.name}: adaptive")
    for label, blocks in (("argus-adaptive", (8, 1)), ("argus-adaptive, nothing taken back", ())):
        method = argus_adaptive(space=plain.space, partners=plain.codes, blocks=blocks)
        rows.append(
            [
                here.name,
                label,
                *_cells(measured(here.subject, method, here.groups), plain, here, None),
            ]
        )
    for mix in map(float, bench.options.get("joint", [])):
        kind = str(bench.options.get("kind", "gradient"))
        own = painter(
            bench, here.train, here.test, here.subject, kind=kind, mix=mix, **weights(bench)
        )
        rows += _at(here, own, mix, f"ARGUS {mix}, trained jointly")
        notes.append(own.note)
    return rows, notes


def _at(here: _Here, own: Painter, mix: float, label: str) -> list[list[Cell]]:
    """With every partner; and, where that is more than the rivals make, with as many as they."""
    bench, rows = here.bench, list[list[Cell]]()
    done = interpolated(bench, here.subject, own, mix, here.groups, bar=here.bar)
    rows.append([here.name, label, *_cells(done, own, here, mix)])
    if (
        len(done.made)
        and float(done.made.max()) > equal(bench)
        and bench.options.get("rivals", True)
    ):
        done = interpolated(
            bench, here.subject, own, mix, here.groups, count=equal(bench), bar=here.bar
        )
        rows.append([here.name, f"{label}, equal number", *_cells(done, own, here, mix)])
    return rows


def _rivals(here: _Here) -> list[list[Cell]]:
    """The paper's rivals as it ran them: one network; DiffChaser with the 8-bit copy, scored on the network itself."""
    rows: list[list[Cell]] = []
    for name in RIVALS if here.bench.options.get("rivals", True) else ():
        here.bench.say(f"{here.name}: {name}")
        done = rival(
            here.bench, name, here.subject, here.test, here.groups, equal(here.bench), bar=here.bar
        )
        rates = [_percent(done.seeds.er), _judged(done), "", _percent(done.seeds.sr)]
        rows.append([here.name, name, *_made(done), *_failing(done), *rates])
    return rows


def _cells(done: Measured, own: Painter, here: _Here, mix: float | None) -> list[Cell]:
    """A row from the number of perturbations on; ER means nothing where images were searched for (no `mix`)."""
    at_zero = 100 * float(
        reconstruction_errors(own, here.subject, here.right.first(1000)).float().mean()
    )
    rates: list[Cell] = ["", ""] if mix is None else [_percent(done.seeds.er), _judged(done)]
    return [*_made(done), *_failing(done), *rates, f"{at_zero:.2f} %", _percent(done.seeds.sr)]


def _failing(done: Measured) -> list[Cell]:
    error = done.seeds.mse[done.seeds.mse.isfinite()]
    first = f"{float(error.mean()):.4f}" if len(error) else ""
    return [first, *(_spread(values) for values in (done.seeds.ssim, done.seeds.ld, done.alike))]


def _spread(values: Tensor, scale: float = 1, digits: int = 3, unit: str = "") -> str:
    """Mean and interval; no interval of a single value, nothing where there is none."""
    found = interval(scale * values)
    if not isfinite(found.value):
        return ""
    inside = f" [{found.low:.{digits}f}, {found.high:.{digits}f}]" if isfinite(found.low) else ""
    return f"{found.value:.{digits}f}{unit}{inside}"


def _percent(values: Tensor) -> str:
    return _spread(values, 100, 2, " %")


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
    named = [str(bench.options["model"])] if "model" in bench.options else []
    train, test, subjects, notes = networks(bench, named, most=1)
    name, subject = next(iter(subjects.items()))
    judge = bar(bench, train, test)
    here = _Here(
        bench,
        name,
        subject,
        train,
        test,
        originals(bench, subject, test),
        usable(subject, test),
        judge,
    )
    if judge.judge is not None:
        admit(judge.judge, [subject], here.groups)
    plain = "conv" if train.x.shape[1] > 1 else "linear"
    variants: dict[str, Callable[[], Painter]] = {
        "full": lambda: painter(bench, train, test, subject, **{"mix": mix, **weights(bench)}),
        "no VQ": lambda: painter(bench, train, test, subject, "vae", kind=plain),
        "no discriminators": lambda: painter(bench, train, test, subject),
    }
    rows: list[list[Cell]] = []
    for label, make in variants.items():
        own = make()
        notes.append(f"{label}: {own.note}")
        done = interpolated(bench, subject, own, mix, here.groups, bar=judge)
        rows.append([name, f"{label}, mix {mix}", *_cells(done, own, here, mix)])
    paper = [[label, *row.cells()] for label, row in ABLATION.items()]
    published = Table(
        "the same, as published (ResNet18 on CIFAR-10)",
        ["method", "MSE", "SSIM", "LD", "ER", "SR"],
        paper,
    )
    ours = Table("ARGUS, Table 4: ours", COLUMNS, rows, [*notes, judge.note, *NOTES])
    return Outcome("argus-table4", [ours, published])
