"""Inputs that a new version broke: a search less its nulls, beside a replay of real images at equal queries.

New versions of LeNet-5 that are worse in a known way, and one that is not: *spoilt* learned a wrong label for half of the
training digits that lean to the right, *forgetful* learned on with hardly any 8 and 9, *pruned* lost the smaller half of
its weights, *retrained* is another training of the same recipe. The search asks for inputs that the old version and every
witness get right and the new one wrong; its nulls are the same search with the roles swapped, and between the old version and a
retraining of it. The replay shows all test images to both versions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from hardcase.analysis.regression import Excess, excess
from hardcase.analysis.tags import figure_measures
from hardcase.campaign.in_memory import search_campaign
from hardcase.context import Context
from hardcase.models.health import answers
from hardcase.models.subject import Subject
from hardcase.models.zoo import build_classifier
from hardcase.randomness import stream
from hardcase.suite.regressions import NULLS
from hardcase.suite.tables import Outcome, Table
from hardcase.tensors import from_bytes
from hardcase.training.loop import TrainingRecipe, classify, fit
from hardcase.types import Budget, Images
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab

WRONG = 0.5
"""The share of training digits leaning right that the spoilt version learned under another label."""
RARE = (8, 9)
"""Classes of which the forgetful version learned on with one image in `SCARCE` only."""
SCARCE = 20
PRUNED = 0.5
"""The share of each layer's weights that the pruned version lost, the smallest ones."""
TEACHING = TrainingRecipe(epochs=12, batch=64, lr=2e-3)
MORE = TrainingRecipe(epochs=3, batch=64, lr=1e-3)
VERSIONS = ("spoilt", "forgetful", "pruned", "retrained")
GOAL = 5
"""Times the newly failing inputs of a replay that an excess should come to."""


def run(bench: Bench) -> Outcome:
    """``--set seeds=200``, ``gradients=100`` and ``versions=spoilt`` are the sizes."""
    lab = Lab(bench)
    old = lab.subject
    again = _trained(lab, lab.train, bench.seed + 1, "a retraining of the old version")
    made = {name: _version(name, lab) for name in bench.names("versions", VERSIONS)}
    right = {
        name: answers(net, lab.test).argmax(1).cpu() == lab.test.y
        for name, net in {"old": old, "again": again, **made}.items()
    }
    usable = torch.stack(list(right.values())).all(0).nonzero().squeeze(1)
    seeds = lab.test.take(usable).sample(
        count=min(bench.size("seeds", 100, 2000), len(usable)), seed=bench.seed
    )
    gradients = bench.size("gradients", 100, 100)
    retrained, _ = _searched(lab, again, old, seeds, gradients)
    rows = []
    for name, new in made.items():
        bench.say(f"{name}: {len(seeds)} seeds")
        found, spent = _searched(lab, new, old, seeds, gradients)
        swapped, _ = _searched(lab, old, new, seeds, gradients)
        nulls = {NULLS["swapped"]: swapped, NULLS["retrained"]: retrained}
        beyond = excess(found, nulls, rng=stream(bench.seed, "excess"))
        newly = [int((right["old"] & ~right[one]).sum()) for one in (name, "again")]
        accuracy = float(right[name].double().mean())
        rows.append(_row(name, beyond, spent, newly, len(lab.test), accuracy))
    columns = [
        "new version", "test images right", "seeds within the limit", "roles swapped", "retraining", "limits of severity",
        "excess, in seeds", "queries of the search", "newly failing in a replay", "of a retraining",
        f"excess over the replay's (goal {GOAL})",
    ]  # fmt: skip
    notes = [
        "a seed counts within the severity at which the other half of the seeds exceeds its nulls most",
        "the replay asks about every test image there is, or about as many as the search has queries, if those are fewer",
        "retrained is the control: nothing got worse",
        *lab.notes,
    ]
    return Outcome("what a new version broke", [Table("search and replay", columns, rows, notes)])


