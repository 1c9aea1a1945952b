"""A small HTTP client: connections kept open, retries with back-off, a rate limit, a deadline for every call."""

from __future__ import annotations

import http.client
import os
import random
import re
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from urllib.parse import SplitResult, urlsplit

from hardcase.blackbox.wrapping import Unanswered
from hardcase.errors import Problem

TOKEN = "HARDCASE_TOKEN"
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed."""
LARGEST = 256 * 2**20
"""Bytes after which an answer is not read on."""
LONGEST = 60.0
"""Seconds that are waited before another try, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How a server is asked: images a request, requests at a time and a second, seconds for an answer, tries after the first."""

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
    """Asks one server. Each thread has a connection of its own. TLS certificates are always verified."""

    def __init__(self, url: str, manners: Manners, tally: Counter[str]) -> None:
        self.place, self.manners, self.tally = checked_url(url), manners, tally
        self.token = _token(self.place)
        self.local, self.lock, self.next = threading.local(), threading.Lock(), 0.0
        self.jitter, self.hurried = random.Random(0), False

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
        """Headers (names in small letters) and body of a good answer.

        Raises `Refused` for an error of ours, `Unanswered` when all tries were in vain (an answer that does not come in
        time is waited for twice only). `hurried`: no second try.
        """
        why, late_before, tries = "", False, 1 if self.hurried else self.manners.retries + 1
        for attempt in range(tries):
            self._turn()
            self._count("calls")
            try:
                status, answered, content = self._once(method, path, headers, body)
            except (OSError, http.client.HTTPException) as error:
                self._close()
                late = isinstance(error, TimeoutError)
                self._count("timeouts" if late else "dropped")
                why = (
                    f"no answer within {self.manners.timeout:g} s"
                    if late
                    else self._safe(f"{type(error).__name__}: {error}")
                )
                wait = None
                if late and late_before:
                    break
                late_before = late
            else:
                if status == 200:
                    return answered, content
                why = str(Refused(status, self._safe(content[:300].decode(errors="replace"))))
                if status not in AGAIN:
                    raise Refused(status, self._safe(content[:300].decode(errors="replace")))
                wait = answered.get("retry-after")
            if attempt + 1 < tries:
                self._count("retries")
                sleep(self._pause(attempt, wait))
        raise Unanswered(f"{self.place.netloc}: {why} ({attempt + 1} tries)")

    def _once(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        late = monotonic() + self.manners.timeout
        link = self._connection()
        link.timeout = self.manners.timeout
        if link.sock is not None:
            link.sock.settimeout(self.manners.timeout)
        secret = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        link.request(method, path, body or None, {"User-Agent": "hardcase", **headers, **secret})
        answer = link.getresponse()
        content = bytearray()
        while block := answer.read1(1 << 20):
            content += block
            if len(content) > LARGEST or monotonic() > late:
                self._close()
                raise TimeoutError if monotonic() > late else http.client.IncompleteRead(b"", LARGEST)
        answer.read()  # nothing is left; only now the connection is free for the next request
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, bytes(content)

    def _connection(self) -> http.client.HTTPConnection:
        link: http.client.HTTPConnection | None = getattr(self.local, "link", None)
        if link is None:
            host, port, wait = self.place.hostname or "", self.place.port, self.manners.timeout
            if self.place.scheme == "https":
                link = http.client.HTTPSConnection(host, port, timeout=wait, context=ssl.create_default_context())
            else:
                link = http.client.HTTPConnection(host, port, timeout=wait)
            self.local.link = link
        return link

    def _close(self) -> None:
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
        """Twice as long each time, never all at the same moment, and as long as the server asks for."""
        own = min(0.25 * float(2**attempt), 10.0) * (0.5 + self.jitter.random() / 2)
        wanted = float(asked) if asked and re.fullmatch(r"\d{1,6}(\.\d+)?", asked.strip()) else 0.0
        return min(max(own, wanted), LONGEST)

    def _count(self, what: str) -> None:
        with self.lock:
            self.tally[what] += 1

    def _safe(self, text: str) -> str:
        """What a server says, on one line, without the secret it may repeat."""
        words = text.replace(self.token, "***") if self.token else text
        return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def checked_url(url: str) -> SplitResult:
    """The parts of a model's address. Secrets have no place in it: it is stored with the run."""
    try:
        place = urlsplit(url)
        good = place.scheme in ("http", "https") and bool(place.hostname) and (place.port is None or place.port > 0)
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"[!-~]*/v2/models/[!-.0-~]+(/versions/[!-.0-~]+)?/infer", place.path):
        raise Problem(
            f"{_without_secrets(url)} is not the address of a model.", fix="http://HOST:PORT/v2/models/NAME/infer"
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
