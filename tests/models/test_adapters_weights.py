"""Checkpoints as people save them."""

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models.adapters import fit_state, read_state, state_of


def net(classes=3):
    body = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(16, classes))


def weights():
    torch.manual_seed(3)
    return net().state_dict()


def prefixed(prefix):
    return {f"{prefix}{name}": value for name, value in weights().items()}


def same(module):
    return all(torch.equal(value, weights()[name]) for name, value in module.state_dict().items())


CONTENTS = {
    "plain": weights(),
    "data parallel": {"state_dict": prefixed("module."), "epoch": 3, "optimizer": {"lr": 0.1}},
    "compiled": {"model": prefixed("_orig_mod.module.")},
    "word": {"model_state_dict": prefixed("")},
    "lightning": {"state_dict": prefixed("net."), "hyper_parameters": {"width": 4}},
    "lightning with loss": {"state_dict": {**prefixed("model."), "loss.weight": torch.ones(3)}},
    "nested": {"checkpoint": 1, "model": {"state_dict": prefixed("backbone.inner.")}},
}


@pytest.mark.parametrize("form", CONTENTS)
def test_weights_are_found_and_fit(form):
    module = net()
    fit_state(module, state_of(CONTENTS[form]))
    assert same(module)


def test_a_prefix_is_put_on_where_the_network_has_one():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

    module = Wrapped()
    note = fit_state(module, weights())
    assert same(module.inner)
    assert "added the prefix 'inner.'" in note
    note = fit_state(net(), {**prefixed("module."), "extra": torch.ones(1)})
    assert "removed the prefix 'module.'" in note
    assert "left out 1 weights" in note


def test_another_number_of_classes_is_named_and_missing_weights_are_counted():
    with pytest.raises(
        HardcaseError, match=r"3\.weight is 3 x 16 .* 10 x 16 in the network"
    ) as caught:
        fit_state(net(10), weights())
    assert "number of classes" in str(caught.value)
    some = {name: value for name, value in weights().items() if not name.startswith("3")}
    with pytest.raises(HardcaseError, match=r"lacks 2 of the network's 9 weights") as caught:
        fit_state(net(), some)
    assert len(str(caught.value).splitlines()) <= 3


def test_files_of_both_kinds(tmp_path):
    from safetensors.torch import save_file

    torch.save({"state_dict": prefixed("module.")}, tmp_path / "a.pt")
    save_file(prefixed("model."), tmp_path / "a.safetensors")
    for path in (tmp_path / "a.pt", tmp_path / "a.safetensors"):
        module = net()
        fit_state(module, read_state(path))
        assert same(module)


def test_damaged_and_empty_files_are_told_and_networks_are_not_unpickled(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"hello")
    torch.save({"epoch": 3}, tmp_path / "b.pt")
    told = {"a": "cannot be read|can run code", "b": "no weights", "c": "no weights file"}
    for name, words in told.items():
        with pytest.raises(HardcaseError, match=words):
            read_state(tmp_path / f"{name}.pt")
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(HardcaseError, match="can run code"):
        read_state(tmp_path / "whole.pt")
    assert read_state(tmp_path / "whole.pt", trust=True).keys() == weights().keys()
