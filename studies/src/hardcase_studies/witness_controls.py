"""Controls of witnesses: would the numbers stand before somebody who does not believe them?

Each search is printed with (a) the same search without witnesses whose candidates are offered to them afterwards, at the
same budget and with restarts, (b) the same search told a wrong label: in a space of appearance, which cannot draw another
class, what is accepted then is accepted falsely; a generating space can draw it, so there (b) asks what the image shows, (c) random codes and the neighbourhood of findings;
then (d) every scorer as the subject and the subject retrained, (e) rivals, (f) what witnesses hide, (g) a blind study.
A row whose controls were not run is not printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from hardcase.campaign.loop import encode_images, run_shard
from hardcase.campaign.record import Campaign, Keep, Limits, limits
from hardcase.errors import HardcaseError, choice
from hardcase.methods.appearance_search import natural, natural_blackbox
from hardcase.methods.deepxplore import deepxplore
from hardcase.methods.neurons import Profiles
from hardcase.methods.pgd import pgd
from hardcase.methods.sinvad import sinvad_gradient
from hardcase.models.adapters import LabelOnly
from hardcase.objectives import with_witnesses
from hardcase.randomness import Rng, stream
from hardcase.searches.black_box import Evolution
from hardcase.spaces.latent import WithResidual
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, flat, from_bytes, per_row, to_grid
from hardcase.types import (
    Evaluator,
    Findings,
    Images,
    Judge,
    Method,
    Model,
    Search,
    Seeds,
    Space,
    State,
)
from hardcase_studies import figures
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.blind_study import blind_study
from hardcase_studies.lab import Lab, Uncoded, accuracy, read_rightly
from hardcase_studies.parts import OutOfTimeError, Parts, limited
from hardcase_studies.witness_world import (
    JUDGES,
    SeedOutcomes,
    WitnessWorld,
    accepted_unchanged,
    are_accepted,
    errs,
    gain,
    half,
    median,
    percent,
    points,
    rate,
    rows_at_once,
    scored,
    searched,
    shape_of,
    share_of,
    together,
    world,
    worlds,
)

WEAK = 0.02
"""A row with more falsely accepted images is marked weak."""
REGION = 0.25
"""Share of neighbours at a tenth of its size that must fail too for a finding to be natural."""
ROUNDS = 8
"""Restarts of the control that filters."""
MATCHED = (3.0, 4.0, 5.0)
"""Image L2 up to which rates are compared at matched size."""
Made = Callable[[WitnessWorld, tuple[int, int, int]], Method]


@dataclass(frozen=True, slots=True)
class StudiedSearch:
    """One search of the table: how it is made, what the subject lets it see, and whether its space can draw another class."""

    name: str
    make: Made
    jitter: float
    labels: bool = False
    generates: bool = False

    def subject(self, here: WitnessWorld) -> Model:
        return LabelOnly(here.subject) if self.labels else here.subject


SEARCHES = {
    one.name: one
    for one in (
        StudiedSearch("natural", lambda here, shape: natural(shape), 0.3),
        StudiedSearch(
            "sinvad-gradient", lambda here, shape: sinvad_gradient(here.latent), 0.5, generates=True
        ),
        StudiedSearch(
            "natural-blackbox",
            lambda here, shape: natural_blackbox(shape, here.subject, here.surrogates),
            0.0,
        ),
        StudiedSearch(
            "natural-blackbox-labels",
            lambda here, shape: natural_blackbox(shape, LabelOnly(here.subject), here.surrogates),
            0.0,
            labels=True,
        ),
    )
}


def run(bench: Bench) -> Outcome:
    """``--set half=development|test|all seeds=N trainings=T searches=… minutes=M``; ``--full`` is five trainings and all seeds.

    With ``minutes`` nothing new is begun after that time, and tables hold what was measured; the same command goes on from there.
    """
    bench = limited(bench)
    lab = Lab(bench)
    here = worlds(bench, "hardcase_studies.witness_controls:measure_world")
    seeds = _sample(bench, lab.test)
    parts = Parts.of(bench, "witness-controls", seeds)
    rows = [row for one in _searches(bench) if (row := _measured(bench, parts, here, one, seeds))]
    if not rows:
        raise HardcaseError("nothing was measured in that time.", fix="the same command again")
    shown = {row.search.name: row.found[0] for row in rows}
    rivals = _rivals(bench, parts, here, seeds)
    missing = len(_searches(bench)) - len(rows)
    notes = (
        f"data {bench.data}, {bench.options.get('half', 'test')} half, {len(seeds)} seeds, {len(here)} training(s) of subject,"
        " witnesses, judges and scorers",
        "rates are of seeds attempted (classified correctly, reconstruction keeps the label), one outcome each; brackets: 95 %, "
        "t over seeds and trainings, Wilson's with one training, none with two",
        "accepted: by the usual judge; untaught: the same by a judge that was never taught anything of bending",
        *([f"{missing} search(es) not measured: the time was up"] if missing else []),
        *(
            f"{row.search.name}: {len(row.found)} of {len(here)} trainings measured"
            for row in rows
            if len(row.found) < len(here)
        ),
        *_ceilings(here, seeds),
        *(
            f"{one.name}: {accuracy(one, lab.test):.1%} of test images right"
            for one in here[0].networks
        ),
    )
    again = _same_again(bench, parts, here, seeds, rows)
    tables = [
        table_of("Witnesses with their controls a and b", list(map(_headline_row, rows)), notes),
        _matched(rows, rivals),
        _neighbourhood(rows),
        _rival_table(rivals, rows),
        *([again] if again else []),
        _hidden(here, seeds, rows),
    ]
    sure = {"pgd 8/255": rivals["pgd 8/255"][0]} if "pgd 8/255" in rivals else {}
    blind_study(bench.out / "blind", {**shown, **sure}, seed=bench.seed)
    pictures = {name: part.found.x[:12] for name, part in shown.items() if len(part.found)}
    drawn = [figures.images(bench.out / "findings.png", pictures)] if pictures else []
    return Outcome("witness-controls", tables, drawn)


def _sample(bench: Bench, test: Images) -> Images:
    pool = half(test, str(bench.options.get("half", "test")))
    return pool.sample(count=min(len(pool), bench.size("seeds", 100, len(pool))), seed=bench.seed)


def _searches(bench: Bench) -> list[StudiedSearch]:
    names = bench.names("searches", list(SEARCHES))
    strange = [name for name in names if name not in SEARCHES]
    if strange:
        raise choice("search", strange[0], list(SEARCHES))
    return [SEARCHES[name] for name in names]


def measure_world(bench: Bench, number: int) -> None:
    """Everything that is measured in one world, into its parts; worlds are measured side by side."""
    here = [world(bench, number)]
    seeds = _sample(bench, Lab(bench).test)
    parts = Parts.of(bench, "witness-controls", seeds)
    searches = _searches(bench)
    for one in searches:
        _measured(bench, parts, here, one, seeds)
    _rivals(bench, parts, here, seeds)
    _as_subjects(parts, here[0], searches[0], seeds)


@dataclass(frozen=True, eq=False)
class ControlledSearch:
    """A search in one world, with its controls a to c."""

    found: SeedOutcomes
    alone: SeedOutcomes
    filtered: SeedOutcomes
    wrong: SeedOutcomes
    around: Mapping[str, Float[Tensor, " n"]]


def controlled(
    bench: Bench,
    parts: Parts,
    here: WitnessWorld,
    method: Method,
    seeds: Images,
    *,
    name: str,
    draws: int,
    subject: Model | None = None,
    jitter: float = 0.3,
) -> ControlledSearch | None:
    """Search and controls in one world; None if there was no time for all of it."""

    def search() -> SeedOutcomes:
        begun = perf_counter()
        found = searched(here, method, seeds, subject=subject, witnesses=here.witnesses)
        spent = torch.full_like(found.columns["failing"], perf_counter() - begun)
        return replace(found, columns={**found.columns, "seconds": spent})

    rng = stream(bench.seed, "wrong", here.hash)
    making: dict[str, Callable[[], SeedOutcomes]] = {
        "search": search,
        "without witnesses": lambda: searched(here, method, seeds, subject=subject),
        "filter": lambda: filtered(here, method, seeds, subject=subject, jitter=jitter),
        "wrong label, and what is shown": lambda: wrong_label(
            here, method, seeds, rng, subject=subject
        ),
    }
    named = f"{name}, {method.search}, aim {method.target_margin:g}"
    try:
        found = [
            parts.outcomes(here, f"{named}, {what}", seeds, make) for what, make in making.items()
        ]
        around = parts.tensors(
            here,
            f"{named}, around, {draws} draws",
            lambda: around_findings(here, method, found[0], draws, bench.seed),
        )
    except OutOfTimeError:
        return None
    own, alone, offered, wrong = found
    return ControlledSearch(own, alone, offered, wrong, around)


@dataclass(frozen=True, eq=False)
class SearchRow:
    """A search with its controls in every training for which there was time."""

    search: StudiedSearch
    worlds: Sequence[ControlledSearch]

    @property
    def found(self) -> list[SeedOutcomes]:
        return [each.found for each in self.worlds]

    def control(self, name: str) -> list[SeedOutcomes]:
        """One of the controls ``alone``, ``filtered`` and ``wrong`` in every training."""
        return [getattr(each, name) for each in self.worlds]


def _measured(
    bench: Bench, parts: Parts, here: Sequence[WitnessWorld], one: StudiedSearch, seeds: Images
) -> SearchRow | None:
    """Search and controls in every world for which there is time; None if there is for none."""
    found = [
        controlled(
            bench,
            parts,
            each,
            one.make(each, shape_of(seeds)),
            seeds,
            name=one.name,
            draws=bench.size("draws", 10, 100),
            subject=one.subject(each),
            jitter=one.jitter,
        )
        for each in here
    ]
    whole = [each for each in found if each is not None]
    return SearchRow(one, whole) if whole else None


# a. The same search without witnesses; its candidates are offered to them afterwards.


@dataclass(frozen=True, slots=True)
class Jittered:
    """Another search that starts beside the seed."""

    search: Search
    size: float

    def init(self, seeds: Seeds, rng: Rng) -> State:
        rows = torch.arange(len(seeds), device=seeds.z.device)
        noise = self.size * rng.normal(rows, seeds.z.shape[1:])
        state = self.search.init(replace(seeds, z=seeds.z + noise), rng)
        return {**state, "start": seeds.z.clone()} if "start" in state else state

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        return self.search.step(state, evaluate, rng)


def filtered(
    here: WitnessWorld,
    method: Method,
    seeds: Images,
    *,
    subject: Model | None = None,
    jitter: float = 0.3,
) -> SeedOutcomes:
    """Restarts within the budget of the method until a candidate is witnessed; the nearest such one is kept."""
    subject = subject or here.subject
    rows = read_rightly(subject, seeds).nonzero().squeeze(1)
    left = limits(method.budget, len(rows))
    passes = torch.zeros(len(rows))
    lost = torch.zeros(len(rows), dtype=torch.bool)
    found = list[Findings]()
    for number in range(ROUNDS):
        size = jitter if number else 0.0
        campaign = Campaign(  # witnesses are asked, and the search does not learn what they say
            subject=subject,
            method=replace(method, search=Jittered(method.search, size)),
            witnesses=here.witnesses,
            batch=rows_at_once(seeds, subject),
            seed=number,
            precision=here.precision,
        )
        shard = run_shard(campaign, seeds.take(rows), left)
        spent = shard.counts
        passes += (1 + len(here.witnesses)) * (spent.queries + spent.gradients).cpu()
        lost |= spent.lost.cpu()
        found.append(shard.findings)
        done = torch.zeros(len(rows), dtype=torch.bool)
        done[shard.findings.seed[shard.findings.witnessed].cpu()] = True
        left = Limits(
            torch.where(done, 0, left.queries - spent.queries.cpu()),
            torch.where(done, 0, left.gradients - spent.gradients.cpu()),
        )
        if not bool((left.queries > 0).any()):
            break
    best = Keep().prune(Findings.join(found))
    best = replace(best, seed=rows.to(best.seed.device)[best.seed])
    return scored(here, best, seeds, rows[~lost], passes[~lost].double())


# b. The same search told a wrong label.


def wrong_label(
    here: WitnessWorld,
    method: Method,
    seeds: Images,
    rng: torch.Generator,
    *,
    subject: Model | None = None,
) -> SeedOutcomes:
    """Witnesses must say a random other label y′, the subject must not; `accepted` is then what the judge accepts as y′."""
    other = torch.randint(1, len(seeds.classes), (len(seeds),), generator=rng)
    told = replace(seeds, y=(seeds.y + other) % len(seeds.classes))
    subject = subject or here.subject
    right = read_rightly(subject, seeds).nonzero().squeeze(1)
    campaign = Campaign(
        subject=subject,
        method=with_witnesses(replace(method, space=_uncoded(method.space))),
        witnesses=here.witnesses,
        batch=rows_at_once(seeds, subject),
        precision=here.precision,
    )
    shard = run_shard(campaign, told.take(right), limits(method.budget, len(right)))
    claimed = shard.findings.take(shard.findings.witnessed.nonzero().squeeze(1))
    claimed = replace(claimed, seed=right.to(claimed.seed.device)[claimed.seed])
    spent = shard.counts.queries + shard.counts.gradients
    passes = (1 + len(here.witnesses)) * spent.cpu().double()
    return shows(here.judges.get("accepted"), scored(here, claimed, told, right, passes), seeds)


def shows(judge: Judge | None, part: SeedOutcomes, seeds: Images) -> SeedOutcomes:
    """Add what the usual judge sees in each finding of a search told a wrong label, as shares of the attempted seeds:
    ``shows told``, ``shows seed`` (the label of the image it began with) or ``shows neither``. Nothing without a judge.
    """
    found = part.found
    if judge is None:
        return part
    told = are_accepted(judge, found, seeds)
    own = are_accepted(judge, replace(found, expected=seeds.y[found.seed]), seeds) & ~told
    shown = {"told": told, "seed": own, "neither": ~told & ~own}
    columns = {f"shows {name}": part.share(hit) for name, hit in shown.items()}
    return replace(part, columns={**part.columns, **columns})


def _uncoded(space: Space) -> Space:
    """The space without the check that a seed's own code keeps its (here wrong) label."""
    if isinstance(space, WithResidual):
        return replace(space, space=_uncoded(space.space))
    return cast(Space, Uncoded(space))


