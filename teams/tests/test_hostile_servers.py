"""Whatever a server does, a question to it ends within twice the timeout: with the right answer, or with a problem that shows no
secret.
"""

import os
import re
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from hostile import ANSWERS, METADATA, TOKEN, TRANSPORT, hostile

from hardcase.environment import redact
from hardcase.errors import HardcaseError, Unanswered
from hardcase.models.adapters import ClientConfig
from hardcase.tensors import from_bytes
from hardcase.testing.toys import SIZE, toy_images, toy_subject
from hardcase_teams.http import Http

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
TIMEOUT = 1.0 if LONG else 0.4
SLACK = 0.5
"""Seconds for this machine to notice: servers and clients of the short form share one interpreter."""
TOGETHER = 2 if LONG else 16
CASES = {
    **{("metadata", name): work for name, work in {**TRANSPORT, **METADATA}.items()},
    **{("answer", name): work for name, work in {**TRANSPORT, **ANSWERS}.items()},
    **{("later", name): work for name, work in {**TRANSPORT, **ANSWERS}.items()},
}
SHORT = [
    case
    for i, case in enumerate(CASES)
    if LONG or case[0] == "metadata" or case[1] in ANSWERS or i % 4 == 0
]


def shown(text):
    """The longest piece of the token that stands in a text, as it is, backwards, or in numbers."""
    forms = (TOKEN, TOKEN[::-1], TOKEN.encode().hex(), ", ".join(str(ord(c)) for c in TOKEN))
    pieces = {form[i : i + 6] for form in forms for i in range(len(form) - 5)}
    return [piece for piece in pieces if piece.lower() in text.lower()]


def opened(url, **how):
    return Http(url, 4, (1, SIZE, SIZE), config=ClientConfig(**{"timeout": TIMEOUT, **how}))


def asked(url, truth, pictures):
    """What became of opening a model and asking it: an error in words, or nothing; and the seconds of the longest question."""
    longest = 0.0
    try:
        begun = time.monotonic()
        try:
            subject = opened(url, retries=3, batch=8)
        finally:
            longest = max(longest, time.monotonic() - begun)
        for _ in range(3):
            begun = time.monotonic()
            try:
                logits = subject(pictures).logits
            finally:
                longest = max(longest, time.monotonic() - begun)
            wrong = (logits - truth).abs().amax() > 1e-3 and logits.isfinite().all()
            if logits.shape != truth.shape or wrong:
                return "WRONG ANSWERS WERE BELIEVED", longest
    except (HardcaseError, Unanswered) as error:
        told = [str(error) if isinstance(error, HardcaseError) else redact(str(error))]
        trace = redact("".join(traceback.format_exception(error)))
        return "\n".join([*told, re.sub(r"line \d+", "line", trace)]), longest  # numbers spell too
    return "", longest


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """The first call of a process imports the client's libraries, which no server is to blame for."""
    with suppress(HardcaseError):
        opened("http://127.0.0.1:9/v2/models/m/infer", retries=0)


@pytest.fixture
def _token(monkeypatch):
    monkeypatch.setenv("HARDCASE_TOKEN", TOKEN)


@pytest.mark.usefixtures("_token")
def test_no_behaviour_of_a_server_hangs_lies_or_shows_a_secret():
    pictures = from_bytes(toy_images(6).x)
    truth = toy_subject()(pictures).logits
    caught = threading.Event()

    def one(case):
        with hostile(CASES[case], stage=case[0], seconds=6 * TIMEOUT, thief=thief) as port:
            return case, *asked(f"http://127.0.0.1:{port}/v2/models/toy/infer", truth, pictures)

    def watch():
        with suppress(OSError):
            listening.accept()
            caught.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thief = listening.getsockname()[1]
        threading.Thread(target=watch, daemon=True).start()
        with ThreadPoolExecutor(TOGETHER) as threads:
            told = list(threads.map(one, SHORT))
        assert not caught.is_set(), "a redirection was followed"
    assert len({case[1] for case in SHORT}) >= 60
    slow = [case for case, _, seconds in told if seconds > 2 * TIMEOUT + SLACK]
    # a question that hangs does so again when it is asked alone, a busy machine does not
    again = {case: min(one(case)[2] for _ in range(2)) for case in slow}
    assert not {case: seconds for case, seconds in again.items() if seconds > 2 * TIMEOUT + SLACK}
    assert not {case: said for case, said, _ in told if "WRONG" in said}
    assert not {case: shown(said) for case, said, _ in told if shown(said)}
    silent = [case for case, said, _ in told if not said]
    assert {name for _, name in silent} <= {"NaN", "infinity", "two answers at once"}, silent


def test_an_answer_that_was_not_asked_for_is_not_taken_for_the_next_one():
    """Every request is answered twice; the second answer would be read as that to the next request."""
    images = from_bytes(toy_images(12).x)
    with hostile(ANSWERS["two answers at once"], stage="answer", seconds=3.0) as port:
        url = f"http://127.0.0.1:{port}/v2/models/toy/infer"
        subject = opened(url, timeout=2.0, retries=1)
        for row in images:
            time.sleep(0.02)
            right = toy_subject()(row[None]).logits
            assert torch.allclose(subject(row[None]).logits, right, atol=1e-3)


def _tls(answer):
    """A port that takes connections and answers each with `answer`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                link, _ = listening.accept()
                threading.Thread(target=answer, args=(link,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listening


def _slow_hello(link):
    with suppress(OSError):
        for byte in b"\x16\x03\x03\x40\x00" + b"\x02" * 200:
            link.sendall(bytes([byte]))
            time.sleep(0.05)


@pytest.mark.parametrize(
    "answer",
    [
        lambda link: time.sleep(3),
        lambda link: link.close(),
        _slow_hello,
        lambda link: (
            link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
            link.close(),
        ),
    ],
    ids=["high_confidence", "closed", "slow", "clear text"],
)
@pytest.mark.usefixtures("_token")
def test_tls_handshakes_end_in_time(answer):
    with _tls(answer) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/v2/models/toy/infer"
        begun = time.monotonic()
        with pytest.raises(HardcaseError, match="does not answer") as caught:
            opened(url, retries=2)
        assert time.monotonic() - begun <= 2 * TIMEOUT + SLACK
        assert not shown(str(caught.value))


def test_addresses_that_lead_nowhere_share_one_deadline(monkeypatch):
    """A host with many addresses, none of which answers."""
    nowhere = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))] * 50
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **how: nowhere)

    class Slow(socket.socket):
        def connect(self, place):
            time.sleep(min(self.gettimeout(), 0.3))
            raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "socket", Slow)
    begun = time.monotonic()
    with pytest.raises(HardcaseError, match="does not answer"):
        opened("http://host.example/v2/models/toy/infer")
    assert time.monotonic() - begun <= 2 * TIMEOUT + SLACK
