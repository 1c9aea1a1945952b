"""Which coverage works best for making adversarial inputs: DeepXplore and DLFuzz under every criterion, beside controls.

The question is that of the course project "Adversarial image generation based on various neuron coverage" (T. Kim, H. Cho,
S. Kwon), whose slides promise a gradient for each coverage and name three measures; no numbers of theirs are known. Here each
criterion has its own gradient, every run may spend the same gradients, and each guide is measured by every criterion. Gradients
of criteria differ by orders of magnitude, so each is scaled to a share of the main objective's; every guide has the share that
found most on other seeds, and the sweep is shown. Guides are compared with a random neuron, and with witnesses in the place of
coverage, by intervals that hold together. Several processes can fill one folder, each with ``fill=true`` and some ``guides`` (or
controls: random, none, everything, pgd, witnesses) or ``generators``; the command without these then reads all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase import statistics
from hardcase.campaign.in_memory import SearchResult, search
from hardcase.criteria.profile import Profile
from hardcase.methods.deepxplore import deepxplore
from hardcase.methods.dlfuzz import dlfuzz
from hardcase.methods.pgd import pgd
from hardcase.models.health import probabilities
from hardcase.models.subject import Subject
from hardcase.models.witnesses import default_witnesses
from hardcase.objectives import Sum
from hardcase.randomness import Rng
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import flat, from_bytes, length
from hardcase.types import (
    KINDS,
    Budget,
    Images,
    Method,
    Objective,
    Probe,
    State,
    Tap,
    Targets,
)
from hardcase_studies.bench import Bench, mean, table_of
from hardcase_studies.inference import family_intervals
from hardcase_studies.lab import PHOTOGRAPH, Lab

GUIDES = (
    "nc", "kmnc:k=100", "nbc", "snac", "tknc", "tknp", "ssc:channels=true", "vsc:channels=true", "svc:channels=true",
    "vvc:channels=true", "lsa", "dsa", "mdsa", "lsc", "dsc", "mdsc", "neighbour", "nlc", "lscd",
)  # fmt: skip
"""Every criterion of the catalogue but `layer-snac`, whose units and gradient are those of `snac`."""
WITNESSES = "witnesses"
"""The control in which networks that must keep the label stand beside the main objective, and no coverage."""
QUEUE = "everything"
"""The control of DLFuzz's queue: every candidate within the radius is fuzzed again, and nothing is pushed."""
CONTROLS = ("random", "none", QUEUE, "pgd", WITNESSES)
UNTUNED = ("none", QUEUE, "pgd", WITNESSES)
"""Controls without a gradient of coverage."""
PARTS = ("guides", "generators", "fill")
"""Options that only choose what a process measures."""
MEASURED = ("nc", "kmnc:k=100", "nbc", "snac", "tknc", "ssc:channels=true", "lsc", "dsc", "mdsc")
COUNTED = ("tknp", "neighbour", "lsa", "dsa", "mdsa", "nlc", "lscd")
"""Measures that are no shares of a whole: they grow in units of their own."""
NETWORKS = ("zoo:lenet5", "zoo:lenet1", "zoo:lenet4")
SHARES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""At 0 a criterion has no gradient; under DLFuzz it still decides what is kept."""
TUNING = 1000
"""Repeats with this number and above draw the seeds on which a guide's share is chosen."""


