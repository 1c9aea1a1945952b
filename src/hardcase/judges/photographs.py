"""Judges of photographs by networks that others have trained and that took no part in the search.

`feature_judge` reads their features, is fitted to photographs outside the run, and stored in the
cache. `reserved_judge` needs no training: a single network classifies photographs of ImageNet's
kind, so a run is judged in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.judges.feature_panel import USUAL, FeaturePanel, build, fit
from hardcase.judges.features import Encoder, encoder
from hardcase.judges.judge import (
    KIND,
    Provenance,
    TrainedJudge,
    made_judge,
    panel_judge,
    split_rows,
)
from hardcase.judges.rules import Signals, rules_from_exam
from hardcase.judges.training_data import exam_of_photographs
from hardcase.models.load import Loading, lineage_of, load_model, network
from hardcase.models.names import map_between
from hardcase.models.pretrained import PRETRAINED
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes, tile_rows
from hardcase.training import cards
from hardcase.training.cards import TrainingProgress
from hardcase.types import ImagePairs, Images, Verdicts

TOP = 5
"""A label that is not among so many first answers is lost."""


@dataclass(frozen=True, eq=False)
class ReservedJudge:
    """A network of another model family than any that the search has used.

    The label counts as kept where the network's first answer, over an image and its mirror image,
    is the label; it is lost where the label is not among its first five although it reads the
    original rightly; it is unsure between. `outputs` are those that mean the classes.
    """

    encoder: Encoder
    outputs: Int[Tensor, " k"] = field(repr=False)

    def __call__(self, pairs: ImagePairs) -> Verdicts:
        """Return the verdicts on changed images."""
        logits, features = _read(self.encoder, self.outputs, pairs.x)
        expected = pairs.expected.cpu()
        first = logits.argmax(1)
        among = (logits.topk(min(TOP, logits.shape[1]), 1).indices == expected[:, None]).any(1)
        legible = torch.zeros_like(among)
        doubted = ~among  # only where it matters is the original read as well
        if bool(doubted.any()):
            read, _ = _read(self.encoder, self.outputs, pairs.original[doubted])
            legible[doubted] = read.argmax(1) == expected[doubted]
        answers = torch.where(first == expected, 1, torch.where(legible, 2, 0))
        probability = logits.softmax(1).gather(1, expected[:, None]).squeeze(1)
        return Verdicts(
            [("unsure", "kept", "lost")[answer] for answer in answers.tolist()],
            probability.tolist(),
            {"class_seen": first.tolist()},
            functional.normalize(features, dim=1),
        )

    @property
    def provenance(self) -> Provenance:
        """Its ingredients, which must have had no part in a search."""
        return Provenance(
            networks={self.encoder.hash: self.encoder.spec},
            lineages=tuple(filter(None, [self.encoder.lineage])),
        )

    def about(self) -> dict[str, Any]:
        """Return what run.json and the report say of it."""
        return {
            "name": "reserved network",
            "weights": self.encoder.hash,
            "members": {"encoder 1": self.encoder.hash},
            "calibrated": False,
            "status": f"uncalibrated: {self.encoder.spec} took no part in the search and its"
            " first answer counts; no person has rated images of this data",
            "encoders": [self.encoder.spec],
            "lineages": list(filter(None, [self.encoder.lineage])),
        }


def reserved_judge(net: Encoder, images: ImageSet) -> ReservedJudge:
    """Return the judge that a pretrained network is, as it is, for images of these classes.

    Args:
        net: A network that took no part in the search.
        images: Photographs of the run's classes; only their classes count.

    Raises:
        HardcaseError: If its outputs cannot be mapped to the run's classes.
    """
    outputs = head_of(net, images)
    if outputs is None:
        raise HardcaseError(
            f"{net.spec} does not know the classes of these photographs,"
            " and there are too few beside the images of the run to teach it.",
            fix="more photographs beside them: a folder train/ and a folder test/",
        )
    return ReservedJudge(net, outputs.to(net.subject.device))


def _read(
    net: Encoder, outputs: Int[Tensor, " k"], x: UInt8[Tensor, "m c h w"]
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m f"]]:
    """Return log-probabilities of the run's classes, and the network's deepest features.

    Batches are filled up, so that no answer depends on the number of images.
    """
    images = from_bytes(x.to(net.subject.device))
    batch = max(32, tile_rows(images.device))
    missing = -len(images) % batch
    images = torch.cat([images, images.new_zeros(missing, *images.shape[1:])])
    answers = [net.ask(images, view=view, batch=batch) for view in USUAL.views]
    logits = torch.stack([each.logits[:, outputs].log_softmax(1) for each in answers])
    deepest = answers[0].activations[net.layers[-1]]
    return logits.logsumexp(0)[: len(x)].cpu(), deepest[: len(x)].cpu()


def encoder_of(
    spec: str,
    train: Images,
    test: Images,
    *,
    device: torch.device | str = "cpu",
    offline: bool = False,
) -> Encoder:
    """Load the network that `spec` names as an encoder of images like these."""
    how = Loading(train=train, test=test, device=str(device), offline=offline)
    subject = network(load_model(spec, how))
    row = PRETRAINED.get(spec.removeprefix("zoo:"))
    size = 0
    if row is not None and test.x.shape[2] < row.size / 2:
        size = row.size
    example = from_bytes(test.x[:1].to(subject.device))
    return encoder(subject, example, lineage=lineage_of(spec), spec=spec, size=size)


def head_of(each: Encoder, train: ImageSet) -> Int[Tensor, " k"] | None:
    """Return the output of an encoder for each class, if it has outputs for all of them."""
    names = each.subject.class_names
    if not names:
        return None
    try:
        mapping = map_between(train.classes, names)
    except HardcaseError:
        return None
    if mapping is None:
        return torch.arange(len(train.classes))
    return torch.tensor(mapping.outputs)


NAME = "features"
FEWEST_IMAGES = 20
EXAMINED = 96
"""Real images from which the images of the exam are synthesised, four of each."""
VOTES: Mapping[str, Mapping[str, float]] = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "domain": {"something": 0.5, "nearness": 1.0, "likeness": 0.5, "contrast": 0.25},
}
"""Weight of each signal, in units of its spread over synthetic images; fixed, not fitted."""


def feature_judge(
    specs: Sequence[str],
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    offline: bool = False,
    encoders: Sequence[Encoder] = (),
    progress: Callable[[TrainingProgress], None] | None = None,
) -> TrainedJudge:
    """Return the judge of photographs by features of networks that others have trained.

    Args:
        specs: Names of networks, as ``--judge-features`` takes them.
        train: Images to fit it to; never the seeds.
        test: Images that measure it.
        seed: Of everything that is drawn.
        device: Where it computes.
        offline: Fetch nothing.
        encoders: The same networks, where they are loaded already.
        progress: Called with the network whose features are read, and with the share that is done.

    Raises:
        HardcaseError: If there are too few images, or a network's layers cannot be read.
    """
    if len(train) < FEWEST_IMAGES:
        raise HardcaseError(
            f"there are {len(train)} training images; a judge needs {FEWEST_IMAGES} to know what is"
            " usual.",
            fix="more photographs beside the images: a folder train/ and a folder test/",
        )
    encoders = [*encoders] or [
        encoder_of(spec, train, test, device=device, offline=offline) for spec in specs
    ]
    heads = _heads(encoders, train)
    config = _config(encoders, train, heads, seed)
    folder = cards.folder_of(KIND, NAME, config, train.hash)
    start = time.monotonic()
    held_out = split_rows(train.y, train.id, USUAL.held_out)[1].sort().values
    views = len(USUAL.views)
    total = len(train) + views * (4 * min(EXAMINED, len(held_out)) + len(test))
    what = f"judge of {train.name} by {', '.join(each.spec for each in encoders)}"
    done = 0

    def on_progress(images: int) -> None:
        nonlocal done
        done = images
        if progress is not None:
            progress(TrainingProgress(0, 0, done, total, 0.0, "", what))

    def fitted_or_empty(_: Mapping[str, Any]) -> nn.Module:
        if (folder / cards.CARD).exists():
            return build(encoders, cards.read_card(folder)["parts"], learned=len(train))
        on_progress(0)
        panel = fit(
            encoders, train, heads=heads, seed=seed, on_progress=lambda count, _: on_progress(count)
        )
        on_progress(len(train))  # some features may have been kept
        return panel

    def examine(net: nn.Module) -> dict[str, Any]:
        assert isinstance(net, FeaturePanel)
        order = torch.randperm(len(held_out), generator=stream(seed, "exam"))
        examined = train.take(held_out[order[:EXAMINED]])
        rng = stream(seed, "judge", "photographs", device=device)
        exam = exam_of_photographs(examined, rng, device)
        read = list[Signals]()
        for rows in chunks(len(exam.x), net.batch):
            read.append(Signals.average(net.to(device).ask(exam.x[rows], exam.expected[rows])))
            on_progress(done + views * len(read[-1].seen))
        rules = rules_from_exam(Signals.join(read), exam, VOTES)
        return {
            "seed": seed,
            "seconds": time.monotonic() - start,
            "members": net.hashes(),
            "lineages": [each.lineage for each in encoders if each.lineage],
            "parts": net.described,
            "rules": {name: asdict(rule) for name, rule in rules.items()},
        }

    judge = made_judge(
        NAME,
        config,
        train,
        test,
        build=fitted_or_empty,
        learn=examine,
        device=device,
        on_progress=lambda images: on_progress(done + views * images),
    )
    return _naming(judge, encoders)


def _naming(judge: TrainedJudge, encoders: Sequence[Encoder]) -> TrainedJudge:
    return replace(judge, card={**judge.card, "encoders": [each.spec for each in encoders]})


def is_made(encoders: Sequence[Encoder], train: ImageSet, *, seed: int = 0) -> bool:
    """Say whether `feature_judge` finds this judge in the cache."""
    config = _config(encoders, train, _heads(encoders, train), seed)
    return (cards.folder_of(KIND, NAME, config, train.hash) / cards.CARD).exists()


def stored_feature_judge(folder: Path, *, device: torch.device | str = "cpu") -> TrainedJudge:
    """Read a judge by features from its folder; its card names its networks, which must be on this
    machine as they were.
    """
    card = cards.read_card(folder)
    config = card["configuration"]
    encoders = []
    for spec, digest, size, *layers in config["encoders"]:
        subject = network(load_model(spec, Loading(device=str(device))))
        if subject.hash != digest:
            raise HardcaseError(
                f"{spec} is not the network that this judge was made with.",
                fix="hardcase judge RUN --judge-features makes a new one",
            )
        encoders.append(Encoder(subject, tuple(layers), lineage_of(spec), spec, size))

    def empty(_: Mapping[str, Any]) -> nn.Module:
        return build(encoders, card["parts"], learned=config["learned"])

    net, card = cards.load_card(folder, empty, kind=KIND)
    return _naming(panel_judge(net.to(device), card, folder), encoders)


def _heads(encoders: Sequence[Encoder], train: ImageSet) -> Sequence[Int[Tensor, " k"]]:
    """What `head_of` finds, if it does for every encoder that classifies; none for others."""
    found = [
        head_of(each, train) if each.classifies else torch.zeros(0, dtype=torch.int64)
        for each in encoders
    ]
    heads = [head for head in found if head is not None]
    if len(heads) < len(encoders):
        return ()
    return heads


def _config(
    encoders: Sequence[Encoder], train: ImageSet, heads: Sequence[Tensor], seed: int
) -> dict[str, Any]:
    channels, height, width = train.shape
    if height != width:
        raise HardcaseError(
            f"a judge takes square images; these are {width}×{height}.",
            fix="?resize=224&crop=center",
        )
    return {
        "channels": channels,
        "size": height,
        "classes": len(train.classes),
        "encoders": [[each.spec, each.hash, each.size, *each.layers] for each in encoders],
        "heads": [head.tolist() for head in heads],
        "exam": asdict(USUAL),
        "seed": seed,
        "learned": len(train),
    }
