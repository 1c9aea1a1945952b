"""Models behind an address that speaks the Open Inference Protocol v2, in JSON or binary tensors
(https://github.com/kserve/open-inference-protocol; the binary form is Triton's extension of it).

Own code, although `tritonclient` speaks the protocol too: failures rest on answers, so each is
checked to be one to this request, whole, and in the order of its images; answers have a largest
size and a deadline (`client.py`); and the token that is sent appears in no error.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import SystemRandom
from time import monotonic
from typing import Any
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.claims.answers import AskedNetwork, Layout, standard_outputs
from hardcase.claims.subjects import Task, flat_table
from hardcase.errors import HardcaseError, Unanswered, require_consent
from hardcase.models.adapters import Cached, ClientConfig, Retrying
from hardcase.models.load import Loading, with_outputs
from hardcase.randomness import stream
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Model, Offer, Tap
from hardcase_teams.arrays import Array, PixelLayout, filled, layout_of, to_logits
from hardcase_teams.client import TOKEN, Client, Refused, checked_url, is_here

KINDS = {
    f"{word}{8 * size}": f"<{letter}{size}"
    for word, letter, sizes in (
        ("FP", "f", (2, 4, 8)),
        ("INT", "i", (1, 2, 4, 8)),
        ("UINT", "u", (1, 2, 4, 8)),
    )
    for size in sizes
}
"""The types of tensors, as NumPy calls them."""
LARGEST_BATCH = 1024
"""Images that a model may demand at once; a request is filled up to that number."""
LARGEST_REQUEST = 2**25
"""Numbers in a request that is filled up."""
LENGTH = "inference-header-content-length"


class MalformedAnswer(ValueError):  # noqa: N818 - what happened
    """An answer that is not one of this protocol."""


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Whatever reading JSON of anybody's raises, without a word of it: it may hold our token."""
    try:
        yield
    except MalformedAnswer as error:
        raise MalformedAnswer(f"{what} ({error})") from None
    except Exception as error:
        raise MalformedAnswer(f"{what} ({type(error).__name__})") from None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model: name, type, and shape with the batch axis first (None: any size)."""

    name: str
    kind: str
    shape: tuple[int | None, ...]


def encode(
    array: Array, input_spec: TensorSpec, *output_specs: TensorSpec, binary: bool
) -> tuple[dict[str, str], bytes]:
    """Headers and body of the request for `array`, which a digest of it names."""
    tensor: dict[str, Any] = {"name": input_spec.name, "datatype": input_spec.kind}
    tensor["shape"] = list(array.shape)
    wanted: list[dict[str, Any]] = [{"name": one.name} for one in output_specs]
    request = {"id": name_of(array), "inputs": [tensor], "outputs": wanted}
    if not binary:
        tensor["data"] = []
        head, tail = json.dumps(request).encode().split(b'"data": []', 1)
        body = head + b'"data": [' + _numbers(array) + b"]" + tail
        return {"Content-Type": "application/json"}, body
    data = array.astype(KINDS[input_spec.kind], copy=False).tobytes()
    tensor["parameters"] = {"binary_data_size": len(data)}
    request["outputs"] = [{**one, "parameters": {"binary_data": True}} for one in wanted]
    header = json.dumps(request).encode()
    return {"Content-Type": "application/octet-stream", LENGTH: str(len(header))}, header + data


def name_of(array: Array) -> str:
    """What a request is called; a server that repeats it shows which request it answers."""
    return f"{crc32(array.tobytes()):08x}"


def decode(
    headers: Mapping[str, str], body: bytes, output_spec: TensorSpec, *, name: str = ""
) -> Array:
    """The tensor in an answer to the request `name`; any other answer is `MalformedAnswer`."""
    with _parsing("an answer that cannot be read"):
        cut = int(headers.get(LENGTH, len(body)))
        answer = json.loads(body[:cut])
        if name and answer.get("id", name) not in (name, ""):
            raise MalformedAnswer("it answers another request")
        outputs = answer["outputs"]
        tensor = next((out for out in outputs if out["name"] == output_spec.name), outputs[0])
        kind = np.dtype(KINDS[tensor["datatype"]])
        size = _binary_size(tensor)
        if size is None:
            exact = np.float64 if kind.kind == "f" else np.int64
            given = np.asarray(tensor["data"])
            if given.dtype == bool:
                raise MalformedAnswer("it answers true and false where numbers were promised")
            values = given.astype(exact).ravel().astype(kind)
        else:
            start = cut + sum(_binary_size(out) or 0 for out in outputs[: outputs.index(tensor)])
            if not 0 <= size <= len(body) - start:
                raise MalformedAnswer("fewer bytes follow than it promises")
            values = np.frombuffer(body[start : start + size], kind)
        return values.reshape(tuple(int(length) for length in tensor["shape"]))


def specs(body: bytes) -> tuple[TensorSpec, tuple[TensorSpec, ...], str]:
    """Input, outputs and identity (name, versions, platform) from a model's metadata."""
    with _parsing("metadata that cannot be used"):
        metadata = json.loads(body)
        (input_spec,) = metadata["inputs"]
        identity = [metadata["name"], metadata.get("versions"), metadata.get("platform")]
        if not input_spec["shape"] or not metadata["outputs"]:
            raise MalformedAnswer("an input without axes, or no output")
        outputs = tuple(_spec(one) for one in metadata["outputs"])
        return _spec(input_spec), outputs, json.dumps(identity)


