"""The judge against people: images that two persons have rated.

The images are those of V. Riccio and P. Tonella, ICSE 2023: 500 digits and 80 photographs that were searched until a network
failed on them, with the class that each of two persons saw. The order in which the judge ranks them owes nothing to these
labels; thresholds are fitted without the generator whose images they are measured on. Settings of the digits' judge were
chosen on every other image of each generator (the even half), so the odd half is the one to quote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.judges import panel
from hardcase.judges.calibration import People, calibrate, read_people
from hardcase.judges.judge import PanelJudge
from hardcase.judges.photographs import feature_judge
from hardcase.judges.rules import auroc_interval, rules_from_card
from hardcase.randomness import stream
from hardcase.statistics import Rate
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase.types import Images
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab

QUESTIONS = ("label_kept", "valid")
RECALL = 0.6
"""At least so much of what people confirm is to be found."""
NOTHING = "No real-world objects"
"""The raters' words for an image that shows nothing."""


def digits(bench: Bench) -> Outcome:
    """``--data mnist5k --set people=FILE.npz``: the judge of the data against 500 rated digits, all of them fives."""
    lab = Lab(bench)
    judge, people = judged_digits(bench, lab)
    name = "rated-digits" if bench.data == "mnist5k" else f"rated-digits-{lab.train.name}"
    return Outcome(name, _tables(judge, people, bench, _halves(people)))


def photographs(bench: Bench) -> Outcome:
    """``--data "folder:PHOTOS?labels=prefix&split=all" --set people=FILE.npz``: a judge by ResNet-50 against 80 rated photographs of one class.

    ``--set encoder=… learned=…`` choose another network and how many photographs say what is usual; as many others measure it.
    """
    judge, people = judged_photographs(bench, bench.names("encoder", ("zoo:resnet50-imagenet",)))
    return Outcome("rated-photographs", _tables(judge, people, bench))


def judged_digits(bench: Bench, lab: Lab) -> tuple[PanelJudge, People]:
    """The judge of the data, and the digits that were rated."""
    arrays = read_arrays(bench)
    bench.say("judge")
    judge = panel.trained(lab.train, lab.test, seed=bench.seed, device=bench.device)
    return judge, _people(bench, arrays, lab.train)


def judged_photographs(bench: Bench, encoders: Sequence[str]) -> tuple[PanelJudge, People]:
    """A judge by these networks, one vote a lineage, and the photographs that were rated."""
    arrays = _numbered(read_arrays(bench))
    everything = load(bench.data, split="test")
    order = torch.randperm(len(everything), generator=stream(bench.seed, "study", "rated"))
    count = bench.size("learned", 200, 200)
    bench.say(f"judge by {', '.join(encoders)}")
    judge = feature_judge(
        encoders,
        everything.take(order[:count]),
        everything.take(order[count : 2 * count]),
        seed=bench.seed,
        device=bench.device,
    )
    return judge, _people(bench, arrays, everything)


def _people(bench: Bench, arrays: Mapping[str, Any], like: Images) -> People:
    """The rated images, which must have the shape and the classes of others."""
    where, shape = str(bench.options["people"]), tuple(like.x.shape[1:])
    return read_people(arrays, where=where, shape=shape, classes=len(like.classes))


def read_arrays(bench: Bench) -> dict[str, Any]:
    """The arrays of the file of rated images that ``--set people=FILE.npz`` names."""
    if "people" not in bench.options:
        raise Problem(
            "rated images are not part of hardcase.",
            "They are published with V. Riccio and P. Tonella, ICSE 2023.",
            fix="--set people=FILE.npz",
        )
    with np.load(Path(str(bench.options["people"])).expanduser(), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}


