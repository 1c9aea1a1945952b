from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test of this folder touches the user's cache."""
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def png() -> Callable[..., bytes]:
    """A small picture as PNG bytes, of any mode, every number another picture."""

    def make(
        number: int = 0, *, mode: str = "L", size: tuple[int, int] = (5, 4), kind: str = "PNG"
    ) -> bytes:
        pixels = np.random.default_rng(number).integers(
            0, 256, (size[1], size[0], 4), dtype=np.uint8
        )
        picture = Image.fromarray(pixels[..., 0] if mode == "L" else pixels[..., :3]).convert(mode)
        buffer = BytesIO()
        picture.save(buffer, kind)
        return buffer.getvalue()

    return make


@pytest.fixture
def class_folder(tmp_path: Path, png: Callable[..., bytes]) -> Callable[..., Path]:
    """A folder with `count` pictures for each class name."""

    def make(counts: dict[str, int], *, name: str = "pets", mode: str = "L") -> Path:
        root = tmp_path / name
        for place, (label, count) in enumerate(counts.items()):
            (root / label).mkdir(parents=True)
            for i in range(count):
                (root / label / f"{i}.png").write_bytes(png(1000 * place + i, mode=mode))
        return root

    return make


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serve a folder on this machine; gives its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    def start(folder: Path) -> str:
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
        )
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