def _spec(tensor: Mapping[str, Any]) -> TensorSpec:
    kind = str(tensor["datatype"])
    if kind not in KINDS:
        raise MalformedAnswer("tensors of an unknown type")
    sizes = [int(size) for size in tensor["shape"]]
    shape = tuple(size if size > 0 else None for size in sizes)
    if shape and (shape[0] or 1) > LARGEST_BATCH:
        raise MalformedAnswer(f"more than {LARGEST_BATCH:,} images at once")
    return TensorSpec(str(tensor["name"]), kind, shape)


def _binary_size(tensor: Mapping[str, Any]) -> int | None:
    size = (tensor.get("parameters") or {}).get("binary_data_size")
    return None if size is None else int(size)


def _numbers(array: Array) -> bytes:
    """The numbers of an array, each in the fewest digits that give it back."""
    # images have few different ones, so each is written once
    different, where = np.unique(array, return_inverse=True)
    words = np.array([str(value) for value in different], dtype=object)
    return ",".join(words[where.ravel()]).encode()


SAME = 0.02
"""How far logits of the same image may differ between two answers (a fraction of large ones)."""
MALFORMED = 2
"""How often an answer that cannot be read is asked for again."""
HINTS = {
    401: f"a bearer token in the environment variable {TOKEN}",
    403: f"a bearer token in the environment variable {TOKEN}",
    404: "the model's name: http://HOST:PORT/v2/models/NAME/infer",
}


