"""Models behind an address that speaks the Open Inference Protocol v2.

`httpx2` moves the bytes. What stays here is what it does not have: a deadline for a whole call
(its time limits are per read, so a server that sends one byte a second never ends), a limit on the
size of an answer, retries, a rate limit, and a token that is never shown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import re
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from random import SystemRandom
from time import monotonic, sleep
from typing import Any
from urllib.parse import SplitResult, urlsplit
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.models.onnx import Array, PixelLayout, filled, to_logits
from hardcase.randomness import stream
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Offer, Tap
from hardcase.usercode import Unanswered

TOKEN = "HARDCASE_TOKEN"
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
LARGEST = 256 * 2**20
"""Bytes after which no answer is read on."""
A_ROW = 2**20
"""Bytes that the answer to one image may have; metadata may have as many."""
LONGEST = 60.0
"""Longest pause before another try, in seconds."""


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


class Refused(Exception):  # noqa: N818 - what happened
    """The server answered with an error that trying again does not cure."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status} {words}")
        self.status = status


class Client:
    """Asks one server; TLS certificates are always verified.

    The exchange runs on an event loop in a thread of its own, because there a time limit can cover
    a whole call. Each asking thread has connections of its own, so that one whose answers are not
    believed any more can be closed without disturbing the others.
    """

    def __init__(self, url: str, config: ClientConfig, tally: Counter[str]) -> None:
        self.place = checked_url(url)
        self.config = config
        self.tally = tally
        self.token = _token(self.place)
        self.httpx = _httpx()
        self.local = threading.local()
        self.lock = threading.Lock()
        self.next_turn = 0.0
        self.jitter = random.Random(0)
        self.hurried = False
        """Whether nothing is tried again."""

    def deadline(self) -> float:
        """The moment (monotonic seconds) by which a question that is asked now must be over."""
        return monotonic() + 2 * self.config.seconds

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        rows: int = 0,
        until: float,
    ) -> tuple[Mapping[str, str], bytes]:
        """Headers and body of a good answer to `rows` images.

        All tries are over by `until` (monotonic seconds); an answer that does not come in time is
        waited for twice only.

        Raises:
            Refused: For an error of ours.
            Unanswered: When all tries were in vain.
        """
        tries = 1 if self.hurried else self.config.retries + 1
        largest = min(LARGEST, A_ROW * (rows + 1))
        url = f"{self.place.scheme}://{self.place.netloc}{path}"
        times_late = 0
        for attempt in range(tries):
            self._wait_for_turn()
            self._count("calls")
            wait = ""
            try:
                allowed = min(self.config.seconds, until - monotonic())
                answer, content = self._exchange(method, url, headers, body, allowed, largest)
            except TimeoutError:
                self._count("timeouts")
                why = f"no answer within {self.config.seconds:g} s"
                times_late += 1
            except OSError as error:
                self._count("dropped")
                why = str(error)
            else:
                if answer.status_code == 200:
                    return answer.headers, content
                refused = Refused(answer.status_code, self._quoted(content))
                if answer.status_code not in AGAIN:
                    raise refused
                why = str(refused)
                wait = answer.headers.get("retry-after", "")
            pause = self._pause(attempt, wait)
            if times_late > 1 or attempt + 1 == tries or monotonic() + pause >= until:
                break
            self._count("retries")
            sleep(pause)
        raise Unanswered(f"{self.place.netloc}: {why} ({attempt + 1} tries)")

    def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        seconds: float,
        largest: int,
    ) -> tuple[Any, bytes]:
        """One request, from connecting to the last byte of at most `largest`."""
        session = self._session()  # of this thread, not of the event loop's
        sent = {"User-Agent": "hardcase", "Accept-Encoding": "identity", **headers}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"

        async def streamed() -> tuple[Any, bytes]:
            content = bytearray()
            async with (
                asyncio.timeout(seconds),
                session.stream(method, url, headers=sent, content=body or None) as answer,
            ):
                async for block in answer.aiter_raw():
                    content += block
                    if len(content) > largest:
                        raise OSError("TooLarge")
            return answer, bytes(content)

        httpx = self.httpx
        future = asyncio.run_coroutine_threadsafe(streamed(), _loop())
        try:
            return future.result()
        except TimeoutError:
            self.hang_up()
            raise
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            self.hang_up()
            words = type(error).__name__
            if isinstance(error, httpx.ConnectError):  # others may quote the server
                words += f": {error}"
            raise OSError(words) from None
        except BaseException:  # Ctrl-C: nobody waits for the answer any more
            future.cancel()
            raise

    def _session(self) -> Any:
        """The connections of this thread."""
        if getattr(self.local, "session", None) is None:
            self.local.session = self.httpx.AsyncClient(
                trust_env=False, timeout=None, verify=_certificates()
            )
        return self.local.session

    def hang_up(self) -> None:
        """Close the connections of this thread; its next request opens new ones."""
        session = getattr(self.local, "session", None)
        self.local.session = None
        if session is not None:
            asyncio.run_coroutine_threadsafe(session.aclose(), _loop())

    def _wait_for_turn(self) -> None:
        """Wait until the rate allows another request."""
        if self.config.rate is None:
            return
        with self.lock:
            now = monotonic()
            turn = max(self.next_turn, now)
            self.next_turn = turn + 1 / self.config.rate
        sleep(turn - now)

    def _pause(self, attempt: int, retry_after: str) -> float:
        """Exponential back-off with jitter, and as many seconds as the server asks for."""
        backoff = min(0.25 * float(2**attempt), 10.0) * (0.5 + self.jitter.random() / 2)
        if re.fullmatch(r"\s*\d{1,6}(\.\d+)?\s*", retry_after):
            backoff = max(backoff, float(retry_after))
        return min(backoff, LONGEST)

    def _count(self, what: str) -> None:
        with self.lock:
            self.tally[what] += 1

    def _quoted(self, content: bytes) -> str:
        """What a server says of an error, on one line; one that knows a secret may repeat it."""
        if self.token:
            return f"{len(content):,} bytes that are not shown, because a token was sent"
        words = content[:300].decode(errors="replace")
        return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise Problem(
            "models behind an address need httpx2, which is not installed.",
            fix="pip install 'hardcase[http]'",
        ) from error
    for name in ("httpx2", "httpcore2"):  # their logs show headers, which a server can fill
        logging.getLogger(name).setLevel(logging.WARNING)
    return httpx2


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop for all clients of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="hardcase-http").start()
    return loop


