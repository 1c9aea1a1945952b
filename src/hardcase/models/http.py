"""Models behind an address that speaks the Open Inference Protocol v2."""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import re
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import monotonic, sleep
from typing import Any
from urllib.parse import SplitResult, urlsplit
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.models.deadline import TimedConnection, TimedTlsConnection
from hardcase.models.onnx import Array, PixelLayout, to_logits
from hardcase.models.wrappers import Unanswered
from hardcase.randomness import stream
from hardcase.tensors import chunks, digest
from hardcase.types import Answer, Offer, Tap

# A small HTTP client: connections kept open, retries with back-off, a rate limit, a deadline for
# every call.

TOKEN = "HARDCASE_TOKEN"
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed."""
LARGEST = 256 * 2**20
"""Bytes after which no answer is read on."""
A_ROW = 2**20
"""Bytes that the answer to one image may have; metadata may have as many."""
LONGEST = 60.0
"""Seconds that are waited before another try, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How a server is asked: images a request, requests at a time and a second,
    seconds for an answer, tries after the first.
    """

    batch: int = 32
    concurrency: int = 4
    rate: float | None = None
    timeout: float = 30.0
    retries: int = 5


class Refused(Exception):  # noqa: N818 - what happened
    """The server answered with an error that trying again does not cure."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status} {http.client.responses.get(status, '')}: {words}".strip())
        self.status = status


