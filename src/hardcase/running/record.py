"""What run.json says of a campaign before it starts."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from hardcase.campaign import Campaign
from hardcase.health import Health
from hardcase.store import SCHEMA
from hardcase.types import Budget, Images
from hardcase.version import VERSION


def first_record(
    campaign: Campaign, images: Images, budget: Budget, health: Health, about: Mapping[str, Any]
) -> dict[str, Any]:
    method, subject = campaign.method, campaign.subject
    card = method.details.get("generator")
    return {
        "schema": SCHEMA,
        "hardcase": VERSION,
        "versions": _versions(),
        "argv": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "complete": False,
        "elapsed": 0.0,
        "method": method.name,
        "model": subject.name,
        "data": images.name,
        "split": images.split,
        "classes": list(images.classes),
        "image": list(images.x.shape[1:]),
        "seed": campaign.seed,
        "seeds": len(images),
        "budget": {name: value for name, value in asdict(budget).items() if value is not None},
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
        "bitwise": health.bitwise and strict_arithmetic(),
        "deterministic": budget.time is None,
        "hashes": {
            "subject": subject.hash,
            "peers": [peer.hash for peer in campaign.peers],
            "generator": card["weights"] if card else None,
            "guides": {},
            "data": images.hash,
        },
        "generator": card,
        "places": method.details.get("places"),
        "accuracy": {"value": health.accuracy, "images": health.images},
        "totals": {"queries": 0, "gradients": 0, "peer_queries": 0},
        "notes": list(health.notes),
        "citations": [method.details["cite"]] if "cite" in method.details else [],
        **about,
    }


def strict_arithmetic() -> bool:
    """Whether the CPU library was told, before it computed anything, to give the same bits in every batch."""
    return os.environ.get("MKL_CBWR", "").endswith("STRICT")


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "pyarrow")},
    }