# c. Random codes of the same size, and the neighbourhood of findings.


def around_findings(
    here: WitnessWorld, method: Method, part: SeedOutcomes, draws: int, seed: int
) -> dict[str, Float[Tensor, " n"]]:
    """Shares of images that fail: at random codes as far from the seed, near the finding's code, after JPEG and a shift."""
    found = part.found
    place = here.subject.device
    campaign = Campaign(subject=here.subject, method=method)
    origin = encode_images(campaign, part.seeds.take(found.seed))
    code = found.code.reshape(origin.z.shape).to(place)
    away = code - origin.z
    count = len(found)
    rng = Rng.numbered(seed, "around", count, device=place)
    rows = torch.arange(count, device=place)
    shares = {}

    def failing(model: Model, z: Tensor) -> Tensor:
        wrong = []
        for cut in chunks(len(z), rows_at_once(part.seeds, here.subject)):
            own = origin.take(rows[cut])
            with torch.no_grad():
                x = to_grid(method.space.decode(method.space.project(z[cut], own), own))
                wrong.append(model(x).logits.argmax(1) != own.y)
        return torch.cat([*wrong, torch.zeros(0, device=place)]).double().cpu()

    def averaged(model: Model, centre: Tensor, share: float) -> Tensor:
        total = torch.zeros(count, dtype=torch.float64)
        for _ in range(draws):
            step = rng.normal(rows, tuple(away.shape[1:]))
            length = flat(away).norm(dim=1) / flat(step).norm(dim=1).clamp_min(1e-12)
            total += failing(model, centre + per_row(share * length, step) * step)
        return total / max(draws, 1)

    shares["random, subject"] = averaged(here.subject, origin.z, 1.0)
    shares["random, scorers"] = torch.stack(
        [averaged(one, origin.z, 1.0) for one in here.scorers]
    ).mean(0)
    shares["at 5 %"] = averaged(here.subject, code, 0.05)
    shares["at 10 %"] = averaged(here.subject, code, 0.1)
    shares["JPEG 90"] = errs(here.subject, _jpeg(found.x, 90), found.expected).double()
    moved = [errs(here.subject, image, found.expected) for image in _shifted(found.x)]
    shares["one pixel"] = torch.stack(moved).double().mean(0)
    return shares