_NAMES = {
    "random": "random neuron",
    "none": "no coverage",
    QUEUE: "queue everything, push nothing",
    "pgd": "PGD",
    WITNESSES: "witnesses, no coverage",
}


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
    the subject left, in `adversarial` candidates together; `kept`: seeds with a failing input whose label networks keep that no
    search asked."""

    seeds: float
    failing: float
    adversarial: float
    found: float
    kept: float
    seconds: float
    gradients: float
    distance: float
    gained: Mapping[str, float]

    @classmethod
    def read(cls, numbers: Sequence[float], names: Sequence[str]) -> Trial:
        """A trial from the numbers of its cell."""
        first = dict(zip(FIRST, numbers, strict=False))
        return cls(**first, gained=dict(zip(names, numbers[len(FIRST) :], strict=True)))

    def numbers(self) -> list[float]:
        """What its cell holds."""
        return [*(getattr(self, name) for name in FIRST), *self.gained.values()]


FIRST = ("seeds", "failing", "adversarial", "found", "kept", "seconds", "gradients", "distance")
"""Numbers of a trial that do not depend on what is measured."""


@dataclass(frozen=True, slots=True)
class World:
    """A lab with a profile, networks that are witnesses and networks that no search asks."""

    lab: Lab
    profile: Profile
    sizes: Sizes
    witnesses: tuple[Subject, ...]
    scorers: tuple[Subject, ...]
    _drawn: dict[int, Images] = field(default_factory=dict)

    def seeds(self, number: int) -> Images:
        """The images of the repeat with this number, drawn once for all guides."""
        if number not in self._drawn:
            seed = self.lab.bench.seed + number
            self._drawn[number] = self.lab.seeds(self.sizes.seeds, seed=seed)
        return self._drawn[number]

    def controls(self, generator: str) -> tuple[str, ...]:
        """What guides are held against; DeepXplore has no queue, and some data no witnesses."""
        absent = () if self.witnesses else (WITNESSES,)
        if generator == "deepxplore":
            absent = (*absent, QUEUE)
        wanted = self.lab.bench.names("controls", CONTROLS)
        return tuple(one for one in CONTROLS if one in wanted and one not in absent)

    @property
    def about(self) -> list[str]:
        """What tables must say of the networks; cells may come from another machine, so no accuracy."""
        here = self.lab
        groups = ((here.subject,), here.peers, self.witnesses, self.scorers)
        names = [", ".join(one.name.removeprefix("zoo:") for one in some) for some in groups]
        return [
            f"data {here.train.name}, {len(here.train)} training images; {names[0]} under test, peers {names[1] or 'none'}",
            f"witnesses: {names[2] or 'none'}; label kept: by {names[3] or 'nobody'}, which no search asks",
        ]


def run(bench: Bench) -> Outcome:
    """``--set models=… seeds=… gradients=… shares=[0.3,1] guides=nc,snac measured=nc witnesses=… scorers=…`` choose other sizes
    and networks; ``controls=[random,none]`` fewer controls, always these two."""
    world = _world(bench)
    sizes = world.sizes
    tables: list[Table] = []
    for generator in bench.names("generators", ("deepxplore", "dlfuzz")):
        fill = bool(bench.options.get("fill"))
        guides = sizes.guides if fill else (*sizes.guides, *world.controls(generator))
        pushed = [guide for guide in guides if guide not in UNTUNED]
        shares = dict.fromkeys(pushed, sizes.shares[0])
        sweep = {}
        if len(sizes.shares) > 1:  # else there is nothing to choose from
            sweep = {guide: _sweep(bench, world, generator, guide) for guide in pushed}
            shares = {guide: chosen(some) for guide, some in sweep.items()}
        trials: dict[str, list[Trial]] = {guide: [] for guide in guides}
        # all guides of a repeat before the next: a study that is stopped has whole repeats
        for repeat in range(sizes.repeats):
            for guide, done in trials.items():
                done.append(_trial(bench, world, generator, guide, repeat, shares.get(guide, 0.0)))
        if fill:
            continue
        tables += [
            *([sweep_table(generator, sweep, sizes)] if sweep else []),
            found_table(generator, trials, sizes, world.about),
            *gained_tables(generator, trials, sizes),
        ]
    return Outcome("coverage-matrix", tables)


def _world(bench: Bench) -> World:
    """Witnesses and scorers are those named; small images have default witnesses, and a LeNet-5 from other weights as the scorer."""
    sizes = _sizes(bench)
    here = Lab(bench, bench.names("models", NETWORKS))
    named = {
        key: Lab(bench, bench.names(key, ()), splits=(here.train, here.test)).named
        for key in ("witnesses", "scorers")
    }
    small = max(here.train.x.shape[2:]) <= PHOTOGRAPH
    if small and not named["witnesses"]:
        named["witnesses"] = default_witnesses(here.train, here.test, device=bench.device)
    if small and not named["scorers"]:
        named["scorers"] = (here.network("lenet5", seed=1)[0],)
    profile = here.fit_profile(sizes.all_measured)
    return World(here, profile, sizes, named["witnesses"], named["scorers"])


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
    bench: Bench, world: World, generator: str, guide: str, repeat: int, share: float
) -> Trial:
    """A fresh method on this repeat's seeds; found images are measured together with the seeds they came from."""
    if repeat == 0:
        bench.say(f"{generator} under {named(guide)}")
    sizes = world.sizes
    if repeat >= TUNING:
        sizes = replace(sizes, measured=(), counted=())

    def numbers() -> list[float]:
        here = world.lab
        seeds = world.seeds(repeat)
        clock = process_time if bench.device == "cpu" else perf_counter
        begun = clock()
        done = search(
            here.subject,
            _method(here, sizes, generator, guide, share),
            seeds,
            peers=here.peers if generator == "deepxplore" and guide != "pgd" else (),
            witnesses=world.witnesses if guide == WITNESSES else (),
            budget=Budget(gradients=sizes.gradients),
            keep="10",
            seed=bench.seed + repeat,
            shard=32,
        )
        return _measured(world, sizes, done, clock() - begun).numbers()

    name = f"{generator} {guide} {share:g} {repeat}"
    return Trial.read(bench.cell(name, numbers, but=PARTS), sizes.all_measured)


