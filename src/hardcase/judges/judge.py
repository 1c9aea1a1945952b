"""What a judge is: signals of networks, thresholds in a card, a verdict on every pair of images.

`SignalSource` is what a new kind of trained judge implements (`read_batch`); a `TrainedJudge` turns
its signals into verdicts. `NormJudge` needs no network at all. All of them have in common that a
verdict follows from an image, its original and the judge alone.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase import companions
from hardcase.cache import write_atomically
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError, guarded
from hardcase.judges.calibration import Calibration, calibrate, read_arrays, read_people
from hardcase.judges.rules import DecisionRule, Signals, rules_from_card, verdict_words
from hardcase.randomness import balanced_order
from hardcase.tensors import chunks, digest, from_bytes, steady
from hardcase.training import cards
from hardcase.training.cards import TrainingProgress
from hardcase.types import VERDICT_WORDS, ImagePairs, Images, Judge, Verdicts

KIND = "judge"
"""The kind of network that cards of judges state."""
FILE = "calibration.json"
WEAK = 0.8
"""A judge that recognises fewer real test images is reported as weak."""
Splits = Callable[[str], ImageSet]
"""A split of a run's data by its name."""
OnProgress = Callable[[TrainingProgress], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """Settings for building the judge of a run, the argument of every row of ``hardcase list
    judges``.

    Args:
        features: Networks whose features are to be read, as ``--judge-features`` names them.
        people: An npz file of images and how many people named each class, to train on.
        offline: Ask nothing outside this machine.
        seed: Of everything random.
        device: Where it computes.
        progress: Called with the progress of a training.
        images: A split of the run's data by its name, where it is loaded already.
        train: Whether a judge may be trained; without, only a stored judge or one that takes
            seconds.
    """

    features: Sequence[str] = ()
    people: str | Path | None = None
    offline: bool = False
    seed: int = 0
    device: torch.device | str = "cpu"
    progress: OnProgress = None
    images: Splits | None = None
    train: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The ingredients of a judge: it is refused if it shares any with the run's search.

    Args:
        networks: Names of its networks by the hashes of their weights.
        lineages: The model families that they belong to.
        image: Channels, height, width and classes of its images; None: any.
        learned: Fingerprints of the images that it was trained on, sorted.
        data: The data that it was trained on, by its hash.
        families: The families of change that it was trained to keep labels under.
    """

    networks: Mapping[str, str] = field(default_factory=dict)
    lineages: tuple[str, ...] = ()
    image: tuple[int, ...] | None = None
    learned: Int[Tensor, " n"] | None = None
    data: str = ""
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedImages:
    """Constants that were fitted to images which people rated, and how they did on others.

    Args:
        source: Whose images, and which part of them the constants were fitted to.
        rules: What replaces the scale, offset and thresholds of a rule, by question.
        data: Names of the data sets whose runs they say something of.
        methods: By method, for rated images outside the fit: how many the judge ``accepted``, how
            many of those both raters confirmed (``right``), and how many ``losses`` of a label
            people rated.
    """

    source: str
    rules: Mapping[str, Mapping[str, float]]
    data: tuple[str, ...] = ()
    methods: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


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
    """A network, or an ensemble, that turns images into signals; stored as a single file with a
    card."""

    learned: Tensor
    """Fingerprints of the images that it was trained on, sorted."""
    batch = 256
    families: tuple[str, ...] = ()
    """The families of change that it was trained to keep labels under."""

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
        """Return the signals of every training, and unit features, of a batch, for the class
        that each image should show.
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

    In torch and not scikit-learn's `NearestNeighbors`, since it runs inside every batch, on
    the device of the networks.
    """

    features: Float[Tensor, "n f"]
    counts: Int[Tensor, " k"]

    @staticmethod
    def of(
        features: Float[Tensor, "n f"], labels: Int[Tensor, " n"], classes: int, *, most: int
    ) -> Neighbours:
        """Keep up to `most` images of each class in their order."""
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
    """Return the log of the ratio of distances: to images of another class over those of the
    label."""
    of_label = distances.gather(1, label[:, None])
    others = distances.scatter(1, label[:, None], torch.inf)
    return (others.amin(1, keepdim=True) / of_label).log().squeeze(1)


def ask(judge: Judge, pairs: ImagePairs) -> Verdicts:
    """Return a judge's verdicts, whatever it is, checked for their form."""
    name = name_of(judge)
    with guarded(f"judge {name}"):
        verdicts = judge(pairs)
    if not isinstance(verdicts, Verdicts):
        raise HardcaseError(
            f"judge {name} returned {type(verdicts).__name__}; it must return hardcase.Verdicts.",
            fix='hc.Verdicts(["kept", "unsure", ...])',
        )
    columns = [verdicts.verdict, *verdicts.columns.values()]
    if verdicts.p_kept is not None:
        columns.append(verdicts.p_kept)
    for answers in columns:
        if len(answers) != len(pairs):
            raise HardcaseError(
                f"judge {name} gave {len(answers)} answers on {len(pairs)} images.",
                fix='one verdict for each image, "unsure" where it cannot say',
            )
    for word in verdicts.verdict:
        if word not in VERDICT_WORDS:
            raise HardcaseError(
                f"judge {name} said {word!r} of an image; it says one of"
                f" {', '.join(VERDICT_WORDS)}.",
                "A probability can stand beside it, as p_kept.",
                fix='hc.Verdicts(["kept" if p > 0.9 else "unsure" for p in ...], p_kept=...)',
            )
    return verdicts


def name_of(judge: Judge) -> str:
    """Return the name of a judge in messages."""
    return str(getattr(judge, "__name__", type(judge).__name__))


@dataclass(frozen=True, slots=True)
class TrainedJudge:
    """A source of signals as a judge: its rules, and their calibration by people's ratings.

    Args:
        panel: Networks that took no part in any search, and the signals they give.
        card: What the panel is and how it was trained, with the constants of its rules.
        folder: Where it is stored.
        rules: How "the label is kept" and "belongs to the domain" follow from the signals.
        calibration: The result of people's ratings; None without ratings.
    """

    panel: SignalSource
    card: Mapping[str, Any]
    folder: Path
    rules: Mapping[str, DecisionRule]
    calibration: Mapping[str, Any] | None = None

    def __call__(self, pairs: ImagePairs) -> Verdicts:
        """Return the verdicts on changed images, with the signals that led to them."""
        trainings, features = self._read(pairs)
        words, chances = verdict_words(self.rules, trainings)
        mean = Signals.average(trainings)
        names = dict.fromkeys(name for rule in self.rules.values() for name in rule.signals)
        columns = {name: getattr(mean, name).tolist() for name in names}
        return Verdicts(
            words, chances.tolist(), {"class_seen": mean.seen.tolist(), **columns}, features
        )

    def p_kept(self, pairs: ImagePairs) -> Float[Tensor, " t"]:
        """Return the probability that each image keeps its label."""
        return verdict_words(self.rules, self._read(pairs)[0])[1]

    def _read(self, pairs: ImagePairs) -> tuple[list[Signals], Float[Tensor, "t f"]]:
        device = self.panel.learned.device
        size = max(pairs.x[:1].numel(), 1)
        batch = 0
        if not steady(device):
            batch = max(64, min(4096, 2**26 // size // 64 * 64))
        read = []
        for rows in list(chunks(len(pairs), max(256, AT_ONCE // size // 256 * 256))) or [slice(0)]:
            x = from_bytes(pairs.x[rows].to(device))
            signals, features = self.panel.read(x, pairs.expected[rows].to(device), batch=batch)
            read.append((signals, features.cpu()))
        trainings = [Signals.join(parts) for parts in zip(*(signals for signals, _ in read))]
        return trainings, torch.cat([part for _, part in read])

    def calibrate(self, place: Path, *, device: torch.device | str = "cpu") -> TrainedJudge:
        """Fit the thresholds to labels of people, measure them, and store both with the judge.

        Args:
            place: The folder of a study, or an npz file of rated images.
            device: Where the judge computes.
        """
        config = self.card["configuration"]
        shape = (config["channels"], config["size"], config["size"])
        arrays = companions.reader().rated(place) if place.is_dir() else read_arrays(place)
        people = read_people(arrays, where=str(place), shape=shape, classes=config["classes"])
        x = from_bytes(people.x.to(device))
        trainings = self.panel.to(device).ask(x, people.expected.to(device))
        calibration = calibrate(trainings, people, rules_from_card(self.card))
        keep_calibration(self, calibration)
        return calibrated(self, calibration)

    @property
    def provenance(self) -> Provenance:
        """Its ingredients, which must have had no part in a search."""
        config = self.card["configuration"]
        stated = {**self.card["members"], "panel": self.card["weights"]}
        networks = {weights: name for name, weights in stated.items()}
        for number, net in enumerate(self.panel.networks, 1):
            networks |= dict.fromkeys(network_hashes(net), f"member {number}")
        return Provenance(
            networks=networks,
            lineages=tuple(map(str, self.card.get("lineages", ()))),
            image=(config["channels"], config["size"], config["size"], config["classes"]),
            learned=self.panel.learned.cpu(),
            data=str(self.card["data"]),
            families=self.panel.families,
        )

    def about(self) -> dict[str, Any]:
        """Return what run.json and the report say of this judge."""
        names = ("name", "weights", "data", "accuracy", "measured_images", "members")
        more = [name for name in ("encoders", "lineages", "rated") if name in self.card]
        return {
            **{name: self.card[name] for name in names},
            "calibrated": self.calibration is not None,
            "status": self.standing,
            "rules": {name: asdict(rule) for name, rule in self.rules.items()},
            "calibration": self.calibration,
            **{name: self.card[name] for name in more},
        }

    @property
    def standing(self) -> str:
        """A sentence on how far its answers can be trusted."""
        share = self.card["accuracy"]
        accuracy = f"accuracy {share:.1%} on {self.card['measured_images']} real images"
        if self.calibration is not None:
            area = _interval(self.calibration["label_kept"]["auroc"])
            text = (
                f"calibrated on {self.calibration['images']} images rated by people: AUROC {area}"
                " for a kept label"
            )
        else:
            text = (
                f"uncalibrated, {accuracy}: no person has rated images of this data; its"
                f" thresholds come from {self.card.get('rated', MADE)['source']}"
            )
        if share < WEAK:
            text += f"; weak judge: {accuracy}"
        return text


MADE = {"source": "pictures made from held-out training images"}
"""Where thresholds come from until people rated images of a kind."""


def network_hashes(net: nn.Module) -> tuple[str, str]:
    """Return the two hashes by which a run may know a network."""
    from hardcase.models.subject import Subject

    subject = Subject(net)
    return subject.hash, subject.weights


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
    on_progress: Callable[[int], None] = lambda images: None,
) -> TrainedJudge:
    """Return a judge from the cache, or train it on `train`, measure it on `test` and keep it.

    `learn` trains a source that `build` made, builds its rules and returns entries of the card;
    `on_progress` is called with how many images were read.
    """

    def measure(net: nn.Module) -> dict[str, Any]:
        source = net.to(device)
        assert isinstance(source, SignalSource)
        right = 0
        for rows in chunks(len(test), source.batch):
            x = from_bytes(test.x[rows].to(device))
            predicted = Signals.average(source.ask(x, test.y[rows].to(device))).seen.cpu()
            right += int((predicted == test.y[rows]).sum())
            on_progress(len(predicted))
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


def panel_judge(source: nn.Module, card: Mapping[str, Any], folder: Path) -> TrainedJudge:
    """Return the judge that a source and its card are, as people's ratings left it."""
    assert isinstance(source, SignalSource)
    judge = TrainedJudge(source, card, folder, rules_from_card(card))
    if not (folder / FILE).exists():
        return judge
    stored = _read_calibration(folder / FILE)
    if stored["weights"] != card["weights"]:
        return judge
    return calibrated(judge, Calibration(rules_from_card(stored), stored["measured"]))


def calibrated(judge: TrainedJudge, calibration: Calibration) -> TrainedJudge:
    """Return the judge with the rules that people's ratings gave."""
    return replace(
        judge, rules={**judge.rules, **calibration.rules}, calibration=calibration.measured
    )


def keep_calibration(judge: TrainedJudge, calibration: Calibration) -> Path:
    """Store a calibration, with its checksum, next to its judge."""
    rules = {name: asdict(rule) for name, rule in calibration.rules.items()}
    stored = {"weights": judge.card["weights"], "rules": rules, "measured": calibration.measured}
    stored["checksum"] = digest([json.dumps(stored, sort_keys=True)])
    return write_atomically(judge.folder / FILE, json.dumps(stored, indent=2).encode())


def _read_calibration(path: Path) -> dict[str, Any]:
    try:
        stored = dict(json.loads(path.read_text(encoding="utf-8")))
        checksum = stored.pop("checksum", None)
        if checksum != digest([json.dumps(stored, sort_keys=True)]):
            raise ValueError("its content is not what its checksum says")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise HardcaseError(
            f"{path} cannot be read: {error}", fix="delete it and calibrate again"
        ) from error
    return stored


@dataclass(frozen=True, slots=True)
class NormJudge:
    """Judge by the size of the change alone: what is too small to change a label keeps it."""

    def __call__(self, pairs: ImagePairs) -> Verdicts:
        """Accept the label where no value changed by more than `NOTICEABLE`."""
        return Verdicts([("unsure", "kept")[small] for small in too_small(pairs).tolist()])

    def about(self) -> dict[str, Any]:
        """Return what run.json and the report say of it."""
        return {
            "name": "norm",
            "calibrated": False,
            "status": "only changes of at most 8/255 are decided; nobody judged the others",
        }


def too_small(pairs: ImagePairs) -> Bool[Tensor, " t"]:
    """Return which images changed too little, from their originals, to change what they show."""
    change = (pairs.x.short() - pairs.original.short()).abs().flatten(1)
    return change.amax(1) <= round(255 * NOTICEABLE)
