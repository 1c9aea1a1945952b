"""What can be put around any model: a memory of its answers, patience, labels alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem, Unanswered, within
from hardcase.tensors import chunks
from hardcase.types import Answer, Model, Offer, Tap

SURE = 30.0
"""The lead in logits of a class that is all a model names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a model is asked that may be slow, far away or costly."""

    batch: int = 32
    """Images per request."""
    concurrency: int = 4
    """Requests at a time."""
    rate: float | None = None
    """Requests per second."""
    timeout: float | None = None
    """Seconds for an answer; None: 30 for servers, no limit for others."""
    retries: int = 5
    cache: int = 100_000
    """Answers that are remembered."""
    label_only: bool = False

    @property
    def seconds(self) -> float:
        """The time that a server has for an answer."""
        return self.timeout or 30.0


class ModelWrapper:
    """A model around another one; `tally` counts what answers take, for all layers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.hash = model.hash
        self.weights: str = getattr(model, "weights", "")
        self.outputs: str = getattr(model, "outputs", "")
        self.class_names: tuple[str, ...] = getattr(model, "class_names", ())
        shared = getattr(model, "tally", None)
        self.tally: Counter[str] = shared if isinstance(shared, Counter) else Counter()

    @property
    def offers(self) -> Offer:
        return self.model.offers

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        raise AssertionError("a layer answers itself")


class Cached(ModelWrapper):
    """Remembers the answers to the last `size` different images.

    Args:
        model: The model that is wrapped.
        size: Most images that are remembered.
    """

    def __init__(self, model: Model, size: int) -> None:
        super().__init__(model)
        self.size = size
        self.known: dict[bytes, Tensor] = {}

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps or x.requires_grad or not len(x):
            return self.model(x, taps)
        keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in x.cpu().numpy()]
        new = {key: row for row, key in enumerate(keys) if key not in self.known}
        answers = {key: self.known[key] for key in keys if key in self.known}
        if new:
            answers |= dict(zip(new, self.model(x[list(new.values())]).logits))
        self.tally["cached"] += len(keys) - len(new)
        self.known.update({key: answers[key] for key in new if bool(answers[key].isfinite().all())})
        for key in list(self.known)[: max(0, len(self.known) - self.size)]:
            del self.known[key]
        return Answer(torch.stack([answers[key] for key in keys]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "known": {}}


class LabelOnly(ModelWrapper):
    """Forgets all but the label, as if the model said no more.

    Args:
        model: The model that is wrapped.
    """

    @property
    def offers(self) -> Offer:
        return "label"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        logits = self.model(x).logits
        one = SURE * torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float()
        return Answer(torch.where(logits.isfinite().all(1, keepdim=True), one, torch.nan))


class Retrying(ModelWrapper):
    """Finds out which inputs of a call are not answered, and answers NaN for them, so that the
    others go on.

    If an image that was answered before is not answered any more either, the model is gone, and the
    search stops.

    Args:
        model: The model that is wrapped.
        timeout: Seconds after which a call in this process is broken off.
        piece: Rows that are asked for together when a call has failed, before they are halved.
    """

    def __init__(self, model: Model, timeout: float | None = None, piece: int = 2**30) -> None:
        super().__init__(model)
        self.timeout = timeout
        self.piece = piece
        self.good: Tensor | None = None
        self.scores = 0  # per image, once it has answered

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        try:
            return self._ask(x, taps)
        except Unanswered as reason:
            if taps or x.requires_grad:
                raise _silent(self.name, str(reason)) from reason
            # a model that tries again by itself does not while the culprits are sought
            with getattr(self.model, "hurry", nullcontext)():
                if self.good is not None:
                    self._alive(reason)
                return Answer(self._apart(x, reason))

    def _ask(self, x: Tensor, taps: Mapping[str, Tap] | None = None) -> Answer:
        with within(self.timeout):
            answer = self.model(x, taps)
        if self.good is None and len(x):
            self.good = x[:1].detach().clone()
            self.scores = answer.logits.shape[1]
        return answer

    def _apart(self, x: Tensor, reason: Unanswered) -> Tensor:
        """Ask for smaller and smaller parts until it is known which rows are to blame."""
        if len(x) > 1:
            size = self.piece if len(x) > self.piece else (len(x) + 1) // 2
            return torch.cat([self._part(x[part]) for part in chunks(len(x), size)])
        try:  # once more, alone: it may have been the others' fault, or chance
            return self._ask(x).logits
        except Unanswered:
            self._alive(reason)
        self.tally["unanswered"] += 1
        return torch.full((1, self.scores), torch.nan)

    def _alive(self, reason: Unanswered) -> None:
        """Raise if an image that was answered before is not answered any more."""
        if self.good is None:
            raise _silent(self.name, str(reason)) from reason
        try:
            self._ask(self.good)
        except Unanswered:
            raise _silent(self.name, str(reason)) from reason

    def _part(self, x: Tensor) -> Tensor:
        try:
            return self._ask(x).logits
        except Unanswered as reason:
            return self._apart(x, reason)


def _silent(name: str, why: str) -> Problem:
    return Problem(
        f"the subject {name} does not answer any more: {why}",
        "Shards that were finished are stored.",
        fix="see to the model, then go on",
    )
