"""The pages about black boxes and clusters: their commands, word for word, on a toy network and a folder of pictures."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from hardcase import tensors
from hardcase.testing.toys import toy_images

PAGES = Path(__file__).parents[2] / "docs" / "guides"
SECTION = "".join((PAGES / f"{name}.md").read_text("utf-8") for name in ("black-box", "cluster"))
LINES = "".join(re.findall(r"```sh\n(.*?)```", SECTION, re.S)).splitlines()
SIDE_FILES = str(Path(__file__).parents[1] / "models")


def has(name):
    return importlib.util.find_spec(name) is not None


@pytest.fixture
def place(world):
    """What the section takes for granted: a folder of pictures and a network in a file."""
    images = toy_images(60)
    for number, (image, label) in enumerate(zip(images.x, images.y.tolist())):
        folder = Path("photos", str(label))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(tensors.encode(image))
    net = "from hardcase.testing.toys import Quarters\ndef make(): return Quarters()\n"
    Path("net.py").write_text(net)
    return world


@pytest.fixture
def serving(monkeypatch):
    """The toy network as an ONNX file, and a way to serve it."""
    if not (has("onnx") and has("onnxruntime")):
        pytest.skip("onnx and onnxruntime are extras")
    monkeypatch.syspath_prepend(SIDE_FILES)
    import serving

    serving.write_onnx(Path("net.onnx"))
    return serving.serving


def ran(place, words, folder):
    done = place(*words, "--progress", "none")
    assert done.code == 0, done.err
    found = place.findings(folder)
    assert found
    return found


def test_workers_status_and_resume(place):
    """The serial run gives the same bytes; a finished run is shown, checked, and left as it is."""
    two = run_command("runs/two")
    found = ran(place, two, "runs/two")
    alone = [word for word in two if word not in ("--workers", "2")]
    assert ran(place, [*alone[:-1], "runs/one"], "runs/one") == found
    assert "done" in place("status", "runs/two", "runs/one").out
    done = place("resume", "runs/two")
    assert done.code == 0
    assert "already complete" in done.err
    assert place.findings("runs/two") == found


def run_command(out):
    """The words of the command that writes `out`."""
    line = next(line for line in LINES if line.endswith(f"--out {out}"))
    return shlex.split(line)[1:]


def small(words):
    """Few originals and queries, and nothing to train from as few images: no witnesses, surrogates, judge."""
    settings = ("judge=false", "method.search=evolution")
    return [*words, "--images", "4", "--queries", "60", "--witness", "none", "--set", *settings]


def test_a_file_that_can_only_be_asked(place, serving):
    ran(place, small(run_command("runs/onnx")), "runs/onnx")


@pytest.mark.long
def test_a_server(place, serving):
    words = run_command("runs/server")
    with serving(Path("net.onnx")) as server:
        url = next(i for i, word in enumerate(words) if word.startswith("http"))
        ran(place, small([*words[:url], server.url, *words[url + 1 :]]), "runs/server")
        assert server.seen["rows"] > 0


@pytest.mark.long
@pytest.mark.skipif(not has("ray"), reason="a cluster of its own")
def test_a_cluster(place):
    words = run_command("runs/ray")
    found = ran(place, words, "runs/ray")
    assert ran(place, [*words[:-4], "--out", "runs/one"], "runs/one") == found
