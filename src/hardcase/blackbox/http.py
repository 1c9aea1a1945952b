"""Models behind an address that speaks the Open Inference Protocol v2: KServe, Triton, MLServer, TorchServe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.blackbox import protocol
from hardcase.blackbox.client import Client, Manners, Refused, checked_url
from hardcase.blackbox.layout import Array, Pixels, to_logits
from hardcase.blackbox.wrapping import Unanswered
from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Offer, Tap

GARBLED = 2
"""How often an answer that cannot be read is asked for again."""


@dataclass
class Http:
    """A model that is asked over a network. Which form its server understands (binary or JSON) is found out once."""

    url: str
    classes: int
    image: tuple[int, int, int]
    name: str = "http"
    pixels: Pixels = field(default_factory=Pixels)
    outputs: str = "logits"
    manners: Manners = field(default_factory=Manners)
    hash: str = ""

    def __post_init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._begin()
        self.given, self.wanted, identity = self._metadata()
        self.binary = self._understands_binary()
        self.hash = digest([identity, repr(self.pixels), self.outputs, self._fingerprint()])
        self.tally.clear()

    @property
    def hurried(self) -> bool:
        """Whether a request that fails is not tried again."""
        return self.client.hurried

    @hurried.setter
    def hurried(self, value: bool) -> None:
        self.client.hurried = value

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def offers(self) -> Offer:
        return "scores" if np.dtype(protocol.KINDS[self.wanted.kind]).kind == "f" else "label"

    def __call__(self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None) -> Answer:
        if taps:
            raise Problem(f"{self.name} shows no layers; a server offers {self.offers} only.")
        self.tally["rows"] += len(x)
        size = min(self.manners.batch, self.given.shape[0] or self.manners.batch)
        parts = [x[part] for part in chunks(len(x), size)]
        if len(parts) == 1:
            return Answer(self._ask(parts[0]))
        return Answer(torch.cat(list(self.pool.map(self._ask, parts))))

    def _ask(self, x: Tensor, *, binary: bool | None = None) -> Float[Tensor, "m k"]:
        """One request; an answer that makes no sense is asked for again a few times."""
        binary = self.binary if binary is None else binary
        array = self._array(x)
        headers, body = protocol.encode(array, self.given, self.wanted, binary=binary)
        why = ""
        for _ in range(GARBLED + 1):
            try:
                answered, content = self.client.ask("POST", self.client.place.path, headers, body)
                answer = protocol.decode(answered, content, self.wanted)
                return to_logits(answer, len(array), classes=self.classes, outputs=self.outputs)[: len(x)]
            except ValueError as error:
                why = str(error)
            except Refused as error:
                if error.status == 413:
                    raise Unanswered(str(error)) from error
                raise self._refused(error) from error
        raise Problem(
            f"{self.name} gives {why}.", f"Its metadata promise {self.wanted.kind} of shape {self.wanted.shape}."
        )

    def _array(self, x: Tensor) -> Array:
        """The images as the server wants them; a server with a fixed batch gets its number of rows."""
        array = self.pixels.array(x, self.given.shape, np.dtype(protocol.KINDS[self.given.kind]))
        missing = (self.given.shape[0] or len(array)) - len(array)
        return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array

    def _metadata(self) -> tuple[protocol.Spec, protocol.Spec, str]:
        path = self.client.place.path.removesuffix("/infer")
        try:
            return protocol.specs(self.client.ask("GET", path, {}, b"")[1])
        except protocol.Garbled as error:
            raise Problem(f"{self.url} describes its model with {error}.") from error
        except Refused as error:
            raise self._refused(error) from error
        except Unanswered as error:
            raise Problem(
                f"{self.url} does not answer: {error}", fix="is the server running, and reachable from here?"
            ) from error

    def _understands_binary(self) -> bool:
        """Try one image in the binary form; a server that errs is asked in JSON from then on."""
        quick = Client(self.url, Manners(timeout=self.manners.timeout, retries=0), self.tally)
        headers, body = protocol.encode(self._array(self._pictures()[:1]), self.given, self.wanted, binary=True)
        try:
            answered, content = quick.ask("POST", quick.place.path, headers, body)
            protocol.decode(answered, content, self.wanted)
        except (Refused, Unanswered, ValueError):
            return False
        return True

    def _fingerprint(self) -> str:
        """What the model says of four fixed pictures, rounded: another model behind the same name says something else."""
        try:
            logits = torch.cat([self._ask(picture[None]) for picture in self._pictures()])
        except Unanswered as error:
            raise Problem(f"{self.url} does not answer: {error}") from error
        return str([[round(value, 2) for value in row] for row in logits.softmax(1).tolist()])

    def _pictures(self) -> Float[Tensor, "m c h w"]:
        return (torch.rand(4, *self.image, generator=stream(0, "fingerprint")) * 255).round() / 255

    def _refused(self, error: Refused) -> Problem:
        hints = {
            401: "a bearer token in the environment variable HARDCASE_TOKEN",
            403: "a bearer token in the environment variable HARDCASE_TOKEN",
            404: "the model's name: http://HOST:PORT/v2/models/NAME/infer",
        }
        return Problem(f"{self.url} refuses the request: {error}", fix=hints.get(error.status, ""))

    def _begin(self) -> None:
        self.client = Client(self.url, self.manners, self.tally)
        self.pool = ThreadPoolExecutor(self.manners.concurrency, thread_name_prefix="hardcase-http")

    def __getstate__(self) -> dict[str, Any]:
        """Connections and the token stay behind: another process takes the token from its own environment."""
        return {key: value for key, value in self.__dict__.items() if key not in ("client", "pool", "tally")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tally = Counter()
        self._begin()


__all__ = ["Http", "Manners", "checked_url"]
