"""What a run needs, phase by phase: from a context to plans that are stored and replayed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from hardcase.campaign.claims import CLAIMED
from hardcase.campaign.loop import ENOUGH_TIME, SPENT, shard_size
from hardcase.campaign.record import Campaign, overlay, parse_keep, seconds
from hardcase.config import NO_SEARCH, Config, MethodConfig
from hardcase.context import QUERIES, SEEDS, Context
from hardcase.data.files import ImageSet
from hardcase.models.health import first_answers
from hardcase.models.load import is_stated
from hardcase.models.subject import Subject
from hardcase.request import settings_by_name
from hardcase.runs.identity import (
    NONE,
    Identity,
    code_digests,
    digest_of,
    identity_of,
    parts_of,
)
from hardcase.runs.measured import Measurement
from hardcase.runs.phases import MeasurePlan, settled_queries
from hardcase.runs.workers import Source, gpus
from hardcase.tensors import steady
from hardcase.types import Budget, Images, is_photographic

__all__ = ["FROM_PYTHON", "Plan", "measure_plan", "plan_of"]

_log = logging.getLogger(__name__)

TRAINED = {"space", "partners", "surrogates"}
"""What methods ask for that may have to be trained: not before all is measured."""
BACKWARD = 3
"""How many times the time of an answer its gradient takes, about."""
WITNESSES = 3
"""Witnesses of a search on small images, unless the user named them; on photographs a single
one."""
PLAIN = (bool, int, float, str)
"""Types of options that a configuration file can hold."""
FROM_PYTHON = (
    "# Started from Python with live objects: hc.resume(folder, subject, seeds, ...) goes on.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a search needs.

    Args:
        source: Builds the campaign, also in another process.
        campaign: What `source` builds, where this process has built it already.
        rounds: Shards that start from the same state of the guides.
        config: The text that re-creates the plan.
        about: More entries of the record.
        ingredients: Digests of the campaign's inputs that it does not hold itself.
    """

    source: Source
    images: ImageSet
    campaign: Campaign | None = None
    budget: Budget = field(default_factory=Budget)
    shard: int = 32
    rounds: int = 8
    workers: int = 1
    devices: tuple[str, ...] = ()
    cluster: str | None = None
    config: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    ingredients: Mapping[str, str] = field(default_factory=dict)

    def identity(self, campaign: Campaign) -> Identity:
        """Of the campaign that `source` builds, with everything it starts from."""
        budget = overlay(self.budget, campaign.method.budget)
        return identity_of(
            campaign,
            self.images,
            self.config,
            budget,
            ingredients=self.ingredients,
            shard=self.shard,
            rounds=self.rounds,
        )


def measure_plan(context: Context) -> MeasurePlan:
    """Everything that the measurement of a run needs; nothing is trained for it."""
    config = context.config
    if context.given_seeds is None:  # what is wrong with the data or the model is told first
        context.read(config.split)
    measurement = context.measurement
    if isinstance(measurement.model, Subject):  # why it cannot take such images is told first
        first_answers(measurement.model, context.sample.first(2))
    device = measurement.model.device
    _log.debug("the data and the model are loaded, on %s", device)
    _check_names(context)
    images = context.measured_images
    everything = config.measure == "all"
    most = len(images) if everything else cast("int | None", config.measure)
    source: Callable[[], Measurement] = partial(_itself, measurement)
    text = FROM_PYTHON
    if context.by_name:
        source = partial(_measurement_of, config)
        text = _resolved(context, {}).to_toml()
    total = config.budget.total_queries
    return MeasurePlan(
        measurement=measurement,
        images=images,
        source=source,
        most=most,
        queries=settled_queries(measurement, total, chosen=most),
        shard=_measured_at_once(context, measurement),
        config=text,
        about=_measure_about(context),
        identity=_measure_identity(context),
        workers=config.workers,
        devices=_devices(context),
        cluster=config.cluster,
        allow_low_accuracy=config.allow_low_accuracy,
        search_seconds=partial(_search_seconds, context),
    )


