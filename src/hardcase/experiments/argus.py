"""ARGUS's Tables 1, 3 and 4: how like its seed, how diverse and how often wrong a generated image is.

``--set mixes=[0.1,0.3] models=["lenet5"] originals=10 partners=900 joint=[0.2] epochs=5 rivals=false rival_queries=500`` change what is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hardcase import recipes
from hardcase.experiments.argus_world import (
    Measured,
    Painter,
    interval,
    measured,
    mixed,
    networks,
    originals,
    paint,
    painter,
    reconstruction_errors,
)  # fmt: skip
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.generators import pictures
from hardcase.methods.argus import argus, argus_adaptive
from hardcase.methods.catalogue import METHODS
from hardcase.randomness import stream
from hardcase.searches.bisection import nearest
from hardcase.subject import Subject
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images, Seeds

PAPER = {  # MSE, SSIM, LD, ER, SR
    ("lenet4", "ARGUS 0.1"): ("0.0011", "0.9869", "3.1", "23.48 %", "100 %"),
    ("lenet4", "ARGUS 0.2"): ("0.0015", "0.9147", "5.3", "32.24 %", "100 %"),
    ("lenet4", "ARGUS 0.3"): ("0.0083", "0.8638", "7.5", "45.56 %", "100 %"),
    ("lenet4", "diffchaser"): ("0.0237", "0.6254", "2.6", "2.51 %", "100 %"),
    ("lenet4", "adapt"): ("0.0168", "0.7212", "3.7", "18.81 %", "100 %"),
    ("lenet4", "dlfuzz@adapt"): ("0.0441", "0.5273", "1.2", "11.24 %", "80 %"),
    ("lenet4", "deepxplore@adapt"): ("0.0195", "0.7091", "2.6", "12.55 %", "70 %"),
    ("lenet5", "ARGUS 0.1"): ("0.0012", "0.9902", "3.6", "20.94 %", "100 %"),
    ("lenet5", "ARGUS 0.2"): ("0.0019", "0.9094", "5.1", "31.34 %", "100 %"),
    ("lenet5", "ARGUS 0.3"): ("0.0066", "0.8768", "8.6", "43.75 %", "100 %"),
    ("lenet5", "diffchaser"): ("0.0184", "0.6537", "2.4", "2.23 %", "100 %"),
    ("lenet5", "adapt"): ("0.0187", "0.7502", "3.4", "19.62 %", "100 %"),
    ("lenet5", "dlfuzz@adapt"): ("0.0383", "0.6429", "1.2", "8.35 %", "90 %"),
    ("lenet5", "deepxplore@adapt"): ("0.0181", "0.7248", "2.4", "14.23 %", "85 %"),
}
ABLATION = {"full": ("0.0076", "0.8224", "6.1", "39.96 %"), "no VQ": ("0.0243", "0.6594", "6.0", "32.28 %"),
            "no discriminators": ("0.0301", "0.6971", "6.1", "36.94 %")}  # fmt: skip
COLUMNS = [
    "network",
    "method",
    "MSE of all",
    "SSIM of all",
    "MSE of failing",
    "SSIM of failing",
    "LD",
    "LD at SSIM ≥ 0.877",
    "ER",
    "ER at mix 0",
    "SR",
]
RIVALS = ("diffchaser", "adapt", "dlfuzz@adapt", "deepxplore@adapt")
NOTES = (
    "of all: means over every generated image, failing or not, as the paper seems to count; of failing: means over the "
    "nearest image of each wrong label",
    "ER at mix 0 is the share of rightly classified test images that reconstruction alone gets wrong; the paper has no such number",
    "originals whose reconstruction fails are set aside; the paper keeps them",
    "intervals: 95 %, bootstrap over originals of all repeats; each repeat draws its own originals, networks are shared",
)


def comparison(bench: Bench) -> Outcome:
    """Tables 1 and 3 come from the same images, so both are printed."""
    names = [str(name) for name in bench.options.get("models", ["lenet4", "lenet5"] if bench.full else ["lenet5"])]
    train, test, subjects, notes = networks(bench, names)
    ours: list[list[Cell]] = []
    figures: list[str] = []
    for name, subject in subjects.items():
        plain = painter(bench, train, test, subject)
        notes.append(plain.note)
        groups = originals(bench, subject, test)
        rows, more = _interpolations(bench, name, subject, plain, train, test, groups)
        notes += more
        ours += rows + _rivals(bench, name, subject, test, groups)
        figures.append(draw(bench, name, subject, plain, groups[0]))
    table = Table("ARGUS, Tables 1 and 3: ours", COLUMNS, ours, [*notes, *NOTES])
    shown = [[model, method, *row] for (model, method), row in PAPER.items() if model in names]
    paper = Table("the same, as published", ["network", "method", "MSE", "SSIM", "LD", "ER", "SR"], shown)
    return Outcome("argus", [table, paper], figures)


def _interpolations(
    bench: Bench, name: str, subject: Subject, plain: Painter, train: Images, test: Images, groups: list[Images]
) -> tuple[list[list[Cell]], list[str]]:
    rows, notes = [], []
    for mix in map(float, bench.options.get("mixes", [0.1, 0.2, 0.3, 0.4, 0.5])):
        bench.say(f"{name}: mix {mix}")
        done = measured(subject, argus(space=plain.space, partners=plain.codes, mix=mix, queries=_most(bench)), groups)
        rows.append([name, f"ARGUS {mix}", *_cells(done, plain, subject, test, groups, mix)])
    bench.say(f"{name}: adaptive")
    for label, blocks in (("argus-adaptive", (8, 1)), ("argus-adaptive, nothing taken back", ())):
        done = measured(subject, argus_adaptive(space=plain.space, partners=plain.codes, blocks=blocks), groups)
        rows.append([name, label, *_cells(done, plain, subject, test, groups, None)])
    for mix in map(float, bench.options.get("joint", [])):
        own = painter(
            bench, train, test, subject, kind=str(bench.options.get("kind", "gradient")), mix=mix, **_weights(bench)
        )
        done = measured(subject, argus(space=own.space, partners=own.codes, mix=mix, queries=_most(bench)), groups)
        rows.append([name, f"ARGUS {mix}, trained jointly", *_cells(done, own, subject, test, groups, mix)])
        notes.append(own.note)
    return rows, notes


def _rivals(bench: Bench, name: str, subject: Subject, test: Images, groups: list[Images]) -> list[list[Cell]]:
    """The paper's rivals as it ran them: one network; DiffChaser with the 8-bit copy, scored on the network itself."""
    rows: list[list[Cell]] = []
    queries = int(bench.options.get("rival_queries", 2000 if bench.full else 300))
    for rival in RIVALS if bench.options.get("rivals", True) else ():
        if rival not in METHODS:
            continue
        bench.say(f"{name}: {rival}")
        lying = recipes.equipped(rival, recipes.Bench(subject=subject, images=test, data=bench.data))
        method = recipes.build(rival, {}, lying)
        done = measured(subject, method, groups, peers=lying.peers, queries=queries)
        rows.append([name, rival, "", "", *_failing(done), _percent(done, "er"), "", _percent(done, "sr")])
    return rows


