"""Files that were changed with care, that are pipes, or that unfold without end."""

import gzip
import os
import signal
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardcase.data import formats, own, public
from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.models.adapters import read_state
from hardcase.training.cards import CARD, WEIGHTS, read_card


@contextmanager
def at_once(seconds=20):
    """Fail instead of waiting for ever."""

    def late(number, frame):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("change", ["a pixel", "labels rolled", "labels beyond", "fewer"])
def test_cached_data_that_is_not_the_known_data_is_refused(tmp_path, monkeypatch, change):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    load("mnist5k")
    path = public.cache_file(public.public_sets()["mnist5k"])
    with np.load(path) as file:
        arrays = dict(file)
    if change == "a pixel":
        arrays["x_test"][7, 0, 3, 3] += 1
    elif change == "labels rolled":
        arrays["y_test"] = np.roll(arrays["y_test"], 1)
    elif change == "labels beyond":
        arrays["y_test"][0] = 10
    else:
        arrays["x_test"], arrays["y_test"] = arrays["x_test"][:-1], arrays["y_test"][:-1]
    np.savez(path, **arrays)
    with pytest.raises(Problem, match=r"the cached data set .* is damaged"):
        load("mnist5k")
    assert len(load("mnist5k", split="train")) == 4_000


def test_pipes_are_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "card").mkdir()
    for name in (CARD, WEIGHTS):
        os.mkfifo(tmp_path / "card" / name)
    (tmp_path / "table.csv").write_text("path,label\npipe,0\n")
    os.mkfifo(tmp_path / "data.parquet")
    attempts = [
        lambda: load(f"npz:{pipe}"),
        lambda: load(f"parquet:{pipe}"),
        lambda: load(f"parquet:{tmp_path}"),
        lambda: load(f"csv:{pipe}"),
        lambda: load(f"csv:{tmp_path / 'table.csv'}").images(),
        lambda: read_card(tmp_path / "card"),
        lambda: read_state(pipe),
        lambda: formats.read_idx(pipe),
    ]
    for attempt in attempts:
        with at_once(), pytest.raises(Problem):
            attempt()


@pytest.fixture
def small(monkeypatch):
    """Bounds as they are, less what small files may have beside."""
    for module in (formats, own):
        monkeypatch.setattr(
            module, "unpacked", lambda path, least=0: 100 * path.stat().st_size + 2**16
        )


def test_archives_that_unfold_without_end_are_refused_before(tmp_path, small):
    zeros = np.zeros((2**12, 2**12), np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", images=zeros[None], labels=[0])
    with pytest.raises(Problem, match="unfolds to more than"):
        load(f"npz:{tmp_path / 'bomb.npz'}")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(zeros.tobytes()))
    with pytest.raises(Problem, match="unfolds to more than"):
        formats.read_idx(tmp_path / "bomb.gz")


@pytest.mark.parametrize("how", ["compression", "repetition"])
def test_tables_that_unfold_without_end_are_refused_before(tmp_path, small, how):
    image = bytes(2**20) if how == "compression" else os.urandom(2**14)
    count = 64 if how == "compression" else 20_000
    table = pa.table({"image": [image] * count, "label": [0] * count})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    with pytest.raises(Problem, match="unfolds to more than"):
        load(f"parquet:{tmp_path / 'bomb.parquet'}")
