"""Better than what: models of the same data, and stored runs, beside whose risk that of a subject
stands, seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from hardcase.cache import named_path
from hardcase.conditions import Conditions, compare_risk
from hardcase.conditions.risk import DRAWS, Bounds, RiskComparison
from hardcase.config import is_run
from hardcase.data.files import ImageSet
from hardcase.errors import Problem
from hardcase.models.fetching import fetched_classifiers
from hardcase.models.load import is_stated
from hardcase.models.names import COUNT as IMAGENET
from hardcase.models.subject import Subject
from hardcase.models.witnesses import LARGEST
from hardcase.models.zoo import cached_classifiers, trained_classifier
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_beside
from hardcase.tensors import chunks
from hardcase.types import Images, Model

MOST = 2
"""References that nobody named: each is asked a quarter as much as the subject."""
ROWS = 64
"""Images that are compared at once."""


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """A model beside whose risk that of the subject stands."""

    model: Model
    training: str = ""

    @property
    def name(self) -> str:
        return self.model.name


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A stored run beside whose risk that of the subject stands: its model is not asked again."""

    run: Run
    training: str = ""

    @property
    def name(self) -> str:
        return f"{self.run.record['model']} in {self.run.folder.name}"

    def rows(self) -> list[dict[str, Any]]:
        """What happened to every seed, as `conditions.json` keeps it."""
        rows: list[dict[str, Any]] = _kept(self.run)["seeds"]
        return rows

    def check(self, conditions: Conditions, seeds: ImageSet, seed: int) -> None:
        """Refuse a run that was measured otherwise."""
        facts = {"conditions": conditions.to_record(), "draws": DRAWS, "seed": seed}
        _same_figures(self.run, facts)
        rows = {name: row for row, name in enumerate(seeds.id)}
        common = _common(rows, _shares(self.run), self.run)

        def own(names: list[str]) -> UInt8[Tensor, "r c h w"]:
            return seeds.take(torch.tensor([rows[name] for name in names])).images().x

        if seeds.hash != self.run.record["hashes"]["data"]:
            _same_images(own, self.run, common)


Reference = ReferenceModel | ReferenceRun


def named_references(
    baseline: str | None, names: Sequence[str], load: Callable[[str], Model]
) -> list[Reference]:
    """Return the models that a user named, the version before first."""
    found = list[Reference]()
    if baseline is not None:
        found.append(ReferenceModel(load(baseline), "the version before"))
    for name in names:
        if is_run(name):
            found.append(ReferenceRun(Run(named_path(name)), "measured before"))
            continue
        own = name.startswith("zoo:") and not is_stated(name)
        found.append(ReferenceModel(load(name), "trained here by its recipe" if own else ""))
    return found


def usual_references(
    subject: Model,
    shape: Sequence[int],
    classes: int,
    images: Callable[[str], Images],
    load: Callable[[str], Model],
) -> list[ReferenceModel]:
    """Return plain networks of the same data that are at hand: nothing is trained or fetched.

    Witnesses are none: they learned half of the data, and to read it bent."""
    if classes == IMAGENET:
        named = fetched_classifiers()[: MOST + 1]
        training = "trained by others on ImageNet"
        models = [load(f"zoo:{name}") for name in named]
    elif max(shape[1:]) <= LARGEST:
        try:
            train, test = images("train"), images("test")
            named = cached_classifiers(train, test)[: MOST + 1]
        except Problem:  # images without a training split have no such networks
            return []
        training = f"trained on all {len(train):,} training images"
        models = [_plain(name, train, test, subject.device) for name in named]
    else:
        return []
    others = [ReferenceModel(one, training) for one in models if one.hash != subject.hash]
    return others[:MOST]


def _plain(name: str, train: Images, test: Images, device: torch.device) -> Model:
    """A network of the zoo as its recipe trains it: it wants its images as they are."""
    net, _ = trained_classifier(name, train, test, device=device)
    return Subject(net, classes=test.classes, name=f"zoo:{name}", device=device)


