"""From a configuration to a plan: every name is looked up here, once, in whatever process needs the objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from hardcase import data, models, recipes
from hardcase.campaign import Campaign, parse_keep
from hardcase.config import Config
from hardcase.criteria.catalogue import parse_list
from hardcase.errors import Problem
from hardcase.generators.sampling import Sampler, fresh
from hardcase.running import Plan
from hardcase.spaces.activations import Activations
from hardcase.training import Progress
from hardcase.types import Budget, Images, Model

TrainingProgress = Callable[[Progress], None] | None


def plan(config: Config, progress: TrainingProgress = None) -> Plan:
    """The plan of a configured run; networks that are missing are trained first, in this process."""
    if config.criteria is not None:
        parse_list(config.criteria)
    ready = campaign(config, progress)
    images = made_seeds(config, ready) if recipes.recipe(config.method.name).seeds == "generator" else seeds(config)
    return Plan(
        source=partial(campaign, config),
        images=images,
        budget=Budget(**config.budget.model_dump()),
        shard=config.campaign.shard,
        rounds=config.campaign.round,
        workers=config.workers,
        cluster=config.cluster,
        metrics=Path(config.metrics) if config.metrics else None,
        allow_low_accuracy=config.allow_low_accuracy,
        config=config.to_toml(),
        about={"model": config.model, "data": config.data, "keep": config.keep},
    )


def campaign(config: Config, progress: TrainingProgress = None) -> Campaign:
    """Build subject, peers and method by name. Cheap once the networks are in the cache."""
    own = subject(config, config.model, progress)
    images = data.load(config.data, split="test", offline=config.offline)
    peers = tuple(subject(config, spec, progress) for spec in config.peers)
    bench = recipes.Bench(
        subject=own,
        images=images,
        data=config.data,
        peers=peers,
        target=_target(config, images),
        generator=config.generator,
        criterion=config.criterion,
        oracle=config.oracle,
        progress=progress,
    )
    bench = recipes.equipped(config.method.name, bench, config.method.options())
    method = recipes.build(config.method.name, config.method.options(), bench)
    keep = parse_keep(config.keep or method.keep)
    batch = 256 if config.batch_size == "auto" else config.batch_size
    return Campaign(subject=own, method=method, peers=bench.peers, keep=keep, batch=batch, seed=config.seed)


def seeds(config: Config) -> Images:
    """A class-balanced sample of the configured split."""
    images = data.load(config.data, split=config.split, offline=config.offline)
    return images.sample(count=min(config.seeds, len(images)), seed=config.seed)


def made_seeds(config: Config, ready: Campaign) -> Images:
    """Fresh samples of the method's generator that the subject gets right; none of the target's own class."""
    space, subject = ready.method.space, ready.subject
    assert isinstance(space, Activations)
    assert isinstance(space.generator, Sampler)
    images = data.load(config.data, split="test", offline=config.offline)
    target = _target(config, images)
    labels = torch.tensor([c for c in range(len(images.classes)) if c != target])
    return fresh(
        space.generator, images.classes, config.seeds, labels=labels, seed=config.seed, device=subject.device,
        accept=lambda x, y: subject(x).logits.argmax(1) == y,
    )  # fmt: skip


def subject(config: Config, spec: str, progress: TrainingProgress = None) -> Model:
    train, test = (data.load(config.data, split=split, offline=config.offline) for split in ("train", "test"))
    how = models.Loading(
        train=train,
        test=test,
        device=device(config.device),
        mean=config.subject.mean,
        std=config.subject.std,
        outputs=config.subject.outputs,
        trust_pickle=config.trust_pickle,
        progress=progress,
        offline=config.offline,
        asking=asking(config),
    )
    return models.load(spec, how)


def asking(config: Config) -> models.Asking:
    """How models are asked; a limit of requests a second is shared out over the worker processes."""
    own = config.subject
    rate = None if own.rate is None else own.rate / config.workers
    return models.Asking(
        batch=own.batch,
        concurrency=own.concurrency,
        rate=rate,
        timeout=own.timeout,
        retries=own.retries,
        cache=own.cache,
        label_only=own.label_only,
    )


def device(name: str) -> str:
    """A device that exists here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise Problem(f"device {name!r} cannot be used: {str(error).splitlines()[0]}", fix="--device cpu") from error
    return name


def _target(config: Config, images: Images) -> int | None:
    if config.target is None:
        return None
    if str(config.target) in images.classes:
        return images.classes.index(str(config.target))
    if isinstance(config.target, int) and 0 <= config.target < len(images.classes):
        return config.target
    raise Problem(f"there is no class {config.target!r}.", f"classes: {', '.join(images.classes)}")
