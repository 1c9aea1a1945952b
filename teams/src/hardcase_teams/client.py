"""Requests to one server, within a time limit, a rate and a number of tries.

`httpx2` moves the bytes. What stays here is what it does not have: a deadline for a whole call
(its time limits are per read, so a server that sends one byte a second never ends), a limit on the
size of an answer, retries, a rate limit, and a token that is never shown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from functools import cache
from time import monotonic, sleep
from typing import Any
from urllib.parse import SplitResult, urlsplit

from hardcase.errors import HardcaseError, Unanswered
from hardcase.models.adapters import ClientConfig

TOKEN = "HARDCASE_TOKEN"
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
LARGEST = 256 * 2**20
"""Bytes after which no answer is read on."""
A_ROW = 2**20
"""Bytes that the answer to one image may have; metadata may have as many."""
LONGEST = 60.0
"""Longest pause before another try, in seconds."""


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
        raise HardcaseError(
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
        raise HardcaseError(
            f"{shown} is not the address of a model.", fix="http://HOST:PORT/v2/models/NAME/infer"
        )
    if place.username or place.password or place.query or place.fragment:
        raise HardcaseError(
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
        raise HardcaseError(f"the token in {TOKEN} holds spaces or signs that no header can carry.")
    if token and place.scheme == "http" and not is_here(place):
        raise HardcaseError(
            f"the token in {TOKEN} would travel to {place.hostname} unencrypted.",
            fix="https://..., or unset the variable",
        )
    return token