def _jpeg(x: Tensor, quality: int) -> Tensor:
    """8-bit images after compression at this quality."""
    made = []
    for image in x.permute(0, 2, 3, 1).numpy():
        file = BytesIO()
        Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(
            file, "JPEG", quality=quality
        )
        made.append(np.asarray(Image.open(file)).reshape(image.shape))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2) if made else x


def _shifted(x: Tensor) -> list[Tensor]:
    """Images moved by one pixel each way; the edge is repeated."""
    padded = torch.nn.functional.pad(x.float(), (1, 1, 1, 1), mode="replicate").to(x.dtype)
    height, width = x.shape[2:]
    return [
        padded[:, :, down : down + height, right : right + width]
        for down, right in ((0, 1), (2, 1), (1, 0), (1, 2))
    ]


# d. to f. Others as the subject, rivals, and what witnesses hide.


def _as_subjects(
    parts: Parts, each: WitnessWorld, search: StudiedSearch, seeds: Images
) -> list[SeedOutcomes]:
    """Every scorer of a world as the subject of a search, as far as there is time."""
    method = search.make(each, shape_of(seeds))
    found = list[SeedOutcomes]()
    for one in each.scorers:
        name = f"{search.name}, {method.search}, aim {method.target_margin:g}, {one.name} as the subject"
        make = partial(searched, each, method, seeds, subject=one, witnesses=each.witnesses)
        try:
            found.append(parts.outcomes(each, name, seeds, make))
        except OutOfTimeError:
            break
    return found