@dataclass(frozen=True, slots=True)
class Balanced:
    """A main objective and others beside it, each with its share of the gradient.

    Gradients of objectives can differ by orders of magnitude. Here the gradient of each objective
    beside the main one is scaled, row by row, to its weight times the length of the main one's.
    """

    main: Objective
    beside: tuple[tuple[float, Objective], ...]

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        score = self.main(probe)
        steepness = _slope(score, probe)
        for weight, objective in self.beside:
            other = objective(probe)
            share = weight * steepness / _slope(other, probe).clamp_min(1e-12)
            score = score + share * other
        return score


def _slope(score: Float[Tensor, " m"], probe: Probe) -> Float[Tensor, " m"]:
    """The length of each row's gradient by its code; 1 where no gradient is asked for."""
    if not (score.requires_grad and probe.z.requires_grad):
        return torch.ones_like(score)
    (gradient,) = torch.autograd.grad(score.sum(), probe.z, retain_graph=True)
    return length(flat(gradient))


@dataclass(frozen=True, slots=True)
class QueueEverything:
    """A guide to which every candidate adds as much: DLFuzz's queue without coverage."""

    name: str = QUEUE

    @property
    def taps(self) -> Mapping[str, Tap]:
        return {}

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        return {}

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        return torch.ones(len(probe.x), device=probe.x.device)

    def update(self, probe: Probe) -> None:
        """Nothing is learnt."""

    def fork(self) -> QueueEverything:
        return self

    def delta(self) -> State:
        return {}

    def merge(self, deltas: Sequence[State]) -> None:
        """Nothing was learnt."""


def _method(here: Lab, sizes: Sizes, generator: str, guide: str, share: float) -> Method:
    if guide == "pgd":
        method = pgd(gradients=sizes.gradients)
        return method if generator == "deepxplore" else replace(method, until="budget")
    if guide == QUEUE:
        plain = dlfuzz(subject=here.subject, profile=here.profile, criterion="none")
        return replace(plain, guides=(QueueEverything(),))
    criterion = "none" if guide == WITNESSES else guide
    if generator == "deepxplore":
        method = deepxplore(
            subject=here.subject, peers=here.peers, profile=here.profile, criterion=criterion
        )
    else:
        method = dlfuzz(subject=here.subject, profile=here.profile, criterion=criterion)
    assert isinstance(method.objective, Sum)
    (_, main), *pushed = method.objective.terms
    beside = tuple((share, score) for _, score in pushed)
    return replace(method, objective=Balanced(main, beside)) if beside else method


