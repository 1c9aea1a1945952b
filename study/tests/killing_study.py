"""A server of a study, killed at random moments while raters answer; no acknowledged answer is lost."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

ENTRANCE = {"t": "door", "lang": "en", "agree": "yes"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """``hardcase study serve`` in a process of its own."""

    def __init__(self, study: Path, port: int, database: str = "") -> None:
        self.study = study
        self.port = port
        self.database = database
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        code = (
            "import sys; from hardcase_study.server import serve; serve(sys.argv[1], "
            "port=int(sys.argv[2]), token='door', database=sys.argv[3], limits=False)"
        )
        command = [sys.executable, "-c", code, str(self.study), str(self.port), self.database]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(600):
            try:
                if ask(self.port, "GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
            if self.process.poll() is not None:
                raise RuntimeError(self.process.stderr.read().decode()[-2000:])
        raise RuntimeError("the server does not answer")

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()


def ask(port: int, method: str, path: str, body: str = "", kind: str = "") -> tuple[int, str, str]:
    """(status, where it leads, text)"""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        line.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = line.getresponse()
        return answer.status, answer.getheader("location", ""), answer.read().decode()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        line.close()


def field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found, page[:300]
    return found[1]


def options(page: str) -> list[str]:
    return re.findall(r'type="radio" name="label" value="([^"]*)"', page)


class Rater(threading.Thread):
    """A rater who never gives up: every request is tried again until it is answered."""

    def __init__(self, port: int, seed: int, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.pick = random.Random(seed)
        self.pause = pause
        self.acknowledged: dict[str, str] = {}
        self.times: list[float] = []
        self.token = ""
        self.error: BaseException | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            self.answer_all()
        except BaseException as error:
            self.error = error

    def patiently(self, *words: str) -> tuple[int, str, str]:
        for _ in range(600):
            try:
                found = ask(self.port, *words)
            except OSError:
                time.sleep(0.05)
                continue
            if found[0] not in (503, 429):
                return found
            time.sleep(0.05)
        raise RuntimeError("no answer for a long time")

    def answer_all(self) -> None:
        page = self.patiently("GET", "/?t=door")[2]
        body = urlencode({**ENTRANCE, "csrf": field(page, "csrf")})
        place = self.patiently("POST", "/begin", body)[1]
        self.token = place.split("/")[2]
        while not self.stop.is_set():
            status, place, page = self.patiently("GET", f"/r/{self.token}")
            while status == 303:
                path = place
                status, place, page = self.patiently("GET", path)
            if path.endswith("/done"):
                return
            value = self.pick.choice(options(page))
            sent = {"csrf": field(page, "csrf"), "item": field(page, "item"), "key": field(page, "key"),
                    "value": {"label": value}, "seconds": 1, "hidden": 0, "lost": 0, "revise": False}  # fmt: skip
            time.sleep(self.pause * self.pick.random() * 2)
            begun = time.perf_counter()
            status, _, text = self.patiently("POST", path, json.dumps(sent), "application/json")
            self.times.append(time.perf_counter() - begun)
            assert status == 200, (status, text)
            self.acknowledged[sent["item"]] = value
