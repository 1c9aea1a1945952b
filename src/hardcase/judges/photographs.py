"""A judge for photographs from frozen features: made in minutes, kept in the cache,
with the same answers as any judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.judges.encoders import Encoder, encoder
from hardcase.judges.feature_store import FeatureStore, Tell
from hardcase.judges.features import USUAL, FeaturePanel, PanelPlan, build, fit, parts
from hardcase.judges.judge import PanelJudge, with_kept_calibration
from hardcase.judges.panel import Signals
from hardcase.judges.photo_exam import photo_examination
from hardcase.judges.rules import DecisionRule, learned
from hardcase.models.load import Loading, lineage_of, load_model, network
from hardcase.models.names import map_between
from hardcase.models.pretrained.catalogue import PRETRAINED
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.training import cards
from hardcase.training.loop import LONG, TrainingProgress, minutes
from hardcase.types import Images

KIND = "judge"
NAME = "features"
FEWEST_IMAGES = 20
FIRST = 8
"""Images by which the time of all of them is told."""
EXAMINED = 96
"""Real images of which the pictures of the examination are made, four of each."""
AT_ONCE = 32
"""Images after which it is told how far the work is."""
PRECISION = 0.95
MISSED = 0.02
VOTES: Mapping[str, Mapping[str, float]] = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "valid": {"something": 0.5, "nearness": 1.0, "likeness": 0.5, "contrast": 0.25},
}
"""How much each signal counts, in units of its spread over made images; fixed, not fitted."""


def photo_panel(
    encoders: Sequence[Encoder],
    train: Images,
    test: Images,
    *,
    plan: PanelPlan = USUAL,
    heads: Sequence[Int[Tensor, " k"]] = (),
    store: FeatureStore | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    tell: Tell | None = None,
) -> tuple[FeaturePanel, dict[str, Any], Path]:
    """Panel, card and folder of the judge of these photographs: from the cache, else made from
    `train` and measured on `test`.

    Args:
        encoders: Networks that take no part in the search; their hashes and lineages are in the
            card.
        train: Images to learn from; never the seeds.
        test: Images that measure it.
        plan: Views, probes and the share held out.
        heads: See `hardcase.judges.features.fit`.
        store: Where features are kept.
        seed: Of everything that is drawn.
        device: Where it is asked.
        tell: Told how many images are done, of how many.
    """
    config = _config(encoders, train, plan, heads, seed)
    folder = cards.folder_of(KIND, NAME, config, train.hash)
    start = time.monotonic()
    _, held_out = parts(train.y, train.id, plan.held_out)
    views = len(plan.views)
    asked = len(train) + views * (4 * min(EXAMINED, len(held_out)) + len(test))
    done = len(train)

    def fitted(count: int, _: int) -> None:
        if tell is not None:
            tell(count, asked)

    def seen(images: int) -> None:
        nonlocal done
        done += views * images
        fitted(done, asked)

    def shaped(_: Mapping[str, Any]) -> nn.Module:
        """A fitted panel, or an empty one of the shape that the card of a kept one states."""
        if not (folder / cards.CARD).exists():
            fitted(0, asked)
            return fit(encoders, train, plan=plan, heads=heads, store=store, seed=seed, tell=fitted)
        places = cards.read_card(folder)["places"]
        return build(encoders, places, classes=len(train.classes), learned=len(train))

    def entries(net: nn.Module) -> dict[str, Any]:
        assert isinstance(net, FeaturePanel)
        examined = train.take(
            held_out[torch.randperm(len(held_out), generator=stream(seed, "exam"))[:EXAMINED]]
        )
        rules = made_rules(net.to(device), examined, seed=seed, device=device, seen=seen)
        return {
            "seed": seed,
            "seconds": time.monotonic() - start,
            "members": net.hashes(),
            "lineages": list(net.lineages),
            "places": net.places,
            "rules": {name: rule.to_card() for name, rule in rules.items()},
        }

    net, card = cards.cached(
        KIND,
        NAME,
        config,
        data=train.hash,
        build=shaped,
        train=entries,
        measure=lambda net: _measure(net.to(device), test, device, seen),
        measured_on=test.hash,
    )
    assert isinstance(net, FeaturePanel)
    return net.to(device), card, folder


def made_rules(
    panel: FeaturePanel,
    held_out: Images,
    *,
    seed: int,
    device: torch.device | str,
    seen: Callable[[int], None] = lambda images: None,
) -> dict[str, DecisionRule]:
    """The rules that tell handled pictures from those of other classes and from ruined ones; `seen`
    is told of every part of the images that was looked at.
    """
    exam = photo_examination(held_out, stream(seed, "judge", "photographs", device=device), device)
    said = list[Signals]()
    for rows in chunks(len(exam.x), AT_ONCE):
        said.append(panel.ask(exam.x[rows], exam.expected[rows]))
        seen(len(said[-1].seen))
    signals = Signals.join(said)
    rules = {}
    for name, votes in VOTES.items():
        truth: Tensor = getattr(exam, name)
        known = truth >= 0
        rule = learned(dict(votes), signals[known], truth[known] > 0)
        rules[name] = answering(rule, signals[known], truth[known] > 0)
    return rules


def answering(rule: DecisionRule, signals: Signals, truth: Bool[Tensor, " m"]) -> DecisionRule:
    """`rule` with thresholds of its answers, both kinds of made pictures counting alike however
    many there are of each.

    Yes from where `PRECISION` of those above are so (never below one half), no below all but
    `MISSED` of those that are so (never above one half), undecided between. People, once asked,
    replace them.
    """
    said = rule.probability(signals).cpu()
    kind = truth.cpu()
    if not (bool(kind.any()) and bool((~kind).any())):
        return replace(rule, low=0.0, high=1.0)
    order = said.argsort(descending=True)
    share = kind.double() / kind.sum()
    other = (~kind).double() / (~kind).sum()
    hits = share[order].cumsum(0)
    misses = other[order].cumsum(0)
    good = (hits / (hits + misses) >= PRECISION).nonzero()
    high = float(said[order][int(good.max())]) if len(good) else 1.0
    low = float(said[kind].quantile(MISSED))
    return replace(rule, low=min(low, 0.5), high=max(high, 0.5))


def photo_judge(panel: FeaturePanel, card: Mapping[str, Any], folder: Path) -> PanelJudge:
    """The judge that this panel and card are.

    Until people are asked, its thresholds are those of made pictures.
    """
    rules = {name: DecisionRule.from_card(rule) for name, rule in card["rules"].items()}
    judge = PanelJudge(
        panel,
        card,
        folder,
        rules["label_kept"],
        rules["valid"],
        None,
        chosen_on="pictures made from held-out training images",
        elsewhere=None,
    )
    return with_kept_calibration(judge)


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
    """The judge of `train`'s kind of photographs, by features of networks that others have trained.

    Args:
        specs: Names of networks, as ``--judge-features`` takes them.
        train: Images to learn from; never the seeds.
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
    loaded = [*encoders] or [
        encoder_of(spec, train, test, device=device, offline=offline) for spec in specs
    ]
    panel, card, folder = photo_panel(
        loaded,
        train,
        test,
        heads=_heads(loaded, train),
        seed=seed,
        device=device,
        tell=None if progress is None else _telling(loaded, train, progress),
    )
    return photo_judge(panel, {**card, "encoders": [each.spec for each in loaded]}, folder)


