from __future__ import annotations

from pathlib import Path

import pytest

from hardcase.cache import cache_folder, turn, write_atomically
from hardcase.errors import HardcaseError


@pytest.fixture
def bare(monkeypatch):
    for name in ("HARDCASE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HARDCASE_CACHE": "/a"}, Path("/a")),
        ({"HARDCASE_CACHE": "relative"}, Path.cwd() / "relative"),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/hardcase")),
        ({"HOME": "/c"}, Path("/c/.cache/hardcase")),
    ],
)
def test_the_cache_is_where_the_variables_say(bare, variables, expected):
    for name, value in variables.items():
        bare.setenv(name, value)
    assert cache_folder() == expected


def test_a_user_without_a_home_is_told_what_to_name(bare):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    bare.setattr(Path, "home", nobody)
    with pytest.raises(HardcaseError, match="no home folder"):
        cache_folder()


def test_a_lock_is_held_by_one(tmp_path):
    lock = tmp_path / "new" / "lock"
    with turn(lock) as first, turn(lock, wait=False) as other:
        assert (first, other) == (True, False)
    with turn(lock, wait=False) as free:
        assert free


def test_bytes_and_callbacks_are_written_whole_beside_who_reads(tmp_path):
    path = tmp_path / "new" / "folder" / "file.bin"
    assert write_atomically(path, b"first") == path
    write_atomically(path, lambda temporary: temporary.write_bytes(b"second"))
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]
    path = write_atomically(tmp_path / "file.bin", b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"brand new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"brand new"


def test_a_writer_that_dies_leaves_the_old_file(tmp_path):
    path = write_atomically(tmp_path / "file.bin", b"old")

    def dying(temporary):
        temporary.write_bytes(b"half")
        assert temporary.name.startswith(".")
        assert temporary.suffix == ".bin"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, dying)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_or_no_folder_is_a_problem_and_leaves_nothing(tmp_path):
    def full(temporary):
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(HardcaseError, match=r"cannot write .*file.bin: No space left") as caught:
        write_atomically(tmp_path / "file.bin", full)
    assert "HARDCASE_CACHE" in caught.value.fix
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(HardcaseError, match="cannot write"):
        write_atomically(tmp_path / "file" / "inner.bin", b"x")
