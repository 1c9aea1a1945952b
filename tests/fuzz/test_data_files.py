"""Data of any bytes: pictures in folders, arrays, tables, weights, cards, archives; files that are pipes or unfold without end."""

import gzip
import io
import json
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from garbage import DEEP, damaged, headed, header_of, lawful, often, spoilt, twisted
from hypothesis import example, given, strategies as st
from PIL import Image
from safetensors.torch import save
from torch import nn

from hardcase import cache, tensors
from hardcase.criteria.profile import Profile, Range
from hardcase.data import files as formats, own
from hardcase.data.files import read_idx, read_json_labels
from hardcase.data.public import cache_file, public_sets, unpack
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.adapters import fit_state, read_state
from hardcase.training import cards


def picture(kind, mode="RGB"):
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).convert(mode).save(buffer, kind)
    return buffer.getvalue()


PICTURES = [picture(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")] + [picture("PNG", "L"), picture("PNG", "P")]  # fmt: skip
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n"
POSTSCRIPT += b"(broken_into) (w) file closefile\nshowpage\n"


@often(150)
@given(damaged(*PICTURES))
@example(POSTSCRIPT)
@example(b"")
def test_a_picture_of_any_bytes(tmp_path, data):
    (tmp_path / "set" / "cat").mkdir(parents=True, exist_ok=True)
    (tmp_path / "set" / "cat" / "1.png").write_bytes(data)
    lawful(lambda: load(f"folder:{tmp_path / 'set'}?split=all"))
    lawful(lambda: tensors.decode(data))


def test_pictures_that_are_programs_are_not_opened(tmp_path, monkeypatch):
    """A PostScript file under a picture's name would be run by an interpreter; its format is not even looked at."""
    import subprocess

    def never(*words, **options):
        raise AssertionError(f"a program was started: {words}")

    monkeypatch.setattr(subprocess, "Popen", never)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(POSTSCRIPT)
    with pytest.raises(HardcaseError, match="cannot read the image"):
        load(f"folder:{tmp_path}?split=all")


SIGNS = st.characters(exclude_characters="/\0", exclude_categories=["Cs"])
NAMES = st.text(SIGNS, min_size=1, max_size=20)


@often(60)
@given(NAMES.filter(lambda name: name not in (".", "..")), NAMES)
@example("<script>alert(1)</script>", "٣_a")
@example("9" * 200, "²_x")
def test_folders_and_files_of_any_name(tmp_path_factory, folder, name):
    root = tmp_path_factory.mktemp("named")
    try:
        (root / folder).mkdir()
        (root / folder / f"{name}.png").write_bytes(PICTURES[0])
    except OSError:
        return
    lawful(lambda: load(f"folder:{root}?split=all"))
    lawful(lambda: load(f"folder:{root}?labels=prefix&split=all"))


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


X, Y = np.arange(4 * 25, dtype=np.uint8).reshape(4, 5, 5), np.array([0, 1, 0, 1])
BOTH = npz(x_train=X, y_train=Y, x_test=X, y_test=Y, classes=np.array(["a", "b"]))
ARRAYS = [npz(images=X, labels=Y), BOTH]


def zipped(name, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, data)
        file.writestr("labels.npy", b"\x93NUMPY\x01\x00")
    return buffer.getvalue()


def header(text):
    return zipped("images.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


@often(150)
@given(damaged(*ARRAYS))
@example(header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999,)}\n"))
@example(header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n"))
@example(header(b"__import__('os').system('touch broken_into')\n"))
@example(header(b"{'descr': [('a', '<i4')], 'fortran_order': 3, 'shape': 'x'}\n"))
@example(npz(images=X, labels=np.array([0, 1, 2, 2**62])))
@example(npz(images=X, labels=np.array([0, 1, 2, 2**63], dtype=np.uint64)))
@example(npz(images=X, labels=np.array(7)))
@example(npz(images=np.zeros((4, 0, 3)), labels=Y))
@example(npz(images=X, labels=Y, classes=np.array(7)))
@example(npz(images=X, labels=np.array([None] * 4)))
def test_arrays_of_any_bytes(tmp_path, data):
    (tmp_path / "set.npz").write_bytes(data)
    for split in ("", "?split=all"):
        lawful(lambda split=split: load(f"npz:{tmp_path / 'set.npz'}{split}"))


def parquet(**columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


IMAGES = [{"bytes": PICTURES[0], "path": None}] * 4
TABLES = [parquet(image=IMAGES, label=[0, 1, 0, 1], id=list("abcd"))]
TABLES += [parquet(img=[PICTURES[7]] * 4, labels=[0, 1, 0, 1])]


@often(120)
@given(damaged(*TABLES))
@example(parquet(image=IMAGES, label=[0, 1, 2, 2**62]))
@example(parquet(image=[None] * 4, label=[0, 1, 0, 1]))
@example(parquet(image=IMAGES, label=["a", "b", "a", "b"]))
@example(parquet(image=[1, 2, 3, 4], label=[0.5] * 4))
@example(parquet(image=IMAGES, label=[[1], [2], [3], [4]]))
def test_tables_of_images_of_any_bytes(tmp_path, data):
    (tmp_path / "set.parquet").write_bytes(data)
    lawful(lambda: load(f"parquet:{tmp_path / 'set.parquet'}?split=all"))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 2)


WEIGHTS = save({name: value.contiguous() for name, value in Tiny().state_dict().items()})


@often(150)
@given(damaged(WEIGHTS))
@example((2**63 - 1).to_bytes(8, "little") + WEIGHTS[8:])
@example((DEEP).to_bytes(8, "little") + b"[" * DEEP)
def test_weights_of_any_bytes(tmp_path, data):
    for name in ("w.safetensors", "w.pt"):
        (tmp_path / name).write_bytes(data)
        lawful(lambda name=name: fit_state(Tiny(), read_state(tmp_path / name)))


@often(80)
@given(twisted(header_of(WEIGHTS)))
def test_a_header_of_weights_with_something_else_in_it(tmp_path, document):
    (tmp_path / "w.safetensors").write_bytes(headed(document, WEIGHTS))
    lawful(lambda: fit_state(Tiny(), read_state(tmp_path / "w.safetensors")))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The folder of a generator, as training leaves it."""
    from hardcase import generators

    shape = {"kind": "linear", "channels": 1, "size": 12, "classes": 3, "latent": 2, "seed": 0}
    card = {"schema": 1, "kind": "vae", "name": "linear", "data": "d"}
    card["configuration"] = {"family": "vae", **shape}
    folder = tmp_path_factory.mktemp("networks") / "vae"
    cards._publish(folder, generators.build_generator("vae", **shape), card)
    generators.load_generator(folder)
    return folder


@often(80)
@given(st.data())
def test_a_card_with_something_else_in_it(network, data):
    from hardcase import generators

    path = network / cards.CARD
    before = path.read_bytes()
    cards_of = twisted(json.loads(before)).map(lambda card: json.dumps(card).encode())
    other = data.draw(cards_of | spoilt(before))
    try:
        path.write_bytes(other)
        lawful(lambda: generators.load_generator(network))
    finally:
        path.write_bytes(before)


IDX = b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + bytes(range(8))


@often(150)
@given(damaged(IDX, gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab"), b"[1, 2, 3]"))
@example(b"\0\0\x08\x05" + b"\xff\xff\xff\xff" * 5)
@example(b"[" * DEEP)
@example(b"[9999999999999999999999999]")
@example(b"\x80\x02]q\x01(K\x01K\x02e.")
def test_downloaded_files_of_any_bytes(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    for read in (read_idx, read_json_labels):
        lawful(lambda read=read: read(path))


@often(100)
@given(damaged(zipped("a.bin", b"content"), gzip.compress(b"a" * 600)))
def test_archives_of_any_bytes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("archive")
    (folder / "archive").write_bytes(data)
    lawful(lambda: unpack(folder / "archive", folder, frozenset({"a.bin", "labels.npy"})))


@often(80)
@given(st.data())
@example(None)
def test_a_profile_of_any_bytes(tmp_path, data):
    path = tmp_path / "profile.safetensors"
    ranges = {"a/b": Range(*(torch.rand(2) for _ in Range.__slots__))}
    Profile("model", "data", "name", 3, ranges, {}).save(path)
    whole = path.read_bytes()
    assert Profile.load(path, model="model").count == 3
    if data is None:
        path.write_bytes(headed({"__metadata__": {"card": "[" * DEEP}}, whole))
    else:
        other = twisted(header_of(whole)).map(lambda header: headed(header, whole))
        path.write_bytes(data.draw(other | damaged(whole)))
    lawful(lambda: Profile.load(path, model="model"))


CARE = {
    "a pixel": lambda arrays: np.add.at(arrays["x_test"], (7, 0, 3, 3), 1),
    "labels rolled": lambda arrays: arrays.update(y_test=np.roll(arrays["y_test"], 1)),
    "labels beyond": lambda arrays: np.put(arrays["y_test"], 0, 10),
    "fewer": lambda arrays: arrays.update({key: arrays[key][:-1] for key in ("x_test", "y_test")}),
}


@pytest.mark.parametrize("change", CARE)
def test_cached_data_that_is_not_the_known_data_is_refused(tmp_path, monkeypatch, change):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    load("mnist5k")
    path = cache_file(public_sets()["mnist5k"])
    with np.load(path) as file:
        arrays = dict(file)
    CARE[change](arrays)
    np.savez(path, **arrays)
    with pytest.raises(HardcaseError, match=r"the cached data set .* is damaged"):
        load("mnist5k")
    assert len(load("mnist5k", split="train")) == 4_000


def test_pipes_are_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "card").mkdir()
    for name in (cards.CARD, cards.WEIGHTS):
        os.mkfifo(tmp_path / "card" / name)
    (tmp_path / "table.csv").write_text("path,label\npipe,0\n")
    os.mkfifo(tmp_path / "data.parquet")
    attempts = [
        lambda: load(f"npz:{pipe}"),
        lambda: load(f"parquet:{pipe}"),
        lambda: load(f"parquet:{tmp_path}"),
        lambda: load(f"csv:{pipe}"),
        lambda: load(f"csv:{tmp_path / 'table.csv'}").images(),
        lambda: cards.read_card(tmp_path / "card"),
        lambda: read_state(pipe),
        lambda: read_idx(pipe),
    ]
    for attempt in attempts:
        with pytest.raises(HardcaseError):
            attempt()


@pytest.fixture
def small(monkeypatch):
    """Bounds as they are, less what small files may have beside."""
    bound = lambda path, least=0: 100 * path.stat().st_size + 2**16  # noqa: E731
    for module in (cache, formats, own):
        monkeypatch.setattr(module, "unpacked", bound)


def test_archives_that_unfold_without_end_are_refused_before(tmp_path, small):
    zeros = np.zeros((2**12, 2**12), np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", images=zeros[None], labels=[0])
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(zeros.tobytes()))
    with pytest.raises(HardcaseError, match="unfolds to more than"):
        load(f"npz:{tmp_path / 'bomb.npz'}")
    with pytest.raises(HardcaseError, match="unfolds to more than"):
        read_idx(tmp_path / "bomb.gz")


@pytest.mark.parametrize("how", ["compression", "repetition"])
def test_tables_that_unfold_without_end_are_refused_before(tmp_path, small, how):
    image = bytes(2**20) if how == "compression" else os.urandom(2**14)
    count = 64 if how == "compression" else 20_000
    table = pa.table({"image": [image] * count, "label": [0] * count})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    with pytest.raises(HardcaseError, match="unfolds to more than"):
        load(f"parquet:{tmp_path / 'bomb.parquet'}")