def _telling(
    encoders: Sequence[Encoder], train: Images, progress: Callable[[TrainingProgress], None]
) -> Tell:
    """Says with the first images how long making and measuring the judge will take."""
    what = f"judge of {train.name} by {', '.join(each.spec for each in encoders)}"

    def tell(done: int, of: int) -> None:
        said = ""
        if not done:
            begun = time.monotonic()
            for each in encoders:
                each.ask(from_bytes(train.x[:FIRST].to(each.subject.device)))
            seconds = (time.monotonic() - begun) / FIRST * of
            if seconds > LONG:
                said = f"takes about {minutes(seconds)}; it is made once"
        progress(TrainingProgress(0, 0, done, of, 0.0, said, what))

    return tell


def is_made(encoders: Sequence[Encoder], train: ImageSet, *, seed: int = 0) -> bool:
    """Whether `feature_judge` finds this judge in the cache."""
    config = _config(encoders, train, USUAL, _heads(encoders, train), seed)
    return (cards.folder_of(KIND, NAME, config, train.hash) / cards.CARD).exists()


def stored_feature_judge(folder: Path, *, device: torch.device | str = "cpu") -> PanelJudge:
    """A judge by features read from its folder; its networks are loaded by the names in its card.

    Args:
        folder: Where it is kept.
        device: Where it computes.

    Raises:
        Problem: If a network is not on this machine, or is another one now.
    """
    config = cards.read_card(folder)["configuration"]
    encoders = []
    for spec, known, size, *layers in config["encoders"]:
        subject = network(load_model(spec, Loading(device=str(device))))
        if subject.hash != known:
            raise Problem(
                f"{spec} is not the network that this judge was made with.",
                fix="hardcase judge RUN --judge-features makes a new one",
            )
        encoders.append(Encoder(subject, tuple(layers), lineage_of(spec), spec, size))

    def shaped(_: Mapping[str, Any]) -> nn.Module:
        places = cards.read_card(folder)["places"]
        return build(encoders, places, classes=config["classes"], learned=config["learned"])

    net, card = cards.load_card(folder, shaped, kind=KIND)
    assert isinstance(net, FeaturePanel)
    named = {**card, "encoders": [each.spec for each in encoders]}
    return photo_judge(net.to(device), named, folder)


