"""The files of a run folder after anything happened to them: records, ledger, tables, what guides learned."""

import json
from contextlib import suppress
from zlib import crc32

import pytest
import torch
from garbage import DEEP, VALUES, damaged, lawful, often, spoilt, twisted
from hypothesis import example, given, strategies as st

from hardcase.cli import run
from hardcase.cli.results import cite
from hardcase.errors import Problem
from hardcase.runs import progress
from hardcase.runs.files import checked_json
from hardcase.runs.folder import pack_deltas, unpack_deltas
from hardcase.runs.ledger import Ledger, files_of
from hardcase.runs.progress import Progress
from hardcase.runs.results import Run
from hardcase.runs.tables import FINDINGS, read
from hardcase.runs.verify import repair_record, repair_shards
from hardcase.testing.toys import toy_images, toy_subject


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small finished run, and the content of all its files."""
    import hardcase as hc

    folder = tmp_path_factory.mktemp("whole") / "run"
    hc.run(toy_subject(), toy_images(8), method="pgd", budget=hc.Budget(gradients=8), out=folder)
    return folder


@pytest.fixture
def put(whole):
    """Put other bytes into a file of the run for as long as a check lasts; everything is as before afterwards."""
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}

    def check(name, data, *works):
        try:
            (whole / name).write_bytes(data)
            for work in works:
                lawful(work)
        finally:
            for path in set(whole.rglob("*")) - before.keys():
                if path.is_file():
                    path.unlink()
            for path, content in before.items():
                path.write_bytes(content)

    return check


def everything(folder):
    """All that reads a run folder."""

    def read():
        run = Run(folder)
        run.summary()
        run.images()
        run.seed_images()
        return [str(run[i]) for i in range(min(len(run), 2))]

    def shown():
        return run.shown_run(folder)

    def repaired():
        repair_record(folder)
        store = Run(folder).store
        repair_shards(store)
        return Progress.sum([entry.summary for entry in store.ledger.read().values()])

    return read, shown, repaired


@often(20)
@given(st.data())
@example(None)
def test_a_record_of_any_bytes(whole, put, data):
    content = (whole / "run.json").read_bytes()
    spoiled = b"[" * DEEP if data is None else data.draw(damaged(content))
    put("run.json", spoiled, *everything(whole))


@often(25)
@given(st.data())
def test_a_record_with_something_else_in_it(whole, put, data):
    document = data.draw(twisted(json.loads((whole / "run.json").read_bytes())))
    put("run.json", json.dumps(document).encode(), *everything(whole))


@often(20)
@given(st.data())
def test_a_status_with_something_else_in_it(whole, put, data):
    document = data.draw(twisted(json.loads((whole / "status.json").read_bytes())))
    text = data.draw(
        st.one_of(
            st.just(json.dumps(document).encode()), damaged((whole / "status.json").read_bytes())
        )
    )
    put("status.json", text, everything(whole)[1])


@often(20)
@given(st.data())
def test_a_beginning_with_something_else_in_it(whole, put, data):
    """Also with a right checksum: whoever can compute one can write any file."""
    content = (whole / "state/begun.json").read_bytes()
    other = data.draw(twisted(json.loads(content)))
    if isinstance(other, dict):
        put("state/begun.json", checked_json(other), *everything(whole))
    put("state/begun.json", data.draw(damaged(content)), *everything(whole))


LINE = {"shard": 0, "files": {name: [100, 7] for name in files_of(0)[0]}, "summary": {"seeds": 4, "queries": 9, "findings": 2,
        "failing": 1, "gradients": 3, "confusions": [[0, 1, 2]], "service": {"calls": 3}}}  # fmt: skip


@often(150)
@given(
    st.lists(
        st.one_of(
            twisted(LINE).map(lambda value: json.dumps(value).encode()),
            spoilt(json.dumps(LINE).encode()),
        ),
        max_size=3,
    ),
    st.binary(max_size=20),
)
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


@often(30)
@given(st.data())
@pytest.mark.parametrize(
    "name", ["findings/part-00000.parquet", "seeds.parquet", "state/seeds-00000.parquet"]
)
def test_tables_of_any_bytes(whole, put, name, data):
    put(name, data.draw(damaged((whole / name).read_bytes())), *everything(whole))


def test_a_table_of_other_columns(whole, put):
    """A whole Parquet file, with other columns, other types, or no value where one belongs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("findings/part-00000.parquet", "seeds.parquet", "state/seeds-00000.parquet"):
        table = pq.read_table(whole / name)
        one = table.column_names[0]
        others = [
            table.drop_columns([one]),
            table.set_column(0, one, pa.array([1] * len(table))),
            table.set_column(0, one, pa.nulls(len(table), pa.string())),
            table.rename_columns([f"{name}_" for name in table.column_names]),
        ]
        if "image" in table.column_names:
            place = table.column_names.index("image")
            kind = table.schema.field("image")
            nothing = pa.nulls(len(table), kind.type)
            text = pa.array(
                [{"bytes": b"GIF89a<?php", "path": "/etc/passwd"}] * len(table), kind.type
            )
            others += [table.set_column(place, kind, nothing), table.set_column(place, kind, text)]
        for other in others:
            sink = pa.BufferOutputStream()
            pq.write_table(other, sink)
            put(name, sink.getvalue().to_pybytes(), *everything(whole))


