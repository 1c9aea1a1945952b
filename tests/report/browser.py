"""A real Chromium, driven over two pipes with the DevTools protocol: nothing to install besides the browser itself."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "ArrowRight": (39, ""), "ArrowLeft": (37, ""), "ArrowDown": (40, ""), "ArrowUp": (38, "")}  # fmt: skip


def axe_core(folder: Path) -> str:
    """axe-core, from where AXE_CORE says or from npm; without either the test is skipped."""
    named = os.environ.get("AXE_CORE")
    if named:
        return Path(named).read_text(encoding="utf-8")
    if shutil.which("npm") is None:
        pytest.skip("needs npm for axe-core")
    done = subprocess.run(["npm", "pack", "axe-core@4"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot get axe-core: {done.stderr[-200:]}")
    subprocess.run(["tar", "xzf", done.stdout.split()[-1]], cwd=folder, check=True)
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


class Browser:
    """One page in a headless browser; `events` holds everything it told since it was opened."""

    def __init__(self) -> None:
        self.home = tempfile.mkdtemp(prefix="browser-")
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        os.set_inheritable(to_browser, True)
        os.set_inheritable(from_browser, True)
        flags = [
            *("--remote-debugging-pipe", f"--user-data-dir={self.home}", "--headless"),
            *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
            "--hide-scrollbars",
        ]
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        command = [str(PROGRAM), *flags, "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command], pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.read)
        os.close(self.write)
        shutil.rmtree(self.home, ignore_errors=True)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": arguments}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.events.clear()
        phone = width < 600
        device = {"width": width, "height": height, "mobile": phone, "deviceScaleFactor": 1 + phone}
        self.call("Emulation.setDeviceMetricsOverride", **device)
        self.emulate(dark=dark)
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def emulate(self, *, dark: bool = False, media: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme, still])

    def js(self, expression: str) -> Any:
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def key(self, name: str) -> None:
        code, text = KEYS[name]
        word = "Space" if name == " " else name
        common = {"key": name, "windowsVirtualKeyCode": code, "code": word}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector: str) -> None:
        """A click where the element is, as a hand would make it."""
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        place = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def complaints(self) -> list[Any]:
        """Errors and warnings of the console, exceptions, and messages about policies."""
        self.js("new Promise(done => setTimeout(done, 50))")
        console = self.told("Runtime.consoleAPICalled")
        wrong = [entry for entry in console if entry["type"] in ("error", "warning", "assert")]
        return [*self.told("Runtime.exceptionThrown"), *self.told("Log.entryAdded"), *wrong]

    def told(self, method: str) -> list[dict[str, Any]]:
        """What events of a kind said since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def requests(self) -> list[str]:
        """Every address that the page asked for, except what it holds itself."""
        asked = [said["request"]["url"] for said in self.told("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith("data:")]

    def _next(self, patience: float = 30) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], patience)
            assert ready, "the browser does not answer"
            data = os.read(self.read, 1 << 20)
            assert data, "the browser has ended"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return dict(json.loads(message))
