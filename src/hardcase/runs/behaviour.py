"""Networks known by what they answer about some seeds, stored when a run begins and compared when
it goes on: the same weights may stand in other code, or behind an address where the model was
exchanged. A server is asked again after every shard.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from random import SystemRandom
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign.loop import enter
from hardcase.campaign.record import Campaign
from hardcase.data.files import ImageSet
from hardcase.errors import Problem
from hardcase.models.adapters import Cached, LabelOnly
from hardcase.models.health import answers
from hardcase.runs.identity import ANOTHER
from hardcase.tensors import TILE, from_bytes, steady
from hardcase.types import Images, Model

ASKED = 512
"""Seeds, at most, that a network is asked about, and ..."""
NUMBERS = 2**23
"""... numbers that these images may have together."""
SERVED = 64
"""About how many of them a server is asked about, where answers may cost something."""
DECODED = 4
"""Images that a generator is asked for."""
POOL = 32
"""Images, at most, from which the canaries of a shard are drawn."""
NOISE = 6
"""Levels of 255 by which a canary differs from a seed: no server has seen it before."""
LAST_BITS = 1e-6
"""Fraction by which answers of one server may differ that were the same when they were compared."""
REPEATS = 8.0
"""Times the difference of two answers by which a third may differ, where they are not the same."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A fixed weighted sum of each row of outputs, so that none can change alone, and how far two
    may lie apart: 0 where the same bits are promised.
    """

    values: Float[Tensor, " n"]
    within: float = 0.0

    @staticmethod
    def of(outputs: Float[Tensor, "n k"], within: float = 0.0) -> Fingerprint:
        weights = torch.arange(1, outputs.shape[1] + 1, dtype=torch.float64).cos()
        return Fingerprint((outputs.double() * weights).sum(1), within)

    def changed(self, now: Fingerprint) -> int:
        """On how many images another network seems to have answered."""
        near = (self.values - now.values).abs() <= self.within
        return int((~near & ~(self.values.isnan() & now.values.isnan())).sum())

    def take(self, rows: list[int]) -> Fingerprint:
        return Fingerprint(self.values[rows], self.within)

    def to_json(self) -> dict[str, Any]:
        return {"values": b64encode(self.values.numpy().tobytes()).decode(), "within": self.within}

    @staticmethod
    def from_json(stored: Any) -> Fingerprint | None:
        """What was stored; None for anything else."""
        try:
            values = np.frombuffer(b64decode(stored["values"]), np.float64)
            return Fingerprint(torch.from_numpy(values.copy()), float(stored["within"]))
        except (TypeError, ValueError, KeyError):
            return None


def networks_of(campaign: Campaign, subject: str = "model") -> dict[str, Model]:
    """Every network of a search by its role; that of the subject is called `subject`."""
    roles: dict[str, Model] = {subject: campaign.subject}
    roles |= {f"peer {i}": peer for i, peer in enumerate(campaign.peers, 1)}
    return roles | {f"witness {i}": one for i, one in enumerate(campaign.witnesses, 1)}


def behaviour_of(
    networks: Mapping[str, Model], images: ImageSet, campaign: Campaign | None = None
) -> dict[str, Fingerprint]:
    """What networks answer about some of the seeds of a run, by their role; with `campaign`, its
    generator is asked too.
    """
    rows = torch.linspace(0, len(images) - 1, _count(images, ASKED, NUMBERS)).round().long()
    some = images.take(rows).images()
    fewer = some.take(torch.arange(0, len(some), max(1, len(some) // SERVED)))
    found = {
        role: _fingerprint(model, fewer if _is_server(model) else some)
        for role, model in networks.items()
    }
    if campaign is not None and campaign.method.details.get("generator"):
        found["generator"] = _decoded(campaign, some.first(DECODED))
    return found


def require_behaviour(
    record: Mapping[str, Any],
    networks: Mapping[str, Model],
    images: ImageSet,
    campaign: Campaign | None = None,
) -> None:
    """Refuse networks that do not answer as those did that a run began with."""
    stored = record.get("behaviour") or {}
    for role, now in behaviour_of(networks, images, campaign).items():
        then = Fingerprint.from_json(stored.get(role))
        if then is not None and (len(then.values) != len(now.values) or then.changed(now)):
            raise _other(role, then, now, fix=ANOTHER)


@dataclass(frozen=True, slots=True)
class Canaries:
    """Seeds with noise of one run's own: servers are asked about them after every shard."""

    images: Images
    known: Mapping[str, Fingerprint]

    @staticmethod
    def drawn(campaign: Campaign, images: ImageSet) -> Canaries | None:
        """Canaries and what the servers of a campaign say of them; None where it has no server."""
        servers = {role: one for role, one in networks_of(campaign).items() if _is_server(one)}
        if not servers:
            return None
        luck = SystemRandom()
        chosen = luck.sample(range(len(images)), _count(images, POOL, NUMBERS // 8))
        some = images.take(torch.tensor(chosen)).images()
        numbers = torch.Generator().manual_seed(luck.getrandbits(63))
        noise = torch.randint(-NOISE, NOISE + 1, some.x.shape, generator=numbers)
        x = (some.x + noise).clamp(0, 255).byte()
        asked = Images(x, some.y, some.id, some.classes, name=some.name)
        return Canaries(asked, {role: _fingerprint(one, asked) for role, one in servers.items()})

    def check(self, campaign: Campaign, seeds: Images, shard: int) -> None:
        """Raise if a server does not answer as before."""
        luck = SystemRandom()
        rows = luck.sample(range(len(self.images)), min(len(self.images), TILE // 2))
        shown = torch.cat([self.images.x[rows], seeds.x[: TILE // 2]])
        order = luck.sample(range(len(shown)), len(shown))
        back = torch.tensor(order).argsort()[: len(rows)]
        for role, then in self.known.items():
            model = _without_memory(networks_of(campaign)[role])
            with torch.inference_mode():
                logits = model(from_bytes(shown[order].to(model.device))).logits.cpu()
            expected, now = then.take(rows), Fingerprint.of(logits[back])
            if expected.changed(now):
                why = f"Shard {shard} is not stored; those that were finished before are."
                raise _other(role, expected, now, why, fix="see to the server, then go on")


def _fingerprint(model: Model, images: Images) -> Fingerprint:
    """What one network answers; one whose bits are not promised is asked twice."""
    plain = _without_memory(model)
    first = Fingerprint.of(answers(plain, images, TILE))
    if steady(model.device) and strict_arithmetic() and not _is_server(model):
        return first
    again = Fingerprint.of(answers(plain, images, TILE - 3))
    apart = (first.values - again.values).abs().nan_to_num(0.0).amax().item()
    size = first.values.abs().nan_to_num(0.0, 0.0, 0.0).amax().item()
    return Fingerprint(first.values, max(REPEATS * apart, LAST_BITS * size))


def strict_arithmetic() -> bool:
    """Whether the CPU library was told to give the same bits in every batch."""
    return os.environ.get("MKL_CBWR", "").endswith("STRICT")


def _decoded(campaign: Campaign, images: Images) -> Fingerprint:
    """What the generator of a space makes of the codes of some images."""
    with torch.no_grad():
        origin = enter(campaign, images)
        return Fingerprint.of(campaign.method.space.decode(origin.z, origin).flatten(1).cpu())


def _count(images: ImageSet, most: int, numbers: int) -> int:
    """How many images are asked about, so that it takes little even where they are large."""
    channels, height, width = images.shape
    return min(len(images), most, max(TILE, numbers // max(channels * height * width, 1)))


def _is_server(model: Any) -> bool:
    while hasattr(model, "model"):
        model = model.model
    return hasattr(model, "url")


def _other(role: str, then: Fingerprint, now: Fingerprint, *why: str, fix: str) -> Problem:
    count = len(then.values)
    changed = count
    if len(now.values) == count:
        changed = then.changed(now)
    return Problem(
        f"the {role} answers {changed} of {count} seeds differently from when this run began.",
        *(why or ["Findings of two different campaigns would be mixed."]),
        fix=fix,
    )


def _without_memory(model: Model) -> Model:
    """`model` without the answers that it remembers: it is asked itself."""
    if isinstance(model, Cached):
        return model.model
    return LabelOnly(_without_memory(model.model)) if isinstance(model, LabelOnly) else model