def _same_again(
    bench: Bench,
    parts: Parts,
    here: Sequence[WitnessWorld],
    seeds: Images,
    rows: Sequence[SearchRow],
) -> Table | None:
    """A/A: every scorer as the subject of the first search; the findings under every other training of the subject."""
    bench.say("scorers as subjects")
    first = rows[0]
    every = [_as_subjects(parts, each, first.search, seeds) for each in here]
    others = range(min(map(len, every)))
    if not others:
        return None
    shared = []
    for number, part in enumerate(first.found):
        for other in [one for one in here if one is not here[number]]:
            shared.append(errs(other.subject, part.found.x, part.found.expected))
    again = f"{torch.cat(shared).double().mean().item():.1%}" if shared else "–"
    own = {f"{here[0].subject.name} itself": (first.found, again)}
    own |= {here[0].scorers[i].name: ([of[i] for of in every], "–") for i in others}
    column = "of its findings, share that a retraining of the subject fails too"
    return table_of(
        f"d. A/A: {first.search.name} with other networks as the subject",
        [{"subject": name, **_rates(of), column: again} for name, (of, again) in own.items()],
        [
            "networks that give the same rate say that the rate is no property of the subject; what tells them apart is the size",
            "a scorer that is the subject is among its own scorers, so 'all three' cannot hold for its findings",
        ],
    )


