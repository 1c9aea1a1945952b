"""Error rates that count only what a judge confirms: the image is valid and still shows its original's label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.errors import Problem
from hardcase.experiments.argus_witness import Witness
from hardcase.experiments.bench import Bench
from hardcase.judges import teach
from hardcase.judges.judge import Judge
from hardcase.judges.teach import fingerprints
from hardcase.judges.verdicts import KNOWN
from hardcase.models.subject import Subject
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images

SAMPLE = 90
"""Images of each original that a judge is asked about, drawn from all that were made of it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A judge that took no part in what it judges (None: there is none), and what a table must say of it."""

    judge: Judge | None
    note: str


def bar(bench: Bench, train: Images, test: Images) -> Bar:
    """The data's judge, if it is in the cache or ``--set judge=true`` has it trained; ``judge=false`` does without."""
    asked = bench.options.get("judge")
    if asked is False or (asked is None and not teach.folder(train, test).is_dir()):
        how = f"hardcase train judge --data {bench.data}, or --set judge=true"
        return Bar(None, f"no judge, so no judged ER: {how}")
    bench.say("judge")
    judge = teach.trained(train, test, device=bench.device)
    counted = f"ER judged: failing, valid and label kept ÷ all, over up to {SAMPLE} images of each original drawn from all that were made"
    return Bar(judge, f"{counted}; undecided counts as no; judge {judge.standing}")


def admit(judge: Judge, subjects: Sequence[Subject], seeds: Sequence[Images]) -> None:
    """Refuse a judge of whose networks one is under test, or that has learned from the originals."""
    own = {Subject(net).hash for net in judge.panel.members} | set(judge.card["members"].values())
    for subject in subjects:
        if subject.hash in own:
            raise Problem(
                f"{subject.name} is one of the judge's own networks.", "It would confirm its own mistakes.",
                fix="another network, or --set judge=false",
            )  # fmt: skip
    x = torch.cat([images.x for images in seeds])
    known = int(torch.isin(fingerprints(x), judge.panel.learned.cpu()).sum())
    if known > KNOWN * len(x):
        raise Problem(
            f"the judge has learned from {known} of the {len(x)} originals.",
            fix="--set judge=false",
        )


def judged(judge: Judge, witness: Witness, label: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """For each original the share of its sampled images that fail, are valid and keep its label; NaN where nothing was made."""
    label = label.to(witness.left.device)
    seed, place = (witness.left & witness.there).nonzero(as_tuple=True)
    good = torch.zeros_like(witness.left)
    good[seed, place] = confirmed(judge, witness.x[seed, place], label[seed])
    return (good.sum(1) / witness.there.sum(1)).double().cpu()


def confirmed(
    judge: Judge, x: UInt8[Tensor, "m c h w"], label: Int[Tensor, " m"]
) -> Bool[Tensor, " m"]:
    """Which images the judge finds valid and of this label; undecided is no."""
    panel = judge.panel.to(x.device)
    parts = []
    for rows in chunks(len(x), 256):
        signals = panel.ask(from_bytes(x[rows]), label[rows])
        answers = [rule.answers(rule.probability(signals)) for rule in judge.rules.values()]
        parts.append(
            torch.tensor(
                [all(said is True for said in each) for each in zip(*answers)], dtype=torch.bool
            )
        )
    return (
        torch.cat(parts).to(x.device)
        if parts
        else torch.zeros(0, dtype=torch.bool, device=x.device)
    )
