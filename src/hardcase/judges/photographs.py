"""The judge of photographs by features of networks that others have trained; kept in the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from hardcase import registry
from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.judges.feature_panel import USUAL, FeaturePanel, build, fit
from hardcase.judges.features import Encoder
from hardcase.judges.judge import KIND, PanelJudge, accuracy_on, panel_judge, split_rows
from hardcase.judges.reserved import encoder_of, head_of
from hardcase.judges.rules import Signals, rules_from_exam
from hardcase.judges.training_data import exam_of_photographs
from hardcase.models.load import Loading, lineage_of, load_model, network
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.training import cards
from hardcase.training.loop import LONG, TrainingProgress, minutes
from hardcase.types import Images

__all__ = [
    "FEWEST_IMAGES",
    "NAME",
    "feature_judge",
    "is_made",
    "stored_feature_judge",
]

NAME = "features"
FEWEST_IMAGES = 20
FIRST = 8
"""Images by which the time of all of them is told."""
EXAMINED = 96
"""Real images of which the images of the exam are made, four of each."""
AT_ONCE = 32
"""Images after which it is told how far the work is."""
VOTES: Mapping[str, Mapping[str, float]] = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "valid": {"something": 0.5, "nearness": 1.0, "likeness": 0.5, "contrast": 0.25},
}
"""How much each signal counts, in units of its spread over made images; fixed, not fitted."""


@registry.judge(
    "photographs",
    needs="a pretrained network of another lineage and photographs beside the seeds",
    paper="ours; Lee et al., NeurIPS 2018 (distances); Mittal et al., IEEE SPL 2013 (textures)",
    laws=("took no part in the search", "never saw the seeds", "never used in a search"),
)
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
) -> PanelJudge:
    """Return the judge of photographs by features of networks that others have trained.

    Args:
        specs: Names of networks, as ``--judge-features`` takes them.
        train: Images to fit it to; never the seeds.
        test: Images that measure it.
        seed: Of everything that is drawn.
        device: Where it computes.
        offline: Fetch nothing.
        encoders: The same networks, where they are loaded already.
        progress: Told whose features are read, and about how long that takes.

    Raises:
        Problem: If there are too few images, or a network's layers cannot be read.
    """
    if len(train) < FEWEST_IMAGES:
        raise Problem(
            f"there are {len(train)} training images; a judge needs {FEWEST_IMAGES} to know what is"
            " usual.",
            fix="more photographs beside the seeds: a folder train/ and a folder test/",
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

    def tell(images: int) -> None:
        nonlocal done
        done = images
        if progress is None:
            return
        notice = ""
        if not done:
            seconds = _seconds(encoders, train) * total
            if seconds > LONG:
                notice = f"takes about {minutes(seconds)}; it is made once"
        progress(TrainingProgress(0, 0, done, total, 0.0, notice, what))

    def fitted_or_empty(_: Mapping[str, Any]) -> nn.Module:
        if (folder / cards.CARD).exists():
            return build(encoders, cards.read_card(folder)["parts"], learned=len(train))
        tell(0)
        panel = fit(encoders, train, heads=heads, seed=seed, tell=lambda count, _: tell(count))
        tell(len(train))  # some features may have been kept
        return panel

    def examine(net: nn.Module) -> dict[str, Any]:
        assert isinstance(net, FeaturePanel)
        order = torch.randperm(len(held_out), generator=stream(seed, "exam"))
        examined = train.take(held_out[order[:EXAMINED]])
        rng = stream(seed, "judge", "photographs", device=device)
        exam = exam_of_photographs(examined, rng, device)
        read = list[Signals]()
        for rows in chunks(len(exam.x), AT_ONCE):
            read.append(net.to(device).ask(exam.x[rows], exam.expected[rows]))
            tell(done + views * len(read[-1].seen))
        rules = rules_from_exam(Signals.join(read), exam, VOTES, thresholds=True)
        return {
            "seed": seed,
            "seconds": time.monotonic() - start,
            "members": net.hashes(),
            "lineages": [each.lineage for each in encoders if each.lineage],
            "parts": net.described,
            "rules": {name: rule.to_card() for name, rule in rules.items()},
        }

    def measure(net: nn.Module) -> dict[str, Any]:
        assert isinstance(net, FeaturePanel)
        right = 0
        for rows in chunks(len(test), AT_ONCE):
            right += accuracy_on(net.to(device), test.x[rows], test.y[rows], device)
            tell(done + views * len(test.y[rows]))
        return {"accuracy": right / len(test), "measured_images": len(test)}

    net, card = cards.cached(
        KIND,
        NAME,
        config,
        data=train.hash,
        build=fitted_or_empty,
        train=examine,
        measure=measure,
        measured_on=test.hash,
    )
    return _judge(net.to(device), card, folder, encoders)


def _seconds(encoders: Sequence[Encoder], train: Images) -> float:
    """Time per image, by the first few."""
    start = time.monotonic()
    for each in encoders:
        each.ask(from_bytes(train.x[:FIRST].to(each.subject.device)))
    return (time.monotonic() - start) / FIRST


def _judge(
    panel: nn.Module, card: Mapping[str, Any], folder: Path, encoders: Sequence[Encoder]
) -> PanelJudge:
    """Until people are asked, thresholds are those of made images."""
    return panel_judge(
        panel,
        {**card, "encoders": [each.spec for each in encoders]},
        folder,
        overrides={},
        chosen_on="pictures made from held-out training images",
        elsewhere=None,
    )


def is_made(encoders: Sequence[Encoder], train: ImageSet, *, seed: int = 0) -> bool:
    """Say whether `feature_judge` finds this judge in the cache."""
    config = _config(encoders, train, _heads(encoders, train), seed)
    return (cards.folder_of(KIND, NAME, config, train.hash) / cards.CARD).exists()


def stored_feature_judge(folder: Path, *, device: torch.device | str = "cpu") -> PanelJudge:
    """Read a judge by features from its folder; its card names its networks, which must be on this
    machine as they were.
    """
    card = cards.read_card(folder)
    config = card["configuration"]
    encoders = []
    for spec, known, size, *layers in config["encoders"]:
        subject = network(load_model(spec, Loading(device=str(device))))
        if subject.hash != known:
            raise Problem(
                f"{spec} is not the network that this judge was made with.",
                fix="hardcase judge RUN --judge-features makes a new one",
            )
        encoders.append(Encoder(subject, tuple(layers), lineage_of(spec), spec, size))

    def empty(_: Mapping[str, Any]) -> nn.Module:
        return build(encoders, card["parts"], learned=config["learned"])

    net, card = cards.load_card(folder, empty, kind=KIND)
    return _judge(net.to(device), card, folder, encoders)


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
        raise Problem(
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