class Client:
    """Asks one server. Each thread has a connection of its own.

    TLS certificates are always verified.
    """

    def __init__(self, url: str, manners: Manners, tally: Counter[str]) -> None:
        self.place = checked_url(url)
        self.manners = manners
        self.tally = tally
        self.token = _token(self.place)
        self.local = threading.local()
        self.lock = threading.Lock()
        self.next = 0.0
        self.jitter = random.Random(0)
        self.hurried = False

    def deadline(self) -> float:
        """The moment (monotonic seconds) by which a question that is asked now must be over."""
        return monotonic() + 2 * self.manners.timeout

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        rows: int = 0,
        until: float | None = None,
    ) -> tuple[dict[str, str], bytes]:
        """Headers (names in small letters) and body of a good answer.

        All tries and the pauses between them are over `until` then, by default after twice the
        timeout; an answer that does not come in time is waited for twice only. `hurried`: no
        second try.

        Args:
            method: Of HTTP.
            path: Of the address.
            headers: More of them.
            body: What is sent.
            rows: Images that are asked about; the answer may have so many times `A_ROW` bytes.
            until: When to give up (monotonic seconds).

        Raises:
            Refused: For an error of ours.
            Unanswered: When all tries were in vain.
        """
        why = ""
        tries = 1 if self.hurried else self.manners.retries + 1
        self._turn()
        until = self.deadline() if until is None else until
        times_late = 0
        for attempt in range(tries):
            if attempt:
                self._turn()
            self._count("calls")
            try:
                allowed = min(self.manners.timeout, until - monotonic())
                largest = min(LARGEST, A_ROW * (rows + 1))
                status, answered, content = self._once(
                    method, path, headers, body, allowed, largest
                )
            except (OSError, http.client.HTTPException) as error:
                self.hang_up()
                late = isinstance(error, TimeoutError)
                self._count("timeouts" if late else "dropped")
                wait = None
                why = self._said(error)
                if late:
                    why = f"no answer within {self.manners.timeout:g} s"
                    times_late += 1
                if times_late > 1:
                    break
            else:
                if status == 200:
                    return answered, content
                refused = Refused(status, self._words(content))
                why = str(refused)
                if status not in AGAIN:
                    raise refused
                wait = answered.get("retry-after")
            pause = self._pause(attempt, wait)
            if attempt + 1 == tries or monotonic() + pause >= until:
                break
            self._count("retries")
            sleep(pause)
        raise Unanswered(f"{self.place.netloc}: {why} ({attempt + 1} tries)")

    def _once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        seconds: float,
        largest: int,
    ) -> tuple[int, dict[str, str], bytes]:
        link = self._connection()
        if link.disturbed():  # closed meanwhile, or the server has spoken unasked
            self.hang_up()
            link = self._connection()
        link.until(monotonic() + seconds)
        secret = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        link.request(method, path, body or None, {"User-Agent": "hardcase", **headers, **secret})
        answer = link.getresponse()
        content = bytearray()
        while block := answer.read1(1 << 20):
            content += block
            if len(content) > largest:
                self.hang_up()
                raise http.client.IncompleteRead(b"", largest)
        answer.read()  # nothing is left; only now the connection is free for the next request
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            bytes(content),
        )

    def _connection(self) -> TimedConnection | TimedTlsConnection:
        link: TimedConnection | TimedTlsConnection | None = getattr(self.local, "link", None)
        if link is None:
            host = self.place.hostname or ""
            port = self.place.port
            wait = self.manners.timeout
            if self.place.scheme == "https":
                link = TimedTlsConnection(
                    host, port, timeout=wait, context=ssl.create_default_context()
                )
            else:
                link = TimedConnection(host, port, timeout=wait)
            self.local.link = link
        return link

    def hang_up(self) -> None:
        """The next request of this thread opens a connection of its own."""
        link = getattr(self.local, "link", None)
        if link is not None:
            link.close()
        self.local.link = None

    def _turn(self) -> None:
        """Wait until the rate allows another request."""
        if self.manners.rate is None:
            return
        with self.lock:
            now = monotonic()
            mine = max(self.next, now)
            self.next = mine + 1 / self.manners.rate
        sleep(mine - now)

    def _pause(self, attempt: int, asked: str | None) -> float:
        """Twice as long each time, never all at the same moment,
        and as long as the server asks for.
        """
        own = min(0.25 * float(2**attempt), 10.0) * (0.5 + self.jitter.random() / 2)
        return min(max(own, _asked_for(asked or "")), LONGEST)

    def _count(self, what: str) -> None:
        with self.lock:
            self.tally[what] += 1

    def _words(self, content: bytes) -> str:
        """What a server says of an error, on one line. A server that knows a secret is not quoted:
        it may repeat it.
        """
        if self.token:
            return f"{len(content):,} bytes that are not shown, because a token was sent"
        words = content[:300].decode(errors="replace")
        return " ".join("".join(c if c.isprintable() else " " for c in words).split())

    def _said(self, error: Exception) -> str:
        """A failure of the connection in words; those of a server are left out."""
        why = error.strerror if isinstance(error, OSError) else None
        return f"{type(error).__name__}: {why}" if why else type(error).__name__