def _cells(
    done: Measured, own: Painter, subject: Subject, test: Images, groups: list[Images], mix: float | None
) -> list[Cell]:
    whole: list[Cell] = ["", ""] if mix is None else _of_all(own, subject, groups, mix)
    at_zero = reconstruction_errors(own, subject, _right(subject, test).first(1000))
    rate = _percent(done, "er") if mix is not None else ""
    return [*whole, *_failing(done), rate, f"{100 * float(at_zero.float().mean()):.2f} %", _percent(done, "sr")]


def _of_all(own: Painter, subject: Subject, groups: list[Images], mix: float, count: int = 90) -> list[Cell]:
    """MSE and SSIM over images drawn from all pairs, failing or not."""
    distances, likeness = [], []
    for images in groups:
        lists = [own.codes.by_class[label] for label in images.y.tolist()]
        partner = torch.stack([rows[torch.arange(count) % len(rows)] for rows in lists])
        one, two, _ = mixed(own, subject, images, partner, mix)
        distances.append(one.mean(1))
        likeness.append(two.mean(1))
    return [f"{torch.cat(distances).mean():.4f}", str(interval(torch.cat(likeness)))]


def _failing(done: Measured) -> list[Cell]:
    error = done.seeds.mse[done.seeds.mse.isfinite()]
    first = f"{float(error.mean()):.4f}" if len(error) else ""
    return [first, *(str(interval(values)) for values in (done.seeds.ssim, done.seeds.ld, done.alike))]


