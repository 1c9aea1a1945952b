"""A server on raw sockets that does whatever a server should not do.

A behaviour is a function of a `Visit`: one connection with one request of the Open Inference Protocol v2 that was read from
it. `METADATA` misbehave when they are asked what the model is, `ANSWERS` when they are asked about images.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
import threading
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from hardcase.testing.toys import SIZE, Quarters

TOKEN = "SeCrEtToKeN0123456789abcdefXYZ"
WEIGHTS = Quarters().mean.weight.detach().numpy().T.astype(np.float32) * 20
DESCRIPTION = {
    "name": "toy", "versions": ["1"], "platform": "none",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, SIZE, SIZE]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 4]}],
}  # fmt: skip
DRIP = 0.04
"""Seconds between two bytes of those who are slow."""


@dataclass
class Visit:
    """A connection, the head and the body of the request on it, and when to stop talking."""

    link: socket.socket
    head: bytes
    body: bytes
    until: float
    port: int

    @property
    def asks(self):
        return self.head.startswith(b"POST")

    def say(self, content):
        self.link.sendall(content)

    def last(self, content):
        self.say(content)
        self.link.close()

    def reply(self, body, status="200 OK", *headers):
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        self.say("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def forever(self, content, pause=0.0, before=b""):
        """Say the same again and again."""
        self.say(before)
        while time.monotonic() < self.until:
            self.say(content)
            time.sleep(pause)

    def drip(self, content):
        for byte in content:
            if time.monotonic() > self.until:
                return
            self.say(bytes([byte]))
            time.sleep(DRIP)

    def wait(self):
        time.sleep(max(0.0, self.until - time.monotonic()))

    def reset(self):
        """Hang up as a machine does that has crashed."""
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()

    @property
    def asked(self):
        """The request without its binary part, and where that begins."""
        length = _header(self.head, b"inference-header-content-length")
        cut = int(length) if length else len(self.body)
        return json.loads(self.body[:cut]), cut

    @property
    def name(self):
        return self.asked[0]["id"]

    @property
    def images(self):
        """What is asked about, one row an image."""
        said, cut = self.asked
        one = said["inputs"][0]
        if cut < len(self.body):
            return np.frombuffer(self.body[cut:], "<f4").reshape(one["shape"][0], -1)
        return np.array(one["data"], np.float32).reshape(one["shape"][0], -1)

    @property
    def scores(self):
        return self.images @ WEIGHTS

    def answer(self, scores=None, **changes):
        """The answer as JSON, with some of it changed."""
        scores = self.scores if scores is None else scores
        one = {"name": "scores", "datatype": "FP32", "shape": list(scores.shape), "data": scores.ravel().tolist()}  # fmt: skip
        self.reply(json.dumps({"id": self.name, "outputs": [{**one, **changes}]}).encode())

    def right(self):
        """What a good server says."""
        if self.asks:
            self.answer()
        else:
            self.reply(json.dumps(DESCRIPTION).encode())


def _header(head, name):
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def _described(**changes):
    return lambda v: v.reply(json.dumps({**DESCRIPTION, **changes}).encode())


def _input(**changes):
    return _described(inputs=[{**DESCRIPTION["inputs"][0], **changes}])


def _said(content):
    return lambda v: v.say(content)


def _replied(body, status="200 OK", *headers):
    return lambda v: v.reply(body, status, *headers)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(b"[" + b"0," * 2**22)
ECHO = TOKEN.encode()


def _two_answers(visit):
    """Another answer behind the one that was asked for, which the next request would get."""
    visit.right()
    time.sleep(0.005)  # in a packet of its own
    visit.right()


def _damaged(content, times=3):
    """An answer in order, with some of its bytes changed, lost or doubled, and the end of the connection."""
    for number in range(times):
        rng = random.Random(f"{content} {number}")
        data = bytearray(content)
        for _ in range(rng.choice((1, 2, 3))):
            place = rng.randrange(len(data))
            new = (
                b"",
                bytes([data[place] ^ 1 << rng.randrange(8)]),
                b"-1",
                b"\xff" * 4,
                data[place:] * 2,
            )
            data[place : place + rng.choice((1, 9))] = rng.choice(new)
        yield f"damage {number} of {content[9:30]}", partial(Visit.last, content=bytes(data))


TRANSPORT = {
    **dict(_damaged(HEAD + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")),
    **dict(_damaged(CHUNKED + b"2\r\n{}\r\n0\r\n\r\n")),
    **dict(_damaged(b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")),
    "high_confidence": lambda v: v.wait(),
    "hangs up": lambda v: v.link.close(),
    "reset": lambda v: v.reset(),
    "reset in the status": lambda v: (v.say(b"HTTP/1."), v.reset()),
    "reset in the headers": lambda v: (v.say(HEAD + b"Content-Le"), v.reset()),
    "reset before the body": lambda v: (v.say(HEAD + b"Content-Length: 90\r\n\r\n"), v.reset()),
    "reset in the body": lambda v: (v.say(HEAD + b'Content-Length: 90\r\n\r\n{"na'), v.reset()),
    "endless 100": lambda v: v.forever(b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "endless 100 at full speed": lambda v: v.forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "102 without end": lambda v: v.forever(b"HTTP/1.1 102 Processing\r\n\r\n", 0.01),
    "slow status": lambda v: v.drip(HEAD * 9),
    "slow headers": lambda v: v.drip(HEAD + b"X-One: y\r\n" * 99),
    "slow body": lambda v: (v.say(HEAD + b"Content-Length: 900\r\n\r\n"), v.drip(b" " * 900)),
    "slow chunks": lambda v: (v.say(CHUNKED), v.drip(b"1\r\n \r\n" * 200)),
    "endless headers": lambda v: v.forever(b"X-One: y\r\n" * 50, before=HEAD),
    "endless header line": lambda v: v.forever(b"y" * 4096, before=HEAD + b"X-One: "),
    "endless status line": lambda v: v.forever(b"y" * 4096, before=b"HTTP/1.1 200 "),
    "endless body": lambda v: v.forever(b" " * 65536, before=HEAD + b"\r\n"),
    "endless chunks": lambda v: v.forever(b"1000\r\n" + b" " * 4096 + b"\r\n", before=CHUNKED),
    "endless chunk extension": lambda v: v.forever(b"x" * 4096, before=CHUNKED + b"5;"),
    "endless trailers": lambda v: v.forever(b"X: y\r\n", before=CHUNKED + b"0\r\n"),
    "chunk of negative size": _said(CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n"),
    "chunk of no number": _said(CHUNKED + ECHO + b"\r\n{}\r\n0\r\n\r\n"),
    "chunk longer than sent": lambda v: (v.say(CHUNKED + b"ffffffffff\r\n{}"), v.link.close()),
    "chunk shorter than sent": _said(CHUNKED + b"1\r\n{}{}{}{}\r\n0\r\n\r\n"),
    "huge length": lambda v: (v.say(HEAD + b"Content-Length: 99999999999999999999\r\n\r\n{}"), v.wait()),
    "negative length": lambda v: (v.say(HEAD + b"Content-Length: -1\r\n\r\n{}"), v.link.close()),
    "length of no number": lambda v: (v.say(HEAD + b"Content-Length: " + ECHO + b"\r\n\r\n{}"), v.link.close()),
    "two lengths": lambda v: (v.say(HEAD + b"Content-Length: 2\r\nContent-Length: 99\r\n\r\n{}"), v.wait()),
    "length shorter than sent": lambda v: (v.say(HEAD + b"Content-Length: 1\r\n\r\n{}{}{}"), v.wait()),
    "length longer than sent": lambda v: (v.say(HEAD + b"Content-Length: 99\r\n\r\n{}"), v.link.close()),
    "gzip bomb": _replied(BOMB, "200 OK", "Content-Encoding: gzip"),
    "gzip that is none": _replied(b"{}", "200 OK", "Content-Encoding: gzip, br"),
    "HTTP/0.9": lambda v: (v.say(b"<html>welcome " + ECHO), v.link.close()),
    "HTTP/2": lambda v: (v.say(b"\0\0\x12\x04\0\0\0\0\0" + b"\0" * 18), v.wait()),
    "HTTP/9.9": _said(b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    "TLS garbage": lambda v: (v.say(b"\x15\x03\x01\0\x02\x02\x16" * 3), v.wait()),
    "noise": lambda v: (v.say(np.random.default_rng(0).bytes(4096)), v.link.close()),
    "zeros": lambda v: v.forever(b"\0" * 4096),
    "status of no number": _said(b"HTTP/1.1 abc OK\r\n\r\n"),
    "status of 4 digits": _said(b"HTTP/1.1 20000 OK\r\n\r\n"),
    "204": _said(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "empty": _replied(b""),
    "switching protocols": lambda v: (v.say(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), v.wait()),
    "redirect to a file": _replied(b"", "302 Found", "Location: file:///etc/passwd"),
    "redirect to another host": lambda v: v.reply(b"", "307 Away", f"Location: http://localhost:{v.port}/{TOKEN}"),
    "redirect to itself": lambda v: v.reply(b"", "308 Here", "Location: /v2/models/toy"),
    "401 with the token": _replied(b"not you: Bearer " + ECHO, "401 No"),
    "401 with half of it": _replied(b"x" * 270 + b"Bearer " + ECHO, "401 No"),
    "403 with it in base64": _replied(b64encode(b"Bearer " + ECHO), "403 No"),
    "500 with it in hexadecimal": _replied(ECHO.hex().encode(), "500 No"),
    "token as reason": lambda v: v.say(b"HTTP/1.1 404 " + ECHO + b"\r\nContent-Length: 0\r\n\r\n"),
    "token as a header": _replied(b"", f"404 {TOKEN}", f"{TOKEN}: {TOKEN}", f"Set-Cookie: {TOKEN}"),
    "429 until an absurd day": _replied(b"", "429 Later", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"),
    "429 until tomorrow": lambda v: v.reply(b"", "429 Later", "Retry-After: " + time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 86400))),
    "429 for ages": _replied(b"", "429 Later", "Retry-After: 999999"),
    "503 for less than nothing": _replied(b"", "503 Later", "Retry-After: -9"),
    "503 for a secret": _replied(b"", "503 Later", f"Retry-After: {TOKEN}"),
    "503 always": _replied(b"no", "503 Later"),
    "no JSON": _replied(b"<html>welcome</html>" + ECHO),
    "deep JSON": _replied(b"[" * 100_000),
    "wide JSON": _replied(b"[" + b"0," * 800_000 + b"0]"),
    "JSON of one number": _replied(b"7"),
    "JSON of one word": _replied(json.dumps(TOKEN).encode()),
    "JSON in UTF-16": _replied(json.dumps(DESCRIPTION).encode("utf-16")),
    "no text": _replied(b'{"name": "\xff\xfe"}'),
    "a number of 5,000 digits": _replied(b'{"name": ' + b"9" * 5000 + b"}"),
}  # fmt: skip
"""What can go wrong between two machines, whatever was asked."""
METADATA = {
    "token as datatype": _input(datatype=TOKEN),
    "token as name": _input(name=TOKEN, shape=[-1, 3, 9, 9]),
    "token as key": _replied(json.dumps({TOKEN: 1, "name": TOKEN}).encode()),
    "token as shape": _input(shape=[*map(ord, TOKEN)]),
    "a batch of 10^12": _input(shape=[10**12, 1, SIZE, SIZE]),
    "a batch of 60,000": _input(shape=[60_000, 1, SIZE, SIZE]),
    "shape of words": _input(shape=["all", "of", "it"]),
    "shape of fractions": _input(shape=[1e400, 0.5, SIZE, SIZE]),
    "two inputs": _described(inputs=DESCRIPTION["inputs"] * 2),
    "no outputs": _described(outputs=[]),
    "outputs of words": _described(outputs=[TOKEN]),
}  # fmt: skip
ANSWERS = {
    "token as datatype": lambda v: v.answer(datatype=TOKEN),
    "token as shape": lambda v: v.answer(np.zeros((1, 30)), shape=[*map(ord, TOKEN)]),
    "token as length": lambda v: v.reply(b"{}", "200 OK", f"Inference-Header-Content-Length: {TOKEN}"),
    "negative header length": lambda v: v.reply(b"{}", "200 OK", "Inference-Header-Content-Length: -7"),
    "token as labels": lambda v: v.answer(np.array([[float(ord(c))] for c in TOKEN]), datatype="INT64", data=[*map(ord, TOKEN)]),
    "promised bytes that are missing": lambda v: v.answer(parameters={"binary_data_size": 10**9}),
    "too few rows": lambda v: v.answer(v.scores[:-1]) if len(v.images) > 1 else v.right(),
    "too many rows": lambda v: v.answer(np.concatenate([v.scores, v.scores])),
    "rows the other way round": lambda v: v.answer(v.scores[::-1]),
    "rows moved by one": lambda v: v.answer(np.roll(v.scores, 1, 0)),
    "no rows": lambda v: v.answer(np.zeros((0, 4))),
    "too few classes": lambda v: v.answer(v.scores[:, :1]),
    "a flat list": lambda v: v.answer(shape=[v.scores.size]),
    "words": lambda v: v.answer(data=[TOKEN] * v.scores.size),
    "lists of other lengths": lambda v: v.answer(data=[[1.0], [2.0, 3.0]]),
    "numbers too large": lambda v: v.answer(data=[10**400] * v.scores.size),
    "a shape of 10^18": lambda v: v.answer(shape=[10**9, 10**9]),
    "labels that no class has": lambda v: v.answer(v.scores.argmax(1) + 99, datatype="INT64"),
    "NaN": lambda v: v.answer(v.scores * np.nan),
    "infinity": lambda v: v.answer(v.scores * np.inf),
    "413 always": _replied(b"too large", "413 No"),
    "two answers at once": _two_answers,
}  # fmt: skip


@contextmanager
def hostile(behaviour, *, stage, seconds, thief=0):
    """A server whose `behaviour` begins with its metadata, with its first answer, or ``later``: after the model was opened."""
    stop = threading.Event()
    asked = []

    def one(link):
        with suppress(OSError, ValueError), link:
            link.settimeout(seconds)
            while not stop.is_set():
                head, body = _request(link)
                visit = Visit(link, head, body, time.monotonic() + seconds, thief)
                asked.append(visit.asks)
                turn = {"metadata": True, "answer": visit.asks, "later": sum(asked) > 2}[stage]
                behaviour(visit) if turn else visit.right()

    def accept(listening):
        with suppress(OSError):
            while not stop.is_set():
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            stop.set()
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _request(link):
    data = b""
    while b"\r\n\r\n" not in data:
        block = link.recv(65536)
        if not block:
            raise OSError("the client has gone")
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    while len(body) < int(_header(head, b"content-length") or 0):
        body += link.recv(65536)
    return head, body
