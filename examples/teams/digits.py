"""A small digit classifier, trained in a second or two, for the examples of this folder."""

import torch
from torch import nn
from torch.nn import functional

import hardcase as hc


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 10))


def trained(steps: int = 150) -> nn.Sequential:
    net = network()
    train = hc.data.load("mnist5k", split="train")
    x, y = train.x.float() / 255, train.y
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(steps):
        rows = torch.arange(128 * step, 128 * (step + 1)) % len(x)
        loss = functional.cross_entropy(net(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def pixels(count: int, split: str = "test") -> hc.Images:
    return hc.data.load("mnist5k", split=split).sample(count=count, seed=0)


def hasty() -> nn.Sequential:
    """The version before: less training."""
    return trained(60)
