"""What every trained judge is: a source of signals, two rules, and what people made of them.

`SignalSource` is what a new kind of trained judge implements (`read_batch`); a `PanelJudge` turns
its signals into verdicts. `NormJudge` needs no network at all.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase import registry
from hardcase.cache import write_atomically
from hardcase.errors import Problem
from hardcase.judges.calibration import Calibration
from hardcase.judges.rules import DecisionRule, Signals, auroc_of_counts, rules_from_card
from hardcase.randomness import balanced_order
from hardcase.statistics import Rate
from hardcase.tensors import chunks, digest, from_bytes, steady
from hardcase.training import cards
from hardcase.types import Findings, Images, Verdicts

KIND = "judge"
"""The kind of network that cards of judges state."""
FILE = "calibration.json"
WEAK = 0.8
"""A judge that takes fewer real test images for what they are is called weak."""


@dataclass(frozen=True, slots=True)
class PriorRules:
    """The rules of a source of signals as long as nobody has rated images of its data: what they
    were fitted to, which of their numbers come from rated images of other data, and how they did on
    those; by default none do.
    """

    fitted_to: str = "pictures made from held-out training images"
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured: Mapping[str, Any] | None = None


ELSEWHERE: dict[str, dict[str, Any]] = {
    "label_kept": {"scale": 0.87, "offset": -0.42, "low": 0.49, "high": 0.94, "share": 0.79},
    "valid": {"scale": 0.67, "offset": 1.47, "low": 0.89, "high": 0.91, "share": 0.94},
}
"""For data that nobody has rated: fitted to the digits of V. Riccio, P. Tonella, ICSE 2023. The
thresholds serve runs of few findings; others have their own (`hardcase.judges.own_run`).
"""
MEASURED_ELSEWHERE: dict[str, Any] = {
    "images": 500,
    "valid": {
        "auroc": auroc_of_counts(0.969, yes=458, no=20),
        "tpr": Rate(448, 458).to_json(),
        "tnr": Rate(19, 20).to_json(),
        "undecided": Rate(0, 500).to_json(),
    },
    "label_kept": {
        "auroc": auroc_of_counts(0.933, yes=362, no=70),
        "tpr": Rate(297, 362).to_json(),
        "tnr": Rate(49, 70).to_json(),
        "undecided": Rate(100, 500).to_json(),
    },
    "confirmed": {"precision": Rate(293, 311).to_json(), "recall": Rate(293, 362).to_json()},
}
"""What the same did on each generator's rated digits with rules fitted to the other generators and
thresholds from its own signals; by a judge trained on the 4,000 training images of mnist5k.
"""
RATED_DIGITS = PriorRules("rated digits", ELSEWHERE, MEASURED_ELSEWHERE)
NOTICEABLE = 8 / 255
"""Largest change of any value that cannot change what an image shows, whatever its direction.

Eight grey levels everywhere are less than JPEG does to the same image (root mean square): 6.0
levels against 8.4 at quality 50 on 200 digits (``python -m benchmarks noticeable``), 8.0 against
8.6 at quality 30 on 200 photographs. A comparison with compression, not a study of people.
"""
AT_ONCE = 2**28
"""Numbers of images that are on the judge's device at once."""
NEAREST = 5
"""Training images of a class that count as its nearest."""


