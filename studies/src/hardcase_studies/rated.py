"""The judge against people: images that two persons have rated.

The images are those of V. Riccio and P. Tonella, ICSE 2023: 500 digits and 80 photographs that were searched until a network
failed on them, with the class that each of two persons saw. The order in which the judge ranks them owes nothing to these
labels. Its thresholds are constants that were fitted to every other image of each generator (the even half), so the odd half
is the one to quote; beside it stand thresholds that were fitted to the other generators alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.judges import panel
from hardcase.judges.calibration import People, calibrate, fitted, read_people
from hardcase.judges.judge import TrainedJudge
from hardcase.judges.photographs import feature_judge
from hardcase.judges.rules import DecisionRule, Signals, error_rates, verdict_words
from hardcase.randomness import stream
from hardcase.statistics import Rate, auroc_interval
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase.types import ImagePairs, Images
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab

RATES = {
    "precision_where_agreed": "accepted: right where raters agree",
    "precision": "accepted: right, a split counts as wrong",
    "recall": "accepted, of kept",
    "lost_right": "lost: right where raters agree",
    "unsure": "unsure",
}
"""What is said of verdicts, as columns."""
NOTHING = "No real-world objects"
"""The raters' words for an image that shows nothing."""


def digits(bench: Bench) -> Outcome:
    """``--data mnist5k --set people=FILE.npz``: the judge of the data against 500 rated digits, all of them fives.

    A second judge, trained with the next seed, says how many verdicts another training changes.
    """
    lab = Lab(bench)
    judge, people = judged_digits(bench, lab)
    bench.say("judge, trained again")
    again = panel.trained(lab.train, lab.test, seed=bench.seed + 1, device=bench.device)
    name = "rated-digits" if bench.data == "mnist5k" else f"rated-digits-{lab.train.name}"
    halves = _halves(people)
    tables = _tables(judge, people, bench, halves)
    even = people[halves["even half"]]
    return Outcome(name, [*tables, _flips(judge, again, people), _margins(judge, again, even)])


def photographs(bench: Bench) -> Outcome:
    """``--data "folder:PHOTOS?labels=prefix&split=all" --set people=FILE.npz``: a judge by ResNet-50 against 80 rated photographs of one class.

    ``--set encoder=… learned=…`` choose another network and how many photographs say what is usual; as many others measure it.
    """
    judge, people = judged_photographs(bench, bench.names("encoder", ("zoo:resnet50-imagenet",)))
    return Outcome("rated-photographs", _tables(judge, people, bench))


def judged_digits(bench: Bench, lab: Lab) -> tuple[TrainedJudge, People]:
    """The judge of the data, and the digits that were rated."""
    arrays = read_arrays(bench)
    bench.say("judge")
    judge = panel.trained(lab.train, lab.test, seed=bench.seed, device=bench.device)
    return judge, _people(bench, arrays, lab.train)


def judged_photographs(bench: Bench, encoders: Sequence[str]) -> tuple[TrainedJudge, People]:
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
        raise HardcaseError(
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
        raise HardcaseError(
            "rated photographs are known by the classes in their ids, as x_e963_p415."
        )
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
    judge: TrainedJudge, people: People, bench: Bench, halves: Mapping[str, Tensor] | None = None
) -> list[Table]:
    place = bench.device
    trainings = judge.panel.ask(from_bytes(people.x.to(place)), people.expected.to(place))
    truth = people.label_kept
    everyone = {"all": torch.ones(len(people), dtype=torch.bool), **(halves or {})}
    evidence = judge.rules["label_kept"].evidence(Signals.average(trainings)).cpu()
    areas: list[list[Cell]] = []
    for which, part in everyone.items():
        use = part & (truth >= 0)
        area = auroc_interval(evidence[use], truth[use] == 1)
        areas.append([which, _value(area), area["yes"], area["no"]])
    words, _ = verdict_words(judge.rules, trainings)
    generators = {
        name: torch.tensor([maker == name for maker in people.generator])
        for name in sorted(set(people.generator))
    }
    parts = dict(everyone)
    if halves:
        parts |= {
            f"{name}, odd half": rows & halves["odd half"] for name, rows in generators.items()
        }
    fixed = [[which, *_rates(words, truth, part)] for which, part in parts.items()]
    found = calibrate(trainings, people, judge.rules).measured
    left_out = [("all", found["label_kept"]), *found["methods"].items()]
    agreement = found["label_kept"].get("one_rater")
    notes = (
        f"judge of {bench.data}: accuracy {judge.card['accuracy']:.1%} on {judge.card['measured_images']} real images;"
        f" made in {judge.card['seconds']:.0f} s",
        *(("even half: the constants were fitted to it",) if halves else ()),
        "intervals over images",
    )
    tables = [
        Table("AUROC of the probability that a label is kept", ("images", "AUROC", "kept", "lost"), areas, notes),
        Table(
            "Verdicts by the constants of the card",
            ("images", *RATES.values()),
            fixed,
            (_constants(judge.rules["label_kept"]),),
        ),
        Table(
            "Verdicts by thresholds that were fitted to the other generators",
            ("images", *RATES.values()),
            [[name, *(_rate(rates[key]) for key in RATES)] for name, rates in left_out],
            (),
        ),
    ]  # fmt: skip
    if halves:
        rule = fitted(
            judge.rules,
            [each[halves["even half"]] for each in trainings],
            people[halves["even half"]],
        )
        tables[1] = replace(
            tables[1], notes=(*tables[1].notes, f"fitted anew to the even half: {_constants(rule)}")
        )
    if agreement:
        row: list[Cell] = [
            round(agreement["judge"], 3),
            round(agreement["two_raters"], 3),
            _signed(agreement["difference"]),
        ]
        tables.append(
            Table(
                "Agreement with the rater that thresholds were not fitted to",
                ("judge with one rater", "two raters with each other", "difference"),
                [row],
                ("parity, not truth: a smoothed predictor agrees with single raters more often than they with each other",),
            )
        )  # fmt: skip
    return tables


