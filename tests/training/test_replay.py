"""Steps that are replayed as a graph: when they are captured, what they are given, what forbids it.

There is no GPU here: torch's graphs are played by functions that are called again.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from played_device import PlayedDevice
from torch.utils._python_dispatch import TorchDispatchMode

from hardcase.generators import build_generator
from hardcase.generators.vae import reconstruct
from hardcase.judges.networks import build
from hardcase.judges.panel import card_config
from hardcase.judges.training import (
    USUAL,
    _classification,
    _likelihood,
)
from hardcase.models.zoo import build_classifier
from hardcase.randomness import stream
from hardcase.training.loop import TrainingRecipe, classify, fit, predict
from hardcase.training.replay import WARM, ReplayedStep
from hardcase.types import Images
from tiny import bars

WAITING = (
    *("_local_scalar_dense", "lift_fresh", "lift_fresh_copy", "nonzero", "masked_select"),
    *("_unique2", "repeat_interleave", "is_nonzero", "equal"),
)
"""What waits for a device or copies to it, which a capture forbids."""


class Watching(TorchDispatchMode):
    """Notes every call that a capture would forbid."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        masks = name == "index" and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        if name in WAITING or masks:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def digits(count=24):
    x = torch.randint(0, 256, (count, 1, 28, 28), generator=stream(0), dtype=torch.uint8)
    names = tuple(f"d{i}" for i in range(count))
    return Images(x, torch.arange(count) % 10, names, tuple("0123456789"), name="noise")


def goals():
    images = digits(200)
    panel = build(card_config(images, images, USUAL, 0))
    yield "classifier", build_classifier("lenet5", channels=1, size=28, classes=10), classify(10)
    shape = {"channels": 1, "size": 28, "classes": 10}
    for kind in ("linear", "conditional"):
        net = build_generator("vae", kind=kind, latent=8, **shape)
        yield f"{kind} VAE", net, reconstruct(images)
    yield "density", panel.density, _likelihood(())
    for member in panel.members:
        goal = _classification(panel, member.config, USUAL, None)
        yield f"member {member.config}", member, goal
    known = torch.full((10, 11), 1 / 11)
    yield (
        "prepared",
        panel.members[0],
        _classification(panel, panel.members[0].config, USUAL, known),
    )


@pytest.mark.parametrize(("name", "net", "goal"), goals(), ids=lambda value: str(value)[:30])
def test_plain_goals_wait_for_nothing(name, net, goal):
    assert goal.plain, name
    noise = stream(0, "noise")
    x = digits().x.float() / 255
    y = digits().y
    made = (x, y) if goal.prepare is None else goal.prepare(x, y, noise)
    goal.loss(net.train(), *made, noise).backward()  # what is made once is made
    with Watching() as watching:
        goal.loss(net, *made, noise).backward()
    assert not watching.seen


def test_several_steps_are_prepared_at_once_on_a_device_and_teach_as_much():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    recipe = TrainingRecipe(epochs=3, batch=20, lr=1e-2)
    with PlayedDevice():
        history = fit(net, bars(), classify(3), recipe, seed=0)
    assert history.steps == 18
    assert float((predict(net, bars(seed=1)) == bars(seed=1).y).float().mean()) > 0.95


@pytest.fixture
def played_graphs(monkeypatch):
    """Graphs that call again what was called while they were captured."""
    stream_ = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream_)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream_)
    monkeypatch.setattr(torch.cuda, "stream", lambda other: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    graphs = []

    class Graph:
        def __init__(self):
            graphs.append(self)
            self.again = lambda: None

        def register_generator_state(self, noise):
            self.noise = noise

        def replay(self):
            self.again()

    @contextmanager
    def capture(graph):
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return graphs


def test_the_first_steps_are_taken_and_later_ones_replayed(played_graphs):
    taken = []
    loss = torch.zeros(1)

    def once(x, y, noise):
        taken.append(float(x.sum()))
        return loss

    noise = stream(0)
    step = ReplayedStep(once, noise)
    for number in range(WARM):
        step(torch.full((2,), float(number)), torch.zeros(2))
    assert taken == [2.0 * number for number in range(WARM)]
    played_graphs.clear()
    step(torch.ones(2), torch.zeros(2))
    (graph,) = played_graphs
    graph.again = lambda: loss.copy_(step.x.sum())
    told = [float(step(torch.full((2,), float(n)), torch.zeros(2))) for n in (5, 6, 7)]
    assert told == [10.0, 12.0, 14.0]
    assert len(taken) == WARM + 1, "captured once"
    assert graph.noise is noise
    step(torch.ones(1), torch.zeros(1))
    assert len(taken) == WARM + 2, "another shape is no replay"


def test_a_capture_that_fails_leaves_the_training_as_it_was(played_graphs, monkeypatch):
    @contextmanager
    def forbidden(graph):
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "graph", forbidden)
    drawn = []

    def once(x, y, noise):
        drawn.append(torch.rand(1, generator=noise))
        return drawn[-1]

    step = ReplayedStep(once, stream(3))
    for _ in range(WARM + 3):
        step(torch.ones(2), torch.zeros(2))
    noise = stream(3)
    expected = [torch.rand(1, generator=noise) for _ in range(WARM + 3)]
    assert torch.equal(torch.cat(drawn), torch.cat(expected)), "no number was drawn twice or lost"
