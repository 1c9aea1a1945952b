"""The files of a run folder that are read one by one: ledger, tables, what guides learned. All of them by every verb: tests/torture/test_hostile_records.py."""

import json
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from garbage import DEEP, VALUES, damaged, headed, header_of, lawful, often, spoilt, twisted
from hypothesis import example, given, strategies as st

from hardcase.cli.results import cite
from hardcase.errors import HardcaseError
from hardcase.runs.files import Ledger, files_of
from hardcase.runs.folder import pack_deltas, unpack_deltas
from hardcase.runs.progress import Progress
from hardcase.runs.tables import FINDINGS, read

LINE = {"shard": 0, "files": {name: [100, 7] for name in files_of(0)[0]}, "summary": {"seeds": 4, "queries": 9, "findings": 2,
        "failing": 1, "gradients": 3, "confusions": [[0, 1, 2]], "service": {"calls": 3}}}  # fmt: skip
LINES = twisted(LINE).map(lambda line: json.dumps(line).encode())
LINES |= spoilt(json.dumps(LINE).encode())


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


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
def test_a_table_that_unfolds_without_end_is_not_read(tmp_path, codec):
    path = tmp_path / "part.parquet"
    ids = pa.array([bytes(2**20).decode()] * 150)
    pq.write_table(pa.table({"id": ids}), path, compression=codec, use_dictionary=codec == "snappy")
    with pytest.raises(HardcaseError, match="unfolds to more than"):
        read(path, FINDINGS, ["id"])


DELTAS = pack_deltas({"nc": {"bits": torch.tensor([1, 0, 1])}, "corpus": {"z": torch.rand(2)}})


@often(200)
@given(damaged(DELTAS) | twisted(header_of(DELTAS)).map(lambda header: headed(header, DELTAS)))
def test_what_guides_learned_of_any_bytes(data):
    lawful(lambda: unpack_deltas(data))


@often(20)
@given(VALUES)
def test_citations_of_any_kind(tmp_path, value):
    (tmp_path / "run.json").write_text(json.dumps({"citations": value}))
    lawful(lambda: cite([tmp_path]))