def _rivals(
    bench: Bench, parts: Parts, here: Sequence[WitnessWorld], seeds: Images
) -> dict[str, list[SeedOutcomes]]:
    """Other methods at the budget of `natural`, on the same seeds and under the same scorers, as far as there is time."""
    found: dict[str, list[SeedOutcomes]] = {}
    for each in here:
        for name, outcome in _rivals_in(bench, parts, each, seeds):
            found.setdefault(name, []).append(outcome)
    return found


def _rivals_in(
    bench: Bench, parts: Parts, here: WitnessWorld, seeds: Images
) -> Iterator[tuple[str, SeedOutcomes]]:
    shape = shape_of(seeds)
    steps = natural(shape).budget.gradients or 100
    profile = Profiles(from_bytes(seeds.x[:1]), lambda: Lab(bench).train)
    trials: dict[str, tuple[Method, dict[str, Any]]] = {
        "pgd 8/255": (pgd(epsilon=8 / 255, gradients=steps), {}),
        "pgd 0.2": (pgd(epsilon=0.2, gradients=steps), {}),
        "flow of every pixel (after stAdv)": (
            natural(shape, space=f"warp(points={min(shape[1:])})", gradients=steps),
            {},
        ),
        "worst of random rotations and shifts": (_random_camera(shape, 4 * steps), {}),
        "deepxplore, witnesses as peers": (
            deepxplore(here.subject, profile, here.witnesses, criterion="none", gradients=steps),
            {"peers": here.witnesses},
        ),
        "latent with an auxiliary classifier (after Song et al. 2018)": (
            sinvad_gradient(here.latent, gradients=steps),
            {"witnesses": here.witnesses[:1], "margin": 0.0},
        ),
    }
    for name, (method, options) in trials.items():
        make = partial(searched, here, method, seeds, **options)
        try:
            yield name, parts.outcomes(here, f"{name}, {steps} steps", seeds, make)
        except OutOfTimeError:
            return


