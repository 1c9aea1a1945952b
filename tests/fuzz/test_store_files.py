"""The files of a run folder after anything happened to them: records, ledger, tables, what guides learned."""

import json
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from garbage import DEEP, VALUES, damaged, lawful, often, spoilt, twisted
from hypothesis import example, given, strategies as st

import hardcase as hc
from hardcase.cli import run
from hardcase.cli.results import cite
from hardcase.errors import Problem
from hardcase.runs.files import checked_json
from hardcase.runs.folder import pack_deltas, unpack_deltas
from hardcase.runs.ledger import Ledger, files_of
from hardcase.runs.progress import Progress
from hardcase.runs.results import Run
from hardcase.runs.tables import FINDINGS, read
from hardcase.runs.verify import repair_record, repair_shards
from hardcase.testing.toys import toy_images, toy_subject

RECORDS = ("run.json", "status.json", "state/begun.json")
TABLES = ("findings/part-00000.parquet", "seeds.parquet", "state/seeds-00000.parquet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small finished run, and the content of all its files."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    hc.run(toy_subject(), toy_images(8), method="pgd", budget=hc.Budget(gradients=8), out=folder)
    ids = Run(folder).findings["id"].to_pylist()
    yes = [True] * len(ids)
    verdicts = pa.table({"id": ids, "valid": yes, "label_kept": yes})
    pq.write_table(verdicts, folder / "verdicts/part-00000.parquet")
    return folder


@pytest.fixture
def put(whole):
    """Put other bytes into a file of the run while everything reads it; then all is as before."""
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}

    def read_all():
        stored = Run(whole)
        stored.summary()
        stored.images()
        stored.seed_images()
        return [str(stored[i]) for i in range(min(len(stored), 2))]

    def repaired():
        repair_record(whole)
        store = Run(whole).store
        repair_shards(store)
        return Progress.sum([entry.summary for entry in store.ledger.read().values()])

    def check(name, data):
        try:
            (whole / name).write_bytes(data)
            for work in (read_all, lambda: run.shown_run(whole), repaired):
                lawful(work)
        finally:
            for path in set(whole.rglob("*")) - before.keys():
                if path.is_file():
                    path.unlink()
            for path, content in before.items():
                path.write_bytes(content)

    return check


@pytest.mark.parametrize("name", [*RECORDS, *TABLES, "verdicts/part-00000.parquet"])
@often(30)
@given(st.data())
@example(None)
def test_files_of_any_bytes(whole, put, name, data):
    content = (whole / name).read_bytes()
    put(name, b"[" * DEEP if data is None else data.draw(damaged(content)))


@pytest.mark.parametrize("name", RECORDS)
@often(25)
@given(st.data())
def test_records_with_something_else_in_them(whole, put, name, data):
    """Also with a right checksum: whoever can compute one can write any file."""
    other = data.draw(twisted(json.loads((whole / name).read_bytes())))
    put(name, json.dumps(other).encode())
    if isinstance(other, dict):
        put(name, checked_json(other))


LINE = {"shard": 0, "files": {name: [100, 7] for name in files_of(0)[0]}, "summary": {"seeds": 4, "queries": 9, "findings": 2,
        "failing": 1, "gradients": 3, "confusions": [[0, 1, 2]], "service": {"calls": 3}}}  # fmt: skip
LINES = twisted(LINE).map(lambda line: json.dumps(line).encode()) | spoilt(
    json.dumps(LINE).encode()
)


@often(150)
@given(st.lists(LINES, max_size=3), st.binary(max_size=20))
@example([b"[" * DEEP], b"")
@example([b'{"shard":0},{"shard":1}'], b"")
def test_a_ledger_of_any_lines(tmp_path, bodies, rest):
    (tmp_path / "state").mkdir(exist_ok=True)
    own = {name: [100, 7] for name in files_of(77)[0]}
    good = json.dumps({**LINE, "shard": 77, "files": own}).encode()
    lines = [body + b"\t%08x" % crc32(body) for body in [*bodies, good] if b"\n" not in body]
    ledger = Ledger(tmp_path)
    ledger.path.write_bytes(b"\n".join([*lines, rest]))
    entries = ledger.read()
    assert 77 in entries
    Progress.sum([entry.summary for entry in entries.values()])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_other_columns(whole, put, name):
    """A whole Parquet file, with other columns, other types, or no value where one belongs."""
    table = pq.read_table(whole / name)
    first = table.column_names[0]
    others = [
        table.drop_columns([first]),
        table.set_column(0, first, pa.array([1] * len(table))),
        table.set_column(0, first, pa.nulls(len(table), pa.string())),
        table.rename_columns([f"{name}_" for name in table.column_names]),
    ]
    if "image" in table.column_names:
        place = table.column_names.index("image")
        kind = table.schema.field("image")
        text = [{"bytes": b"GIF89a<?php", "path": "/etc/passwd"}] * len(table)
        for values in (pa.nulls(len(table), kind.type), pa.array(text, kind.type)):
            others.append(table.set_column(place, kind, values))
    for other in others:
        sink = pa.BufferOutputStream()
        pq.write_table(other, sink)
        put(name, sink.getvalue().to_pybytes())


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
def test_a_table_that_unfolds_without_end_is_not_read(tmp_path, codec):
    path = tmp_path / "part.parquet"
    ids = pa.array([bytes(2**20).decode()] * 150)
    pq.write_table(pa.table({"id": ids}), path, compression=codec, use_dictionary=codec == "snappy")
    with pytest.raises(Problem, match="unfolds to more than"):
        read(path, FINDINGS, ["id"])


DELTAS = pack_deltas({"nc": {"bits": torch.tensor([1, 0, 1])}, "corpus": {"z": torch.rand(2)}})
SIZE = int.from_bytes(DELTAS[:8], "little")


def headed(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + DELTAS[8 + SIZE :]


@often(200)
@given(damaged(DELTAS) | twisted(json.loads(DELTAS[8 : 8 + SIZE])).map(headed))
def test_what_guides_learned_of_any_bytes(data):
    lawful(lambda: unpack_deltas(data))


@often(20)
@given(VALUES)
def test_citations_of_any_kind(tmp_path, value):
    (tmp_path / "run.json").write_text(json.dumps({"citations": value}))
    lawful(lambda: cite([tmp_path]))
