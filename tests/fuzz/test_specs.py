"""The words that name data and models, and addresses of servers."""

from contextlib import chdir

import pytest
from garbage import WORDS, damaged, lawful, often
from hypothesis import example, given, strategies as st

from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.load import Loading, load_model
from hardcase_teams.client import checked_url
from tiny import bars

HOW = Loading(train=bars(12), test=bars(12, split="test"))
PIECES = st.one_of(
    WORDS,
    st.text(max_size=10),
    st.sampled_from(["x" * 300, "a/" * 3000, "~nobody/x", "*", "NUL", "?split=all"]),
).filter(lambda text: not text.startswith(("/", ".")))  # nobody wants this machine's own files read


def of_kinds(*kinds):
    return st.tuples(st.sampled_from(kinds), PIECES).map("".join)


DATA = of_kinds("npz:", "folder:", "parquet:", "run:", "mnist5k:", "?")
DATA |= st.builds("npz:{}?{}={}".format, PIECES, WORDS, WORDS)


@often(120)
@given(st.text(max_size=20) | DATA)
@example("~nobody")
@example("npz:~nobody/x.npz")
@example("x" * 5000)
@example("npz:" + "x" * 5000)
@example("folder:\ud800")
@example("npz:a\0b")
def test_any_name_of_data(tmp_path_factory, text):
    empty = tmp_path_factory.getbasetemp() / "empty"
    empty.mkdir(exist_ok=True)
    with chdir(empty):
        lawful(lambda: load(text, offline=True))


MODELS = of_kinds("zoo:", "onnx:", "a.py:", "w.safetensors@a.py:")
MODELS |= st.builds("{}@{}:make".format, PIECES, PIECES) | PIECES.map("{}:make".format)


@often(120)
@given(st.text(max_size=20).filter(lambda text: not text.startswith("http")) | MODELS)
@example("x" * 5000 + ":make")
@example("~nobody/a.py:make")
@example("a\0b.py:make")
@example("zoo:__import__('os')")
@example("onnx:")
@example("onnx:" + "x" * 5000)
def test_any_name_of_a_model(tmp_path_factory, text):
    empty = tmp_path_factory.getbasetemp() / "empty"
    empty.mkdir(exist_ok=True)
    with chdir(empty):
        lawful(lambda: load_model(text, HOW))
    assert not list(empty.iterdir())


SERVER = "http{}://{}/v2/models/{}/infer".format


@often(150)
@given(st.text(max_size=30) | st.builds(SERVER, st.sampled_from(["", "s", "x"]), PIECES, PIECES))
@example("http://[::1/v2/models/a/infer")
@example("http://a:99999999/v2/models/a/infer")
@example("http://user:secret@a/v2/models/a/infer")
def test_any_address(text):
    place = lawful(lambda: checked_url(text))
    if place is not None:
        assert place.scheme in ("http", "https")
        assert place.hostname
        for sign in "\r\n ":
            assert sign not in place.path


def test_an_address_gives_no_secret_away():
    place = "user:secret@host"
    for url in (f"http://{place}/v2/models/a/infer", f"ftp://{place}/x", "http://a/v2?key=secret"):
        with pytest.raises(HardcaseError) as caught:
            checked_url(url)
        assert "secret" not in str(caught.value)


@often(60)
@given(damaged(b"\x08\x08\x12\x07pytorch:\x10graph"))
def test_a_file_of_any_bytes_as_onnx(tmp_path, data):
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(data)
    lawful(lambda: load_model(f"onnx:{tmp_path / 'm.onnx'}", HOW))
