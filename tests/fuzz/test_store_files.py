"""The files of a run folder after anything happened to them: records, ledger, tables, what guides learned."""

import json
import random
from contextlib import suppress
from zlib import crc32

import pytest
import torch
from garbage import DEEP, VALUES, damaged, lawful, often, spoilt, twisted
from hypothesis import example, given
from hypothesis import strategies as st

from hardcase.cli import run
from hardcase.cli.results import cite
from hardcase.errors import Problem
from hardcase.runs import progress
from hardcase.runs.directory import Directory
from hardcase.runs.folder import mend_shards, pack_deltas, unpack_deltas
from hardcase.runs.ledger import Ledger, files_of
from hardcase.runs.repair import mend_papers
from hardcase.runs.results import Run
from hardcase.runs.tables import FINDINGS, read
from hardcase.runs.workers import Progress
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

    def mended():
        mend_papers(folder)
        store = Run(folder).store
        mend_shards(store)
        return Progress.sum([entry.summary for entry in store.ledger.read().values()])

    return read, shown, mended


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
    body = (whole / "state/begun.json").read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[0]
    other = data.draw(
        st.one_of(
            twisted(json.loads(body)).map(lambda value: json.dumps(value).encode()), damaged(body)
        )
    )
    put("state/begun.json", other + b"\n%08x\n" % crc32(other), *everything(whole))
    put("state/begun.json", other, *everything(whole))


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
    ledger = Ledger(Directory(tmp_path))
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


def test_no_bit_of_a_footer_ends_the_process(whole, tmp_path):
    """The library that reads tables aborts where the number of a codec is none."""
    data = (whole / "findings/part-00000.parquet").read_bytes()
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    rng = random.Random(0)
    for _ in range(100):
        place = rng.randrange(8 * (len(data) - footer), 8 * len(data))
        other = bytearray(data)
        other[place // 8] ^= 1 << place % 8
        (tmp_path / "part.parquet").write_bytes(other)
        lawful(lambda: read(tmp_path / "part.parquet", FINDINGS))


def test_only_snappy_is_unfolded(whole, tmp_path):
    import pyarrow.parquet as pq

    rows = read(whole / "findings/part-00000.parquet", FINDINGS)
    for codec, good in {"snappy": True, "none": True, "gzip": False, "zstd": False}.items():
        pq.write_table(rows, tmp_path / "part.parquet", compression=codec)
        if good:
            assert len(read(tmp_path / "part.parquet", FINDINGS)) == len(rows)
        else:
            with pytest.raises(Problem, match="compressed in a way that is not read"):
                read(tmp_path / "part.parquet", FINDINGS)


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
