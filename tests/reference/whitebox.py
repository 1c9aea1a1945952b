"""A small world for slow transcriptions of white-box methods: tiny networks, and a record of every look."""

from dataclasses import dataclass, field, replace

import torch
from torch import nn

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, parse_keep
from hardcase.methods.neurons import Profiles
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.registry import resolve
from hardcase.tensors import from_bytes
from hardcase.types import Images

CLASSES = 4


def network(number):
    """Conv, pool, conv, dense, dense; all networks are variants of one."""
    net = nn.Sequential()
    net.add_module("conv1", nn.Conv2d(1, 3, 3, padding=1))
    net.add_module("relu1", nn.ReLU())
    net.add_module("pool1", nn.MaxPool2d(2))
    net.add_module("conv2", nn.Conv2d(3, 4, 3, padding=1))
    net.add_module("relu2", nn.ReLU())
    net.add_module("flatten", nn.Flatten())
    net.add_module("dense1", nn.Linear(64, 6))
    net.add_module("relu3", nn.ReLU())
    net.add_module("logits", nn.Linear(6, CLASSES))
    base, own = stream(0, "network"), stream(number, "twin")
    for value in net.parameters():
        drawn = [torch.randn(value.shape, generator=rng) for rng in (base, own)]
        weight = 2 * (drawn[0] + 0.15 * drawn[1]) / value[0].numel() ** 0.5
        value.data = weight if value.ndim > 1 else value.data * 0
    pictures = torch.rand(64, 1, 8, 8, generator=stream(4, "balance"))
    net.logits.bias.data = -net(pictures).detach().mean(0)  # no class is everybody's favourite
    return net


MODELS = SUBJECT, ONE, TWO = tuple(Subject(network(i), name=f"net{i}") for i in range(3))


def seeds(count, *models):
    """Pictures on which all models give one label, which is theirs."""
    x = (torch.rand(400, 1, 8, 8, generator=stream(5, "pictures")) * 255).to(torch.uint8)
    answers = torch.stack([model(from_bytes(x)).logits.argmax(1) for model in models])
    agreed = (answers == answers[:1]).all(0).nonzero().squeeze(1)[:count]
    names = tuple(f"picture-{i}" for i in range(count))
    return Images(x[agreed], answers[0][agreed], names, tuple(map(str, range(CLASSES))))


def pictures(images):
    """Number, picture and label of every seed."""
    return zip(range(len(images.y)), from_bytes(images.x), images.y.tolist(), strict=True)


def profiles():
    x = (torch.rand(64, 1, 8, 8, generator=stream(6, "training")) * 255).to(torch.uint8)
    names, classes = (tuple(f"train-{i}" for i in range(64)), tuple(map(str, range(CLASSES))))
    training = Images(x, torch.arange(64) % CLASSES, names, classes, split="train")
    return Profiles(from_bytes(training.x[:1]), lambda: training)


def made(recipe, **options):
    """A method of the registry for the model."""
    return resolve("method", recipe)(subject=SUBJECT, profile=profiles(), **options)


@dataclass
class Recording:
    """An objective that notes every row it scores: seed, code, picture and aim."""

    objective: object
    looks: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    def __call__(self, probe):
        first = len(self.looks)
        for i in range(len(probe.logits)):
            targets = {name: value[i].clone() for name, value in probe.targets.items()}
            shown = (value[i].detach().clone() for value in (probe.z, probe.x))
            self.looks.append((int(probe.origin.id[i]), *shown, targets))
        self.calls.append(self.looks[first:])
        return self.objective(probe)

    def of(self, seed):
        return [look[1:] for look in self.looks if look[0] == seed]


def run(method, images, peers=(), *, one_by_one=False):
    """The method on the model, with its looks; one by one, every image is a shard and a round of its own."""
    spy = Recording(method.objective)
    method = replace(method, objective=spy)
    campaign = Campaign(subject=SUBJECT, method=method, peers=peers, keep=parse_keep(method.keep))
    bounds, size = limits(method.budget, len(images)), 1 if one_by_one else len(images)
    found = []
    for first in range(0, len(images), size):
        part = images.take(torch.arange(first, first + size))
        room = bounds.take(slice(first, first + size))
        shard = run_shard(campaign, part, room, first=first, guides=method.guides)
        for guide in method.guides:
            guide.merge([shard.deltas[guide.name]])
        found.append(shard.findings)
    return spy, found, method


def grid(x):
    """What a network is shown of a code."""
    return (x.clamp(0, 1) * 255).round() / 255


def layers(model, x):
    """The outputs of the layers that count, one picture at a time, softmax last; `x` may want a gradient."""
    seen, value = {}, x[None]
    for name, module in model.net.named_children():
        value = module(value)
        if name in ("relu1", "pool1", "relu2", "relu3", "logits"):
            seen[name] = value[0]
    seen["softmax"] = value[0].softmax(0)
    return seen


def scale_then_mean(seen):
    """DeepXplore's neurons: each layer scaled by its own extremes, then averaged over the plane."""
    out = []
    for value in seen.values():
        width = value.max() - value.min()
        scaled = (value - value.min()) / width if width > 0 else value * 0
        out += [float(channel.mean()) for channel in scaled]
    return out


def mean_then_scale(seen, epsilon=1e-6):
    """ADAPT's neurons: channel means, scaled by the extremes of their layer; no softmax."""
    out = []
    for name, value in seen.items():
        if name != "softmax":
            means = [channel.mean() for channel in value]
            low, high = min(means), max(means)
            out += [float((m - low) / (high - low + epsilon)) for m in means]
    return out


def active(x, threshold, model=SUBJECT, by=scale_then_mean):
    """The neurons above the threshold."""
    return {i for i, value in enumerate(by(layers(model, grid(x)))) if value > threshold}


def channel_means(seen):
    means = [torch.stack([channel.mean() for channel in value]) for value in seen.values()]
    return torch.cat(means)


def rms(gradient):
    return gradient / (gradient.square().mean().sqrt() + 1e-5)
