"""Which judge a run gets, by the rows of ``hardcase list judges``, and whether it is independent.

A judge must not have been trained on the run's images, share a network or a model family with the
search, or judge data outside its domain. Where its training covers the searched changes (a panel
that learned that bending keeps a label cannot be surprised by bent digits), a second judge, trained
without that family of changes, judges as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hardcase import registry
from hardcase.data.files import HELD, ImageSet
from hardcase.data.sources import large, load
from hardcase.errors import HardcaseError
from hardcase.judges import panel
from hardcase.judges.features import Encoder
from hardcase.judges.judge import (
    JudgeRequest,
    NormJudge,
    Provenance,
    TrainedJudge,
)
from hardcase.judges.photographs import (
    FEWEST_IMAGES,
    ReservedJudge,
    encoder_of,
    feature_judge,
    head_of,
    is_made,
    reserved_judge,
)
from hardcase.judges.training_data import FAMILIES, families_of_space
from hardcase.models.fetching import fetched_classifiers, is_fetched, known_as
from hardcase.models.load import lineage_of
from hardcase.models.names import aligned
from hardcase.models.pretrained import PRETRAINED
from hardcase.models.witnesses import OWN, roles
from hardcase.runs.identity import require
from hardcase.runs.results import Run
from hardcase.runs.tables import group_rows
from hardcase.statistics import Rate
from hardcase.tensors import chunks, fingerprints
from hardcase.training import cards
from hardcase.types import Images, Judge, Verdicts, is_photographic

FEATURES = tuple(name for name, row in PRETRAINED.items() if row.outputs == "features")
"""Networks that name no class: they say how near images are to real ones."""
KNOWN = 0.01
"""Share of images that a judge may have been trained on; data sets do hold some images twice."""


def default_judge(run: Run, request: JudgeRequest) -> Judge:
    """Return the judge that suits a run's images, trained on the split that the run does not use.

    Photographs without enough other images for a panel are judged by a network alone.
    """
    wanted = features_of(run, request.features)
    if not wanted:
        return panel_for(run, request)
    named = bool(request.features or run.record.get("judge_features"))
    first, second = _splits_of(run, request)
    encoders = _encoders(run, request, wanted, first, second)
    enough = len(first) >= FEWEST_IMAGES
    if named or (enough and (request.train or is_made(encoders, first, seed=request.seed))):
        return _fitted(run, request, encoders, first, second)
    if enough and head_of(encoders[0], second) is None:
        raise HardcaseError(
            f"{encoders[0].spec} has to be fitted to the classes of these photographs first.",
            fix=f"hardcase judge {run.folder}, which takes minutes, once",
        )
    return reserved_judge(encoders[0], second)


@registry.judge(
    panel.NAME,
    needs="the training split of the data; hardcase train judge",
    paper=(
        "Riccio and Tonella, ICSE 2023 (the study it is measured against); "
        "Serrà et al., ICLR 2020; Wong, Rice and Kolter, ICLR 2020"
    ),
    cite=("riccio2023validity", "serra2020complexity", "wong2020fast"),
    laws=(
        "took no part in the search",
        "never saw the images",
        "a verdict belongs to an image",
    ),
)
def panel_for(run: Run, request: JudgeRequest) -> TrainedJudge:
    """Ask small networks, trained three times on the run's other split, of small images."""
    first, second = (part.images() for part in _splits_of(run, request))
    there = panel.folder(first, second, seed=request.seed) / cards.CARD
    if not (request.train or there.is_file()):
        raise HardcaseError(
            f"the judge of {run.record['data']} is not trained yet.",
            fix=f"hardcase judge {run.folder}, which trains it once",
        )
    if _searches_data(run):
        _same_data(run, second)
    return panel.trained(
        first,
        second,
        seed=request.seed,
        people=request.people,
        device=request.device,
        progress=request.progress,
    )


@registry.judge(
    "photographs",
    needs="a pretrained network of another model family and photographs beside the run's",
    paper="ours; Lee et al., NeurIPS 2018 (distances); Mittal et al., IEEE SPL 2013 (textures)",
    laws=(
        "took no part in the search",
        "never saw the images",
        "a verdict belongs to an image",
    ),
)
def photographs_for(run: Run, request: JudgeRequest) -> TrainedJudge:
    """Read features of pretrained networks that took no part in the search, of photographs."""
    first, second = _splits_of(run, request)
    wanted = _required_features(run, request)
    encoders = _encoders(run, request, wanted, first, second)
    return _fitted(run, request, encoders, first, second)


@registry.judge(
    "reserved",
    needs="a pretrained network of another model family that knows the classes",
    paper="ours",
    laws=("took no part in the search", "a verdict belongs to an image"),
)
def reserved_for(run: Run, request: JudgeRequest) -> ReservedJudge:
    """Judge by a pretrained network that took no part in the search, without training."""
    first, second = _splits_of(run, request)
    wanted = _required_features(run, request)[:1]
    return reserved_judge(_encoders(run, request, wanted, first, second)[0], second)


