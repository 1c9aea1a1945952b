"""What a campaign needs beyond its parts to become a run on disk."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hardcase.campaign.claims import claim_context
from hardcase.campaign.loop import shard_size
from hardcase.campaign.record import Campaign
from hardcase.config import Config, MethodConfig
from hardcase.context import Context
from hardcase.models.load import is_stated
from hardcase.models.subject import Subject
from hardcase.runs.identity import code_digests
from hardcase.runs.start import Plan
from hardcase.runs.workers import gpus
from hardcase.types import Budget

if TYPE_CHECKING:
    from hardcase.conditions.declared import Conditions

__all__ = ["plan_of"]

PLAIN = (bool, int, float, str)
"""Types of options that a configuration file can hold."""
FROM_PYTHON = (
    "# Started from Python with live objects: hc.resume(folder, subject, seeds, ...) goes on.\n"
)

_log = logging.getLogger(__name__)


def plan_of(context: Context) -> Plan:
    """Everything that a run of this campaign on disk needs."""
    config = context.config
    if context.given_seeds is None:  # what is wrong with the data or the model is told first
        context.read(config.split)
    device = context.subject.device
    _log.debug("the data and the model are loaded, on %s", device)
    if config.criteria is not None:
        from hardcase.criteria.criterion import parse_list

        parse_list(config.criteria)
    if context.conditions is not None:
        _check_conditions(context, context.conditions)
    campaign = context.campaign
    shard = config.campaign.shard
    if shard is None:
        shard = shard_size(campaign.method, math.prod(context.shape), device)
    source: Callable[[], Campaign] = partial(_itself, campaign)
    text = FROM_PYTHON
    if context.by_name:
        source = partial(_campaign_of, config)
        text = _resolved(context, shard).to_toml()
    devices: tuple[str, ...] = ()  # worker processes use all GPUs, unless one was named
    if device.type == "cuda" and device.index in (None, 0) and ":" not in config.device:
        devices = gpus(torch.cuda.device_count())
    ingredients = {**code_digests(config.model_dump()), "training data": "none"}
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
        devices=devices,
        cluster=config.cluster,
        metrics=None if config.metrics is None else Path(config.metrics),
        allow_low_accuracy=config.allow_low_accuracy,
        config=text,
        about=_about(context),
        ingredients=ingredients,
    )


def _resolved(context: Context, shard: int) -> Config:
    """The configuration with what was chosen for it, so that it re-runs the same way."""
    config = context.config
    changed: dict[str, Any] = {
        "campaign": config.campaign.model_copy(update={"shard": shard, "tile": context.tile}),
        "device": context.device,
        "data": context.data,
        "seeds": config.seeds or len(context.seeds),
        "conditions": config.conditions or getattr(context.conditions, "name", "none"),
    }
    if isinstance(context.subject, Subject) and not is_stated(config.model):
        mean = tuple(context.subject.mean.flatten().tolist())
        std = tuple(context.subject.std.flatten().tolist())
        changed["subject"] = config.subject.model_copy(update={"mean": mean, "std": std})
    options = context.method.details.get("options", {})
    plain = {name: value for name, value in options.items() if isinstance(value, PLAIN)}
    changed["method"] = MethodConfig(name=config.method.name, **plain)
    return config.model_copy(update=changed)


def _about(context: Context) -> dict[str, Any]:
    """What run.json says beyond the campaign itcontext."""
    config = context.config
    about: dict[str, Any] = {"model": config.model, "data": context.data, "keep": config.keep}
    if any(witness.name.startswith("witness:") for witness in context.witnesses):
        from hardcase.models.witnesses import witness_record

        margin = config.campaign.margin
        about["witnesses"] = witness_record(
            context.subject, context.witnesses, margin, context.train
        )
    if claim_context(context.sample.context):
        from hardcase.claims.seeds import claim_record

        about["claims"] = claim_record(context.seeds.images(), context.task, context.subject)
    if config.judge_features:
        about["judge_features"] = list(config.judge_features)
    if config.baseline is not None:
        about["baseline"] = config.baseline
    generated = context.starting[1]
    if generated:
        about["generated seeds"] = generated
    if context.map_cells is not None:
        from hardcase.analysis.maps import record

        about["map"] = record(context.map_cells)
    return about


def _check_conditions(context: Context, conditions: Conditions) -> None:
    """Tell what is wrong with conditions and references before the search begins."""
    from hardcase.analysis.references import ReferenceRun
    from hardcase.conditions.box import condition_box

    condition_box(conditions, context.shape)
    for reference in context.references if context.config.references else ():
        if isinstance(reference, ReferenceRun):
            reference.check(conditions, context.seeds, context.config.seed)


def _campaign_of(config: Config) -> Campaign:
    """A campaign from its configuration, in whatever process needs it."""
    return Context(config).campaign


def _itself(campaign: Campaign) -> Campaign:
    return campaign