def _percent(done: Measured, what: str) -> str:
    found = interval(100 * getattr(done.seeds, what))
    return f"{found.value:.2f} % [{found.low:.2f}, {found.high:.2f}]"


def _right(subject: Subject, images: Images) -> Images:
    from hardcase.experiments.searching import usable

    return usable(subject, images)


def _most(bench: Bench) -> int:
    """Partners of each original: the paper's 30,000 or, where minutes count, 100 of each other class of ten."""
    return int(bench.options.get("partners", 30_000 if bench.full else 900))


def _weights(bench: Bench) -> dict[str, Any]:
    return {key: float(bench.options[key]) for key in ("latent_weight", "image_weight") if key in bench.options}


def ablation(bench: Bench) -> Outcome:
    """Table 4, on the bench's own data: with everything, without the quantiser (a plain VAE), without discriminators."""
    name = str(bench.options.get("model", "lenet5"))
    mix = float(bench.options.get("mix", 0.2))
    train, test, subjects, notes = networks(bench, [name])
    subject = subjects[name]
    groups = originals(bench, subject, test)
    variants: dict[str, Callable[[], Painter]] = {
        "full": lambda: painter(bench, train, test, subject, **{"mix": mix, **_weights(bench)}),
        "no VQ": lambda: painter(bench, train, test, subject, "vae", kind="linear"),
        "no discriminators": lambda: painter(bench, train, test, subject),
    }
    rows: list[list[Cell]] = []
    for label, make in variants.items():
        own = make()
        notes.append(f"{label}: {own.note}")
        done = measured(subject, argus(space=own.space, partners=own.codes, mix=mix, queries=_most(bench)), groups)
        rows.append([name, f"{label}, mix {mix}", *_cells(done, own, subject, test, groups, mix)])
    paper = [[label, *row, "100 %"] for label, row in ABLATION.items()]
    published = Table(
        "the same, as published (ResNet18 on CIFAR-10)", ["method", "MSE", "SSIM", "LD", "ER", "SR"], paper
    )
    return Outcome("argus-table4", [Table("ARGUS, Table 4: ours", COLUMNS, rows, [*notes, *NOTES]), published])


@torch.no_grad()
def draw(bench: Bench, name: str, subject: Subject, own: Painter, images: Images) -> str:
    """``mixes-NAME.png``: originals, partners, then the mixture at 0, 0.1 ... 0.5, then what the adaptive form found."""
    x, y = from_bytes(images.x.to(subject.device)), images.y.to(subject.device)
    z = own.space.encode(x, y, stream(0, device=x.device))[0]
    near = nearest(own.codes, Seeds(z, x, y, y), 1)[:, :, 0]  # n k
    goal = (y + 1 + torch.arange(len(y), device=y.device) % 3) % near.shape[1]
    goal = torch.where(goal == y, (goal + 1) % near.shape[1], goal)
    partner = near[torch.arange(len(y), device=y.device), goal][:, None]
    rows = [images.x] + [to_bytes(paint(own, x, y, partner, share)) for share in (1.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5)]
    found = measured(subject, argus_adaptive(space=own.space, partners=own.codes), [images]).findings
    best = torch.full_like(images.x, pictures.PAPER)
    for seed, label, picture in zip(found.seed.tolist(), found.predicted.tolist(), found.x):
        if label == int(goal[seed]):
            best[seed] = picture
    path = f"mixes-{name}.png"
    pictures.write(bench.out / path, [*rows, best])
    return path
