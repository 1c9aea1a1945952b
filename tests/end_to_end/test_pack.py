"""What is carried to a machine without a network arrives whole; stored speeds are of one commit."""

import ast
import hashlib
import importlib
import io
import json
import tarfile
from pathlib import Path

import pytest

import benchmarks
from benchmarks import figures
from benchmarks.pack import cached, read_pieces, write_pieces
from hardcase_studies import stored


@pytest.fixture
def files(tmp_path):
    made = {"wheels/a.whl": b"a" * 100, "cache/data/b.npz": bytes(range(256)) * 40}
    paths = {name: tmp_path / name.replace("/", "-") for name in made}
    for name, content in made.items():
        paths[name].write_bytes(content)
    return made, paths


def test_pieces_give_back_what_was_packed(tmp_path, files):
    made, paths = files
    pieces = write_pieces(paths, tmp_path / "carry", piece=100)
    assert len(pieces) > 2
    assert max(path.stat().st_size for path in pieces) <= 100
    again = write_pieces(paths, tmp_path / "again", piece=100)
    assert [a.read_bytes() for a in pieces] == [b.read_bytes() for b in again]
    read_pieces(tmp_path / "carry", tmp_path / "there")
    assert {name: (tmp_path / "there" / name).read_bytes() for name in made} == made


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_a_harmed_piece_is_refused(tmp_path, files, harm):
    piece = write_pieces(files[1], tmp_path / "carry", piece=100)[1]
    if harm == "missing":
        piece.unlink()
    else:
        piece.write_bytes(piece.read_bytes()[::-1])
    with pytest.raises(SystemExit, match="missing or was changed"):
        read_pieces(tmp_path / "carry", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_nothing_is_unpacked_outside(tmp_path, files):
    folder = tmp_path / "carry"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
    (tmp_path / "packed").write_bytes(content.getvalue())
    (piece,) = write_pieces({"x": tmp_path / "packed"}, folder)
    piece.write_bytes(content.getvalue())
    checksum = hashlib.sha256(content.getvalue()).hexdigest()
    (folder / "pack.json").write_text(json.dumps({piece.name: checksum}))
    with pytest.raises(tarfile.OutsideDestinationError):
        read_pieces(folder, tmp_path / "there" / "inside")
    assert not (tmp_path / "there" / "outside").exists()


def test_of_networks_that_differ_in_training_alone_the_longest_trained_goes(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist-d-0.npz").write_bytes(b"")
    for name, epochs, seed in (("short", 6, 0), ("long", 8, 0), ("other", 6, 1), ("brief", 2, 2)):
        folder = tmp_path / "networks" / name
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(b"")
        card = {"kind": "vae", "data": "d", "loss": [0.0] * epochs, "configuration": {"seed": seed}}
        card["configuration"]["recipe"] = {"epochs": epochs}
        (folder / "card.json").write_text(json.dumps(card))
    taken = {name.split("/")[2] for name in cached(tmp_path)}
    assert taken == {"long", "other", "mnist-d-0.npz"}
    assert not cached(tmp_path, ["cifar10"])


FILES = sorted(Path(benchmarks.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_benchmark_imports_of_ours_exists(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hardcase"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_a_result_is_of_one_commit_and_says_which_rows_are_stale(tmp_path, monkeypatch):
    code = tmp_path / "engine.py"
    code.write_text("fast = True")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "imported_files", lambda: ["engine.py"])
    row = {"unit": "s", "against": "nothing", "command": "python -m benchmarks"}

    def measured(commit, *names):
        monkeypatch.setattr(stored, "commit", lambda: commit)
        figures.collect([figures.Figure(name=name, value=1.0, **row) for name in names])
        return json.loads((tmp_path / "bench-cpu.json").read_text())

    measured("first", "start")
    record = measured("second", "search")
    assert [kept["name"] for kept in record["rows"]] == ["search"]  # the first commit's row left
    record = measured("second", "judge")
    assert [kept["name"] for kept in record["rows"]] == ["judge", "search"]
    assert figures.stale_rows(record) == []
    code.write_text("fast = False")
    assert figures.stale_rows(record) == ["judge", "search"]
