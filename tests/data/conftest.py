import http.server
import threading
from functools import partial
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from hardcase.data.sources import load
from hardcase.errors import HardcaseError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test of this folder touches the user's cache."""
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def refusal():
    """The problem that loading a data set ends in; `match` is in its text."""

    def load_fails(spec, match, **options):
        with pytest.raises(HardcaseError, match=match) as caught:
            load(spec, **options)
        return caught.value

    return load_fails


@pytest.fixture
def png():
    """A small picture as PNG bytes, of any mode, every number another picture."""

    def make(number=0, *, mode="L", size=(5, 4), kind="PNG"):
        rng = np.random.default_rng(number)
        pixels = rng.integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
        picture = Image.fromarray(pixels[..., 0] if mode == "L" else pixels[..., :3]).convert(mode)
        buffer = BytesIO()
        picture.save(buffer, kind)
        return buffer.getvalue()

    return make


@pytest.fixture
def class_folder(tmp_path, png):
    """A folder with `count` pictures for each class name."""

    def make(counts, *, name="pets", mode="L"):
        root = tmp_path / name
        for place, (label, count) in enumerate(counts.items()):
            (root / label).mkdir(parents=True)
            for i in range(count):
                (root / label / f"{i}.png").write_bytes(png(1000 * place + i, mode=mode))
        return root

    return make


@pytest.fixture
def serve():
    """Serve a folder on this machine; gives its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    def start(folder):
        handler = partial(Quiet, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