def beside_references(record: Mapping[str, Any], *, margin: float) -> dict[str, RiskComparison]:
    """Return how a run's risk compares with that of each reference it was measured beside."""
    return {
        one["name"]: RiskComparison(
            one["difference"], Bounds(one["low"], one["high"]), one["seeds"], margin
        )
        for one in (record.get("risk") or {}).get("references", ())
    }


def against(run: Run, baseline: Run, *, margin: float) -> RiskComparison:
    """Compare the risks of two runs seed by seed, under the same conditions."""
    if not run.record.get("risk"):
        _same_figures(run, {})
    facts = {**run.record, "draws": _kept(run)["draws"]}
    _same_figures(baseline, {name: facts[name] for name in ("conditions", "draws", "seed")})
    first, second = _shares(run), _shares(baseline)
    common = _common(first, second, baseline)
    if run.record["hashes"]["data"] != baseline.record["hashes"]["data"]:
        _same_images(partial(_stored_images, run), baseline, common)
    claims = bool(run.record.get("claims"))
    return compare_risk(first, second, margin=margin, claims=claims)


def _same_figures(run: Run, wanted: Mapping[str, Any]) -> None:
    """Refuse a run whose conditions, draws or seed of the draws are others."""
    if not run.record.get("risk"):
        raise Problem(
            f"{run.folder} has no risk: it was run without declared conditions.",
            fix="hardcase run ... --conditions scanner",
        )
    seen = {**run.record, "draws": _kept(run)["draws"]}
    lines = list[str]()
    for name, value in wanted.items():
        if seen[name] == value:
            continue
        if name == "conditions":
            keys = [key for key in {**value, **seen[name]} if value.get(key) != seen[name].get(key)]
            lines += [f"{key}: {value.get(key)}, there {seen[name].get(key)}" for key in keys]
        else:
            lines.append(f"{name}: {value}, there {seen[name]}")
    if lines:
        raise Problem(
            f"{run.folder} was measured under other conditions, so risks cannot be compared.",
            *lines,
            fix="a run of that model with the same conditions and --seed",
        )


def _common(own: Mapping[str, Any], theirs: Mapping[str, Any], run: Run) -> list[str]:
    """The seeds that both have; a Problem where there are none."""
    common = [name for name in own if name in theirs]
    if not common:
        raise Problem(
            f"{run.folder} has no seed in common with this run, so risks cannot be compared.",
            f"data there: {run.record['data']}",
        )
    return common


def _stored_images(run: Run, names: list[str]) -> UInt8[Tensor, "r c h w"]:
    return run.seed_images([run.seed_rows[name] for name in names])


def _same_images(
    own: Callable[[list[str]], UInt8[Tensor, "r c h w"]], run: Run, names: list[str]
) -> None:
    """Refuse a run whose seeds of the same name are other images."""
    for part in chunks(len(names), ROWS):
        first, second = own(names[part]), _stored_images(run, names[part])
        other = [0]
        if first.shape == second.shape:
            other = (first != second).flatten(1).any(1).nonzero().flatten().tolist()
        if other:
            raise Problem(
                f"{run.folder} has other images, so risks cannot be compared.",
                f"{names[part][other[0]]} is another image there",
                f"data there: {run.record['data']}",
            )


def paired_differences(run: Run, baseline: Run) -> NDArray[np.float64]:
    """Return the share of failing draws in one run less that in another, by common seed."""
    first, second = _shares(run), _shares(baseline)
    return np.array([first[name] - second[name] for name in first if name in second])


def _kept(run: Run) -> dict[str, Any]:
    """What a run keeps of every seed under its conditions."""
    kept = read_beside(run.store, CONDITIONS)
    if kept is None:
        raise Problem(f"{run.folder / CONDITIONS} is missing, damaged or of another run.")
    return kept


def _shares(run: Run) -> dict[str, float]:
    """The share of failing draws by seed."""
    kept = _kept(run)
    return {row["id"]: row["failing"] / kept["draws"] for row in kept["seeds"]}