def _asked_for(header: str) -> float:
    """Seconds that a server asks to be left alone for: a number, or the moment when it may be asked
    again.
    """
    text = header.strip()
    if re.fullmatch(r"\d{1,6}(\.\d+)?", text):
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        return (until - datetime.now(until.tzinfo or UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def checked_url(url: str) -> SplitResult:
    """The parts of a model's address. Secrets have no place in it: it is stored with the run."""
    try:
        place = urlsplit(url)
        good = (
            place.scheme in ("http", "https")
            and bool(place.hostname)
            and (place.port is None or place.port > 0)
        )
    except ValueError:
        good = False
    if not good or not re.fullmatch(
        r"[!-~]*/v2/models/[!-.0-~]+(/versions/[!-.0-~]+)?/infer", place.path
    ):
        raise Problem(
            f"{_without_secrets(url)} is not the address of a model.",
            fix="http://HOST:PORT/v2/models/NAME/infer",
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


def _without_secrets(url: str) -> str:
    return re.sub(r"//[^/]*@", "//...@", url).partition("?")[0][:200]


# The Open Inference Protocol v2 as pure functions: a request into bytes, bytes into an answer, JSON
# or binary tensors.
#
# https://github.com/kserve/open-inference-protocol; the binary form is Triton's extension of it.

KINDS = {
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "UINT8": "|u1",
    "INT8": "|i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
}
LARGEST_BATCH = 1024
"""Images that a model may demand at once; a request is filled up to that number."""
LARGEST_REQUEST = 2**25
"""Numbers in a request that is filled up."""
LENGTH = "inference-header-content-length"


class Garbled(ValueError):  # noqa: N818 - what happened
    """An answer that is not one of this protocol."""


class _Unusable(ValueError):  # noqa: N818 - what happened
    """Something is wrong that can be told in words of our own."""


def _kind(error: Exception) -> str:
    """What is wrong with an answer, without a word of it: a server may put anything there, also our
    token.
    """
    if isinstance(error, _Unusable):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON at byte {error.pos}"
    names = {"KeyError": "something is missing", "RecursionError": "nested too deeply"}
    return names.get(type(error).__name__, f"{type(error).__name__}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a model: its name, its type, its shape with the batch axis first (None:
    any size).
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]


def encode(
    array: Array, given: TensorSpec, wanted: TensorSpec, *, binary: bool
) -> tuple[dict[str, str], bytes]:
    """Headers and body of the request for `array`, which a digest of it names."""
    name = name_of(array)
    one: dict[str, Any] = {"name": given.name, "shape": list(array.shape), "datatype": given.kind}
    if not binary:
        body = json.dumps(
            {"id": name, "inputs": [{**one, "data": []}], "outputs": [{"name": wanted.name}]}
        ).encode()
        head, tail = body.split(b'"data": []', 1)
        return {"Content-Type": "application/json"}, head + b'"data": [' + _numbers(
            array
        ) + b"]" + tail
    data = array.astype(KINDS[given.kind], copy=False).tobytes()
    asked = {"name": wanted.name, "parameters": {"binary_data": True}}
    sized = {**one, "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"id": name, "inputs": [sized], "outputs": [asked]}).encode()
    return {"Content-Type": "application/octet-stream", LENGTH: str(len(header))}, header + data


def name_of(array: Array) -> str:
    """What a request is called; a server that repeats it shows which request it answers."""
    return f"{crc32(array.tobytes()):08x}"


def decode(headers: Mapping[str, str], body: bytes, wanted: TensorSpec, *, name: str = "") -> Array:
    """The tensor that an answer holds; anything else than a whole and well-formed one, or the
    answer to another request than that called `name`, is `Garbled`.
    """
    size = headers.get(LENGTH)
    try:
        cut = len(body) if size is None else int(size)
        said = json.loads(body[:cut])
        if name and said.get("id", name) not in (name, ""):
            raise _Unusable("it answers another request")
        outputs = said["outputs"]
        one = next((out for out in outputs if out["name"] == wanted.name), outputs[0])
        shape = tuple(int(length) for length in one["shape"])
        kind = np.dtype(KINDS[one["datatype"]])
        before = sum(_binary_size(out) or 0 for out in outputs[: outputs.index(one)])
        flat = _values(one, body[cut + before :], kind)
        return flat.reshape(shape)
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise Garbled(f"an answer that cannot be read ({_kind(error)})") from None


def specs(body: bytes) -> tuple[TensorSpec, TensorSpec, str]:
    """Input, output and identity (name, versions, platform) from a model's metadata."""
    try:
        said = json.loads(body)
        (given,) = said["inputs"]
        wanted = said["outputs"][0]
        identity = json.dumps([said["name"], said.get("versions"), said.get("platform")])
        return _spec(given), _spec(wanted), identity
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise Garbled(f"metadata that cannot be used ({_kind(error)})") from None


def _spec(said: Mapping[str, Any]) -> TensorSpec:
    kind = str(said["datatype"])
    if kind not in KINDS:
        raise _Unusable("tensors of an unknown type")
    shape = tuple(None if int(size) < 1 else int(size) for size in said["shape"])
    if shape and (shape[0] or 1) > LARGEST_BATCH:
        raise _Unusable(f"more than {LARGEST_BATCH:,} images at once")
    return TensorSpec(str(said["name"]), kind, shape)


def _values(one: Mapping[str, Any], binary: bytes, kind: np.dtype[Any]) -> Array:
    size = _binary_size(one)
    if size is None:
        return (
            np.asarray(one["data"], dtype=np.float64 if kind.kind == "f" else np.int64)
            .ravel()
            .astype(kind)
        )
    if not 0 <= size <= len(binary):
        raise _Unusable(f"{len(binary):,} bytes follow instead of those it promises")
    return np.frombuffer(binary[:size], kind)


def _binary_size(one: Mapping[str, Any]) -> int | None:
    size = (one.get("parameters") or {}).get("binary_data_size")
    return None if size is None else int(size)


def _numbers(array: Array) -> bytes:
    """The numbers of an array, each in the fewest digits that give it back;
    images have few different ones.
    """
    different, where = np.unique(array, return_inverse=True)
    words = np.array([str(value) for value in different], dtype=object)
    return ",".join(words[where.ravel()]).encode()


# Models behind an address that speaks the Open Inference Protocol v2: KServe, Triton, MLServer,
# TorchServe.

SAME = 0.02
"""How far logits of the same image may differ between two answers."""
GARBLED = 2
"""How often an answer that cannot be read is asked for again."""


@dataclass
class Http:
    """A model that is asked over a network. Which form its server understands (binary or JSON) is
    found out once.

    Args:
        url: Address of the inference endpoint.
        classes: Classes of the data.
        image: Channels, height and width.
        name: Name in run folders and reports.
        pixels: How the server wants images laid out.
        outputs: ``logits`` or ``probabilities``.
        manners: Rate, retries and time-outs.
        hash: What the server says of its version.
    """

    url: str
    classes: int
    image: tuple[int, int, int]
    name: str = "http"
    pixels: PixelLayout = field(default_factory=PixelLayout)
    outputs: str = "logits"
    manners: Manners = field(default_factory=Manners)
    hash: str = ""

    def __post_init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._begin()
        until = self.client.deadline()
        self.given, self.wanted, identity = self._metadata(until)
        if (self.given.shape[0] or 1) * math.prod(self.image) > LARGEST_REQUEST:
            raise Problem(f"{self.url} demands more than {LARGEST_REQUEST:,} numbers at once.")
        self.binary = self._understands_binary(until)
        self.hash = digest([identity, repr(self.pixels), self.outputs])
        self.canary: Tensor | None = None
        self.canary = self._known_answer(until)
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
        return "scores" if np.dtype(KINDS[self.wanted.kind]).kind == "f" else "label"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise Problem(f"{self.name} shows no layers; a server offers {self.offers} only.")
        self.tally["rows"] += len(x)
        size = min(self.manners.batch, self.given.shape[0] or self.manners.batch)
        if self.canary is not None and len(x) > 1:
            size = max(size - 1, 1)  # one row is the canary's
        parts = [x[part] for part in chunks(len(x), size)]
        if len(parts) == 1:
            return Answer(self._ask(parts[0]))
        return Answer(torch.cat(list(self.pool.map(self._ask, parts))))

    def _ask(self, x: Tensor, until: float | None = None) -> Float[Tensor, "m k"]:
        """One request; an answer that makes no sense is asked for again a few times.

        All of them are over `until` then, by default after twice the timeout.
        """
        place = self._canary_place(x)
        rows = x
        if place is not None:
            picture = self._pictures()[:1].to(x)
            rows = torch.cat([x[:place], picture, x[place:]])
        array = self._array(rows)
        headers, body = encode(array, self.given, self.wanted, binary=self.binary)
        until = self.client.deadline() if until is None else until
        why = ""
        for _ in range(GARBLED + 1):
            try:
                answered, content = self.client.ask(
                    "POST", self.client.place.path, headers, body, rows=len(array), until=until
                )
                answer = decode(answered, content, self.wanted, name=name_of(array))
                logits = to_logits(answer, len(array), classes=self.classes, outputs=self.outputs)
                if logits.shape[1] < self.classes:
                    raise ValueError(f"{logits.shape[1]} scores for {self.classes} classes")
                return self._without_canary(logits[: len(rows)], place)
            except ValueError as error:
                self.client.hang_up()  # whatever follows on this connection is not believed
                why = "an answer of another shape" if self.client.token else str(error)
                if monotonic() >= until:
                    break
            except Refused as error:
                if error.status == 413:
                    raise Unanswered(str(error)) from error
                raise self._refused(error) from error
        promised = self.wanted.kind
        if not self.client.token:  # numbers, too, can spell a secret
            promised += f" of shape {self.wanted.shape}"
        raise Problem(f"{self.name} gives {why}.", f"Its metadata promise {promised}.")

    def _array(self, x: Tensor) -> Array:
        """The images as the server wants them; a server with a fixed batch gets its number of
        rows.
        """
        array = self.pixels.array(x, self.given.shape, np.dtype(KINDS[self.given.kind]))
        missing = (self.given.shape[0] or len(array)) - len(array)
        return (
            np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
            if missing > 0
            else array
        )

    def _metadata(self, until: float) -> tuple[TensorSpec, TensorSpec, str]:
        path = self.client.place.path.removesuffix("/infer")
        try:
            return specs(self.client.ask("GET", path, {}, b"", until=until)[1])
        except Garbled as error:
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
        quick = Client(self.url, Manners(timeout=self.manners.timeout, retries=0), self.tally)
        headers, body = encode(
            self._array(self._pictures()[:1]), self.given, self.wanted, binary=True
        )
        try:
            answered, content = quick.ask(
                "POST", quick.place.path, headers, body, rows=self.given.shape[0] or 1, until=until
            )
            decode(answered, content, self.wanted)
        except (Refused, Unanswered, ValueError):
            return False
        return True

    def _known_answer(self, until: float) -> Tensor | None:
        """What the model says of a fixed image that is asked about alone;
        it then travels with every other request.
        """
        try:
            logits = self._ask(self._pictures()[:1], until)
        except Unanswered as error:
            raise Problem(f"{self.url} does not answer: {error}") from error
        return logits if bool(logits.isfinite().all()) else None

    def _canary_place(self, x: Tensor) -> int | None:
        """Where among the rows the fixed image goes; nowhere if there is one row only, or no
        room.
        """
        room = self.given.shape[0] or len(x) + 1
        if self.canary is None or not 1 < len(x) < room:
            return None
        place = crc32(x.detach().cpu().numpy().tobytes()) % (len(x) + 1)
        middle = 2 * place == len(x)  # where it would stay if the rows were turned round
        return 0 if middle else place

    def _without_canary(self, logits: Float[Tensor, "m k"], place: int | None) -> Tensor:
        """The answers to the other rows; a `ValueError` if the fixed image's answer came back in
        another row's place.
        """
        if self.canary is None:
            return logits
        if logits.shape[1] != self.canary.shape[1]:
            raise ValueError("another number of scores than before")
        if place is None:
            return logits
        far = (logits - self.canary).abs().amax(1)
        if not far[place] <= SAME and bool((far <= SAME).any()):
            raise ValueError("answers in another order than the images were sent")
        return torch.cat([logits[:place], logits[place + 1 :]])

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
        """Connections and the token stay behind: another process takes the token from its own
        environment.
        """
        return {
            key: value
            for key, value in self.__dict__.items()
            if key not in ("client", "pool", "tally")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tally = Counter()
        self._begin()
