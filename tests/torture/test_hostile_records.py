"""Whatever stands in a file of a run, with checksums that are right or without: no verb fails in an unforeseen
way, shows signs that command a terminal, or takes words for HTML.
"""

import json
import os
import random
import shutil
import tomllib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_hostile_folders as folders
import torch
from garbage import lawful
from test_hostile_folders import MORE, record_with

from hardcase.cli.main import main
from hardcase.runs.files import Entry, checked_json, read_json, size_and_crc
from hardcase.runs.folder import Store, pack_deltas
from hardcase.runs.results import Run
from hardcase.runs.tables import FINDINGS, SEEDS, SPENT, VERDICTS, read, to_parquet
from hardcase.runs.verify import SIDE_FILES, repair_record, repair_shards
from tiny import rewrite

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
READERS = ("report", "compare", "gate", "export", "status", "cite", "open", "judge")
WORKERS = ("replay", "resume", "shrink", "curve", "rank", "repair", "study new")
FORMS = ("npz", "imagefolder", "csv", "junit", "hf", "fiftyone")
ODD = (
    None, True, 0, -1, 10**30, 1e300, -1e-300, "", "x" * 70_000, "\x1b]0;x\x07", "<script>x</script>",
    "../../victim/mark", "\u202e\u0663", "a\n::error::b", "=1+1", [], {}, [[]], [None], [-1, 1e300], ["<b>"],
    {"": None}, {"x": {"y": []}}, {"<b>": "\x1b[2J"}, "2026-99-99T99:99", "javascript:x", "{{ 7 * 7 }}", "%s%n",
)  # fmt: skip
"""What may stand where something else is expected."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A run with one of everything that a folder may hold."""
    home = tmp_path_factory.mktemp("rich")
    with pytest.MonkeyPatch.context() as patch:
        folders.of_a_judging_user(home, patch)
        words = "run --model model.py:make --data npz:toy.npz --method natural --images 6 --out run"
        more = "-q --witness model.py:other --map brightness,contrast --queries 24"
        assert main(f"{words} {more} --set method.space=warp*light".split()) == 0
        assert main(["judge", "run", "--judge", "judge.py:trusting", "-q"]) == 0
        assert main(f"curve run {MORE['curve']} -q".split()) == 0
        assert Run("run").verification.state == "verified"
    return home


def places(value, path=()):
    """Every place in a tree of JSON."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))


def put(value, path, new):
    """The tree with something else at one place."""
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return copy


def change_record(folder, rng):
    record = Store.open(folder).record()
    path = rng.choice([*places(record)])
    record_with(folder, **put(record, path, rng.choice(ODD)))
    return "run.json", path


def change_file(name):
    """One of the files that carry a checksum of their own."""

    def change(folder, rng):
        said = read_json((folder / name).read_bytes())
        path = rng.choice([*places(said)])
        (folder / name).write_bytes(checked_json(put(said, path, rng.choice(ODD))))
        return name, path

    return change


def seal_verdicts(folder):
    files = {path.name: path.read_bytes() for path in (folder / "verdicts").iterdir()}
    checksums = {name: list(Entry.of({name: data}, {}).files[name]) for name, data in files.items()}
    record_with(folder, verdicts=checksums)


def change_summary(folder, rng):
    """What the ledger says of a shard."""
    store = Store.open(folder)
    entry = store.ledger.read()[0]
    path = rng.choice([*places(entry.summary)])
    store.ledger.add(0, Entry(entry.files, put(entry.summary, path, rng.choice(ODD))))
    return "ledger", path


NUMBERS = {"i": (-(2**31), -1, 0, 7, 2**31 - 1), "f": (float("nan"), float("inf"), -1e38, 0.0)}
WORDS = (*(word for word in ODD if isinstance(word, str)), "label", "done")
TABLES = {
    "findings/part-00000.parquet": FINDINGS, "images.parquet": SEEDS,
    "state/seeds-00000.parquet": SPENT, "verdicts/part-00000.parquet": VERDICTS,
}  # fmt: skip


def odd_values(kind, rng, count):
    """Values of a column's own type that no run would hold."""
    if pa.types.is_list(kind):
        return [odd_values(kind.value_type, rng, rng.choice((0, 1, 9))) for _ in range(count)]
    if pa.types.is_boolean(kind):
        return [rng.choice((True, False)) for _ in range(count)]
    if pa.types.is_string(kind):
        return [rng.choice(WORDS)] * count
    if pa.types.is_struct(kind):
        data = rng.choice((b"", b"<svg/>", b"\x89PNG\r\n\x1a\n"))
        return [{"bytes": data, "path": "/etc/passwd"}] * count
    return [rng.choice(NUMBERS["f" if pa.types.is_floating(kind) else "i"])] * count


