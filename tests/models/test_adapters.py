"""Whatever users have becomes a model: outputs of every kind, number types, traced and exported programs, functions."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models import adapters
from hardcase.models.adapters import LabelOnly, Retrying, from_model_file, function_model, module_of
from hardcase.models.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Model

SCORES = torch.arange(6.0).reshape(2, 3)


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


X = torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(0))


RETURNED = {
    "tensor": SCORES,
    "array": SCORES.numpy(),
    "object": SimpleNamespace(logits=SCORES, hidden_states=None),
    "dict": {"logits": SCORES, "loss": torch.tensor(1.0)},
    "only table": {"whatever": SCORES, "loss": torch.tensor(1.0)},
    "tuple": (SCORES, torch.zeros(2, 4, 4)),
    "list": [torch.tensor(0.5), SCORES],
    "segmentation words": {"out": SCORES, "aux": SCORES + 1},
}


@pytest.mark.parametrize("form", RETURNED)
def test_the_scores_are_found(form):
    assert torch.equal(adapters.logits_of(RETURNED[form]), SCORES)


def test_two_tables_without_a_name_are_asked_about():
    with pytest.raises(HardcaseError, match="which part of it") as caught:
        adapters.logits_of({"a": SCORES, "b": SCORES})
    assert "a: 2 x 3" in str(caught.value)
    with pytest.raises(HardcaseError, match="returns int"):
        adapters.logits_of(3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_network_is_asked_in_its_own_type(dtype):
    seen = []
    net = linear().to(dtype)
    net[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    logits = adapters.Adapted(net)(X)
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
    assert adapters.own_names(Labelled()) == ("cat", "dog", "hen")
    gap = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 2: "b"}))
    assert adapters.own_names(gap) == ()


def test_traced_and_scripted_modules(tmp_path):
    traced = module_of(torch.jit.trace(linear().eval(), X))
    torch.testing.assert_close(traced(X), linear()(X))
    asked = X.clone().requires_grad_()
    Subject(traced)(asked).logits.sum().backward()
    assert asked.grad.abs().sum() > 0
    path = tmp_path / "net.pt"
    torch.jit.script(linear()).save(str(path))
    torch.testing.assert_close(from_model_file(path)(X), linear()(X))


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
    with pytest.raises(HardcaseError, match="holds weights") as caught:
        from_model_file(path)
    assert "@FILE.py:FUNCTION" in caught.value.fix
    torch.save(linear(), tmp_path / "whole.pt")
    with pytest.raises(HardcaseError, match="pickled whole"):
        from_model_file(tmp_path / "whole.pt")


class Lit(nn.Module):
    """As a Lightning module looks from outside."""

    def __init__(self):
        super().__init__()
        self.net = linear()
        self.loss = nn.CrossEntropyLoss()
        self.trainer = (each for each in ())  # a generator cannot be copied, as a trainer cannot

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
    lit.__class__ = LitBare  # without forward, its network is meant
    torch.testing.assert_close(module_of(lit)(X), linear()(X))


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
        return np.asarray(x.detach() if isinstance(x, torch.Tensor) else x)[:, 0, 0]

    model = function_model(scores, X)
    assert model.offers == "scores"
    assert isinstance(model, Model)
    torch.testing.assert_close(model(X).logits, X[:, 0, 0])
    with pytest.raises(HardcaseError, match="no layers"):
        model(X, {"a": torch.sum})
    assert model.hash != function_model(lambda x: x.flatten(1)[:, 1:4], X).hash


def test_a_class_is_not_an_object():
    with pytest.raises(HardcaseError) as caught:
        function_model(nn.Linear, X)
    assert "not its class" in caught.value.fix


LIMIT = 0.15


def hanging(on, *, seconds=5.0):
    """The toy model, but it sleeps when it sees one of the images `on`."""
    subject = toy_subject()

    def wait(module, args):
        same = (args[0][:, None] - on[None]).abs().flatten(2).amax(2) < 1e-6
        if same.any():
            time.sleep(seconds)

    subject.net.register_forward_pre_hook(wait)
    return subject


def test_the_inputs_on_which_a_model_hangs_are_found():
    x = from_bytes(toy_images(9).x)
    right = toy_subject()(x).logits
    subject = Retrying(hanging(x[[4]]), LIMIT)
    subject(x[:1])
    begun = time.monotonic()
    logits = subject(x).logits
    assert time.monotonic() - begun < 4
    assert logits.isnan().all(1).nonzero().flatten().tolist() == [4]
    others = torch.arange(9) != 4
    assert torch.equal(logits[others], right[others])
    assert subject.tally["unanswered"] == 1


def test_a_model_that_hangs_on_everything_stops_the_search():
    x = from_bytes(toy_images(3).x)
    subject = Retrying(hanging(x), LIMIT)
    with pytest.raises(HardcaseError, match=r"does not answer any more: no answer within 0.15 s"):
        subject(x)


def test_gradients_pass_through_and_the_timer_is_left_as_it_was():
    import signal

    x = from_bytes(toy_images(2).x).requires_grad_()
    (gradient,) = torch.autograd.grad(Retrying(toy_subject(), 5.0)(x).logits.sum(), x)
    assert gradient.abs().sum() > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_labels_alone_offer_labels_and_keep_nan():
    class Odd:
        name, hash, offers, device = "odd", "0", "scores", torch.device("cpu")

        def __call__(self, x, taps=None):
            answer = toy_subject()(x)
            answer.logits[0] = torch.nan
            return answer

    logits = LabelOnly(Odd())(from_bytes(toy_images(3).x)).logits
    assert logits[0].isnan().all()
    assert set(logits[1:].flatten().tolist()) == {0.0, 30.0}