def _search_seconds(context: Context, query: float) -> tuple[float, float] | None:
    """How long the search takes usually, and at most, where a model answers an image in `query`
    seconds; None: what it needs is trained first, which says how long that takes.
    """
    config = context.config
    if config.method.name == NO_SEARCH:
        return (0.0, 0.0)
    ingredients = {*context.part.given}
    if {"space", "partners"} & ingredients:
        return None
    queries = config.budget.queries or QUERIES
    if "surrogates" not in ingredients:  # then the method is built, for nothing is trained for it
        budget = overlay(Budget(**config.budget.model_dump()), context.method.budget)
        queries = max(budget.queries or 0, BACKWARD * (budget.gradients or 0))
    photographs = is_photographic(context.shape)
    networks = 1 + len(config.peers)
    if context.part.facts.get("witnesses") == "default" and config.witnesses is None:
        networks += 1 if photographs else WITNESSES
    count = min(config.images or SEEDS, len(context.all_images))
    most = count * queries * networks * query
    usual = SPENT * most
    if photographs and config.images is None and usual > ENOUGH_TIME:  # of fewer images
        return ENOUGH_TIME, ENOUGH_TIME / SPENT
    return usual, most


def _check_names(context: Context) -> None:
    """Raise for wrong names of later phases before the first phase begins."""
    config = context.config
    if config.criteria is not None:
        from hardcase.criteria.criterion import parse_list

        parse_list(config.criteria)
    if not config.method.searches:
        return
    seconds(config.budget.time)
    if config.keep is not None:
        parse_keep(config.keep)
    _ = context.options
    _ = context.target
    _ = context.map_cells
    if not TRAINED & {*context.part.given}:  # then it is built at once
        _ = context.method