@dataclass
class Http:
    """A model that is asked over a network (KServe, Triton, MLServer, TorchServe).

    Which form its server understands (binary or JSON) is found out once. A fixed image, the canary,
    travels with every request of several images: its answer shows whether the rows kept order.

    Args:
        url: Address of the inference endpoint.
        classes: Classes of the data.
        image: Channels, height and width.
        name: Name in run folders and reports.
        pixels: How the server wants images laid out.
        outputs: ``logits``, ``probabilities``, ``sigmoid`` or ``binary``.
        config: Rate, retries and time-outs.
        hash: What the server says of its version.
    """

    url: str
    classes: int
    image: tuple[int, int, int]
    name: str = "http"
    pixels: PixelLayout = field(default_factory=PixelLayout)
    outputs: str = "logits"
    config: ClientConfig = field(default_factory=ClientConfig)
    hash: str = ""

    def __post_init__(self) -> None:
        self._connect()
        self.luck = SystemRandom().getrandbits(32)  # no server knows the canary before
        until = self.client.deadline()
        self.input_spec, self.output_specs, identity = self._metadata(until)
        self.output_spec = self.output_specs[0]
        if (self.input_spec.shape[0] or 1) * math.prod(self.image) > LARGEST_REQUEST:
            raise HardcaseError(
                f"{self.url} demands more than {LARGEST_REQUEST:,} numbers at once."
            )
        self.binary = self._understands_binary(until)
        self.hash = digest([identity, repr(self.pixels), self.outputs])
        self.canary: Tensor | None = None  # what the model says of that image alone
        try:
            known = self._ask(self._canary_image(), until)
        except Unanswered as error:
            raise HardcaseError(f"{self.url} does not answer: {error}") from error
        if bool(known.isfinite().all()):
            self.canary = known
        self.tally.clear()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def offers(self) -> Offer:
        if self.output_spec.kind.startswith("FP"):
            return "scores"
        return "label"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise HardcaseError(f"{self.name} shows no layers; a server offers {self.offers} only.")
        self.tally["rows"] += len(x)
        size = min(self.config.batch, self.input_spec.shape[0] or self.config.batch)
        if self.canary is not None and len(x) > 1:
            size = max(size - 1, 1)  # one row is the canary's
        parts = [x[part] for part in chunks(len(x), size)]
        if len(parts) == 1:
            return Answer(self._ask(parts[0]))
        return Answer(torch.cat(list(self.pool.map(self._ask, parts))))

    def _ask(self, x: Tensor, until: float | None = None) -> Float[Tensor, "m k"]:
        """One request; an answer that makes no sense is asked for again a few times."""
        place = self._canary_place(x)
        rows = x
        if place is not None:
            rows = torch.cat([x[:place], self._canary_image().to(x), x[place:]])
        array = self._array(rows)
        until = until or self.client.deadline()
        for _ in range(MALFORMED + 1):
            try:
                answer = self._answer(array, until, binary=self.binary)
                logits = to_logits(answer, len(array), classes=self.classes, outputs=self.outputs)
                if logits.shape[1] < self.classes:
                    raise ValueError(f"{logits.shape[1]} scores for {self.classes} classes")
                return self._without_canary(logits[: len(rows)], place)
            except ValueError as error:
                self.client.hang_up()  # whatever follows on this connection is not believed
                why = str(error)
                if monotonic() >= until:
                    break
            except Refused as error:
                if error.status == 413:
                    raise Unanswered(str(error)) from error
                raise self._refused(error) from error
        promised = self.output_spec.kind
        if self.client.token:  # numbers, too, can spell a secret
            why = "an answer of another shape"
        else:
            promised += f" of shape {self.output_spec.shape}"
        raise HardcaseError(f"{self.name} gives {why}.", f"Its metadata promise {promised}.")

    def _answer(self, array: Array, until: float, *, binary: bool) -> Array:
        headers, body = encode(array, self.input_spec, self.output_spec, binary=binary)
        path = self.client.place.path
        answered, content = self.client.ask(
            "POST", path, headers, body, rows=len(array), until=until
        )
        return decode(answered, content, self.output_spec, name=name_of(array))

    def _array(self, x: Tensor) -> Array:
        """The images as the server wants them, as many rows as it demands at once."""
        array = self.pixels.array(x, self.input_spec.shape, np.dtype(KINDS[self.input_spec.kind]))
        return filled(array, self.input_spec.shape[0])

    def _metadata(self, until: float) -> tuple[TensorSpec, tuple[TensorSpec, ...], str]:
        path = self.client.place.path.removesuffix("/infer")
        try:
            return specs(self.client.ask("GET", path, {}, b"", until=until)[1])
        except MalformedAnswer as error:
            raise HardcaseError(f"{self.url} describes its model with {error}.") from error
        except Refused as error:
            raise self._refused(error) from error
        except Unanswered as error:
            raise HardcaseError(
                f"{self.url} does not answer: {error}",
                fix="is the server running, and reachable from here?",
            ) from error

    def _understands_binary(self, until: float) -> bool:
        """Try one image in the binary form; a server that errs is asked in JSON from then on."""
        try:
            with self.hurry():
                self._answer(self._array(self._canary_image()), until, binary=True)
        except (Refused, Unanswered, ValueError):
            self.client.hang_up()
            return False
        return True

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Try nothing again in here."""
        self.client.hurried = True
        try:
            yield
        finally:
            self.client.hurried = False

    def _canary_place(self, x: Tensor) -> int | None:
        """Where among the rows the canary goes; nowhere beside one row, or without room."""
        room = self.input_spec.shape[0] or len(x) + 1
        if self.canary is None or not 1 < len(x) < room:
            return None
        place = crc32(x.detach().cpu().numpy().tobytes()) % (len(x) + 1)
        if 2 * place == len(x):  # in the middle it would stay if the rows were turned round
            return 0
        return place

    def _without_canary(self, logits: Float[Tensor, "m k"], place: int | None) -> Tensor:
        """The answers to the other rows, if the canary's came back, and in its place."""
        if self.canary is not None and logits.shape[1] != self.canary.shape[1]:
            raise ValueError("another number of scores than before")
        if self.canary is None or place is None:
            return logits
        far = (logits - self.canary).abs().amax(1) / max(1.0, float(self.canary.abs().max()) / 10)
        if not far[place] <= SAME:
            if bool((far <= SAME).any()):
                raise ValueError("answers in another order than the images were sent")
            raise HardcaseError(
                f"{self.name} has changed: it answers an image differently from before.",
                "Answers of two models would be mixed. Shards that were finished are stored.",
                fix="see to the server, then go on",
            )
        return torch.cat([logits[:place], logits[place + 1 :]])

    def _canary_image(self) -> Float[Tensor, "1 c h w"]:
        noise = torch.rand(1, *self.image, generator=stream(self.luck, "canary"))
        return (noise * 255).round() / 255

    def _refused(self, error: Refused) -> HardcaseError:
        return HardcaseError(
            f"{self.url} refuses the request: {error}", fix=HINTS.get(error.status, "")
        )

    def _connect(self) -> None:
        self.tally: Counter[str] = Counter()
        self.client = Client(self.url, self.config, self.tally)
        self.pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="hardcase-http")

    def __getstate__(self) -> dict[str, Any]:
        """Connections and the token stay behind: another process has its own environment."""
        here = ("client", "pool", "tally")
        return {key: value for key, value in self.__dict__.items() if key not in here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()


@dataclass
class HttpAnswers(AskedNetwork, Http):
    """A tagger, detector or segmenter behind an address: a detector gives tensors called boxes,
    scores and labels, others one tensor.

    Args:
        layout: How its tensors are read.
        class_names: Names of its outputs.
    """

    layout: Layout = field(default_factory=lambda: Layout("boxes"))
    class_names: tuple[str, ...] = ()

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        return Http.__call__(self, x, taps)

    def _answer(self, array: Array, until: float, *, binary: bool) -> Array:
        headers, body = encode(array, self.input_spec, *self.output_specs, binary=binary)
        path = self.client.place.path
        answered, content = self.client.ask(
            "POST", path, headers, body, rows=len(array), until=until
        )
        name = name_of(array)
        said = {one.name: decode(answered, content, one, name=name) for one in self.output_specs}
        wrong = [one.shape for one in said.values() if len(one) != len(array)]
        if wrong:
            raise ValueError(f"an answer of shape {wrong[0]} for {len(array)} images")
        rows = torch.zeros(len(array), *self.image)
        height, width = self.image[1:]
        table = flat_table(standard_outputs(said, self.layout, (height, width)), rows)
        return np.asarray(table)


def load(
    spec: str,
    how: Loading,
    *,
    task: Task = "classes",
    outputs: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> Model:
    """A server's model, which is asked patiently and never twice for the same image."""
    address = spec
    if task != "classes":  # how a detector's tensors are read stands behind it
        address = spec.partition("?")[0]
    if how.offline and not is_here(checked_url(address)):
        raise HardcaseError(
            f"{address} is on another machine, and --offline forbids to ask it.",
            fix="leave out --offline",
        )
    require_consent(address)
    channels, height, width = how.test.x.shape[1:]
    image = (channels, height, width)
    pixels = PixelLayout.of(how)

    def classifier(kind: str) -> Model:
        return Http(address, len(how.test.classes), image, spec, pixels, kind, how.asking)

    if task == "classes":
        model = with_outputs(classifier, how)
    else:
        named = tuple(outputs or classes)
        layout = layout_of(spec, task, named)
        model = HttpAnswers(
            address,
            len(named),
            image,
            spec,
            pixels,
            config=how.asking,
            layout=layout,
            class_names=named,
        )
    model = Retrying(model, piece=how.asking.batch)
    return Cached(model, how.asking.cache) if how.asking.cache else model