@often(30)
@given(st.data())
def test_verdicts_of_any_bytes(whole, put, data):
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = Run(whole).findings["id"].to_pylist()
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"id": ids, "valid": [True] * len(ids), "label_kept": [True] * len(ids)}), sink
    )
    put(
        "verdicts/part-00000.parquet",
        data.draw(damaged(sink.getvalue().to_pybytes())),
        everything(whole)[0],
    )


@pytest.mark.parametrize("codec", ["gzip", "zstd", "snappy"])
def test_a_table_that_unfolds_without_end_is_not_read(tmp_path, codec):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "part.parquet"
    ids = pa.array([bytes(2**20).decode()] * 150)
    pq.write_table(pa.table({"id": ids}), path, compression=codec, use_dictionary=codec == "snappy")
    with pytest.raises(Problem, match="unfolds to more than"):
        read(path, FINDINGS, ["id"])


DELTAS = pack_deltas(
    {
        "nc": {"bits": torch.tensor([1, 0, 1]), "sums": torch.rand(3, 2)},
        "corpus": {"z": torch.rand(2)},
    }
)


@often(200)
@given(damaged(DELTAS))
def test_what_guides_learned_of_any_bytes(data):
    lawful(lambda: unpack_deltas(data))


@often(30)
@given(twisted(json.loads(DELTAS[8 : 8 + int.from_bytes(DELTAS[:8], "little")])))
def test_a_header_of_tensors_with_something_else_in_it(header):
    size = int.from_bytes(DELTAS[:8], "little")
    text = json.dumps(header).encode()
    lawful(lambda: unpack_deltas(len(text).to_bytes(8, "little") + text + DELTAS[8 + size :]))


@often(30)
@given(damaged(progress.to_csv([[0.5, 1, 2, 3, 4, 5], [1.5, 2, 3, 4, 5, 6]])))
@example(b"a\n" + b"9" * 5000 + b",1,2,3,4,5")
@example(b"a\n1,\0,2")
def test_a_history_of_any_bytes(tmp_path, data):
    (tmp_path / "history.csv").write_bytes(data)
    rows = progress.read_history(tmp_path / "history.csv")
    assert all(len(row) == len(progress.COLUMNS) for row in rows)
    with suppress(FileNotFoundError):
        (tmp_path / "history.csv").unlink()


@often(20)
@given(VALUES)
def test_citations_of_any_kind(tmp_path, value):
    (tmp_path / "run.json").write_text(json.dumps({"citations": value}))
    lawful(lambda: cite([tmp_path]))