def _measured_at_once(context: Context, measurement: Measurement) -> int:
    """Images of a shard of the measurement: the same on every number of workers."""
    numbers = math.prod(context.shape)
    if not steady(measurement.model.device):
        return 1024 if numbers < 2**15 else 128
    return max(32, min(256, 2**20 // numbers))


def _measure_about(context: Context) -> dict[str, Any]:
    """What run.json says when a run begins, beyond the model's health."""
    config = context.config
    conditions = context.conditions
    box = context.measurement.box
    images = context.all_images
    about: dict[str, Any] = {
        "method": config.method.name,
        "model": config.model.name,
        "data": context.data,
        "split": images.split,
        "classes": list(images.classes),
        "shape": list(context.shape),
        "seed": config.seed,
        "samples": 0 if conditions is None else config.samples,
        "conditions": None if conditions is None else conditions.to_record(),
        "conditions_digest": None if box is None else box.digest(),
        "budget": {},
        "tile": None,
        "precision": config.precision,
        "hashes": {"model": context.subject.hash},
        "given": dict(_resolved(context, {}).given),
        "keep": config.keep,
    }
    if CLAIMED in context.sample.context:
        from hardcase.claims.load import claim_record

        about["claims"] = claim_record(images.images(), context.task.name, context.subject)
    return about


def _measure_identity(context: Context) -> Identity:
    """Of everything that the measurement rests on."""
    measurement = context.measurement
    images = context.measured_images
    held = images.hash if isinstance(images, Images) else NONE
    box = measurement.box
    return Identity(
        {
            **parts_of(measurement.model, device=measurement.model.device.type),
            "measured images": digest_of([images.id, images.y.tolist(), images.classes, held]),
            "conditions": NONE if box is None else box.digest(),
            "samples": str(measurement.samples),
            "measured": str(context.config.measure),
            "seed": str(measurement.seed),
            **{f"baseline {i}": model.hash for i, model in enumerate(measurement.baselines, 1)},
            **code_digests({"model": context.config.model.name, "data": context.config.data}),
        }
    )


def plan_of(context: Context) -> Plan:
    """Everything that the search of a run on disk needs."""
    config = context.config
    if context.given_seeds is None:  # what is wrong with the data or the model is told first
        context.read(config.split)
    _check_names(context)
    needed = ["method", "map_cells", "witnesses"]
    if "space" in context.part.given:
        needed = ["options", "generator", *needed]
    for ingredient in needed:  # what may be wrong is told before what takes its time
        getattr(context, ingredient)
    campaign = context.campaign
    device = campaign.subject.device
    shard = config.campaign.shard
    if shard is None:
        shard = shard_size(campaign.method, math.prod(context.shape), device)
    source: Callable[[], Campaign] = partial(_itself, campaign)
    text = FROM_PYTHON
    if context.by_name:
        source = partial(_campaign_of, config.model_copy(update=_settled(context)))
        text = _resolved(context, _search_settings(context, shard)).to_toml()
    ingredients = {**code_digests(config.model_dump()), "training data": NONE}
    if "train" in context.loaded:  # where it was used
        ingredients["training data"] = context.loaded["train"].hash
    if campaign.method.details.get("surrogates"):
        ingredients["surrogates"] = " ".join(campaign.method.details["surrogates"])
    return Plan(
        source=source,
        campaign=campaign,
        images=context.seeds,
        budget=Budget(**config.budget.model_dump()),
        shard=shard,
        rounds=config.campaign.round or (1 if campaign.method.guides else 8),
        workers=config.workers,
        devices=_devices(context),
        cluster=config.cluster,
        config=text,
        about=_about(context),
        ingredients=ingredients,
    )


def _devices(context: Context) -> tuple[str, ...]:
    """The GPUs that worker processes use: all of them, unless the user named a device."""
    device = context.subject.device
    named = ":" in context.config.device or device.index not in (None, 0)
    return gpus(torch.cuda.device_count()) if device.type == "cuda" and not named else ()


def _resolved(context: Context, chosen: Mapping[str, Any]) -> Config:
    """The configuration with what was chosen for it, so that it re-runs the same way."""
    config = context.config
    changed: dict[str, Any] = {
        "device": context.device,
        "data": context.data,
        "conditions": config.conditions or getattr(context.conditions, "name", "none"),
        **chosen,
    }
    if isinstance(context.subject, Subject) and not is_stated(config.model.name):
        mean = tuple(context.subject.mean.flatten().tolist())
        std = tuple(context.subject.std.flatten().tolist())
        changed["model"] = config.model.model_copy(update={"mean": mean, "std": std})
    resolved = config.model_copy(update=changed)
    before = dict(settings_by_name(config.model_dump()))
    now = dict(settings_by_name(resolved.model_dump()))
    by_default = {
        name: "default"
        for name, value in now.items()
        if name not in config.given and before.get(name) != value
    }
    sources = dict(sorted({**config.given, **by_default}.items()))  # however the run came here
    return resolved.given_by(sources)


def _settled(context: Context) -> dict[str, Any]:
    """Choices by a clock: whether default networks are worth their training.
    Workers, and whoever resumes the run, do not choose again.
    """
    config = context.config
    changed: dict[str, Any] = {}
    if config.witnesses is None and not context.witnesses:
        changed["witnesses"] = ("none",)
    search = context.method.details.get("options", {}).get("search")
    if "surrogates" in context.part.given and search:
        options = {**config.method.options(), "search": search}
        changed["method"] = MethodConfig(name=config.method.name, **options)
    return changed


def _search_settings(context: Context, shard: int) -> dict[str, Any]:
    """Choices for the search that depend on its ingredients."""
    config = context.config
    options = context.method.details.get("options", {})
    plain = {name: value for name, value in options.items() if isinstance(value, PLAIN)}
    if config.budget.queries is not None and "queries" in plain:
        # the budget is stored as such, and the method is built again as it was
        default = context.part.options["queries"].default
        plain["queries"] = config.method.options().get("queries", default)
    return {
        **_settled(context),
        "campaign": config.campaign.model_copy(update={"shard": shard, "tile": context.tile}),
        "images": config.images or len(context.seeds),
        "method": MethodConfig(name=config.method.name, **plain),
    }


def _about(context: Context) -> dict[str, Any]:
    """What run.json says beyond the campaign itself."""
    config = context.config
    about: dict[str, Any] = {"keep": config.keep}
    if any(witness.name.startswith("witness:") for witness in context.witnesses):
        from hardcase.models.witnesses import witness_record

        margin = config.campaign.margin
        about["witnesses"] = witness_record(
            context.subject, context.witnesses, margin, context.train
        )
    if config.judge_features:
        about["judge_features"] = list(config.judge_features)
    if context.regressing:
        about["baseline"] = context.baselines[0].name
    if context.generated:
        about["generated_images"] = context.generated
    if context.map_cells is not None:
        from hardcase.analysis.maps import record

        about["map"] = record(context.map_cells)
    return about


def _campaign_of(config: Config) -> Campaign:
    """A campaign from its configuration, in whatever process needs it."""
    return Context(config).campaign


def _measurement_of(config: Config) -> Measurement:
    """What measuring needs from its configuration, in whatever process needs it."""
    return Context(config).measurement


def _itself(ingredients: Any) -> Any:
    return ingredients
