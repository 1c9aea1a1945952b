"""SINVAD: time for one boundary image, against the published genetic search one image at a time; and where the time goes.

The published implementation, measured on two cores with the same six-layer classifier, took 2.5 to 3.2 s and about 2,500
questions an image at 77 % success. The device is ``HARDCASE_DEVICE`` (cpu).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.figures import Figure
from hardcase.campaign.in_memory import SearchResult, search
from hardcase.methods.sinvad import sinvad, sinvad_code
from hardcase.models.health import usable
from hardcase.spaces.latent import Latent
from hardcase.types import Answer, Model, Tap
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab

COMMAND = "python -m benchmarks sinvad"
SEEDS, SERIAL, PUBLISHED = 128, 8, 2.5


def figures() -> Iterator[Figure]:
    device = os.environ.get("HARDCASE_DEVICE", "cpu")
    here = Lab(Bench(out=Path("runs"), device=device, options={"model": "sinvad-cnn"}))
    seeds = usable(here.subject, here.test.sample(count=SEEDS, seed=0))
    method = sinvad(space=here.space, partners=here.codes)
    search(here.subject, method, seeds.first(16))
    ours = search(here.subject, method, seeds, shard=SEEDS)
    theirs = search(here.subject, sinvad_code(space=here.space), seeds.first(SERIAL), shard=1)
    kind = "" if device == "cpu" else f"-{device}"
    yield _figure(
        f"sinvad-image{kind}",
        1000 * _each(ours),
        "ms",
        f"a boundary image, {ours.success:.0%} success",
    )
    yield _figure(
        f"sinvad-speedup{kind}", _each(theirs) / _each(ours), "times faster",
        f"the genetic search one image at a time, {1000 * _each(theirs):.0f} ms an image found",
    )  # fmt: skip
    yield _figure(
        f"sinvad-published{kind}",
        PUBLISHED / _each(ours),
        "times faster",
        f"the published {PUBLISHED} s an image",
    )
    yield _figure(
        f"sinvad-inside{kind}",
        _inside(here),
        "of the time",
        "spent inside decoder and classifier by the search",
    )


def _figure(name: str, value: float, unit: str, against: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, command=COMMAND)


def _each(done: SearchResult) -> float:
    return done.seconds / max(done.succeeded, 1)


@dataclass
class _Clock:
    """Adds up the time spent in what it is wrapped around."""

    spent: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **options: Any) -> Any:
            begun = perf_counter()
            try:
                return f(*given, **options)
            finally:
                self.spent += perf_counter() - begun

        return timed


class _TimedModel:
    def __init__(self, model: Model, clock: _Clock) -> None:
        self.model, self.name, self.hash, self.offers, self.device = (
            model,
            model.name,
            model.hash,
            model.offers,
            model.device,
        )
        self.ask = clock(model)

    def __call__(self, x: Tensor, taps: Mapping[str, Tap] | None = None) -> Answer:
        answer: Answer = self.ask(x, taps)
        return answer


@dataclass(frozen=True)
class _TimedVae:
    encode: Callable[[Tensor], tuple[Tensor, Tensor]]
    decode: Callable[[Tensor], Tensor]


def _inside(here: Lab) -> float:
    """The share of a search that networks take."""
    clock = _Clock()
    vae = here.latent.net
    space = Latent(_TimedVae(clock(vae.encode), clock(vae.decode)))  # type: ignore[arg-type]  # callables, not methods
    seeds = usable(here.subject, here.test.sample(count=SEEDS, seed=0))
    method = sinvad(space=space, partners=here.codes)
    with torch.no_grad():
        done = search(_TimedModel(here.subject, clock), method, seeds, shard=SEEDS)
    return clock.spent / done.seconds
