"""Words that name a network."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from hardcase.errors import Problem
from hardcase.models.specs import is_known, load_spec


def net(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))


X = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ("zoo:resnet50-imagenet", True),
        ("zoo:lenet5", False),
        ("timm:resnet18", True),
        ("own.pt@timm:resnet18", True),
        ("hf:google/vit", True),
        ("net.pt2", True),
        ("net.py:make", False),
        ("weights.pt@net.py:make", False),
        ("onnx:net.onnx", False),
    ],
)
def test_words_are_recognised(spec, known):
    assert is_known(spec) is known


def test_a_network_that_was_not_fetched_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    with pytest.raises(Problem) as caught:
        load_spec("zoo:efficientnet-lite0")
    assert caught.value.fix == "hardcase fetch model efficientnet-lite0"


def test_a_library_states_the_normalisation_and_the_user_may_state_another(monkeypatch):
    fake = ModuleType("timm")

    def create_model(name, pretrained, **more):
        module = net()
        module.pretrained_cfg = {
            "mean": (0.5,) * 3,
            "std": (0.25,) * 3,
            "input_size": (3, 96, 96),
            "crop_pct": 1.0,
        }
        return module

    fake.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", fake)
    found = load_spec("timm:tiny")
    torch.testing.assert_close(found.subject(X).logits, net()((X - 0.5) / 0.25))
    assert (found.size, found.subject.sizing) == (96, "resize=96&crop=96")
    assert "mean 0.5" in found.note
    other = load_spec("timm:tiny", mean=(0.0,), std=(1.0,))
    torch.testing.assert_close(other.subject(X).logits, net()(X))


def test_a_scripted_file(tmp_path):
    path = tmp_path / "net.pt"
    torch.jit.script(net()).save(str(path))
    found = load_spec(str(path))
    torch.testing.assert_close(found.subject(X).logits, net()(X))
    assert "no normalisation" in found.note


def test_other_words_list_the_forms():
    with pytest.raises(Problem, match="cannot tell") as caught:
        load_spec("net.py:make")
    assert "timm:NAME" in str(caught.value)