def _random_camera(shape: tuple[int, int, int], queries: int) -> Method:
    """Random poses, the first that fails moved back toward the seed."""
    usual = natural_blackbox(shape, space="camera(rotation=30)", queries=queries)
    return replace(usual, search=Evolution(spread=0.6, growth=1.0, step_size=0.0))


def _rates(parts: Sequence[SeedOutcomes]) -> dict[str, Cell]:
    """What every table says first of a search."""
    return {
        "found": share_of(parts, "failing"),
        "accepted": share_of(parts, "accepted"),
        "untaught": share_of(parts, "untaught"),
        "two of three scorers keep the label": share_of(parts, "most"),
        "all three": share_of(parts, "all"),
        "median L2": median(together(parts, "l2")),
        "passes a seed": float(together(parts, "passes").nanmean()),
    }


def _rival_table(rivals: Mapping[str, Sequence[SeedOutcomes]], rows: Sequence[SearchRow]) -> Table:
    own = {row.search.name: row.found for row in rows}
    return table_of(
        "e. Rivals on the same seeds, at the budget of natural",
        [{"method": name, **_rates(parts)} for name, parts in {**own, **rivals}.items()],
        ["pgd keeps labels trivially: what it shows is noise, not another appearance"],
    )


def _hidden(here: Sequence[WitnessWorld], seeds: Images, rows: Sequence[SearchRow]) -> Table:
    """Among findings of the search without witnesses: accepted ones on which witnesses err as well."""
    table: list[list[Cell]] = []
    for row in rows:
        some = everyone = total = 0
        for each, part in zip(here, row.control("alone")):
            found = part.found
            sure = are_accepted(each.judges["accepted"], found, seeds)
            wrong = torch.stack([errs(one, found.x, found.expected) for one in each.witnesses])
            some += int((sure & wrong.any(0)).sum())
            everyone += int((sure & wrong.all(0)).sum())
            total += int(sure.sum())
        table.append([row.search.name, total, some, everyone])
    return Table(
        "f. What witnesses hide: accepted findings of the same search without witnesses",
        ["search", "accepted", "of these a witness errs too", "all witnesses err too"],
        table,
        ["a search with witnesses excludes these by design"],
    )