@registry.judge(
    "norm",
    needs="nothing; asked of every run, before any other judge",
    paper="ours",
    laws=("only changes of at most 8/255 are decided", "a verdict belongs to an image"),
)
def norm_for(run: Run, request: JudgeRequest) -> NormJudge:
    """Decide only what changed by at most 8/255, which is too little to change a label."""
    return NormJudge()


def _required_features(run: Run, request: JudgeRequest) -> tuple[str, ...]:
    wanted = features_of(run, request.features)
    if not wanted:
        raise HardcaseError(
            "this judge reads features of pretrained networks, and small images have none.",
            fix="--judge panel, or --judge-features MODEL",
        )
    return wanted


def _searches_data(run: Run) -> bool:
    """Whether a run has searched images of its data: not if it was measured alone, nor if a
    generator made them.
    """
    names = run.seeds["id"]
    return len(names) > 0 and not str(names[0]).startswith("generated")


def _encoders(
    run: Run, request: JudgeRequest, wanted: Sequence[str], first: ImageSet, second: ImageSet
) -> list[Encoder]:
    """Load the networks whose features are read; none of them had a part in the search."""
    if request.people is not None:
        raise HardcaseError(
            "counts of people train the judge of small images; these are judged by features of"
            " networks that others have trained.",
            fix="leave out --people",
        )
    if _searches_data(run):
        _same_data(run, second)
    for spec in wanted:
        _other_lineage(run, spec, lineage_of(spec))
    encoders = [
        encoder_of(
            spec, *_needed(spec, first, second), device=request.device, offline=request.offline
        )
        for spec in wanted
    ]
    for each in encoders:
        _took_no_part(run, {each.hash: each.spec, each.subject.weights: each.spec})
    return encoders