def checked_url(url: str) -> SplitResult:
    """The parts of a model's address. Secrets have no place in it: it is stored with the run."""
    path = r"[!-~]*/v2/models/[!-.0-~]+(/versions/[!-.0-~]+)?/infer"
    try:
        place = urlsplit(url)
        reachable = bool(place.hostname) and (place.port is None or place.port > 0)
        good = place.scheme in ("http", "https") and reachable and re.fullmatch(path, place.path)
    except ValueError:
        good = False
    if not good:
        shown = re.sub(r"//[^/]*@", "//...@", url).partition("?")[0][:200]
        raise Problem(
            f"{shown} is not the address of a model.", fix="http://HOST:PORT/v2/models/NAME/infer"
        )
    if place.username or place.password or place.query or place.fragment:
        raise Problem(
            "the address of the model holds a user name, a password or a query.",
            "It would be stored with the run, where others read it.",
            fix=f"the address alone, and the bearer token in the environment variable {TOKEN}",
        )
    return place


def is_here(place: SplitResult) -> bool:
    """Whether a server runs on this machine."""
    host = place.hostname or ""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def _token(place: SplitResult) -> str:
    token = os.environ.get(TOKEN, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise Problem(f"the token in {TOKEN} holds spaces or signs that no header can carry.")
    if token and place.scheme == "http" and not is_here(place):
        raise Problem(
            f"the token in {TOKEN} would travel to {place.hostname} unencrypted.",
            fix="https://..., or unset the variable",
        )
    return token


# The Open Inference Protocol v2 as pure functions: a request into bytes, bytes into an answer, JSON
# or binary tensors. https://github.com/kserve/open-inference-protocol; the binary form is Triton's
# extension of it.

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
            values = np.asarray(tensor["data"], dtype=exact).ravel().astype(kind)
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
            raise Problem(f"{self.url} demands more than {LARGEST_REQUEST:,} numbers at once.")
        self.binary = self._understands_binary(until)
        self.hash = digest([identity, repr(self.pixels), self.outputs])
        self.canary: Tensor | None = None  # what the model says of that image alone
        try:
            known = self._ask(self._canary_image(), until)
        except Unanswered as error:
            raise Problem(f"{self.url} does not answer: {error}") from error
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
            raise Problem(f"{self.name} shows no layers; a server offers {self.offers} only.")
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
        raise Problem(f"{self.name} gives {why}.", f"Its metadata promise {promised}.")

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
            raise Problem(f"{self.url} describes its model with {error}.") from error
        except Refused as error:
            raise self._refused(error) from error
        except Unanswered as error:
            raise Problem(
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
            raise Problem(
                f"{self.name} has changed: it answers an image differently from before.",
                "Answers of two models would be mixed. Shards that were finished are stored.",
                fix="see to the server, then go on",
            )
        return torch.cat([logits[:place], logits[place + 1 :]])

    def _canary_image(self) -> Float[Tensor, "1 c h w"]:
        noise = torch.rand(1, *self.image, generator=stream(self.luck, "canary"))
        return (noise * 255).round() / 255

    def _refused(self, error: Refused) -> Problem:
        return Problem(f"{self.url} refuses the request: {error}", fix=HINTS.get(error.status, ""))

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
