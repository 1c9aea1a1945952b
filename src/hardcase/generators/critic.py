"""What a GAN is trained against: networks that say how real an image looks, and how much like its class."""

from __future__ import annotations

from math import log2

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from hardcase.generators.gan import Gan, xavier


class Critic(nn.Module):
    """The projection discriminator (T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018), plain and small."""

    def __init__(self, channels: int, size: int, classes: int, *, width: int = 128) -> None:
        super().__init__()
        widths = (width // 2, width, width, width)
        before, layers = channels, list[nn.Module]()
        for number, after in enumerate(widths):
            layers += [spectral_norm(nn.Conv2d(before, after, 3, padding=1)), nn.LeakyReLU(0.1)]
            layers += [spectral_norm(nn.Conv2d(after, after, 4, 2, 1)), nn.LeakyReLU(0.1)] if number < 2 else []
            before = after
        self.body = nn.Sequential(*layers)
        self.real = spectral_norm(nn.Linear(width, 1))
        self.like = spectral_norm(nn.Embedding(classes, width))

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " m"]:
        h: Tensor = self.body(x).sum((2, 3))
        out: Tensor = self.real(h).squeeze(1) + (self.like(y) * h).sum(1)
        return out

    def judge(self, x: Tensor, y: Tensor) -> tuple[Float[Tensor, " m"], None]:
        return self(x, y), None


class ResidualCritic(nn.Module):
    """The same in residual blocks (T. Miyato et al., "Spectral normalization for GANs", ICLR 2018), with a class head.

    The head is that of A. Odena et al., "Conditional image synthesis with auxiliary classifier GANs", ICML 2017. Differences:
    it stands beside the projection, not in its place, and is taught by real images alone, as in M. Kang et al., "Rebooting
    ACGAN", NeurIPS 2021, whose normalised features and pairs within a batch are left out.
    """

    def __init__(self, channels: int, size: int, classes: int, *, width: int = 256) -> None:
        super().__init__()
        halvings = max(2, round(log2(size / 8)))
        widths = (width // 2, *[width] * (halvings + 1))
        blocks = [
            _Shrink(before, after, halve=number < halvings, first=number == 0)
            for number, (before, after) in enumerate(zip((channels, *widths), widths))
        ]
        self.body = nn.Sequential(*blocks)
        self.real, self.like, self.kind = nn.Linear(width, 1), nn.Embedding(classes, width), nn.Linear(width, classes)
        xavier(self)
        nn.init.xavier_uniform_(self.like.weight)
        _bound(self)

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " m"]:
        return self.judge(x, y)[0]

    def judge(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m k"]]:
        h = functional.relu(self.body(2 * x - 1)).float().sum((2, 3))
        with torch.autocast(h.device.type, enabled=False):
            score: Tensor = self.real(h).squeeze(1) + (self.like(y) * h).sum(1)
            return score, self.kind(h)


class _Shrink(nn.Module):
    """A residual block that halves the picture if `halve`; the first one sees pixels, which are not rectified."""

    def __init__(self, before: int, width: int, *, halve: bool, first: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(before, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(before, width, 1) if before != width or halve else nn.Identity()
        self.halve, self.first = halve, first

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x if self.first else functional.relu(x))
        h = self.conv2(functional.relu(h))
        if self.halve:
            h, x = functional.avg_pool2d(h, 2), functional.avg_pool2d(x, 2)
        out: Tensor = h + self.skip(x)
        return out


class _Bounded(nn.Module):
    """A weight divided by its largest singular value, which one step of power iteration follows on every use in training.

    As torch's own, but always in single precision, so that it may be used where the network is run in half.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        flat = weight.detach().flatten(1)
        self.register_buffer("u", functional.normalize(torch.randn(len(flat)), dim=0))
        self.register_buffer("v", torch.zeros(flat.shape[1]))
        for _ in range(15):
            self._follow(flat)

    @torch.no_grad()
    def _follow(self, flat: Tensor) -> None:
        v = self.u @ flat
        v /= v.norm() + 1e-12
        u = flat @ v
        self.u, self.v = u / (u.norm() + 1e-12), v

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            flat = weight.flatten(1)
            if self.training:
                self._follow(flat)
            return weight / (self.u @ (flat @ self.v))


def _bound(net: nn.Module) -> None:
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear | nn.Embedding)]
    for layer in layers:
        assert isinstance(layer.weight, Tensor)
        register_parametrization(layer, "weight", _Bounded(layer.weight))


def opponent(net: Gan) -> Critic | ResidualCritic:
    """The critic that fits this generator."""
    if net.thorough:
        return ResidualCritic(net.shape[0], net.shape[1], net.classes, width=net.width)
    return Critic(net.shape[0], net.shape[1], net.classes, width=min(128, net.width))