class SignalSource(nn.Module):
    """A network, or several, that read images into signals; stored as one file with a card."""

    learned: Tensor
    """Fingerprints of the images that it was trained on, sorted."""
    batch = 256
    prior = PriorRules()

    @property
    @abstractmethod
    def networks(self) -> Sequence[nn.Module]:
        """Networks that must have no part in a search that this judges."""

    @abstractmethod
    def hashes(self) -> dict[str, str]:
        """Return the hash of the weights of every network, by name."""

    @abstractmethod
    def read_batch(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]
    ) -> tuple[list[Signals], Float[Tensor, "m f"]]:
        """Return the signals of every training, and unit features, of one batch, given the class
        each image should show.
        """

    @torch.no_grad()
    def read(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 0
    ) -> tuple[list[Signals], Float[Tensor, "m f"]]:
        """Return signals and features of any number of images; every network sees each once.

        Each batch is filled up to the same size: the last bits of what a network answers hang on
        the size of its batch, and a verdict must not.
        """
        size = batch or self.batch
        parts = []
        for rows in list(chunks(len(x), size)) or [slice(0, 0)]:
            count = len(x[rows])
            padded = torch.cat([x[rows], x.new_zeros(size - count, *x.shape[1:])])
            classes = torch.cat([expected[rows], expected.new_zeros(size - count)])
            signals, features = self.read_batch(padded, classes)
            parts.append(([each[:count] for each in signals], features[:count]))
        trainings = zip(*(signals for signals, _ in parts))
        return [Signals.join(each) for each in trainings], torch.cat([f for _, f in parts])

    def ask(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 0
    ) -> list[Signals]:
        """Return the signals alone."""
        return self.read(x, expected, batch=batch)[0]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Unit features of real images, sorted by class; `counts` says how many there are of each.

    In torch and not scikit-learn's `NearestNeighbors`, since it is asked inside every batch, on
    the device of the networks.
    """

    features: Float[Tensor, "n f"]
    counts: Int[Tensor, " k"]

    @staticmethod
    def of(
        features: Float[Tensor, "n f"], labels: Int[Tensor, " n"], classes: int, *, most: int
    ) -> Neighbours:
        """Keep up to `most` images of each class in the order given."""
        rows = [(labels == label).nonzero().squeeze(1)[:most] for label in range(classes)]
        counts = torch.tensor([len(part) for part in rows], device=features.device)
        return Neighbours(functional.normalize(features[torch.cat(rows)], dim=1), counts)

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return the mean distance (1 - cosine) to the nearest images of every class; a class
        without images is as far away as can be.
        """
        cosine = functional.normalize(features, dim=1) @ self.features.T
        means = [torch.full_like(cosine[:, :1].sum(1), -1.0)] * len(self.counts)
        for label, part in enumerate(torch.split(cosine, self.counts.tolist(), dim=1)):
            if part.shape[1]:
                means[label] = part.topk(min(NEAREST, part.shape[1]), dim=1).values.mean(1)
        return (1 - torch.stack(means, 1)).clamp_min(1e-6)