def encoder_of(
    spec: str,
    train: Images,
    test: Images,
    *,
    device: torch.device | str = "cpu",
    offline: bool = False,
) -> Encoder:
    """The network that `spec` names, as an encoder of images like these.

    Args:
        spec: Any name of a model whose layers can be read.
        train: Images of the data; only a network that is trained here learns from them.
        test: Images of the data.
        device: Where it computes.
        offline: Fetch nothing.
    """
    how = Loading(train=train, test=test, device=str(device), offline=offline)
    subject = network(load_model(spec, how))
    known = PRETRAINED.get(spec.removeprefix("zoo:"))
    small = known is not None and test.x.shape[2] < known.size / 2
    size = known.size if known is not None and small else 0
    example = from_bytes(test.x[:1].to(subject.device))
    return encoder(subject, example, lineage=lineage_of(spec), spec=spec, size=size)


def head_of(each: Encoder, train: ImageSet) -> Int[Tensor, " k"] | None:
    """The output of an encoder that means each class of the data, if it has one for all of them."""
    names = each.subject.class_names
    try:
        found = map_between(train.classes, names)
    except Problem:
        return None
    outputs = range(len(train.classes)) if found is None else found.outputs
    return torch.tensor(outputs) if names else None


def _heads(encoders: Sequence[Encoder], train: ImageSet) -> Sequence[Int[Tensor, " k"]]:
    """What `head_of` finds, if it does for every encoder."""
    found = [head for each in encoders if (head := head_of(each, train)) is not None]
    return found if len(found) == len(encoders) else ()


def _config(
    encoders: Sequence[Encoder],
    train: ImageSet,
    plan: PanelPlan,
    heads: Sequence[Tensor],
    seed: int,
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
        "plan": asdict(plan),
        "seed": seed,
        "learned": len(train),
    }


@torch.no_grad()
def _measure(
    net: nn.Module, test: Images, device: torch.device | str, seen_more: Callable[[int], None]
) -> dict[str, Any]:
    """Share of real images that are read rightly."""
    assert isinstance(net, FeaturePanel)
    right = 0
    for rows in chunks(len(test), AT_ONCE):
        y = test.y[rows]
        seen = net.ask(from_bytes(test.x[rows].to(device)), y.to(device)).seen.cpu()
        right += int((seen == y).sum())
        seen_more(len(y))
    return {"accuracy": right / len(test), "measured_images": len(test)}
