"""The run folder: what is written is read back, half a file is invisible, nothing is written over."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow.parquet import ParquetFile, write_table

from hardcase.errors import HardcaseError
from hardcase.randomness import stream
from hardcase.runs.files import wrong_record
from hardcase.runs.folder import Packed, Store, pack_deltas
from hardcase.runs.tables import SPENDING, SPENT, findings_table, seeds_table, to_parquet
from hardcase.tensors import decode_all
from hardcase.types import Findings

IDS = ["data/1", "data/2"]


def some(count=2, peers=0, code=3):
    rng = stream(0, "findings")
    whole = torch.arange(count)
    real = torch.rand(count, generator=rng)
    x = torch.randint(0, 256, (count, 1, 6, 6), generator=rng, dtype=torch.uint8)
    peer, codes = whole.new_zeros(count, peers), real.new_ones(count, code)
    return Findings(whole, x, whole % 4, whole, whole + 1, peer, real, real, real, whole, codes)


def table(found, seeds=None):
    seeds = found.x if seeds is None else seeds
    return findings_table(found, seeds, IDS[: len(found)], method="pgd", oracle="label")


def seed_rows(status):
    zeros = [0] * len(IDS)
    columns = {
        "id": IDS, "label": [1, 2], "predicted": [1, 2], "confidence": [0.5, 0.75], "status": status,
        **dict.fromkeys(("evaluated", "failing", *SPENDING), zeros),
    }  # fmt: skip
    return seeds_table(columns, some().x)


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "run", {"schema": 1}, "", [seed_rows(["waiting", "waiting"])])


def packed(found, status=("done", "done"), deltas=None):
    spent = to_parquet(seed_rows(list(status)))
    return Packed(to_parquet(table(found)), spent, pack_deltas(deltas or {}))


def test_seeds_in_many_row_groups_are_those_in_one(tmp_path):
    rows = seed_rows(["waiting", "waiting"])
    names = [pa.array([f"s/{i}"]) for i in range(7)]
    several = [rows.slice(i % 2, 1).set_column(0, "id", name) for i, name in enumerate(names)]
    store = Store.create(tmp_path / "run", {"schema": 1}, "", several)
    assert ParquetFile(tmp_path / "run/images.parquet").num_row_groups == 7
    x = some().x
    assert torch.equal(decode_all(store.seed_images([5, 0, 4, 1])), x[[1, 0, 0, 1]])
    for number, cut in enumerate([slice(0, 3), slice(3, 4), slice(6, 7)]):  # of four shards
        spent = pa.concat_tables(several[cut]).select([*SPENT])
        done = spent.set_column(1, "status", pa.array(["done"] * len(spent)))
        store.put(number, Packed(to_parquet(table(some(0))), to_parquet(done), b""))
    before = (tmp_path / "run/images.parquet").read_bytes()
    store.settle()
    after = (tmp_path / "run/images.parquet").read_bytes()
    expected = ["done"] * 4 + ["waiting"] * 2 + ["done"]
    assert store.seeds()["status"].to_pylist() == expected
    assert after != before
    store.settle()
    assert (tmp_path / "run/images.parquet").read_bytes() == after
    assert torch.equal(decode_all(store.seed_images(range(7))), x[[0, 1, 0, 1, 0, 1, 0]])


def test_a_row_group_that_was_changed_is_not_read(tmp_path):
    rows = seed_rows(["waiting", "waiting"])
    store = Store.create(tmp_path / "run", {"schema": 1}, "", [rows.slice(0, 1), rows.slice(1, 1)])
    path = tmp_path / "run/images.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(HardcaseError, match="is damaged"):
        store.seed_images([0])


def test_what_was_appended_is_read_back_with_distances_from_the_seed(store):
    found = some()
    store.put(0, packed(found, deltas={"nc": {"bits": torch.tensor([1, 0, 1])}}))
    read = store.findings()
    assert torch.equal(decode_all(store.finding_images(range(len(read)))), found.x)
    assert read["kind"].to_pylist() == ["label", "disagreement"]
    assert read["predicted"].to_pylist() == found.predicted.tolist()
    assert read["code"].to_pylist() == found.code.tolist()
    assert store.deltas(0)["nc"]["bits"].tolist() == [1, 0, 1]
    assert store.seeds()["status"].to_pylist() == ["done", "done"]
    moved = found.x.clone()
    moved[:, 0, 0, 0] ^= 128
    assert table(found, moved)["linf"].to_pylist() == pytest.approx([128 / 255] * 2)


def test_an_empty_shard_marks_itself_done_and_a_half_written_file_is_invisible(store):
    (store.folder / "findings" / ".part-00001-abc.parquet").write_bytes(b"half")
    assert store.done() == set()
    store.put(3, packed(some(0)))
    assert store.done() == {3}
    assert len(store.findings()) == 0


def test_a_damaged_part_or_record_is_named(store):
    store.put(0, packed(some()))
    path = store.folder / "findings" / "part-00000.parquet"
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(HardcaseError, match=r"part-00000\.parquet is damaged"):
        store.findings()
    (store.folder / "run.json").write_text("{")
    with pytest.raises(HardcaseError, match=r"run\.json is damaged"):
        store.record()


def test_a_folder_with_anything_in_it_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HardcaseError, match="not empty"):
        Store.create(tmp_path, {}, "", [seed_rows(["waiting"] * 2)])
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(HardcaseError, match=r"no run\.json"):
        Store.open(tmp_path)


def test_datasets_sees_pictures(store):
    datasets = pytest.importorskip("datasets")
    found = some()
    store.put(0, packed(found))
    store.put(1, packed(some(0)))
    files, cache = (str(store.folder / place) for place in ("findings/*.parquet", "hf"))
    rows = datasets.load_dataset("parquet", data_files=files, cache_dir=cache)["train"]
    assert [row["image"].size for row in rows] == [(6, 6), (6, 6)]
    assert rows[0]["image"].getpixel((2, 1)) == int(found.x[0, 0, 1, 2])


def test_a_search_that_was_killed_is_known_from_what_it_began_with(tmp_path):
    """While a phase runs, run.json is in memory: a kill leaves the one from before it."""
    path = tmp_path / "run/run.json"
    store = Store.create(tmp_path / "run", {"schema": 2, "phases": {}}, "")
    before = path.read_bytes()
    added = {"shards": 3, "phases": {"search": {"status": "running", "identity": {}}}}
    with store.writing():
        store.begin_search(added, "", [seed_rows(["waiting", "waiting"])])
        assert path.read_bytes() == before
        assert store.record()["shards"] == 3
        assert Store(tmp_path / "run").record()["shards"] == 3
    assert path.read_bytes() != before
    assert Store(tmp_path / "run").record() == {"schema": 2, **added}


def test_what_was_entered_before_an_error_is_written(tmp_path):
    store = Store.create(tmp_path / "run", {"schema": 2, "phases": {}}, "")

    def failing():
        with store.writing():
            with store.writing():  # a part of the other
                store.write_record({**store.record(), "seed": 3})
            assert "seed" not in Store(tmp_path / "run").record()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert Store(tmp_path / "run").record()["seed"] == 3


def test_every_column_of_the_record_is_stored():
    stored = set(table(some()).column_names)
    assert {f.name for f in fields(Findings)} - {"x", "seed"} | {"original"} <= stored
    json.loads(table(some()).schema.metadata[b"huggingface"])


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"seed": "3"}, "seed"), ({"seed": True}, "seed"), ({"model": None}, "model"),
        ({"budget": {"time": "10m", "queries": "x"}}, "budget.queries"), ({"risk": {}}, "risk.low"),
        ({"classes": []}, "classes"), ({"generated_images": {"generated": 1}}, "generated_images.correctly"),
        ({"shrink": {"a": []}}, "shrink.a"), ({"behaviour": {"model": 5}}, "behaviour.model"),
    ],
)  # fmt: skip
def test_entries_of_a_record_are_of_their_kind(record, place):
    assert wrong_record(record).startswith(place)
    others = {"seed": 3, "schema": 1, "budget": {"time": "10m", "queries": 5}, "x": [1]}
    assert not wrong_record({**others, "judge": None})


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_reading_a_table_starts_no_thread_that_could_outlive_the_interpreter(tmp_path):
    write_table(pa.table({"id": ["a"]}), tmp_path / "t.parquet")
    code = "import os, pathlib; from hardcase.runs.tables import *; n = lambda: len(os.listdir('/proc/self/task')); b = n(); read(pathlib.Path('t.parquet'), {'id': pa.string()}); print(n() - b)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True) == "0\n"
