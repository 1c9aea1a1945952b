"""Whatever users have becomes a model: outputs of every kind, number types, traced and exported programs, functions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hardcase.errors import Problem
from hardcase.models.adapters import (
    Adapted,
    from_model_file,
    function_model,
    logits_of,
    module_of,
    own_names,
)
from hardcase.models.subject import Subject
from hardcase.types import Model

SCORES = torch.arange(6.0).reshape(2, 3)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


X = torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "returned",
    [
        SCORES,
        SCORES.numpy(),
        SimpleNamespace(logits=SCORES, hidden_states=None),
        {"logits": SCORES, "loss": torch.tensor(1.0)},
        {"whatever": SCORES, "loss": torch.tensor(1.0)},
        (SCORES, torch.zeros(2, 4, 4)),
        [torch.tensor(0.5), SCORES],
        {"out": SCORES, "aux": SCORES + 1},
    ],
    ids=["tensor", "array", "object", "dict", "only table", "tuple", "list", "segmentation words"],
)
def test_the_scores_are_found(returned):
    assert torch.equal(logits_of(returned), SCORES)


def test_two_tables_without_a_name_are_asked_about():
    with pytest.raises(Problem, match="which part of it") as caught:
        logits_of({"a": SCORES, "b": SCORES})
    assert "a: 2 x 3" in str(caught.value)
    with pytest.raises(Problem, match="returns int"):
        logits_of(3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_network_is_asked_in_its_own_type(dtype):
    seen = []
    net = linear().to(dtype)
    net[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    logits = Adapted(net)(X)
    assert seen == [dtype]
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, linear()(X), rtol=0.02, atol=0.02)


class Labelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(id2label={0: "cat", 1: "dog", 2: "hen"})
        self.inner = linear()

    def forward(self, pixel_values, labels=None):
        return SimpleNamespace(loss=None, logits=self.inner(pixel_values))


def test_a_hugging_face_like_network_brings_its_class_names():
    torch.testing.assert_close(module_of(Labelled())(X), linear()(X))
    assert own_names(Labelled()) == ("cat", "dog", "hen")
    gap = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 2: "b"}))
    assert own_names(gap) == ()


def test_traced_and_scripted_modules(tmp_path):
    traced = torch.jit.trace(linear().eval(), X)
    torch.testing.assert_close(module_of(traced)(X), linear()(X))
    path = tmp_path / "net.pt"
    torch.jit.script(linear()).save(str(path))
    torch.testing.assert_close(from_model_file(path)(X), linear()(X))


def test_gradients_flow_through_a_traced_module():
    model = Subject(module_of(torch.jit.trace(linear().eval(), X)))
    asked = X.clone().requires_grad_()
    model(asked).logits.sum().backward()
    assert asked.grad.abs().sum() > 0


@pytest.mark.parametrize("dynamic", [True, False], ids=["any batch", "batch of 2"])
def test_exported_programs(dynamic, tmp_path):
    shapes = {"input": {0: torch.export.Dim("n")}} if dynamic else None
    program = torch.export.export(linear().eval(), (X[:2],), dynamic_shapes=shapes)
    path = tmp_path / "net.pt2"
    torch.export.save(program, path)
    for made in (module_of(program), from_model_file(path)):
        assert made.rows == (None if dynamic else 2)
        torch.testing.assert_close(made(X), linear()(X))


def test_a_file_of_weights_is_no_network(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(linear().state_dict(), path)
    with pytest.raises(Problem, match="holds no network") as caught:
        from_model_file(path)
    assert "@file.py:factory" in caught.value.fix


class Lit(nn.Module):
    """As a Lightning module looks from outside."""

    def __init__(self, *, forward=True):
        super().__init__()
        self.net = linear()
        self.loss = nn.CrossEntropyLoss()
        self.trainer = (each for each in ())  # a generator cannot be copied, as a trainer cannot
        if not forward:
            self.__class__ = LitBare

    def training_step(self, batch, index):
        return None

    def configure_optimizers(self):
        return None

    def forward(self, x):
        return self.net(x)


class LitBare(nn.Module):
    training_step = configure_optimizers = None


def test_a_lightning_module_leaves_its_trainer_behind():
    lit = Lit()
    torch.testing.assert_close(module_of(lit)(X), linear()(X))
    assert lit.trainer is not None


def test_a_lightning_module_without_forward_gives_its_network():
    torch.testing.assert_close(module_of(Lit(forward=False))(X), linear()(X))


def test_a_function_of_tensors_has_gradients():
    weights = torch.eye(12, 3)
    model = function_model(lambda x: x.flatten(1) @ weights, X)
    assert model.offers == "gradients"
    assert torch.equal(model(X).logits, X.flatten(1) @ weights)


@pytest.mark.parametrize("arrays", [True, False])
def test_a_function_without_gradients_offers_scores(arrays):
    def scores(x):
        if arrays and isinstance(x, torch.Tensor):
            raise TypeError("arrays only")
        return np.asarray(x.detach() if isinstance(x, torch.Tensor) else x).reshape(len(x), -1)[
            :, :3
        ]

    model = function_model(scores, X)
    assert model.offers == "scores"
    assert isinstance(model, Model)
    torch.testing.assert_close(model(X).logits, X.flatten(1)[:, :3])
    with pytest.raises(Problem, match="no layers"):
        model(X, {"a": torch.sum})


def test_two_functions_have_two_hashes():
    first = function_model(lambda x: x.flatten(1)[:, :3], X)
    second = function_model(lambda x: x.flatten(1)[:, 1:4], X)
    assert first.hash != second.hash


def test_a_class_is_not_an_object():
    with pytest.raises(Problem) as caught:
        function_model(nn.Linear, X)
    assert "not its class" in caught.value.fix