def change_table(name):
    def change(folder, rng):
        rows = read(folder / name, TABLES[name])
        column = rng.choice(rows.column_names)
        kind = rows.schema.field(column)
        new = pa.array(odd_values(kind.type, rng, len(rows)), kind.type)
        rows = rows.set_column(rows.column_names.index(column), kind, new)
        rewrite(folder, name, to_parquet(rows))
        if name.startswith("verdicts/"):
            seal_verdicts(folder)
        return name, column

    return change


def change_config(folder, rng):
    """A setting that says something else, in config.toml and in what was kept of the beginning."""
    known = tomllib.loads((folder / "config.toml").read_text())
    key = rng.choice([*known, "limits", "baseline", "x"])
    odd = [one for one in ODD if one is not None and "None" not in str(one) and one != 10**30]
    value = rng.choice([*odd, {"accepted_rate": -1, "slices": {"<b>": 2}}])
    folders.begin_as(folder, **{key: value})
    return "config.toml", key


def change_text(folder, rng):
    """Lines of history.csv, whose seal agrees."""
    lines = (folder / "history.csv").read_text().splitlines()
    odd = ("", "a,b", "nan,inf,-1", "9" * 400, "\x1b[2J", "=1", ",,,,,")
    lines[rng.randrange(len(lines))] = rng.choice(odd)
    data = "\n".join(lines).encode()
    (folder / "history.csv").write_bytes(data)
    said = read_json((folder / "status.json").read_bytes())
    (folder / "status.json").write_bytes(checked_json({**said, "history": size_and_crc(data)}))
    return "history.csv", lines


def change_tensors(folder, rng):
    """What guides have learned, with tensors of other kinds and sizes."""
    large = (torch.rand(100), torch.full((100,), -5), torch.ones(9, 9).bool())
    kinds = (*large, torch.zeros(3), torch.zeros(0))
    learned = {"map": {rng.choice(("visits", "x")): rng.choice(kinds)}}
    rewrite(folder, "state/deltas-00000.safetensors", pack_deltas(learned))
    return "deltas", learned


def change_bytes(folder, rng):
    """A file that is cut, spoilt, doubled or none at all; the ledger says that it belongs so."""
    name = rng.choice([*TABLES, "run.json", "status.json", "state/begun.json"])
    data = (folder / name).read_bytes()
    place = rng.randrange(len(data))
    odd = (b"", b"[" * 3000, data[:place], data[:place] + rng.randbytes(9) + data[place:], data * 2)
    rewrite(folder, name, rng.choice((*odd, rng.randbytes(60))))
    return name, place


def change_columns(folder, rng):
    """A whole table with other columns, other types, or no value where one belongs."""
    name = rng.choice([*TABLES])
    table = pq.read_table(folder / name)
    column = rng.choice(table.column_names)
    place, kind = table.column_names.index(column), table.schema.field(column)
    other = rng.choice((
        table.drop_columns([column]),
        table.set_column(place, column, pa.array([1] * len(table))),
        table.set_column(place, column, pa.nulls(len(table), kind.type)),
        table.rename_columns([f"{name}_" for name in table.column_names]),
    ))  # fmt: skip
    rewrite(folder, name, to_parquet(other))
    return name, column


CHANGES = (
    *[change_record] * 6, change_summary, change_file("status.json"),
    change_file(SIDE_FILES[0]), *map(change_table, TABLES), change_config, change_text, change_tensors,
    *[change_bytes] * 8, *[change_columns] * 4,
)  # fmt: skip


def read_all(folder):
    stored = Run(folder)
    stored.summary()
    stored.images()
    stored.seed_images()
    return [str(stored[i]) for i in range(min(len(stored), 2))]


def repaired(folder):
    repair_record(folder)
    repair_shards(Run(folder).store)


@pytest.mark.parametrize("turn", range(2500 if LONG else len(CHANGES)))
def test_no_value_of_any_file_is_unforeseen(tmp_path, stored, capfd, monkeypatch, turn):
    rng = random.Random(turn)
    folders.of_a_judging_user(tmp_path, monkeypatch)
    folder = tmp_path / "deep" / "run"
    shutil.copytree(stored / "run", folder)
    what = CHANGES[turn % len(CHANGES)](folder, rng)
    for work in (read_all, repaired):
        copy = shutil.copytree(folder, tmp_path / work.__name__)
        lawful(lambda work=work, copy=copy: work(copy))
    verb = rng.choice(READERS if turn % 3 else WORKERS)
    words = folders.words_for(verb, "--near" if verb == "rank" else "", folder, stored / "run")
    more = {"export": ["--to", rng.choice(FORMS)], "open": ["-q"]}
    code = main([*words, *more.get(verb, ())])
    said = "".join(capfd.readouterr())
    assert code != 3, (what, said)
    assert "\x1b]" not in said, what
    assert "\n::error" not in said, what
    assert not (tmp_path / "victim").exists()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<script>x" not in text, what
        assert "\x1b" not in text, what
        assert 'href="javascript:' not in text, what