def _flips(judge: TrainedJudge, again: TrainedJudge, people: People) -> Table:
    """How many verdicts on the rated images another training of the same judge changes."""
    pairs = ImagePairs(people.x, people.x, people.expected)
    one, two = judge(pairs).verdict, again(pairs).verdict
    counts = {
        "any change": sum(a != b for a, b in zip(one, two)),
        "accepted by one alone": sum((a == "kept") != (b == "kept") for a, b in zip(one, two)),
        "kept against lost": sum(
            "kept" in both and not both.isdisjoint({"lost", "foreign"})
            for both in map(set, zip(one, two))
        ),
    }
    return Table(
        "Verdicts that another training changes",
        ("change", "images"),
        [[name, _rate(Rate(int(count), len(people)).to_json())] for name, count in counts.items()],
        ("each judge is three trainings; both take the constants of the card",),
    )


MARGINS = (0.8, 0.85, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93, 0.95)
"""Thresholds of a kept label whose price is told."""


def _margins(judge: TrainedJudge, again: TrainedJudge, people: People) -> Table:
    """What a wider or a narrower *unsure* would change: of the images that the constants were fitted to."""
    truth = people.label_kept
    rows: list[list[Cell]] = []
    for high in MARGINS:
        words = [_words_from(each, people, high) for each in (judge, again)]
        apart = sum((a == "kept") != (b == "kept") for a, b in zip(*words))
        found = [error_rates(each, truth) for each in words]
        cells = [_rate(each[key]) for key in ("precision_where_agreed", "recall") for each in found]
        rows.append([f"{high:.2f}", _rate(Rate(apart, len(people)).to_json()), *cells])
    columns = (
        "kept from", "accepted by one judge alone", "right, judge", "right, its other training", "of kept, judge",
        "of kept, its other training",
    )  # fmt: skip
    return Table("Thresholds and their price", columns, rows, ("even half",))


def _words_from(judge: TrainedJudge, people: People, high: float) -> list[str]:
    """The verdicts of a judge if labels were called kept from `high` on."""
    rule = replace(judge.rules["label_kept"], high=high)
    asked = replace(judge, rules={**judge.rules, "label_kept": rule})
    return list(asked(ImagePairs(people.x, people.x, people.expected)).verdict)


def _constants(rule: DecisionRule) -> str:
    return f"scale {rule.scale:.3f}, offset {rule.offset:.3f}, lost below {rule.low:.4f}, kept from {rule.high:.4f}"


def _rates(words: Sequence[str], truth: Int[Tensor, " m"], part: Bool[Tensor, " m"]) -> list[str]:
    rows = part.nonzero().squeeze(1).tolist()
    found = error_rates([words[row] for row in rows], truth[part])
    return [_rate(found[key]) for key in RATES]


def _halves(people: People) -> dict[str, Tensor]:
    """Every other image of each generator, and the others."""
    met = dict[str, int]()
    number = []
    for name in people.generator:
        number.append(met.get(name, 0))
        met[name] = number[-1] + 1
    even = torch.tensor(number) % 2 == 0
    return {"even half": even, "odd half": ~even}


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