# The tables.


def _wrong_label_cells(search: StudiedSearch, wrong: Sequence[SeedOutcomes]) -> dict[str, Cell]:
    """Control b: falsely accepted images in a space of appearance, what is drawn in a generating one."""

    def told(name: str, *, generating: bool) -> str:
        return share_of(wrong, name) if search.generates is generating else "–"

    return {
        "b. wrong label accepted (appearance)": told("accepted", generating=False),
        "by the untaught judge": told("untaught", generating=False),
        "b. shows the told label (generating)": told("shows told", generating=True),
        "the seed's label": told("shows seed", generating=True),
        "neither": told("shows neither", generating=True),
    }


def _headline_row(row: SearchRow) -> dict[str, Cell]:
    """A search with its controls a and b."""
    offered, wrong = row.control("filtered"), row.control("wrong")
    credited = {
        judge: points(gain(together(row.found, judge), together(offered, judge)))
        for judge in ("accepted", "untaught")
    }
    false = max(rate(together(wrong, judge)).value for judge in JUDGES)
    return {
        "search": row.search.name,
        **_rates(row.found),
        "accepted without witnesses": share_of(row.control("alone"), "accepted"),
        "a. accepted, filter instead of search": share_of(offered, "accepted"),
        "its passes a seed": float(together(offered, "passes").nanmean()),
        "credited to witnesses, points": credited["accepted"],
        "credited, untaught judge": credited["untaught"],
        **_wrong_label_cells(row.search, wrong),
        "mark": "weak" if false > WEAK and not row.search.generates else "",
    }


def _matched(rows: Sequence[SearchRow], rivals: Mapping[str, Sequence[SeedOutcomes]]) -> Table:
    """Accepted with an image L2 of at most so much."""
    parts: dict[str, Sequence[SeedOutcomes]] = {}
    for row in rows:
        parts[row.search.name] = row.found
        parts[f"{row.search.name}, filter"] = row.control("filtered")
    table: list[list[Cell]] = []
    for name, found in {**parts, **rivals}.items():
        own = together(found, "accepted")
        near = together(found, "l2").nan_to_num(torch.inf)
        cells = [percent(rate(torch.where(near <= most, own, 0 * own))) for most in MATCHED]
        table.append([name, *cells, median(together(found, "size"))])
    columns = [f"accepted with L2 ≤ {most:g}" for most in MATCHED]
    return Table("Rates at matched size", ["method", *columns, "median code size"], table)


def _neighbourhood(rows: Sequence[SearchRow]) -> Table:
    table: list[list[Cell]] = []
    for row in rows:
        shares = {
            name: torch.cat([each.around[name] for each in row.worlds])
            for name in row.worlds[0].around
        }
        region = (shares["at 10 %"] >= REGION).double()
        if not len(region):
            table.append([row.search.name, *["none found"] * (len(shares) + 2)])
            continue
        table.append(
            [
                row.search.name,
                *(f"{float(value.mean()):.1%}" for value in shares.values()),
                percent(rate(region[:, None])),
                "natural" if float(region.mean()) > 0.5 else "adversarial",
            ]
        )
    return Table(
        "c. Random codes of equal size, and the neighbourhood of findings: share that fails",
        ["search", *rows[0].worlds[0].around, "findings in a region", "called"],
        table,
        [
            f"in a region: at least {REGION:.0%} of the codes at a tenth of the finding's size around it fail too; "
            "findings lie on the boundary of the subject, where half of a flat neighbourhood fails",
            "a search is called natural if most of its findings lie in a region",
        ],
    )


def _ceilings(here: Sequence[WitnessWorld], seeds: Images) -> list[str]:
    """What the judges make of the unaltered seeds: no search can be accepted more often than about that."""
    usual, untaught = (
        sum(accepted_unchanged(each.judges[name], seeds) for each in here) / len(here)
        for name in JUDGES
    )
    return [
        f"of the unaltered seeds the usual judge accepts {usual:.1%}, the untaught one {untaught:.1%}"
    ]
