"""Where trust ends: nothing that comes from outside is run, nothing leaves the machine unasked. See SECURITY.md."""

import ast
import io
import pickle
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import hardcase
import hardcase_teams
from hardcase.data.public import cache_file, public_sets, read_cache
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.adapters import read_state
from hardcase.testing.toys import toy_images

ROOT = Path(hardcase.__file__).parent
TEAMS = Path(hardcase_teams.__file__).parent


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
    with pytest.raises(HardcaseError, match="can run code"):
        load("npz:evil.npz?split=all")
    Path("evil.npz").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(HardcaseError, match="cannot read"):
        load("npz:evil.npz")


def test_a_spoilt_cache_is_not_unpickled(safe, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(safe))
    path = cache_file(public_sets()["mnist"])
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x_test.npy", object_array())
        file.writestr("y_test.npy", object_array())
    with pytest.raises(HardcaseError, match="damaged"):
        read_cache(public_sets()["mnist"], ("test",))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.safetensors", "w"])
def test_weights_that_are_pickles_are_not_loaded_under_any_name(safe, name):
    weights = {"mean.weight": Evil()}
    Path(name).write_bytes(pickle.dumps(weights))
    for _ in range(2):
        with pytest.raises(HardcaseError):
            read_state(Path(name), trust=False)
        torch.save(weights, name)


def test_pickled_code_is_loaded_only_by_who_says_so(tmp_path, monkeypatch):
    """The other side of the boundary: --trust-pickle does what it says."""
    monkeypatch.chdir(tmp_path)
    torch.save({"mean.weight": Evil()}, "w.pt")
    with pytest.raises(HardcaseError):
        read_state(Path("w.pt"), trust=True)
    assert Path("broken_into").exists()


def test_nothing_is_evaluated_and_pickles_stay_between_own_processes():
    """The code itself: no eval, no shell; `pickle` only where a run talks to workers that it started."""
    forbidden = {"eval", "exec", "compile", "__import__"}
    forbidden |= {"os.system", "os.popen", "marshal.loads", "yaml.load"}
    roots = (ROOT, TEAMS)
    found = [(root, path) for root in roots for path in root.rglob("*.py")]
    files = {path.relative_to(root).as_posix(): path for root, path in found}
    for name, path in sorted(files.items()):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            assert function not in forbidden, f"{name}:{node.lineno} calls {function}"
            if function.startswith("pickle."):
                own = ("runs/workers.py", "pretrained/lpips.py", "testing/methods.py")
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
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "alone" in done.stdout


def test_an_offline_run_asks_nobody(user, command, monkeypatch):
    """From the data to the report, with a network that screams."""

    def never(*words, **options):
        raise AssertionError(f"the network was touched: {words}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, never)
    monkeypatch.setattr(socket, "getaddrinfo", never)
    words = "run --model model.py:make --data npz:toy.npz --method pgd --images 4 --offline"
    assert command(f"{words} --out out --quiet")[0] == 0
    assert command("report out --quiet")[0] == 0
    for spec in ("cifar10", "mnist", "fashion"):
        with pytest.raises(HardcaseError, match="--offline forbids"):
            load(spec, offline=True)
