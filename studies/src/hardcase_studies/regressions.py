"""Inputs that a new version broke: a search less its nulls, beside a replay of real images at equal queries.

The new version of LeNet-5 learned a wrong label for half of the training digits that lean to the right. The search asks for
inputs that the old version and every witness get right and the new one wrong; its nulls are the same search with the roles
swapped, and between the old version and a retraining of it. The replay shows all test images to both versions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hardcase.campaign.in_memory import search_campaign
from hardcase.context import Context
from hardcase.models.health import answers
from hardcase.models.subject import Subject
from hardcase.models.zoo import build_classifier
from hardcase.randomness import stream
from hardcase.regression import excess
from hardcase.suite.tables import Bench, Outcome, Table
from hardcase.tags import figure_measures
from hardcase.tensors import from_bytes
from hardcase.training.loop import TrainingRecipe, classify, fit
from hardcase.types import Budget, Images
from hardcase_studies.lab import Lab

WRONG = 0.5
"""The share of training digits leaning right that the new version learned under another label."""
TEACHING = TrainingRecipe(epochs=12, batch=64, lr=2e-3)


def run(bench: Bench) -> Outcome:
    """``--set seeds=200`` and ``gradients=100`` are the sizes."""
    lab = Lab(bench)
    old = lab.subject
    again = _network(lab, lab.train, bench.seed + 1, "retraining of the old version")
    new = _network(lab, _spoilt(lab.train, bench.seed), bench.seed + 2, "new version")
    right = torch.stack(
        [answers(net, lab.test).argmax(1).cpu() == lab.test.y for net in (old, again, new)]
    )
    usable = lab.test.take(right.all(0).nonzero().squeeze(1))
    seeds = usable.sample(count=min(bench.size("seeds", 150, 800), len(usable)), seed=bench.seed)
    gradients = bench.size("gradients", 100, 100)
    spent = {}
    found = {}
    for name, (subject, was) in {
        "found": (new, old),
        "retrained": (again, old),
        "swapped": (old, new),
    }.items():
        bench.say(f"{name}: {subject.name} wrong, {was.name} right")
        found[name], spent[name] = _searched(lab, subject, was, seeds, gradients)
    beyond = excess(
        found["found"],
        retrained=found["retrained"],
        swapped=found["swapped"],
        rng=stream(bench.seed, "excess"),
    )
    newly = int((right[0] & ~right[2]).sum())
    least = beyond.value.low * beyond.seeds
    count = beyond.value.value * beyond.seeds
    rows = [
        ["seeds with an input that only the new version gets wrong", f"{beyond.found:.1%} of {beyond.seeds}"],
        ["null: old against its retraining", f"{beyond.retrained or 0:.1%}"],
        ["null: roles swapped", f"{beyond.swapped or 0:.1%}"],
        ["excess over the larger null, in seeds", f"{count:.1f} [{least:.1f}, {beyond.value.high * beyond.seeds:.1f}]"],
        ["queries of the search", str(spent["found"])],
        ["replay: test images that only the new version gets wrong", f"{newly} of {len(lab.test)}"],
        ["excess over replay's", f"{count / max(newly, 1):.2f} [{least / max(newly, 1):.2f}, {beyond.value.high * beyond.seeds / max(newly, 1):.2f}]"],
    ]  # fmt: skip
    notes = [
        "replay asks about every test image there is; it could not use more queries, so it has fewer than the search",
        "goal: an excess of 5 times the newly failing inputs of replay",
        *lab.notes,
        *(
            f"{net.name}: {float(part.double().mean()):.2%} of {len(lab.test)} test images right"
            for net, part in zip((again, new), right[1:])
        ),
    ]
    return Outcome(
        "what a new version broke", [Table("search and replay", ["", "seen"], rows, notes)]
    )


def _searched(
    lab: Lab, subject: Subject, was: Subject, seeds: Images, gradients: int
) -> tuple[dict[str, bool], int]:
    """For each seed whether a witnessed input was found that `subject` gets wrong and `was` right, and the queries."""
    ready = Context.of(
        subject, seeds, "natural", options={"gradients": gradients}, peers=(was,), was=was.name,
        witnesses="default", train=lab.train, data=lab.bench.data, seed=lab.bench.seed,
    )  # fmt: skip
    done = search_campaign(ready.campaign, seeds, Budget(), shard=256)
    kept = done.findings.seed[done.findings.witnessed.cpu()].tolist()
    hit = {seeds.id[row] for row in kept}
    return {name: name in hit for name in seeds.id}, int(done.queries.sum())


def _network(lab: Lab, train: Images, seed: int, name: str) -> Subject:
    classes = len(train.classes)
    net = build_classifier(
        "lenet5", channels=train.x.shape[1], size=train.x.shape[2], classes=classes, seed=seed
    )
    fit(net, train, classify(classes), TEACHING, seed=seed, name=name, device=lab.bench.device)
    return Subject(net, classes=train.classes, name=name, device=lab.bench.device)


def _spoilt(train: Images, seed: int) -> Images:
    """Training digits, half of those that lean to the right under another label."""
    slant: Tensor = figure_measures(from_bytes(train.x))["slant"]
    rng = stream(seed, "spoilt")
    other = (train.y + torch.randint(1, len(train.classes), (len(train),), generator=rng)) % len(
        train.classes
    )
    wrong = (slant > slant.quantile(2 / 3)) & (torch.rand(len(train), generator=rng) < WRONG)
    return replace(train, y=torch.where(wrong, other, train.y))
