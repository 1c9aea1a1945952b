"""Tiny networks, images and looks for the criteria's tests."""

import torch
from torch import nn

from hardcase.criteria.criterion import build_criteria, requirements
from hardcase.criteria.network import join_taps, trace_layers
from hardcase.criteria.profile import fit_profile
from hardcase.models.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.types import Probe, Seeds
from tiny import bars


def small_net(seed=0):
    """A convolution with an in-place activation, pooling, and three dense layers narrow enough for MC/DC."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ]
        dense = [
            nn.Linear(4 * 36, 6),
            nn.ReLU(inplace=True),
            nn.Linear(6, 5),
            nn.ReLU(),
            nn.Linear(5, 3),
        ]
        net = nn.Sequential(*layers, *dense)
        for layer in net[4::2]:
            nn.init.normal_(layer.bias, std=0.3)
        return trained(net)


def trained(net, steps=60):
    images = bars(60, seed=2)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(from_bytes(images.x)), images.y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net


class World:
    """A model, its layers, training and test images, and evaluations of the latter."""

    def __init__(self, net=None, images=None, training=None):
        self.subject = Subject(small_net() if net is None else net)
        self.images = bars(40, seed=1, split="test") if images is None else images
        self.training = bars(60, seed=2) if training is None else training
        self.graph = trace_layers(self.subject, from_bytes(self.images.x[:1]))

    def profile(self, *specs, convention="default"):
        needs = requirements(specs, self.graph, convention=convention)
        return fit_profile(self.subject, self.training, needs, batch=32)

    def make(self, spec, convention="default"):
        profile = self.profile(spec, convention=convention)
        return lambda: build_criteria(spec, self.graph, profile, convention=convention)

    def evaluate(self, x, *criteria, seeds=None, ids=None):
        answer = self.subject(x, join_taps(criterion.taps for criterion in criteria))
        origin = x.detach() if seeds is None else seeds
        y, ids = answer.logits.argmax(1).detach(), torch.arange(len(x)) if ids is None else ids
        return Probe(
            x, x, answer.logits, Seeds(origin, origin, y, ids), activations=answer.activations
        )

    def looks(self, *criteria, sizes=(7, 1, 16, 5)):
        """Looks at mildly disturbed test images, the first of them at the originals themselves."""
        x, rng = from_bytes(self.images.x), torch.Generator().manual_seed(5)
        parts = torch.split(torch.arange(sum(sizes)) % len(x), list(sizes))
        with torch.no_grad():
            first = self.evaluate(x[parts[0]], *criteria, ids=parts[0])
            noisy = [
                (x[p] + 0.3 * torch.randn(x[p].shape, generator=rng)).clamp(0, 1) for p in parts
            ]
            rest = [
                self.evaluate(n, *criteria, seeds=x[p % 7], ids=p % 7)
                for n, p in zip(noisy[1:], parts[1:], strict=True)
            ]
        return [first, *rest]