def _numbered(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Raters' words as classes: the expected one, -1 for nothing, and for anything else a class that was not expected."""
    numbers = [re.search(r"_e(\d+)_p(\d+)$", str(name)) for name in arrays["id"]]
    if None in numbers:
        raise Problem("rated photographs are known by the classes in their ids, as x_e963_p415.")
    expected, predicted = (np.array([int(one[i]) for one in numbers if one]) for i in (1, 2))

    def seen(word: str, names: str, own: int) -> int:
        if word == NOTHING:
            return -1
        return own if word.lower() in names.lower().split(", ") else own - 1

    raters = {
        name: np.array([seen(*row) for row in zip(map(str, arrays[name]), map(str, arrays["expected"]), expected.tolist())])
        for name in ("rater1", "rater2")
    }  # fmt: skip
    return {**arrays, **raters, "expected": expected, "predicted": predicted}


def _tables(
    judge: PanelJudge, people: People, bench: Bench, halves: Mapping[str, Tensor] | None = None
) -> list[Table]:
    place = bench.device
    signals = judge.panel.ask(from_bytes(people.x.to(place)), people.expected.to(place))
    rules = rules_from_card(judge.card)
    found = calibrate(signals, people, rules)
    known = found.measured
    everyone = {"all": torch.ones(len(people), dtype=torch.bool)}
    kept = rules["label_kept"].evidence(signals).cpu()
    rows: list[list[Cell]] = []
    for name in QUESTIONS:
        evidence = rules[name].evidence(signals).cpu()
        truth = people.label_kept if name == "label_kept" else people.valid
        for which, own in {**everyone, **(halves or {})}.items():
            use = own & (truth >= 0)
            area = auroc_interval(evidence[use], truth[use] == 1)
            rows.append(
                [f"{name.replace('_', ' ')}, {which}", _value(area), area["yes"], area["no"]]
            )
    agreement: list[list[Cell]] = [
        [
            name.replace("_", " "),
            round(known[name]["one_rater"]["judge"], 3),
            round(known[name]["one_rater"]["two_raters"], 3),
            _signed(known[name]["one_rater"]["difference"]),
        ]
        for name in QUESTIONS
        if "one_rater" in known[name]
    ]
    confirmed: list[list[Cell]] = [
        ["rules of other generators, thresholds from its own signals", *(_rate(known["confirmed"][one]) for one in ("precision", "recall"))],
        [f"as many as find {RECALL:.0%}", *map(_rate, _found(kept, people.confirmed))],
    ]  # fmt: skip
    notes = (
        f"judge of {bench.data}: reads {judge.card['accuracy']:.1%} of {judge.card['measured_images']} real images rightly;"
        f" made in {judge.card['seconds']:.0f} s",
        *(("even half: settings were chosen on it",) if halves else ()),
        "intervals over images",
    )
    return [
        Table("AUROC", ("question", "AUROC", "yes", "no"), rows, notes),
        Table(
            "Agreement with the rater that rules were not fitted to",
            ("question", "judge with one rater", "two raters with each other", "difference"),
            agreement,
            (
                "parity, not truth: a smoothed predictor agrees with single raters more often than they with each other",
            ),
        ),
        Table(
            "Confirmed",
            ("cut", "precision", "recall"),
            confirmed,
            (
                "what raters were split about counts as wrong; the second cut is chosen on the images it is measured on",
            ),
        ),
    ]


def _halves(people: People) -> dict[str, Tensor]:
    """Every other image of each generator, and the others."""
    met = dict[str, int]()
    number = []
    for name in people.generator:
        number.append(met.get(name, 0))
        met[name] = number[-1] + 1
    even = torch.tensor(number) % 2 == 0
    return {"even half": even, "odd half": ~even}


def _found(
    evidence: Float[Tensor, " m"], confirmed: Bool[Tensor, " m"]
) -> tuple[Mapping[str, Any], ...]:
    """Precision and recall of the highest-ranked images among which are enough of what people confirm."""
    right = confirmed[evidence.argsort(descending=True)].cumsum(0)
    total = int(confirmed.sum())
    last = int((right >= RECALL * total).nonzero()[0])
    hits = int(right[last])
    return Rate(hits, last + 1).to_json(), Rate(hits, total).to_json()


def _rate(value: Mapping[str, Any]) -> str:
    if not value["total"]:
        return "0 of 0"
    return f"{value['hits']} of {value['total']} = {value['share']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _value(area: Mapping[str, Any]) -> str:
    if area["value"] is None:
        return "one answer only"
    return f"{area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]"


def _signed(gap: Mapping[str, float | None]) -> str:
    if gap["low"] is None:  # the same of every image
        return f"{gap['value']:+.3f}"
    return f"{gap['value']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