def closer(distances: Float[Tensor, "m k"], label: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Return the log of how much nearer images of the label are than those of another class."""
    own = distances.gather(1, label[:, None])
    others = distances.scatter(1, label[:, None], torch.inf)
    return (others.amin(1, keepdim=True) / own).log().squeeze(1)


@dataclass(frozen=True, slots=True)
class PanelJudge:
    """A source of signals as a judge: the two rules by which it answers, and its calibration.

    Args:
        panel: Networks that took no part in any search, and the signals they give.
        card: What the panel is and how it was trained.
        folder: Where it is kept.
        label_kept: The rule for "still shows what its seed showed".
        valid: The rule for "looks like the data".
        calibration: What people's ratings made of it; None if nobody was asked.
    """

    panel: SignalSource
    card: Mapping[str, Any]
    folder: Path
    label_kept: DecisionRule
    valid: DecisionRule
    calibration: Mapping[str, Any] | None

    @property
    def rules(self) -> dict[str, DecisionRule]:
        """The rules by question."""
        return {"label_kept": self.label_kept, "valid": self.valid}

    def __call__(self, findings: Findings) -> Verdicts:
        """Return the verdicts on some findings, with the signals that led to them."""
        device = self.panel.learned.device
        size = max(findings.x[:1].numel(), 1)
        batch = 0
        if not steady(device):
            batch = max(64, min(4096, 2**26 // size // 64 * 64))
        parts = list(chunks(len(findings), max(256, AT_ONCE // size // 256 * 256)))
        read = list[tuple[Signals, Tensor]]()
        for rows in parts or [slice(0, 0)]:
            x = from_bytes(findings.x[rows].to(device))
            signals, features = self.panel.read(x, findings.expected[rows].to(device), batch=batch)
            read.append((signals, features.cpu()))
        signals = Signals.join([part for part, _ in read])
        answers: dict[str, Sequence[bool | None]] = {}
        columns: dict[str, Sequence[Any]] = {"seen": signals.seen.tolist()}
        for name, rule in self.rules.items():
            probability = rule.probability(signals)
            answers[name] = rule.answers(probability)
            if name == "label_kept":
                answers[name] = where_agreed(answers[name], columns["seen"])
            columns[f"p_{name}"] = probability.tolist()
            columns |= {each: getattr(signals, each).tolist() for each in rule.signals}
        features = torch.cat([part for _, part in read])
        return Verdicts(answers["valid"], answers["label_kept"], columns, features)

    def about(self) -> dict[str, Any]:
        """Return what run.json and the report say of this judge."""
        names = ("name", "weights", "data", "accuracy", "measured_images", "members")
        more = [name for name in ("encoders", "lineages") if name in self.card]
        elsewhere = None
        if self.calibration is None:
            elsewhere = self.panel.prior.measured
        return {
            **{name: self.card[name] for name in names},
            "calibrated": self.calibration is not None,
            "standing": self.standing,
            "rules": {name: asdict(rule) for name, rule in self.rules.items()},
            "calibration": self.calibration,
            "elsewhere": elsewhere,
            **{name: self.card[name] for name in more},
        }

    @property
    def standing(self) -> str:
        """One sentence on how far its answers can be trusted."""
        share = self.card["accuracy"]
        read = f"reads {share:.1%} of {self.card['measured_images']} real images rightly"
        if self.calibration is None:
            text = (
                f"uncalibrated, {read}: no person has rated images of this data; its rules were"
                f" fitted to {self.panel.prior.fitted_to}"
            )
        else:
            kept, valid = (self.calibration[name]["auroc"] for name in ("label_kept", "valid"))
            text = (
                f"calibrated on {self.calibration['images']} images rated by people: AUROC"
                f" {_interval(kept)} for label kept, {_interval(valid)} for valid"
            )
        if share < WEAK:
            text += f"; weak judge: it {read}"
        return text


def where_agreed(answers: Sequence[bool | None], seen: Sequence[int]) -> list[bool | None]:
    """Leave undecided what lineages of networks disagree about (a class seen of -1)."""
    return [None if each < 0 else said for said, each in zip(answers, seen)]


def _interval(auroc: Mapping[str, Any]) -> str:
    if auroc["value"] is None:
        return "not measured"
    return f"{auroc['value']:.2f} ({auroc['low']:.2f} to {auroc['high']:.2f})"


def split_rows(
    y: Int[Tensor, " n"], ids: Sequence[str], share: float
) -> tuple[Int[Tensor, " f"], Int[Tensor, " h"]]:
    """Return rows to train on and rows held out, in which the classes take turns."""
    order, _ = balanced_order(y, ids, seed=0)
    count = max(1, min(round(share * len(y)), 3000))
    return order[count:].sort().values, order[:count]


def made_judge(
    name: str,
    config: Mapping[str, Any],
    train: Images,
    test: Images,
    *,
    build: Callable[[Mapping[str, Any]], nn.Module],
    learn: Callable[[nn.Module], Mapping[str, Any]],
    device: torch.device | str,
    tell: Callable[[int], None] = lambda images: None,
) -> PanelJudge:
    """Return a judge from the cache, or train it on `train`, measure it on `test` and keep it.

    `learn` trains a source that `build` made, makes its rules and returns entries of the card;
    `tell` is told how many images were read when it is measured.
    """

    def measure(net: nn.Module) -> dict[str, Any]:
        source = net.to(device)
        assert isinstance(source, SignalSource)
        right = 0
        for rows in chunks(len(test), source.batch):
            x = from_bytes(test.x[rows].to(device))
            seen = Signals.average(source.ask(x, test.y[rows].to(device))).seen.cpu()
            right += int((seen == test.y[rows]).sum())
            tell(len(seen))
        return {"accuracy": right / len(test), "measured_images": len(test)}

    net, card = cards.cached(
        KIND,
        name,
        config,
        data=train.hash,
        build=build,
        train=learn,
        measure=measure,
        measured_on=test.hash,
    )
    folder = cards.folder_of(KIND, name, config, train.hash)
    return panel_judge(net.to(device), card, folder)


def panel_judge(source: nn.Module, card: Mapping[str, Any], folder: Path) -> PanelJudge:
    """Return the judge that a source and its card are, as people's ratings left it."""
    assert isinstance(source, SignalSource)
    rules = unrated_rules(source, card)
    judge = PanelJudge(source, card, folder, rules["label_kept"], rules["valid"], None)
    if not (folder / FILE).exists():
        return judge
    stored = _read_calibration(folder / FILE)
    if stored["weights"] != card["weights"]:
        return judge
    return calibrated(judge, Calibration(rules_from_card(stored), stored["measured"]))


def unrated_rules(source: SignalSource, card: Mapping[str, Any]) -> dict[str, DecisionRule]:
    """Return the rules of a source as they are until people have rated images of its data."""
    known = source.prior.rules
    made = rules_from_card(card)
    return {name: replace(rule, **known.get(name, {})) for name, rule in made.items()}


def calibrated(judge: PanelJudge, found: Calibration) -> PanelJudge:
    """Return the judge with the rules that people's ratings gave."""
    kept, valid = found.rules["label_kept"], found.rules["valid"]
    return replace(judge, label_kept=kept, valid=valid, calibration=found.measured)


def keep_calibration(judge: PanelJudge, found: Calibration) -> Path:
    """Store a calibration, with its checksum, beside the judge it belongs to."""
    rules = {name: asdict(rule) for name, rule in found.rules.items()}
    stored = {"weights": judge.card["weights"], "rules": rules, "measured": found.measured}
    stored["checksum"] = digest([json.dumps(stored, sort_keys=True)])
    return write_atomically(judge.folder / FILE, json.dumps(stored, indent=2).encode())


def _read_calibration(path: Path) -> dict[str, Any]:
    try:
        stored = dict(json.loads(path.read_text(encoding="utf-8")))
        checksum = stored.pop("checksum", None)
        if checksum != digest([json.dumps(stored, sort_keys=True)]):
            raise ValueError("its content is not what its checksum says")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise Problem(
            f"{path} cannot be read: {error}", fix="delete it and calibrate again"
        ) from error
    return stored


@registry.judge(
    "norm",
    needs="nothing; asked of every run, before any other judge",
    paper="ours",
    laws=("only changes of at most 8/255 are decided",),
)
@dataclass(frozen=True, slots=True)
class NormJudge:
    """Judge by the size of the change alone: what is too small to change a label keeps it."""

    def __call__(self, findings: Findings) -> Verdicts:
        """Leave every finding undecided; `by_norm` decides the small changes, for any judge."""
        nothing = [None] * len(findings)
        return Verdicts(nothing, nothing)

    def about(self) -> dict[str, Any]:
        """Return what run.json and the report say of it."""
        return {
            "name": "norm",
            "calibrated": False,
            "standing": "only changes of at most 8/255 are decided; nobody judged the others",
        }


def by_norm(verdicts: Verdicts, largest: Sequence[float]) -> Verdicts:
    """Call every change that is too small to change a label valid and kept."""
    small = [size <= NOTICEABLE + 1e-6 for size in largest]
    valid = [is_small or said for is_small, said in zip(small, verdicts.valid)]
    kept = [is_small or said for is_small, said in zip(small, verdicts.label_kept)]
    by = [("judge", "norm")[is_small] for is_small in small]
    return replace(verdicts, valid=valid, label_kept=kept, columns={**verdicts.columns, "by": by})
