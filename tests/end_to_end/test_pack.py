"""What is carried to a machine without a network arrives whole; stored speeds name their commit."""

import ast
import hashlib
import importlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import benchmarks
from benchmarks import figures, mosaics
from benchmarks.pack import cached, read_pieces, take, write_pieces
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


def test_rows_keep_their_commit_and_a_result_says_which_are_stale(tmp_path, monkeypatch):
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

    measured("first", "start", "search")
    record = measured("second", "search")
    assert record["commit"] == "second"
    commits = {kept["name"]: kept["commit"] for kept in record["rows"]}
    assert commits == {"search": "second", "start": "first"}
    assert figures.stale_rows(record) == []
    code.write_text("fast = False")
    assert figures.stale_rows(record) == ["search", "start"]
    record = measured("third", "search")
    assert figures.stale_rows(record) == ["start"]
    record = measured("third", "start")
    assert len(record["exercised"]) == 1  # no row is of the code before


def test_images_travel_as_pictures_and_come_back_pixel_by_pixel(tmp_path):
    rng = np.random.default_rng(0)
    for channels in (1, 3):
        arrays = {
            "x_train": rng.integers(0, 256, (130, channels, 12, 12), dtype=np.uint8),
            "x_test": rng.integers(0, 256, (7, channels, 12, 12), dtype=np.uint8),
            "y_train": np.arange(130) % 3,
            "y_test": np.arange(7) % 3,
        }
        cached = tmp_path / f"set{channels}-abc.npz"
        np.savez(cached, **arrays)
        place = tmp_path / f"there{channels}"
        mosaics.pack(cached, place)
        with np.load(mosaics.restore(place, tmp_path / "cache")) as back:
            assert set(back.files) == set(arrays)
            for name, array in arrays.items():
                assert back[name].dtype == array.dtype
                assert np.array_equal(back[name], array)


def test_a_picture_that_was_changed_is_refused(tmp_path):
    cached = tmp_path / "set-abc.npz"
    np.savez(cached, x_test=np.zeros((4, 1, 8, 8), np.uint8), y_test=np.zeros(4, np.int64))
    (picture, _) = mosaics.pack(cached, tmp_path / "there")
    Image.new("RGB", (800, 8), (9, 9, 9)).save(picture, "WEBP", lossless=True)
    with pytest.raises(SystemExit, match="pack again"):
        mosaics.restore(tmp_path / "there", tmp_path / "cache")


def test_pieces_may_come_in_several_calls(tmp_path, monkeypatch, capsys):
    files = {"cache/one": tmp_path / "one"}
    files["cache/one"].write_bytes(np.random.default_rng(0).bytes(5000))
    written = write_pieces(files, tmp_path / "whole", piece=2000)
    installed = []
    monkeypatch.setattr("benchmarks.pack.install", installed.append)
    for count, path in enumerate(written, 1):
        carried = tmp_path / f"call{count}"
        carried.mkdir()
        for name in (path.name, "pack.json"):
            (carried / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        take(carried, tmp_path / "aside")
        assert bool(installed) == (count == len(written))
    assert "missing: piece-02.bin" in capsys.readouterr().out