def _sweep(bench: Bench, world: World, generator: str, guide: str) -> dict[float, list[Trial]]:
    """The guide at every share, on seeds that are drawn for that alone."""
    return {
        share: [
            _trial(bench, world, generator, guide, TUNING + repeat, share)
            for repeat in range(max(2, world.sizes.repeats // 4))
        ]
        for share in world.sizes.shares
    }


def chosen(sweep: Mapping[float, Sequence[Trial]]) -> float:
    """The share with most adversarial inputs; the smallest of equals."""
    return max(sorted(sweep, reverse=True), key=lambda share: sum(_made(sweep[share])))


def bracketed(sweep: Mapping[float, Sequence[Trial]]) -> bool:
    """Whether the chosen share is no edge of the grid; below 0 there is none."""
    share = chosen(sweep)
    return share == 0 or min(sweep) < share < max(sweep)


def sweep_table(
    generator: str, sweep: Mapping[str, Mapping[float, Sequence[Trial]]], sizes: Sizes
) -> Table:
    """What each guide finds at each share of the gradient, and which share it is given."""
    rows: list[list[Cell]] = [
        [
            named(guide),
            *(_interval(_made(done), 1) for done in some.values()),
            chosen(some),
            "yes" if bracketed(some) else "no",
        ]
        for guide, some in sweep.items()
    ]
    notes = [
        "adversarial inputs a run, means with 95 % intervals over runs, on seeds used for nothing else",
        "share: the length of the criterion's gradient, of the main objective's, in every step and for every seed",
        "bracketed: no edge of the grid was chosen; below 0 there is none",
    ]
    columns = ["guide", *(f"share {share:g}" for share in sizes.shares), "chosen", "bracketed"]
    return Table(
        f"{generator}: the share of the gradient, chosen on other seeds", columns, rows, notes
    )


def _measured(world: World, sizes: Sizes, done: SearchResult, spent: float) -> Trial:
    here = world.lab
    profile = world.profile
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
        kept=_kept(world.scorers, done),
        seconds=spent,
        gradients=int(done.gradients.sum()),
        distance=float(change.flatten(1).norm(dim=1).median()) if len(found) else float("nan"),
        gained={name: after[name] - before[name] for name in names},
    )


def _kept(scorers: Sequence[Subject], done: SearchResult) -> float:
    """Seeds with a failing input on which every scorer sees the seed's label; NaN without scorers."""
    found = done.findings
    if not scorers:
        return float("nan")
    good = found.kind == KINDS.index("label")
    for one in scorers if len(found) else ():
        good = good & (probabilities(one, found.x).argmax(1) == found.expected)
    return len(set(found.seed[good].tolist()))


def _with(seeds: Images, x: torch.Tensor, rows: torch.Tensor) -> Images:
    names = tuple(f"{seeds.id[row]}/{i}" for i, row in enumerate(rows.tolist()))
    return replace(
        seeds, x=torch.cat([seeds.x, x]), y=torch.cat([seeds.y, seeds.y[rows]]), id=seeds.id + names
    )


def found_table(
    generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes, about: Sequence[str]
) -> Table:
    """Number of adversarial inputs and what each costs; `about` are notes on the networks."""
    scored = all(trial.kept == trial.kept for done in trials.values() for trial in done)
    compared = {"inputs: more than a random neuron": beyond(trials, "random", "adversarial")}
    if scored:
        compared["kept: more than a random neuron"] = beyond(trials, "random", "kept")
        compared["kept: more than witnesses"] = beyond(trials, WITNESSES, "kept")
        if QUEUE in trials:
            compared["kept: more than queueing everything"] = beyond(trials, QUEUE, "kept")
    rows = []
    for guide, done in trials.items():
        row: dict[str, Cell] = {"guide": named(guide), **_found(done, trials["none"])}
        if scored:
            row["seeds a run, label kept"] = _interval([trial.kept for trial in done], 1)
        rows.append({**row, **{name: some.get(guide, "") for name, some in compared.items()}})
    kind = (
        "found: the models disagree, and the seed ends"
        if generator == "deepxplore"
        else "a seed goes on after a failure"
    )
    notes = [
        f"{sizes.repeats} runs of {trials['none'][0].seeds} seeds, at most {sizes.gradients} gradients of the subject per seed; means with 95 % intervals over runs",
        f"an adversarial input (failing) is a candidate on which the subject leaves its seed's label; {kind}",
        "delta: Cliff's delta to the control without coverage; ms: processor time of the search; L2: median distance of what was kept",
        f"each guide has {_share(sizes)}",
        "label kept: seeds with a failing input on which networks that no search asked see the seed's label",
        "more than a random neuron, than witnesses in the place of coverage, or than a queue of everything: a run, same seeds; the intervals of a column hold together (largest t under sign flips)",
        "PGD has its usual L∞ ball of 0.3 and asks no peers: read it beside its L2",
        *about,
    ]
    return table_of(f"{generator}: adversarial inputs", rows, notes)


def _share(sizes: Sizes) -> str:
    if len(sizes.shares) > 1:
        return "the share of the gradient that found most on other seeds (table above)"
    return f"{sizes.shares[0]:g} of the length of the main objective's gradient; no other share was tried"


def beyond(
    trials: Mapping[str, Sequence[Trial]], control: str, what: Literal["adversarial", "kept"]
) -> dict[str, str]:
    """For each guide, how much more it finds than a control on the same seeds, with intervals that hold together."""
    guides = [guide for guide in trials if guide not in ("random", "none", "pgd", QUEUE, control)]
    if not guides or control not in trials:
        return {}

    def counts(guide: str) -> Tensor:
        return torch.tensor([getattr(trial, what) for trial in trials[guide]], dtype=torch.float64)

    apart = torch.stack([counts(guide) - counts(control) for guide in guides], 1)
    found = family_intervals(apart)
    return {guide: one.text("+.3g") for guide, one in zip(guides, found, strict=True)}


def _found(done: Sequence[Trial], control: Sequence[Trial]) -> dict[str, Cell]:
    seeds = sum(trial.seeds for trial in done)
    made = _made(done)
    each = _each(done)
    far = [trial.distance for trial in done if trial.distance == trial.distance]
    return {
        "seeds found": f"{sum(trial.found for trial in done) / seeds:.1%}",
        "seeds failing": f"{sum(trial.failing for trial in done) / seeds:.1%}",
        "adversarial inputs a run": _interval(made, 1),
        "delta of inputs": _delta(made, _made(control)),
        "ms each": _interval(each, 1000),
        "delta of ms": _delta(each, _each(control)),
        "gradients each": sum(trial.gradients for trial in done) / max(sum(made), 1),
        "L2": sum(far) / len(far) if far else None,
    }


def _made(done: Sequence[Trial]) -> list[float]:
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


def _interval(values: Sequence[float], scale: float) -> str:
    return mean(torch.tensor(values, dtype=torch.float64), scale=scale)


def named(guide: str) -> str:
    return _NAMES.get(guide, guide.replace(":channels=true", ""))
