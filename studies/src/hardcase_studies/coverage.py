"""Which coverage works best for making adversarial inputs: DeepXplore and DLFuzz under every criterion, beside controls.

The question is that of the course project "Adversarial image generation based on various neuron coverage" (T. Kim, H. Cho,
S. Kwon), whose slides promise a gradient for each coverage and name three measures; no numbers of theirs are known. Here each
criterion has its own gradient, every run may spend the same gradients, and each guide is measured by every criterion. Gradients
of criteria differ by orders of magnitude, so each is scaled to a share of the main objective's; every guide has the share that
found most on other seeds, and the sweep is shown. Guides are compared with a random neuron by intervals that hold together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, process_time

import torch

from hardcase import inference, statistics
from hardcase.campaign.in_memory import Searched, search
from hardcase.criteria.profile import Profile
from hardcase.methods.deepxplore import deepxplore
from hardcase.methods.dlfuzz import dlfuzz
from hardcase.methods.pgd import pgd
from hardcase.objectives import Balanced, Sum
from hardcase.randomness import stream
from hardcase.suite import figures
from hardcase.suite.tables import Bench, Cell, Outcome, Table, mean
from hardcase.tensors import from_bytes
from hardcase.types import Budget, Images, Method
from hardcase_studies.lab import Lab

GUIDES = (
    "nc", "kmnc:k=100", "nbc", "snac", "tknc", "tknp", "ssc:channels=true", "vsc:channels=true", "svc:channels=true",
    "vvc:channels=true", "lsa", "dsa", "mdsa", "lsc", "dsc", "mdsc", "neighbour", "nlc", "lscd",
)  # fmt: skip
"""Every criterion of the catalogue but `layer-snac`, whose units and gradient are those of `snac`."""
CONTROLS = ("random", "none", "pgd")
MEASURED = ("nc", "kmnc:k=100", "nbc", "snac", "tknc", "ssc:channels=true", "lsc", "dsc", "mdsc")
COUNTED = ("tknp", "neighbour", "lsa", "dsa", "mdsa", "nlc", "lscd")
"""Measures that are no shares of a whole: they grow in units of their own."""
NETWORKS = ("zoo:lenet5", "zoo:lenet1", "zoo:lenet4")
SHARES = (0.1, 0.3, 1.0, 3.0)
TUNING = 1000
"""Repeats with this number and above draw the seeds on which a guide's share is chosen."""


