import pickle
import socket
import threading

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models.subject import BINARY, Subject
from hardcase.randomness import stream
from hardcase.testing.toys import Quarters, toy_images, toy_subject

X = torch.rand(5, 1, 8, 8, generator=stream(0))


def hooks(subject):
    return sum(len(module._forward_hooks) for module in subject.modules())


def test_normalisation_is_inside_and_modes_stay():
    net = Quarters()
    inside = Subject(net, mean=(0.5,), std=(0.25,))
    assert torch.allclose(inside(X).logits, net((X - 0.5) / 0.25), atol=1e-5)
    subject = Subject(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 4)).train())
    subject.train()
    assert torch.equal(subject(X).logits, subject(X).logits)
    net = Quarters().train()
    Subject(net)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())


def test_taps_see_what_the_layer_gave_and_leave_no_hook():
    subject = toy_subject()
    seen = subject(X, {"relu": torch.clone}).activations["relu"]
    assert torch.allclose(seen, subject.net.relu(subject.net.mean(X.flatten(1))))
    assert seen.shape == (5, 4)
    assert hooks(subject) == 0


def test_hooks_are_removed_when_the_model_or_a_tap_raises():
    def bad(output):
        raise RuntimeError("no")

    subject = toy_subject()
    with pytest.raises(HardcaseError, match="model toy raised RuntimeError: no"):
        subject(X, {"relu": bad})
    with pytest.raises(HardcaseError, match="model toy raised RuntimeError"):
        subject(torch.rand(2, 1, 3, 3), {"relu": torch.clone})
    assert hooks(subject) == 0


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("tap", [torch.clone, lambda out: out, lambda out: out.flatten(1)])
def test_an_in_place_layer_does_not_spoil_what_was_kept(tap, mode):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(inplace=True))
    subject = Subject(net)
    for _ in range(2):
        with mode():
            answer = subject(X - 1, {"1": tap})
        assert torch.equal(answer.activations["1"], net[1]((X - 1).flatten(1)))


def test_a_module_that_runs_twice_is_kept_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(64, 64)

        def forward(self, x):
            return self.f(self.f(x.flatten(1)))

    seen = Subject(Twice())(X, {"f": torch.clone}).activations
    assert set(seen) == {"f", "f#2"}


def test_a_missing_layer_and_a_silent_one_are_errors():
    class Silent(Quarters):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)

    with pytest.raises(HardcaseError, match="no layer 'conv9'"):
        toy_subject()(X, {"conv9": torch.clone})
    with pytest.raises(HardcaseError, match="did not run"):
        Subject(Silent())(X, {"unused": torch.clone})


def test_what_ends_a_network_is_inverted():
    for outputs, end in {"probabilities": nn.Softmax(1), "sigmoid": nn.Sigmoid()}.items():
        ended = Subject(nn.Sequential(Quarters(1.0), end), outputs=outputs)
        assert torch.allclose(end(ended(X).logits), ended.net(X), atol=1e-5), outputs


def test_the_hash_tells_weights_and_normalisation_apart():
    plain, again, other = (Subject(Quarters(*given)).hash for given in ((), (), (3.0,)))
    assert plain == again
    assert len({plain, Subject(Quarters(), mean=(0.1,)).hash, other}) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mean": (0.0, 0.0)}, "equal lengths"),
        ({"std": (0.0,)}, "no std may be 0"),
        ({"outputs": "labels"}, "labels"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(HardcaseError, match=words):
        Subject(Quarters(), **arguments)


def test_one_row_answers_alone_as_among_others():
    subject, images = toy_subject(), toy_images(40)
    x = images.x.float() / 255
    alone = torch.cat([subject(x[i : i + 1]).logits for i in range(40)])
    assert torch.equal(alone, subject(x).logits)


@pytest.mark.parametrize(
    ("channels", "given", "wanted"),
    [("grey", 3, (2, 1, 8, 8)), ("colour", 1, (2, 3, 8, 8)), ("last", 3, (2, 8, 8, 3))],
)
def test_a_network_is_given_the_channels_it_takes(channels, given, wanted):
    class Seen(nn.Module):
        def forward(self, x):
            assert x.shape[1:] == wanted[1:]
            return x.flatten(1)[:, :2]

    assert Subject(Seen(), channels=channels)(torch.rand(2, given, 8, 8)).logits.shape == (2, 2)


HELD = {"lock": threading.Lock, "socket": socket.socket, "generator": lambda: (i for i in range(3))}


class Holding(Quarters):
    """A network that holds a thing beside its weights, and batch statistics to spoil."""

    def __init__(self, thing=None):
        super().__init__()
        self.thing = thing
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(super().forward(x))


@pytest.mark.parametrize("held", HELD)
def test_a_network_that_cannot_be_copied_is_asked_itself_and_left_as_it_was(held, caplog):
    net = Holding(HELD[held]()).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    subject = Subject(net, name=held)
    assert torch.equal(subject(X).logits, Subject(Holding())(X).logits)
    assert net.training
    assert net.norm.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert subject.hash == Subject(Holding()).hash
    assert "file.py:name" in caplog.text
    with pytest.raises(HardcaseError, match=held) as caught:
        pickle.dumps(subject)
    assert "file.py:name" in caught.value.fix


@pytest.mark.parametrize("outputs", BINARY)
def test_one_output_for_two_classes(outputs):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    score = net(X)[:, 0]
    if "sigmoid" in outputs:
        net.append(nn.Sigmoid())
    net.append(nn.Flatten(0))  # as squeezed by many
    probabilities = Subject(net, outputs=outputs)(X).logits.softmax(1)
    positive = 0 if outputs.endswith("first") else 1
    assert torch.allclose(probabilities[:, positive], score.sigmoid(), atol=1e-5)
    assert torch.allclose(probabilities.sum(1), torch.ones(5))


def test_answers_of_another_shape_are_refused():
    with pytest.raises(HardcaseError, match="4 outputs"):
        Subject(Quarters(), outputs="binary")(X)
    with pytest.raises(HardcaseError, match=r"must be \(images, classes\)"):
        Subject(nn.Identity())(X)
