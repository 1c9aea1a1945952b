"""Crossings: every space with every search and every objective, on toys whose answers are known.

A cell works if a campaign built from the three parts runs to its end within its budget and everything it kept fails by its
own oracle. Cells that cannot work stand in `REASONS` with one line that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign.in_memory import Searched, search
from hardcase.criteria.criterion import Measure, Toward
from hardcase.guides.corpus import Corpus, Recent
from hardcase.methods.neurons import Profiles, likelihood, trace
from hardcase.methods.tensorfuzz import Outputs
from hardcase.models.subject import Subject
from hardcase.objectives import Differential, Margin, Surprise
from hardcase.oracles import Disagree, LeavesLabel, Surprising
from hardcase.randomness import stream
from hardcase.searches.fuzzing import Fuzzing, WhiteNoise
from hardcase.searches.genetic import Genetic
from hardcase.searches.gradient import GradientAscent
from hardcase.searches.hill_climbing import HillClimbing
from hardcase.searches.interpolation import Interpolation
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, Latent, partners
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase.testing.toys import (
    CLASSES,
    Quarters,
    ToyAutoencoder,
    ToyGenerator,
    ToyQuantiser,
    generated_images,
    toy_images,
    toy_subject,
)
from hardcase.training.loop import own_randomness
from hardcase.types import (
    Budget,
    Guide,
    Method,
    Objective,
    Oracle,
    Probe,
    Search,
    Space,
    Tap,
)
from hardcase_studies.bench import Bench

SPACES = ("pixel", "vae", "vqvae", "generator input", "generator activations")
SEARCHES = ("gradient", "hill climbing", "genetic", "interpolation", "fuzzing")
OBJECTIVES = ("margin", "coverage", "surprise", "disagreement")
STRIDES = {
    "pixel": 0.02,
    "vae": 0.15,
    "vqvae": 0.15,
    "generator input": 0.5,
    "generator activations": 0.5,
}
"""A step that matters, in the units of each space."""

_CHANGES = (
    "a code there is a change of one seed's own picture, so other images have no code to mix with"
)
REASONS: Mapping[tuple[str, str, str], str] = {
    (space, "interpolation", objective): _CHANGES
    for space in ("generator input", "generator activations")
    for objective in OBJECTIVES
}
"""Why a cell cannot work."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How much of what a guide has not seen yet a candidate adds: a score for searches that follow no gradient."""

    guide: str

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return probe.guides[self.guide].gain(probe)


@dataclass(frozen=True, slots=True)
class Toys:
    subject: Subject
    other: Subject
    profile: Profiles


@cache
def toys() -> Toys:
    with own_randomness(0, "crossings"):
        subject = toy_subject()
        net = Quarters()
        net.mean.weight.data += 0.04 * torch.randn(
            net.mean.weight.shape, generator=stream(3, "peer")
        )
        other = Subject(net, classes=CLASSES, name="other toy")
    return Toys(
        subject, other, Profiles(from_bytes(toy_images().x[:1]), lambda: toy_images(40, seed=1))
    )


def run(bench: Bench) -> Outcome:
    """A table for each objective: seeds with a finding, of seeds; or why not."""
    tables = []
    for objective in OBJECTIVES:
        bench.say(objective)
        rows: list[list[Cell]] = [
            [space, *(_told(space, way, objective) for way in SEARCHES)] for space in SPACES
        ]
        tables.append(
            Table(f"objective: {objective}", ["space", *SEARCHES], rows, _NOTES[objective])
        )
    return Outcome("crossings", tables)


_NOTES: Mapping[str, tuple[str, ...]] = {
    "margin": ("seeds with a finding, of the seeds searched, on toys", "finding: the subject leaves the seed's label"),
    "coverage": ("gradients pull toward an uncovered unit, the others count what a candidate adds; finding: the label is left",),
    "surprise": ("finding: more surprising than any training image",),
    "disagreement": ("finding: the subject and its peer answer differently",),
}  # fmt: skip


def _told(space: str, way: str, objective: str) -> str:
    if (space, way, objective) in REASONS:
        return f"no: {REASONS[space, way, objective]}"
    done = crossed(space, way, objective)
    return f"{done.succeeded} of {len(done.seeds)}"


def crossed(space: str, way: str, objective: str, *, seeds: int = 6) -> Searched:
    """The campaign of one cell on the toys."""
    here = toys()
    images = generated_images(seeds) if space.startswith("generator") else toy_images(seeds)
    peers = (here.other,) if objective == "disagreement" else ()
    return search(here.subject, method(space, way, objective), images, peers=peers, keep="first")


def method(space: str, way: str, objective: str) -> Method:
    """The recipe of one cell."""
    scored, oracle, guides, taps = _objective(objective, way)
    where = _spaces()[space]()
    if way == "fuzzing":
        novelty = (
            guides[0]
            if guides
            else Measure("novelty", Outputs(threshold=0.05, classes=len(CLASSES)))
        )
        guides = (Corpus(novelty, oracle, Recent(), 8),)
    return Method(
        name=f"{space} x {way} x {objective}",
        space=where,
        search=_search(way, space, where),
        objective=scored,
        oracle=oracle,
        guides=guides,
        taps=taps,
        needs="gradients" if way == "gradient" else "activations",
        budget=Budget(queries=400, gradients=100) if way == "gradient" else Budget(queries=400),
    )


def _spaces() -> Mapping[str, Callable[[], Space]]:
    def generator(*places: int) -> Activations:
        return Activations(
            ToyGenerator(), early_places(ToyGenerator(), places, classes=4), classes=4
        )

    return {
        "pixel": lambda: Pixels(Linf(0.4)),
        "vae": lambda: Latent(ToyAutoencoder()),
        "vqvae": lambda: Grid(ToyQuantiser()),
        "generator input": lambda: generator(0),
        "generator activations": lambda: generator(0, 1),
    }


def _search(way: str, space: str, where: Space) -> Search:
    size = STRIDES[space]
    ways: Mapping[str, Callable[[], Search]] = {
        "gradient": lambda: GradientAscent(step_size=size),
        "hill climbing": lambda: HillClimbing(passes=3, step_size=4 * size),
        "genetic": lambda: Genetic(
            population=20, elite=6, spread=4 * size, mutation=size, reset=0.1, generations=15
        ),
        "interpolation": lambda: Interpolation(
            partners=partners(where, toy_images(24, seed=2), device="cpu"), mix=0.7, width=8
        ),
        "fuzzing": lambda: Fuzzing(mutator=WhiteNoise(2 * size), children=10),
    }
    return ways[way]()


def _objective(
    name: str, way: str
) -> tuple[Objective, Oracle, tuple[Guide, ...], Mapping[str, Tap]]:
    """The score, what counts as a finding, the guides that remember, and the layers that are read."""
    here = toys()
    if name == "coverage":
        criterion = here.profile.criterion("kmnc:k=50", here.subject)
        if way == "gradient":
            return Toward(criterion), LeavesLabel(), (criterion,), {}
        return (
            Gain("corpus" if way == "fuzzing" else criterion.name),
            LeavesLabel(),
            (criterion,),
            {},
        )
    if name == "surprise":
        surprise, layer = likelihood(here.subject, here.profile, per_class=True)
        score = Surprise(surprise, layer)
        return score, Surprising(score, float(surprise.training().max())), (), {layer: trace}
    if name == "disagreement":
        return Differential(), Disagree(), (), {}
    return Margin(), LeavesLabel(), (), {}
