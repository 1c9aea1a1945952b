"""Names of repaired networks and what their card says; how they are written is tested in test_front."""

from pathlib import Path

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.models.adapters import Adapted
from hardcase.models.subject import Subject
from hardcase.repair.folder import own_network, repairable, repaired_name, write_weights
from hardcase.runs.files import read_checked_json


def test_a_repaired_network_is_its_weights_in_the_same_code():
    codes = {name: name for name in ("zoo:lenet5", "net.py:make", "timm:resnet18")}
    codes |= {"zoo:lenet5?seed=3": "zoo:lenet5", "old.safetensors@net.py:make": "net.py:make"}
    for spec, code in codes.items():
        assert repaired_name(spec, Path("w.safetensors")) == f"w.safetensors@{code}"


def test_weights_have_the_names_of_the_users_network(tmp_path):
    from safetensors.torch import load_file

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    given = {"mean": (0.5,), "std": (0.25,), "classes": ("a", "b"), "name": "net.py:make"}
    subject = Subject(Adapted(net), **given)
    about = {"recipe": {"epochs": 1}}
    _, weights = write_weights(tmp_path, repairable(subject), subject.net, about)
    assert set(load_file(tmp_path / "weights.safetensors")) == {"1.weight", "1.bias"}
    card, sound = read_checked_json((tmp_path / "card.json").read_bytes())
    assert sound
    assert card["parents"]["model"] == "net.py:make"
    assert card["normalisation"]["mean"] == [0.5]
    assert card["weights"] == weights
    assert own_network(net) is net


class Keeping(torch.nn.Linear):
    """State that is no tensor, beside weights that are."""

    def get_extra_state(self):
        return {"since": "yesterday"}

    def set_extra_state(self, state):
        self.state = state


class Sparse(torch.nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("mask", torch.eye(2).to_sparse())


@pytest.mark.parametrize("layer", [Keeping, Sparse])
def test_state_that_no_file_of_weights_holds_is_told_before_training(layer):
    net = torch.nn.Sequential(torch.nn.Flatten(), layer(4, 2))
    with pytest.raises(HardcaseError, match=r"no plain tensor.*cannot be\s+written back"):
        repairable(Subject(net, classes=("a", "b"), name="net.py:make"))