def _fitted(
    run: Run,
    request: JudgeRequest,
    encoders: Sequence[Encoder],
    first: ImageSet,
    second: ImageSet,
) -> TrainedJudge:
    """Fit probes to photographs that are none of the run's."""
    return feature_judge(
        [each.spec for each in encoders],
        first.images(),
        _sample(second, HELD // math.prod(second.shape)),
        seed=request.seed,
        device=request.device,
        encoders=encoders,
        progress=request.progress,
    )


def _needed(spec: str, first: ImageSet, second: ImageSet) -> tuple[Images, Images]:
    """The arguments of loading a network: only a network that is trained here needs all images."""
    if spec.startswith("zoo:") and not lineage_of(spec):
        return first.images(), second.images()
    return _sample(first), _sample(second)


def _sample(images: ImageSet, count: int = 256) -> Images:
    """All of what is in memory, evenly spaced images of what is not."""
    if isinstance(images, Images):
        return images
    return images.take(torch.linspace(0, len(images) - 1, min(count, len(images))).long()).images()


def _searched(run: Run) -> dict[str, list[str]]:
    """The families of training data that the space of a run belongs to, with its parts."""
    return families_of_space(str((run.record.get("space") or {}).get("text") or ""))


def held_out_judge(run: Run, judge: Judge, request: JudgeRequest) -> TrainedJudge | None:
    """Return the judge of the same data whose training leaves out what was searched; None where
    the judge was not trained on it, or where there is none and none may be trained.
    """
    families = [name for name in _searched(run) if name in provenance_of(judge).families]
    if not run.record.get("space") or not families:
        return None
    first, second = (part.images() for part in _splits_of(run, request))
    usual = panel.config_for(first, second, seed=request.seed, device=request.device)
    config = replace(usual, held_out_families=tuple(families))
    folder = panel.folder(first, second, seed=request.seed, config=config)
    if not request.train and not (folder / cards.CARD).is_file():
        return None
    return panel.trained(
        first,
        second,
        seed=request.seed,
        config=config,
        device=request.device,
        progress=request.progress,
    )


def provenance_of(judge: Judge) -> Provenance:
    """Return the ingredients of a judge; those of a user's judge are unknown."""
    provenance: Provenance = getattr(judge, "provenance", Provenance())
    return provenance


def held_out_entry(run: Run, judge: TrainedJudge, verdicts: Verdicts) -> dict[str, Any]:
    """Return what run.json and the report say of the held-out judge."""
    rows = zip(run.findings["original"].to_pylist(), verdicts.verdict, strict=True)
    accepted = {seed for seed, verdict in rows if verdict == "kept"}
    attempted = run.counts()["search_results"]["searched"] or 0
    return {
        "held_out": list(_searched(run)),
        **{name: judge.card[name] for name in ("weights", "accuracy", "measured_images")},
        "accepted": Rate(len(accepted), attempted).to_json(),
    }


def held_out_in_words(entry: Mapping[str, Any]) -> str:
    """Return the line that a summary says of the held-out judge."""
    families = " and ".join(entry["held_out"])
    rate = Rate.from_json(entry["accepted"])
    return f"second check: networks that were never trained on {families} accept {rate}"


def features_of(run: Run, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return whose features judge a run: those that the user named, those of the run, or for
    photographs the best."""
    if given:
        return tuple(given)
    stated = tuple(run.record.get("judge_features") or ())
    if stated:
        require({"judge_features": stated}, run.folder)
    if stated or not is_photographic(run.record["shape"]):
        return stated
    parameters = (run.record.get("hashes") or {}).get("parameters") or {}
    subject = known_as(run.record["model"], parameters.get("model", ""))
    used = {run.record["model"], subject, *_witness_names(run)}
    present = [name for name in fetched_classifiers() if f"zoo:{name}" not in used]
    chosen = roles(subject, present)
    used_families = {lineage_of(name) for name in used}
    if not chosen.judge or lineage_of(chosen.judge) in used_families:
        raise HardcaseError(
            "no network is on this machine that could judge these photographs: "
            "small networks trained on them read too few rightly.",
            chosen.note or "All that are here took part in the search.",
            fix=f"hardcase fetch model resnet50-imagenet, then hardcase judge {run.folder}",
        )
    lineages = {**dict.fromkeys(used_families, ""), lineage_of(chosen.judge): chosen.judge}
    ranked = sorted(present, key=lambda name: -(PRETRAINED[name].accuracy or 0.0))
    for name in [*ranked, *filter(is_fetched, FEATURES)]:  # one vote a lineage
        lineages.setdefault(lineage_of(name), name)
    return tuple(
        f"zoo:{name}" for name in dict.fromkeys([chosen.judge, *lineages.values()]) if name
    )


def _witness_names(run: Run) -> list[str]:
    witnesses = run.record.get("witnesses")
    if not isinstance(witnesses, Mapping):
        return []
    return list(map(str, witnesses.get("models", ())))


def _splits_of(run: Run, request: JudgeRequest) -> tuple[ImageSet, ImageSet]:
    """What the judge of a run is trained on, and the split that holds the run's seeds; very many
    images stay in their files.
    """
    name = run.record["data"]

    def get(split: str) -> ImageSet:
        if request.images is not None:
            return request.images(split).held()
        images = large(name, split) or load(name, split=split, offline=request.offline)
        classes = tuple(run.record["classes"])
        if images.classes != classes:
            images = aligned(images, classes)
        return images.held()

    own = run.record.get("split", "test")
    photographs = is_photographic(run.record["shape"])
    names = ["test", "train"]
    if own == "train":
        names.reverse()
    second = get(names[0])
    if not photographs:
        return get(names[1]), second
    nothing = _sample(second).take(torch.arange(0))
    if own == "all":  # all may serve as seeds: nothing is left to train on
        return nothing, second
    try:
        return get(names[1]), second
    except HardcaseError:
        return nothing, second  # one photograph per class leaves no other


def _same_data(run: Run, images: ImageSet) -> None:
    """Refuse a data set of the same name that does not hold the run's seeds."""
    rows = {name: i for i, name in enumerate(images.id)}
    ids = run.seeds["id"].to_pylist()
    strange = [name for name in ids if name not in rows]
    for part in chunks(len(ids), group_rows(images.shape)):
        if strange:
            break
        now = images.take(torch.tensor([rows[name] for name in ids[part]])).images().x
        stored = run.seed_images(range(len(ids))[part])
        if not torch.equal(now, stored):
            strange = [name for name, same in zip(ids[part], _equal(now, stored)) if not same]
    if strange:
        raise HardcaseError(
            f"{images.name} as it is now does not hold the run's seed {strange[0]!r}; these are"
            " other data.",
            "A judge of other data says little about these images.",
            fix="the data that the run was made with, or --data D",
        )


def _equal(now: torch.Tensor, stored: torch.Tensor) -> list[bool]:
    same: list[bool] = (now == stored).flatten(1).all(1).tolist()
    return same


def check(run: Run, known: Provenance) -> None:
    """Refuse a judge that may not judge a run, by its ingredients."""
    shape = (*run.record["shape"], len(run.record["classes"]))
    if known.image is not None and known.image != shape:
        shapes = ["{} x {} x {} with {} classes".format(*each) for each in (shape, known.image)]
        raise HardcaseError(
            f"the run has images of {shapes[0]}; the judge was made for {shapes[1]}.",
            fix="hardcase judge RUN without --judge trains one for the run's own data",
        )
    _took_no_part(run, known.networks)
    for lineage in known.lineages:
        _other_lineage(run, "its encoder", lineage)
    if known.learned is not None:
        _never_seen(run, known.learned)


def _took_no_part(run: Run, names: Mapping[str, str]) -> None:
    """Refuse a judge if the search has used any of its networks (name by hash)."""
    used = _hashes(run.record.get("hashes") or {})
    for role, digest in used.items():
        if digest in names:
            raise HardcaseError(
                f"the search used a network of this judge: its {role.removeprefix('parameters ')}"
                f" is the judge's {names[digest]}.",
                "It would accept its own mistakes.",
                fix="train another judge: hardcase train judge --seed N, then --judge",
            )


def _other_lineage(run: Run, network: str, lineage: str) -> None:
    """Refuse a network of the judge whose lineage the search has used: they err together."""
    record = run.record
    used = {"model": lineage_of(str(record["model"]))}
    used |= {f"witness {name}": lineage_of(name) for name in _witness_names(run)}
    used |= _hashes(record.get("lineages") or {})
    for role, other in used.items():
        if lineage and lineage == other:
            raise HardcaseError(
                f"the run's {role} and the judge's network ({network}) are of one model family,"
                f" {lineage}.",
                "Networks of one family err together; it would accept their common mistakes.",
                fix="--judge-features with a network of another family, as zoo:resnet50-imagenet",
            )


def _never_seen(run: Run, known: torch.Tensor) -> None:
    total = len(run.seeds)
    count = sum(
        int(torch.isin(fingerprints(run.seed_images(range(total)[part])), known).sum())
        for part in chunks(total, group_rows(run.record["shape"]))
    )
    if count > KNOWN * total:
        raise HardcaseError(
            f"the judge was trained on {count} of the {total} seeds.",
            "It knows them by heart and would keep their label whatever was done to them.",
            fix="a judge trained on another split: hardcase judge RUN without --judge picks it",
        )


def _hashes(record: Mapping[str, Any]) -> dict[str, str]:
    """Every network hash of a run, by the role it played."""
    flat: dict[str, str] = {}
    for role, value in record.items():
        if role == "data" or value is None:
            continue
        inner: dict[Any, Any] = {"": value}
        if isinstance(value, Mapping):
            inner = dict(value)
        elif isinstance(value, list):
            inner = dict(enumerate(value, 1))
        flat |= {f"{role} {name}".strip(): str(digest) for name, digest in inner.items()}
    return flat


def independence(run: Run, judge: Provenance) -> dict[str, Any] | None:
    """Return how far a judge is independent of a run's witnesses; None without any."""
    witnesses = run.record.get("witnesses")
    if not witnesses or not judge.networks:
        return None
    record = witnesses.get("independence") or {}
    images = record.get("training_images")
    shared: dict[str, int] | str = "not known"
    trained_on: list[str] | str = "not known"
    searched = list[str]()
    if judge.families:
        trained_on = [word for name in judge.families for word in FAMILIES[name].words]
        parts = _searched(run)
        searched = [part for name in judge.families for part in parts.get(name, [])]
    if (
        isinstance(images, Mapping)
        and images.get("data") == judge.data
        and judge.learned is not None
    ):
        both = int((judge.learned % 2 == 0).sum())  # witnesses are trained on even content hashes
        shared = {"shared": both, "witnesses": images["images"], "judge": len(judge.learned)}
    return {
        "networks": "none shared",
        "lineage": {**dict(record.get("lineage") or {}), "judge": list(judge.lineages) or [OWN]},
        "training_images": shared,
        "trained_on": {
            "witnesses": record.get("trained_on", "not known"),
            "judge": trained_on,
            "searched": searched,
        },
    }


def independence_in_words(entry: Mapping[str, Any] | None) -> list[str]:
    """Return the same in lines for people, a line for each of the four parts."""
    if not entry:
        return []
    names = {
        role: value if isinstance(value, str) else " and ".join(dict.fromkeys(value))
        for role, value in entry["lineage"].items()
    }
    images = entry["training_images"]
    shared = "whether witnesses and judge share any is not known"
    if isinstance(images, Mapping):
        shared = (
            f"of the {images['witnesses']:,} that the witnesses were trained on, "
            f"the judge was trained on {images['shared']:,} too"
        )
    lineage = "lineage: " + ", ".join(f"{role} {text}" for role, text in names.items())
    if entry["lineage"].get("model") in (entry["lineage"].get("witnesses") or ()):
        lineage += "; one witness belongs to the model's family"
    trained_on = f"witnesses were trained on: {entry['trained_on']['witnesses']}"
    searched = " and ".join(entry["trained_on"]["searched"])
    if searched:
        trained_on += (
            f"; the judge was trained to keep the label under changes of {searched}: its answer is"
            " partly so by construction (hardcase judge RUN --held-out-judge asks another too)"
        )
    return [
        "networks: witnesses and judge share none",
        lineage,
        f"training images: {shared}",
        trained_on,
    ]