_NAMES = {"random": "random neuron", "none": "no coverage", "pgd": "PGD"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is run. `shares`: lengths of the coverage gradient, of the main one's, that are tried on other seeds."""

    seeds: int
    gradients: int
    repeats: int
    shares: tuple[float, ...]
    guides: tuple[str, ...]
    measured: tuple[str, ...]
    counted: tuple[str, ...] = ()

    @property
    def all_measured(self) -> tuple[str, ...]:
        return (*self.measured, *self.counted)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one generator under one guide. `found`: seeds with a finding, of whatever kind; `failing`: seeds whose label
    the subject left, in `adversarial` candidates together."""

    seeds: int
    failing: int
    adversarial: int
    found: int
    seconds: float
    gradients: int
    distance: float
    gained: Mapping[str, float]


def run(bench: Bench) -> Outcome:
    """``--set models=… seeds=… gradients=… shares=[0.3,1] guides=nc,snac measured=nc`` choose other sizes and networks."""
    sizes = _sizes(bench)
    here = Lab(bench, bench.names("models", NETWORKS))
    profile = here.fit_profile(sizes.all_measured)
    about = here.notes
    tables: list[Table] = []
    pictures: list[str] = []
    for generator in bench.names("generators", ("deepxplore", "dlfuzz")):
        sweep = {
            guide: _sweep(bench, here, profile, sizes, generator, guide)
            for guide in (*sizes.guides, "random")
        }
        trials = {}
        for guide in (*sizes.guides, *CONTROLS):
            share = chosen(sweep[guide]) if guide in sweep else 0.0
            trials[guide] = [
                _trial(bench, here, profile, sizes, generator, guide, repeat, share)
                for repeat in range(sizes.repeats)
            ]
        tables += [
            sweep_table(generator, sweep, sizes),
            found_table(generator, trials, sizes, about),
            *gained_tables(generator, trials, sizes),
        ]
        pictures += pictures_of(bench, generator, trials, sizes)
    return Outcome("coverage-matrix", tables, pictures)


def _sizes(bench: Bench) -> Sizes:
    return Sizes(
        seeds=bench.size("seeds", 30, 100),
        gradients=bench.size("gradients", 20, 50),
        repeats=max(2, bench.repeats or bench.size("repeats", 10, 30)),
        shares=tuple(float(share) for share in bench.options.get("shares", SHARES)),
        guides=tuple(filter(None, bench.names("guides", GUIDES))),
        measured=tuple(filter(None, bench.names("measured", MEASURED))),
        counted=tuple(filter(None, bench.names("counted", COUNTED))),
    )


def _trial(
    bench: Bench,
    here: Lab,
    profile: Profile,
    sizes: Sizes,
    generator: str,
    guide: str,
    repeat: int,
    share: float,
) -> Trial:
    """A fresh method on this repeat's seeds; found images are measured together with the seeds they came from."""
    if repeat == 0:
        bench.say(f"{generator} under {named(guide)}")
    seeds = here.seeds(sizes.seeds, seed=bench.seed + repeat)
    method = _method(here, sizes, generator, guide, share)
    peers = here.peers if generator == "deepxplore" and guide != "pgd" else ()
    clock = process_time if bench.device == "cpu" else perf_counter
    begun = clock()
    done = search(
        here.subject, method, seeds, peers=peers, budget=Budget(gradients=sizes.gradients), keep="10",
        seed=bench.seed + repeat, shard=32,
    )  # fmt: skip
    return _measured(here, profile, sizes, done, clock() - begun)


def _method(here: Lab, sizes: Sizes, generator: str, guide: str, share: float) -> Method:
    if guide == "pgd":
        method = pgd(gradients=sizes.gradients)
        return method if generator == "deepxplore" else replace(method, until="budget")
    if generator == "deepxplore":
        method = deepxplore(
            subject=here.subject, peers=here.peers, profile=here.profile, criterion=guide
        )
    else:
        method = dlfuzz(subject=here.subject, profile=here.profile, criterion=guide)
    assert isinstance(method.objective, Sum)
    (_, main), *pushed = method.objective.terms
    beside = tuple((share, score) for _, score in pushed)
    return replace(method, objective=Balanced(main, beside)) if beside else method


def _sweep(
    bench: Bench, here: Lab, profile: Profile, sizes: Sizes, generator: str, guide: str
) -> dict[float, list[Trial]]:
    """The guide at every share, on seeds that are drawn for that alone."""
    few = replace(sizes, measured=(), counted=())
    return {
        share: [
            _trial(bench, here, profile, few, generator, guide, TUNING + repeat, share)
            for repeat in range(max(2, sizes.repeats // 4))
        ]
        for share in sizes.shares
    }


def chosen(sweep: Mapping[float, Sequence[Trial]]) -> float:
    """The share with most adversarial inputs; the smallest of equals."""
    return max(sorted(sweep, reverse=True), key=lambda share: sum(_made(sweep[share])))


def sweep_table(
    generator: str, sweep: Mapping[str, Mapping[float, Sequence[Trial]]], sizes: Sizes
) -> Table:
    """What each guide finds at each share of the gradient, and which share it is given."""
    rows: list[list[Cell]] = [
        [
            named(guide),
            *(_interval([float(n) for n in _made(done)], 1) for done in some.values()),
            chosen(some),
        ]
        for guide, some in sweep.items()
    ]
    notes = [
        "adversarial inputs a run, means with 95 % bootstrap intervals, on seeds used for nothing else",
        "share: the length of the criterion's gradient, of the main objective's, in every step and for every seed",
    ]
    columns = ["guide", *(f"share {share:g}" for share in sizes.shares), "chosen"]
    return Table(
        f"{generator}: the share of the gradient, chosen on other seeds", columns, rows, notes
    )


def _measured(here: Lab, profile: Profile, sizes: Sizes, done: Searched, spent: float) -> Trial:
    seeds = done.seeds
    found = done.findings
    names = sizes.all_measured
    before = here.covered(seeds, names, profile)
    after = before
    if len(found):
        after = here.covered(_with(seeds, found.x, found.seed), names, profile)
    change = from_bytes(found.x) - from_bytes(seeds.x[found.seed])
    return Trial(
        seeds=len(seeds),
        failing=int((done.failing > 0).sum()),
        adversarial=int(done.failing.sum()),
        found=done.succeeded,
        seconds=spent,
        gradients=int(done.gradients.sum()),
        distance=float(change.flatten(1).norm(dim=1).median()) if len(found) else float("nan"),
        gained={name: after[name] - before[name] for name in names},
    )


def _with(seeds: Images, x: torch.Tensor, rows: torch.Tensor) -> Images:
    names = tuple(f"{seeds.id[row]}/{i}" for i, row in enumerate(rows.tolist()))
    return replace(
        seeds, x=torch.cat([seeds.x, x]), y=torch.cat([seeds.y, seeds.y[rows]]), id=seeds.id + names
    )


def found_table(
    generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes, about: Sequence[str]
) -> Table:
    """Number of adversarial inputs and what each costs; `about` are notes on the networks."""
    beyond = beyond_random(trials)
    rows = [
        [named(guide), *_found(done, trials["none"]), beyond.get(guide, "")]
        for guide, done in trials.items()
    ]
    columns = [
        "guide", "seeds found", "seeds failing", "adversarial inputs a run", "delta", "ms each", "delta", "gradients each", "L2",
        "more than a random neuron",
    ]  # fmt: skip
    kind = (
        "found: the models disagree, and the seed ends"
        if generator == "deepxplore"
        else "a seed goes on after a failure"
    )
    notes = [
        f"{sizes.repeats} runs of {trials['none'][0].seeds} seeds, at most {sizes.gradients} gradients of the subject per seed; means with 95 % bootstrap intervals",
        f"an adversarial input (failing) is a candidate on which the subject leaves its seed's label; {kind}",
        "delta: Cliff's delta to the control without coverage; ms: processor time of the search; L2: median distance of what was kept",
        "each guide has the share of the gradient that found most on other seeds (table above)",
        "more than a random neuron: adversarial inputs a run, same seeds; intervals hold together for all guides (as Dunnett's)",
        "PGD has its usual L∞ ball of 0.3 and asks no peers: read it beside its L2",
        *about,
    ]
    return Table(f"{generator}: adversarial inputs", columns, rows, notes)


def beyond_random(trials: Mapping[str, Sequence[Trial]]) -> dict[str, str]:
    """For each guide, how many more inputs it finds than a random neuron on the same seeds, with intervals that hold together."""
    guides = [guide for guide in trials if guide not in CONTROLS]
    if not guides:
        return {}
    made = torch.tensor([_made(trials[guide]) for guide in guides], dtype=torch.float64).T
    control = torch.tensor(_made(trials["random"]), dtype=torch.float64)
    found = inference.simultaneous(made - control[:, None], rng=stream(0, "random neuron"))
    return {
        guide: f"{one.value:+.3g} [{one.low:+.3g}, {one.high:+.3g}]"
        for guide, one in zip(guides, found, strict=True)
    }


def _found(done: Sequence[Trial], control: Sequence[Trial]) -> list[Cell]:
    seeds = sum(trial.seeds for trial in done)
    made = _made(done)
    each = _each(done)
    far = [trial.distance for trial in done if trial.distance == trial.distance]
    return [
        f"{sum(trial.found for trial in done) / seeds:.1%}",
        f"{sum(trial.failing for trial in done) / seeds:.1%}",
        _interval(made, 1),
        _delta(made, _made(control)),
        _interval(each, 1000),
        _delta(each, _each(control)),
        sum(trial.gradients for trial in done) / max(sum(made), 1),
        sum(far) / len(far) if far else None,
    ]


def _made(done: Sequence[Trial]) -> list[int]:
    return [trial.adversarial for trial in done]


def _each(done: Sequence[Trial]) -> list[float]:
    return [trial.seconds / max(trial.adversarial, 1) for trial in done]


def gained_tables(
    generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes
) -> list[Table]:
    """Coverage improvement, guide by measured criterion: shares in percentage points, other measures in their own units."""
    notes = [
        "what the seeds with up to ten found inputs of each cover, less what the seeds cover alone: who finds more inputs covers more",
        "in round brackets Cliff's delta to the control without coverage; the diagonal is a guide's own yardstick",
    ]
    parts = [
        ("percentage points", 100, sizes.measured),
        ("in the measure's own units", 1, sizes.counted),
    ]
    return [
        Table(
            f"{generator}: coverage improvement ({unit}) by guide and measured criterion",
            ["guide", *map(named, names)],
            [
                [named(guide), *(_gain(done, trials["none"], name, scale) for name in names)]
                for guide, done in trials.items()
            ],
            notes,
        )
        for unit, scale, names in parts
        if names
    ]


def _gain(done: Sequence[Trial], control: Sequence[Trial], name: str, scale: float) -> str:
    gained, other = ([trial.gained[name] for trial in some] for some in (done, control))
    return f"{_interval(gained, scale)} ({statistics.cliffs_delta(gained, other):+.2f})"


def _delta(values: Sequence[float], control: Sequence[float]) -> str:
    size = statistics.cliffs_delta(values, control)
    return f"{size:+.2f} {statistics.magnitude(size)}"


def pictures_of(
    bench: Bench, generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes
) -> list[str]:
    counts = {named(guide): [float(t.adversarial) for t in done] for guide, done in trials.items()}
    gained = [
        [sum(t.gained[name] for t in done) / len(done) for name in sizes.all_measured]
        for done in trials.values()
    ]
    scale = torch.tensor([100.0] * len(sizes.measured) + [1.0] * len(sizes.counted))
    spent = {
        named(guide): [1000 * value for value in _each(done)] for guide, done in trials.items()
    }
    return [
        figures.boxes(bench.out / f"{generator}-adversarial.png", {generator: counts}, y="adversarial inputs a run"),
        figures.boxes(bench.out / f"{generator}-time.png", {generator: spent}, y="processor ms an adversarial input", log=True),
        figures.heat(
            bench.out / f"{generator}-coverage.png", scale * torch.tensor(gained), rows=[*map(named, trials)], columns=[*map(named, sizes.all_measured)],
            title=f"{generator}: coverage improvement (shares in percentage points)",
        ),
    ]  # fmt: skip


def _interval(values: Sequence[float], scale: float) -> str:
    return mean(torch.tensor(values, dtype=torch.float64), scale=scale)


def named(guide: str) -> str:
    return _NAMES.get(guide, guide.replace(":channels=true", ""))
