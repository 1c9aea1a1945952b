"""Where trust ends: nothing that comes from outside is run, nothing leaves the machine unasked. See SECURITY.md."""

import ast
import io
import json
import pickle
import socket
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import hardcase
from hardcase import tensors
from hardcase.data.public import cache_file, public_sets, read_cache
from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.models.adapters import read_state
from hardcase.testing.toys import toy_images
from tiny import save_toys

ROOT = Path(hardcase.__file__).parent
CODE = [
    (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
    for path in sorted(ROOT.rglob("*.py"))
]


class Evil:
    def __reduce__(self):
        return (open, ("broken_into", "w"))


@pytest.fixture
def safe(tmp_path, monkeypatch):
    """A folder of its own; the pickle of these tests breaks into it if anybody loads it."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not Path("broken_into").exists()


def test_the_malicious_pickle_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Evil())).close()
    assert Path("broken_into").exists()


def object_array():
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Evil()] * 4, dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("member", ["images", "labels", "classes"])
def test_arrays_of_objects_are_not_unpickled(safe, member):
    images = toy_images(4)
    arrays = {"images": images.x.numpy(), "labels": images.y.numpy()}
    np.savez("set.npz", **arrays, classes=np.array(list("abcd")))
    with zipfile.ZipFile("set.npz") as whole, zipfile.ZipFile("evil.npz", "w") as other:
        for name in whole.namelist():
            other.writestr(name, object_array() if name == f"{member}.npy" else whole.read(name))
    with pytest.raises(Problem, match="can run code"):
        load("npz:evil.npz?split=all")


def test_an_npz_that_is_a_pickle_is_not_loaded(safe):
    Path("evil.npz").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Problem, match="cannot read"):
        load("npz:evil.npz")


def test_a_spoilt_cache_is_not_unpickled(safe, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(safe))
    path = cache_file(public_sets()["mnist"])
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x_test.npy", object_array())
        file.writestr("y_test.npy", object_array())
    with pytest.raises(Problem, match="damaged"):
        read_cache(public_sets()["mnist"], ("test",))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.safetensors", "w"])
def test_weights_that_are_pickles_are_not_loaded_under_any_name(safe, name):
    Path(name).write_bytes(pickle.dumps({"mean.weight": Evil()}))
    with pytest.raises(Problem):
        read_state(Path(name), trust=False)
    torch.save({"mean.weight": Evil()}, name)
    with pytest.raises(Problem):
        read_state(Path(name), trust=False)


def test_pickled_code_is_loaded_only_by_who_says_so(tmp_path, monkeypatch):
    """The other side of the boundary: --trust-pickle does what it says."""
    monkeypatch.chdir(tmp_path)
    torch.save({"mean.weight": Evil()}, "w.pt")
    with pytest.raises(Problem):
        read_state(Path("w.pt"), trust=True)
    assert Path("broken_into").exists()


def called(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_nothing_is_evaluated_and_pickles_stay_between_own_processes():
    """The code itself: no eval, no shell; `pickle` only where a run talks to workers that it started."""
    forbidden = [
        "eval",
        "exec",
        "compile",
        "os.system",
        "os.popen",
        "marshal.loads",
        "yaml.load",
        "__import__",
    ]
    for name, tree in CODE:
        for function, node in called(tree):
            assert function not in forbidden, f"{name}:{node.lineno} calls {function}"
            if function.startswith("pickle."):
                own = ("runs/workers.py", "models/pretrained/lpips.py", "testing/methods.py")
                assert name in own, f"{name}:{node.lineno} calls {function}"
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert given.get("shell", "False") == "False", f"{name}:{node.lineno}"
            assert given.get("allow_pickle", "False") == "False", f"{name}:{node.lineno}"
            if function.endswith("np.load"):
                assert given.get("allow_pickle") == "False", f"{name}:{node.lineno}"
            if function.endswith("torch.load"):
                assert given.get("weights_only") in ("not trust", "True"), f"{name}:{node.lineno}"


ALONE = """
import pkgutil, socket, sys
def never(*words, **options):
    raise SystemExit(f"the network was touched: {words}")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = never
socket.create_connection = socket.getaddrinfo = never
import importlib, hardcase
for module in pkgutil.walk_packages(hardcase.__path__, "hardcase."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from hardcase.cli.main import main
for words in (["list", "methods"], ["list", "data"], ["--help"]):
    assert main(words) == 0
print("alone", len(sys.modules))
"""


def test_no_import_touches_the_network(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "alone" in done.stdout


def test_an_offline_run_asks_nobody(tmp_path, monkeypatch):
    """From the data to the report, with a network that screams."""
    from hardcase.cli.main import main

    def never(*words, **options):
        raise AssertionError(f"the network was touched: {words}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, never)
    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    Path("model.py").write_text("from hardcase.testing.toys import Quarters as make\n")
    save_toys(Path(), 40)
    words = [
        "run",
        "--model",
        "model.py:make",
        "--data",
        "npz:toy.npz",
        "--method",
        "pgd",
        "--seeds",
        "4",
        "--offline",
    ]
    assert main([*words, "--out", "out", "--quiet"]) == 0
    assert main(["report", "out", "--quiet"]) == 0
    for spec in ("cifar10", "mnist", "fashion"):
        with pytest.raises(Problem, match="--offline forbids"):
            load(spec, offline=True)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "'; alert(3); //",
    "{{ 7 * 7 }}",
)


def test_hostile_names_of_a_folder_stay_text_from_the_disk_to_the_pages(tmp_path, monkeypatch):
    """Class names come from folders, paths from the command line; both reach the report and the comparison."""
    from hardcase.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    images, names = toy_images(40), [name.replace("/", "∕") for name in HOSTILE]
    for number, (image, label) in enumerate(zip(images.x, images.y.tolist(), strict=True)):
        place = Path("<b>set", f"{label} {names[label]}")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(tensors.encode(image))
    Path("model.py").write_text("from hardcase.testing.toys import Quarters as make\n")
    for out in ("<i>one", "two"):
        words = [
            "--model",
            "model.py:make",
            "--data",
            "folder:<b>set?split=all",
            "--method",
            "pgd",
            "--seeds",
            "8",
        ]
        assert main(["run", *words, "--out", out, "--quiet"]) == 0
    assert main(["report", "<i>one", "--quiet"]) == 0
    assert main(["compare", "<i>one", "two", "--out", "compare.html", "--quiet"]) == 0
    for page in ("<i>one/report/index.html", "compare.html"):
        tags = Tags()
        tags.feed(Path(page).read_text(encoding="utf-8"))
        assert not [tag for tag in tags.found if tag[0] == "img" and tag[1].get("src") == "x"], page
        assert not [tag for tag in tags.found if any(name.startswith("on") for name in tag[1])], (
            page
        )
        assert "<script>alert(1)" not in Path(page).read_text(encoding="utf-8")
    assert "{{ 7 * 7 }}" in Path("<i>one/report/index.html").read_text(encoding="utf-8")
    report = json.loads(Path("<i>one/report/report.json").read_text(encoding="utf-8"))
    assert names[0] in json.dumps(report, ensure_ascii=False)
