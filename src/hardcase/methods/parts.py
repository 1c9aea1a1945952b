"""What recipes share: the decorator that explains their arguments, walks over pixels, no search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hardcase import registry
from hardcase.registry import argument_helps, explain
from hardcase.spaces.pixel import Pixels, Unclipped
from hardcase.types import Method

SHARED = {
    "subject": "The network under test.",
    "profile": "What white-box methods know of networks; a run supplies it.",
    "peers": "Networks to compare with.",
    "target": "Targeted search: only this predicted class counts as a failure.",
    "shape": "Channels, height and width of the images; a run fills it in.",
    "space": "Where candidates live, e.g. ``hc.spaces.latent(vae)``.",
    "partners": "Codes of training images, as `hc.spaces.partners` collects them.",
    "search": "Another search: its name, or ``file.py:name``.",
    "objective": "Another objective: its name, or ``file.py:name``.",
    "threshold": "Activation above which a neuron counts as covered.",
    "probabilities": "Use softmax probabilities in place of logits.",
    "cover": "Weight of the neurons that are pushed, beside the main objective.",
    "step_size": "Size of one step.",
    "steps": "Gradient steps of one walk.",
    "clip": "Keep every candidate in [0, 1] while it walks.",
    "capacity": "Entries that the corpus of an image holds at most.",
    "queries": "Query budget per image.",
    "gradients": "Gradient budget per image.",
}
"""Descriptions of shared arguments; `method` adds them to the docstrings."""
Made = TypeVar("Made", bound=Callable[..., Method])


def method(name: str, *, explained_by: Sequence[type] = (), **facts: Any) -> Callable[[Made], Made]:
    """Register a recipe, and explain the arguments that it shares with others, or hands on to the
    classes `explained_by`.
    """
    helps = dict(SHARED)
    for part in explained_by:
        helps |= argument_helps(part)

    def decorate(make: Made) -> Made:
        explain(make, helps)
        return registry.method(name, **facts)(make)

    return decorate


def pixel_walk(*, clip: bool) -> dict[str, Any]:
    """Return the space of walks over pixels; published codes clip not."""
    if clip:
        return {"space": Pixels(), "keep": "best-per-label"}
    return {"space": Unclipped(), "keep": "all"}