def _row(
    name: str, beyond: Excess, spent: int, newly: list[int], images: int, accuracy: float
) -> list[str]:
    asked = min(1.0, spent / images)
    seen, chance = (count * asked for count in newly)
    low, value, high = (
        part * beyond.seeds for part in (beyond.value.low, beyond.value.value, beyond.value.high)
    )
    return [
        name,
        f"{accuracy:.1%}",
        f"{beyond.found:.1%} of {beyond.seeds}",
        *(f"{share:.1%}" for share in beyond.nulls.values()),
        " and ".join(f"{limit:.3f}" for limit in beyond.limits),
        f"{value:.1f} [{low:.1f}, {high:.1f}]{'' if beyond.shown else ', none shown'}",
        f"{spent:,}",
        f"{seen:.0f} of {images * asked:,.0f}",
        f"{chance:.0f}",
        f"{value / max(seen, 1):.2f} [{low / max(seen, 1):.2f}, {high / max(seen, 1):.2f}]",
    ]


def _searched(
    lab: Lab, subject: Subject, was: Subject, seeds: Images, gradients: int
) -> tuple[dict[str, float], int]:
    """The severity of the nearest witnessed input of each seed that `subject` gets wrong and `was` right, and the queries."""
    ready = Context.of(
        subject, seeds, "natural", options={"gradients": gradients}, peers=(was,), baseline=was.name,
        witnesses="default", train=lab.train, data=lab.bench.data, seed=lab.bench.seed,
    )  # fmt: skip
    done = search_campaign(ready.campaign, seeds, Budget(), shard=256)
    near = dict.fromkeys(seeds.id, math.inf)
    kept = done.findings.witnessed.cpu()
    for row, far in zip(
        done.findings.seed.cpu()[kept].tolist(), done.findings.distance.cpu()[kept].tolist()
    ):
        near[seeds.id[row]] = min(near[seeds.id[row]], far)
    return near, int(done.queries.sum())


def _version(name: str, lab: Lab) -> Subject:
    seed = lab.bench.seed
    if name == "spoilt":
        return _trained(lab, _spoilt(lab.train, seed), seed + 2, name)
    if name == "retrained":
        return _trained(lab, lab.train, seed + 3, name)
    net = copy.deepcopy(lab.subject.net).requires_grad_(True)
    if name == "pruned":
        _prune(net, PRUNED)
    else:
        _teach(lab, net, _poor(lab.train), MORE, seed + 4, name)
    return _subject(lab, net, name)


def _trained(lab: Lab, train: Images, seed: int, name: str) -> Subject:
    shape = {"channels": train.x.shape[1], "size": train.x.shape[2], "classes": len(train.classes)}
    net = build_classifier("lenet5", **shape, seed=seed)
    _teach(lab, net, train, TEACHING, seed, name)
    return _subject(lab, net, name)


def _teach(
    lab: Lab, net: nn.Module, train: Images, recipe: TrainingRecipe, seed: int, name: str
) -> None:
    task = classify(len(train.classes))
    fit(net, train, task, recipe, seed=seed, name=name, device=lab.bench.device)


def _subject(lab: Lab, net: nn.Module, name: str) -> Subject:
    return Subject(net, classes=lab.train.classes, name=name, device=lab.bench.device)


@torch.no_grad()
def _prune(net: nn.Module, share: float) -> None:
    """Set the smallest weights of every layer to 0."""
    for weight in net.parameters():
        if weight.ndim > 1:
            weight.mul_(weight.abs() > weight.abs().flatten().quantile(share))


def _poor(train: Images) -> Images:
    """Training images with hardly any of the rare classes."""
    kept = ~torch.isin(train.y, torch.tensor(RARE))
    for rare in RARE:
        kept[(train.y == rare).nonzero().squeeze(1)[::SCARCE]] = True
    return train.take(kept.nonzero().squeeze(1))


def _spoilt(train: Images, seed: int) -> Images:
    """Training digits, half of those that lean to the right under another label."""
    slant: Tensor = figure_measures(from_bytes(train.x))["slant"]
    rng = stream(seed, "spoilt")
    other = (train.y + torch.randint(1, len(train.classes), (len(train),), generator=rng)) % len(
        train.classes
    )
    wrong = (slant > slant.quantile(2 / 3)) & (torch.rand(len(train), generator=rng) < WRONG)
    return replace(train, y=torch.where(wrong, other, train.y))
