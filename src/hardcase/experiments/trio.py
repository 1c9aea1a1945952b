"""What experiments about white-box methods need: a network under test, others to compare it with, and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hardcase.criteria.profile import Profile
from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.experiments.bench import Bench
from hardcase.methods.neurons import Profiles
from hardcase.models.health import answers
from hardcase.models.load import Loading, load_model
from hardcase.models.subject import Subject
from hardcase.suite.coverage import coverage as measure
from hardcase.suite.coverage import profile_for
from hardcase.tensors import from_bytes
from hardcase.types import Images


@dataclass(frozen=True, slots=True)
class Trio:
    """The subject, its peers, and the data they were trained on."""

    subject: Subject
    peers: tuple[Subject, ...]
    train: Images
    test: Images

    @property
    def profile(self) -> Profiles:
        return Profiles(from_bytes(self.test.x[:1]), lambda: self.train)

    @property
    def notes(self) -> list[str]:
        right = [
            float((answers(m, self.test).argmax(1).cpu() == self.test.y).float().mean())
            for m in self.models
        ]
        return [
            f"{m.name}: {share:.1%} of {len(self.test)} test images right"
            for m, share in zip(self.models, right)
        ]

    @property
    def models(self) -> tuple[Subject, ...]:
        return (self.subject, *self.peers)

    def seeds(self, count: int, seed: int) -> Images:
        """So many class-balanced test images on which all models are right (fewer, if there are not as many)."""
        drawn = self.test.sample(count=min(len(self.test), 4 * count), seed=seed)
        right = torch.stack(
            [answers(m, drawn).argmax(1).cpu() == drawn.y for m in self.models]
        ).all(0)
        return drawn.take(right.nonzero().squeeze(1)[:count])


def trio(bench: Bench, names: Sequence[str]) -> Trio:
    """The networks called `names`, the subject first; ``--set models=a,b,c`` names others, also from files."""
    train, test = (load(bench.data, split=split) for split in ("train", "test"))
    wanted = bench.options.get("models", list(names))
    wanted = [wanted] if isinstance(wanted, str) else list(wanted)
    how = Loading(train=train, test=test, device=bench.device, seed=0)
    loaded = []
    for name in wanted:
        bench.say(f"network {name}")
        model = load_model(name, how)
        if not isinstance(model, Subject):
            raise Problem(
                f"{name} shows no layers and gradients, which this experiment needs.",
                fix="a torch model",
            )
        loaded.append(model)
    return Trio(loaded[0], tuple(loaded[1:]), train, test)


def coverage(
    trio: Trio, images: Images, criteria: Sequence[str], profile: Profile | None
) -> dict[str, float]:
    """What each criterion says about `images`, on the subject."""
    records = measure(trio.subject, images, list(criteria), profile=profile)
    return {name: float(record["value"]) for name, record in zip(criteria, records, strict=True)}


def measured_profile(trio: Trio, criteria: Sequence[str]) -> Profile:
    return profile_for(trio.subject, trio.train, list(criteria))
