"""The two published studies with people, set up as studies of `hardcase_study` from images made here.

``sinvad`` is RQ1 of S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023: are images between two classes
for the network also between them for people? ``argus`` is Figure 3 of B. Duan, M. Dwyer, G. Yang, 2025: are its images more like
their originals, to people, than those of other methods? Both make the images and write a study; ``hardcase study serve`` shows
it to people and ``hardcase study analyse`` computes the papers' figures and tables. From runs that exist, ``hardcase study new
RUN... --design sinvad|argus`` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from hardcase.campaign.in_memory import search
from hardcase.methods.pgd import cw, fgsm
from hardcase.models.health import probabilities, usable
from hardcase.registry import resolve
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.types import Images, Method, Model
from hardcase_studies import figures
from hardcase_studies.argus import jointly, named_model, quantised
from hardcase_studies.argus_measure import RIVALS, Measured, equal, interpolated, rival
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab, labs
from hardcase_study.bundle import Study
from hardcase_study.designs import new
from hardcase_study.drawing import Source

METHODS = ("fgsm", "cw", "sinvad")
EPSILONS = tuple(level / 255 for level in (*range(1, 41), *range(44, 129, 4)))
MIXES = (0.1, 0.2, 0.3)


def sinvad(bench: Bench) -> Outcome:
    """Quadruples of a real image, FGSM, C&W and SINVAD on the boundary of the same two classes, as a study."""
    here = Lab(bench)
    made = quadruples(here, bench.size("quadruples", 20, 100), seed=bench.seed)
    bench.say(f"{len(made)} quadruples from {made.tried} seeds")
    every = torch.arange(len(made))
    sources = [
        Source.of_images(name, made.seeds, made.x[:, i], every, made.target)
        for i, name in enumerate(METHODS)
    ]
    study = new(sources, "sinvad", bench.out / "study", raters=_raters(bench), seed=bench.seed)
    shown = {"real": made.seeds.x, **{name: made.x[:, i] for i, name in enumerate(METHODS)}}
    rows = [_on_the_boundary(here, name, x, made) for name, x in shown.items()]
    notes = [
        *here.notes,
        f"{len(made)} complete quadruples (paper: 100) from {made.tried} seeds; FGSM with the smallest strength that reaches the target",
        *_how_to_go_on(study),
    ]
    columns = ["method", "images", "mean |p(source) − p(target)|", "share on the target's side"]
    sheet = figures.images(bench.out / "quadruples.png", {n: x[:12] for n, x in shown.items()})
    table = Table("Images on the boundary of the same two classes", columns, rows, notes)
    return Outcome("sinvad-rq1", [table], [sheet])


def argus(bench: Bench) -> Outcome:
    """One random image of each of seven methods for each of ten originals, failing or not, as a study.

    ``--set joint=true`` trains ARGUS's generator jointly at each share, as the paper does; ``model=… raters=… partners=…
    rival_queries=…`` as elsewhere.
    """
    (here,) = labs(bench, named_model(bench), most=1).values()
    seeds = here.originals()[0]
    notes = here.notes
    made: dict[str, Measured] = {}
    for mix in MIXES:
        joint = bool(bench.options.get("joint", False))
        own = jointly(here, mix) if joint else quantised(here)
        notes += [own.note] if own.note not in notes else []
        bench.say(f"ARGUS {mix}")
        made[f"ARGUS {mix}"] = interpolated(here, own, mix, [seeds])
    for name in RIVALS:
        bench.say(name)
        made[name] = rival(here, name, [seeds], equal(bench))
    sources = [generated(here.subject, name, seeds, done) for name, done in made.items()]
    study = new(
        sources,
        "argus",
        bench.out / "study",
        raters=_raters(bench),
        per_rater=len(seeds),
        seed=bench.seed,
    )
    columns = ["method", "images to draw from", "of these failing", "SSIM", "MSE"]
    rows = [_likeness(name, source, done) for (name, done), source in zip(made.items(), sources)]
    notes += [
        f"{len(study.main)} of {len(seeds)} originals have an image of every method; one of each is drawn from all that were made, failing or not",
        *_how_to_go_on(study),
    ]
    sheet = figures.images(bench.out / "methods.png", {"original": seeds.x, **_first(made)})
    return Outcome("argus-ratings", [Table("Images to be rated", columns, rows, notes)], [sheet])


def _raters(bench: Bench) -> int | None:
    return int(bench.options["raters"]) if "raters" in bench.options else None


def _how_to_go_on(study: Study) -> list[str]:
    folder: Path = study.folder
    return [
        f"study: {study.raters} raters, {study.settings['per_rater']} pages each; {study.settings['power']['sentence']} ({study.settings['power']['source']})",
        f"next: hardcase study serve {folder}, then hardcase study analyse {folder}",
    ]


@dataclass(frozen=True, slots=True)
class Quadruples:
    """For each seed a target class, and an image of each of `METHODS` that the network gives to it."""

    seeds: Images
    target: Int[Tensor, " q"]
    x: UInt8[Tensor, "q 3 c h w"]
    tried: int

    def __len__(self) -> int:
        return len(self.seeds)


def quadruples(here: Lab, count: int, *, seed: int = 0) -> Quadruples:
    """`count` complete quadruples; seeds from which one method does not reach the target are left out and counted.

    ``--set search=sinvad@paper`` takes the text's genetic search in place of ours.
    """
    pool = usable(here.subject, here.test.sample(count=min(2 * count, len(here.test)), seed=seed))
    name = str(here.bench.options.get("search", "sinvad"))
    given = {"partners": here.codes} if name == "sinvad" else {}
    method: Method = resolve("method", name)(space=here.space, **given)
    found = search(here.subject, method, pool, seed=seed).findings
    seeds = pool.take(found.seed)
    goals = range(len(seeds.classes))
    growing = [[fgsm(epsilon=e, target=goal) for e in EPSILONS] for goal in goals]
    once = [[cw(target=goal)] for goal in goals]
    made = [_attacked(here, seeds, found.predicted, each, seed) for each in (growing, once)]
    complete = torch.stack([got for got, _ in made]).all(0).nonzero().squeeze(1)[:count]
    x = torch.stack([*(image for _, image in made), found.x], 1)[complete]
    whole = len(complete) == count  # then seeds behind the last one were not needed
    tried = int(found.seed[complete].max()) + 1 if whole else len(pool)
    return Quadruples(seeds.take(complete), found.predicted[complete], x, tried)


def _attacked(
    here: Lab, seeds: Images, target: Tensor, methods: Sequence[Sequence[Method]], seed: int
) -> tuple[Tensor, Tensor]:
    """For each seed whether a method reached its target, and the image of the first one (weakest first) that did."""
    got = torch.zeros(len(seeds), dtype=torch.bool)
    images = torch.zeros_like(seeds.x)
    for goal, growing in enumerate(methods):
        for method in growing:
            left = ((target == goal) & ~got).nonzero().squeeze(1)
            if not len(left):
                break
            found = search(here.subject, method, seeds.take(left), seed=seed).findings
            got[left[found.seed]] = True
            images[left[found.seed]] = found.x
    return got, images


def _on_the_boundary(here: Lab, name: str, x: Tensor, made: Quadruples) -> list[Cell]:
    said = probabilities(here.subject, x)
    own = said.gather(1, made.seeds.y[:, None]).squeeze(1)
    goal = said.gather(1, made.target[:, None]).squeeze(1)
    return [name, len(x), float((own - goal).abs().mean()), float((goal > own).float().mean())]


def generated(subject: Model, name: str, seeds: Images, done: Measured) -> Source:
    """A sample of everything a method made of each original, with what the network says of it."""
    origin, place = done.there.nonzero(as_tuple=True)
    x = done.sample[origin, place]
    return Source.of_images(name, seeds, x, origin, probabilities(subject, x).argmax(1))


def _likeness(name: str, source: Source, done: Measured) -> list[Cell]:
    return [
        name,
        len(source.findings),
        len(source.failing),
        float(done.ssim.nanmean()),
        f"{float(done.mse.nanmean()):.4f}",
    ]


def _first(made: dict[str, Measured]) -> dict[str, UInt8[Tensor, "o c h w"]]:
    """Of each method the first sampled image of every original; black where there is none."""
    return {name: done.sample[:, 0] for name, done in made.items()}
