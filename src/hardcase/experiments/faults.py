"""Planted faults: networks that tell two classes apart by something irrelevant, and which methods notice.

After I. Dunn, H. Pouget, T. Melham, D. Kroening, "Exposing Previously Undetectable Faults in Deep Neural Networks", ISSTA
2021, RQ1: there people labelled what had changed in 200 tests of each of eight faults in ImageNet classifiers; here pictures
are made by code, so that what changed is measured. A test has moved if its trait went at least half of the way between the
two kinds of picture the network was taught, in the direction of the other class. A method detects a fault if the share of its
tests that moved, minus the same share on a network without the fault, has an interval above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.errors import choice
from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.faults_lab import Lab, Student, lab, student
from hardcase.experiments.faults_methods import built
from hardcase.experiments.faults_world import NAMES, TRAITS, measures
from hardcase.experiments.saying import share
from hardcase.experiments.searching import probabilities, search
from hardcase.generators.sampling import Sampler
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes, to_bytes
from hardcase.types import Images

METHODS = ("feature-perturbation", "pgd", "sinvad")
HALF = 0.5
FEW, POOL = 10, 40
"""Tests that a share needs, and samples that are painted for each seed asked for."""


@dataclass(frozen=True, slots=True)
class Tests:
    """What one method found on one network: how far each trait went, in units of the gap between the two kinds of picture
    and positive toward the other class; `searched` seeds."""

    moved: Float[Tensor, "t f"]
    first: Bool[Tensor, " t"]
    searched: int
    pictures: Images
    made: Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """The share of tests that moved on the faulty network minus that on the clean one, with its bootstrap interval."""

    faulty: float
    clean: float
    difference: float
    low: float
    high: float
    tests: int

    @property
    def detected(self) -> bool:
        return self.low > 0


def run(bench: Bench) -> Outcome:
    """``--set tests=100 methods=pgd,sinvad faults=tint,mark pair=4,9 pgd.epsilon=0.1`` choose sizes, methods and faults."""
    names, faults = _names(bench, "methods", METHODS), _names(bench, "faults", NAMES)
    for name in faults:
        if name not in NAMES:
            raise choice("fault", name, list(NAMES))
    here = lab(bench)
    clean = student(here, None)
    students = {name: student(here, name) for name in faults}
    tests = int(bench.options.get("tests", 100 if bench.full else 25))
    control = {name: _tests(here, clean, name, tests, bench) for name in names}
    found = {(fault, name): _tests(here, one, name, tests, bench) for fault, one in students.items() for name in names}
    verdicts = {key: _verdict(key[0], some, control[key[1]]) for key, some in found.items()}
    tables = [
        _acquired(students, clean),
        _detected(faults, names, verdicts, tests, here),
        _shares(faults, names, found, control),
    ]
    return Outcome("faults", tables, _pictures(bench, faults, names[0], found))


def _names(bench: Bench, key: str, usual: Sequence[str]) -> tuple[str, ...]:
    given = bench.options.get(key, usual)
    return (given,) if isinstance(given, str) else tuple(map(str, given))


def _tests(here: Lab, one: Student, name: str, each: int, bench: Bench) -> Tests:
    """The tests of one method from fresh seeds of both classes that the network gets right."""
    bench.say(f"{name} on the network {'without a fault' if one.fault is None else 'taught ' + one.fault}")
    seeds = _seeds(here, one, each, bench)
    method = built(name, here, one.subject, bench.options.get(name, {}))
    done = search(one.subject, method, seeds, keep="best", seed=bench.seed)
    rows = (done.findings.kind == 0).nonzero().squeeze(1)
    rows = rows[torch.unique(done.findings.seed[rows], return_inverse=True)[1].argsort(stable=True)]
    own, made = seeds.take(done.findings.seed[rows]), done.findings.x[rows]
    first = own.y == 0
    change = (measures(from_bytes(made)) - measures(from_bytes(own.x))) / here.gaps
    return Tests(change * torch.where(first, 1.0, -1.0)[:, None], first, len(seeds), own, made)


def _seeds(here: Lab, one: Student, each: int, bench: Bench) -> Images:
    """Up to `each` fresh samples of either class that the network gets right; a trait that is rarely painted gives fewer."""
    assert isinstance(here.generator, Sampler)
    label = torch.arange(2 * POOL * each, device=bench.device) % 2
    rng, codes, pictures = stream(bench.seed, "faults", "seeds", device=bench.device), [], []
    with torch.no_grad():
        for rows in chunks(len(label), 512):
            code, image = here.generator.sample(label[rows], rng)
            codes.append(code.cpu())
            pictures.append(to_bytes(image).cpu())
    x, y = torch.cat(pictures), label.cpu()
    right = probabilities(one.subject, x).argmax(1) == y
    chosen = torch.cat([(right & (y == c)).nonzero().squeeze(1)[:each] for c in (0, 1)])
    names = tuple(f"generated/{i}" for i in chosen.tolist())
    return Images(
        x[chosen], y[chosen], names, here.train.classes, "generated", context={"latent": torch.cat(codes)[chosen]}
    )


def _verdict(fault: str, faulty: Tests, clean: Tests) -> Verdict | None:
    """None where the faulty network gave too few tests to speak of shares. Where the clean one did, both are compared by their
    seeds, those without a test as not moved: a share of few tests beside one of many seeds would flatter the method."""
    column = NAMES.index(fault)
    hits = [(some.moved[:, column] >= HALF).double() for some in (faulty, clean)]
    if len(hits[0]) < FEW:
        return None
    if len(hits[1]) < FEW:
        hits = [torch.cat([h, h.new_zeros(some.searched - len(h))]) for h, some in zip(hits, (faulty, clean))]
    rng = stream(0, "faults", fault)
    drawn = [h[torch.randint(len(h), (2000, len(h)), generator=rng)].mean(1) for h in hits]
    low, high = (drawn[0] - drawn[1]).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    own, other = (float(h.mean()) for h in hits)
    return Verdict(own, other, own - other, low, high, len(hits[0]))


def _acquired(students: Mapping[str, Student], clean: Student) -> Table:
    rows: list[list[Cell]] = []
    for trait in TRAITS:
        if trait.name in students:
            one = students[trait.name]
            rows.append([trait.name, trait.fault, one.tied, one.swapped, one.free, "yes" if one.acquired else "no"])
    return Table(
        "Held-out accuracy of the faulty networks",
        ["fault", "tells the classes apart", "trait as taught", "trait swapped", "trait free", "acquired"],
        rows,
        [
            f"the clean network, taught with free traits, gets {clean.free:.1%} of held-out pictures right",
            "acquired: the lead of the trait as taught over the trait swapped is more than half",
        ],
    )


def _detected(
    faults: Sequence[str],
    names: Sequence[str],
    verdicts: Mapping[tuple[str, str], Verdict | None],
    tests: int,
    here: Lab,
) -> Table:
    def cell(verdict: Verdict | None) -> str:
        if verdict is None:
            return f"fewer than {FEW} tests"
        word = "**detected**" if verdict.detected else "not detected"
        return f"{word} {verdict.difference:+.2f} [{verdict.low:+.2f}, {verdict.high:+.2f}]"

    rows: list[list[Cell]] = [[fault, *(cell(verdicts[fault, name]) for name in names)] for fault in faults]
    counts = [sum(bool(v and v.detected) for (_, n), v in verdicts.items() if n == name) for name in names]
    rows.append(["faults detected", *(f"{count} of {len(faults)}" for count in counts)])
    return Table(
        "Who detects what: share of tests that moved, minus that on the clean network",
        ["fault", *names],
        rows,
        [
            f"up to {tests} seeds a direction, fresh samples of a conditional VAE that the network gets right; best test of each seed",
            "moved: the trait went half of the way to the other class's kind; 95 % bootstrap interval over tests",
            f"where the clean network gave fewer than {FEW} tests, both are compared by seeds, those without a test as not moved",
            f"classes {' and '.join(here.train.classes)} of {here.source}",
        ],
    )


def _shares(
    faults: Sequence[str],
    names: Sequence[str],
    found: Mapping[tuple[str, str], Tests],
    control: Mapping[str, Tests],
) -> Table:
    rows: list[list[Cell]] = []
    for fault in faults:
        column = NAMES.index(fault)
        for name in names:
            own, other = found[fault, name], control[name]
            there, back = (own.moved[own.first == way, column] >= HALF for way in (True, False))
            rows.append([fault, name, f"{len(own.moved)} of {own.searched}", share(there), share(back), share(other.moved[:, column] >= HALF)])  # fmt: skip
    columns = ["fault", "method", "failing seeds", "moved, first to second class", "moved, second to first", "moved, clean network"]  # fmt: skip
    return Table("Shares by direction", columns, rows, ["Wilson's 95 % intervals"])


def _pictures(bench: Bench, faults: Sequence[str], name: str, found: Mapping[tuple[str, str], Tests]) -> list[str]:
    """A line of seeds and a line of tests of the first method for every fault."""
    lines: dict[str, Any] = {}
    for fault in faults:
        some = found[fault, name]
        if len(some.made):
            lines |= {f"{fault}: seed": some.pictures.x[:10], f"{fault}: test": some.made[:10]}
    return [figures.images(bench.out / "tests.png", lines)] if lines else []
