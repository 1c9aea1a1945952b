"""The panel: small classifiers that may answer "nothing", a density of images, and their signals.

Its members took no part in any search and were never shown the seeds. It reads an image by what
they answer, by the training images nearest to it in their features, and by the density.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.imaging.blur import binomial
from hardcase.judges.judge import Neighbours, SignalSource, closer
from hardcase.judges.rules import Signals
from hardcase.judges.training_data import FAMILIES
from hardcase.randomness import named_randomness
from hardcase.tensors import digest_tensors
from hardcase.training.cards import UNSTATED

# Three ways of looking at the same image, so that members of a panel are not fooled by the same
# change.

CONTRAST = 0.1
"""Range of shades that the eye needs to see something."""
FAINT = 0.12
"""A smaller range of shades than this is not stretched to the full one."""


def spread(
    x: Float[Tensor, "m c h w"],
) -> tuple[Float[Tensor, "m 1 1 1"], Float[Tensor, "m 1 1 1"]]:
    """The shades between which almost all pixels of an image lie."""
    pixels = x.flatten(1)
    last = pixels.shape[1] - 1
    low, high = (pixels.kthvalue(1 + round(share * last), 1).values for share in (0.02, 0.98))
    return low[:, None, None, None], high[:, None, None, None]


def even(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Normalise contrast and brightness: a grey or dim image looks like a bright one."""
    low, high = spread(x)
    return ((x - low) / (high - low).clamp_min(FAINT)).clamp(0, 1)


def soft(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Evened and blurred: fine changes are gone."""
    return binomial(even(x))


View = Callable[[Tensor], Tensor]
VIEWS: dict[str, View] = {"plain": lambda x: x, "even": even, "soft": soft}


# A small variational autoencoder: how likely an image is, and what lies between two images.
#
# The likelihood of a generative model is higher for simple images than for the data it was trained
# on (near-black pictures are the easiest of all). So it is compared with what images of the same
# complexity cost, after J. Serrà et al., "Input complexity and out-of-distribution detection with
# likelihood-based generative models", ICLR 2020. Difference: they measure complexity by a
# compressor, here it is the total variation, which is computed for a whole batch at once.

LATENT = 24
HIDDEN = 400


class Density(nn.Module):
    """A hidden layer on either side of the code.

    `level` and `slope` say what real images of a complexity cost.
    """

    level: Tensor
    slope: Tensor
    width: Tensor

    def __init__(self, *, channels: int, size: int) -> None:
        super().__init__()
        self.shape = (channels, size, size)
        pixels = channels * size**2
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT)
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, pixels)
        )
        for name, value in {"level": 0.0, "slope": 0.0, "width": 1.0}.items():
            self.register_buffer(name, torch.tensor(value))

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d"]:
        """The mean code of each image."""
        out: Tensor = self.encoder(even(x)).chunk(2, 1)[0]
        return out

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]:
        return torch.sigmoid(self.decoder(z)).reshape(len(z), *self.shape)

    def bound(self, x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, ""]:
        """The loss of a training step: reconstruction and divergence, in nats per image."""
        evened = even(x)
        mean, logvar = self.encoder(evened).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device)
        decoded = self.decoder(mean + torch.exp(logvar / 2) * noise)
        cost = functional.binary_cross_entropy_with_logits(
            decoded, evened.flatten(1), reduction="sum"
        )
        return (cost + _divergence(mean, logvar).sum()) / len(x)

    def cost(self, x: Float[Tensor, "m c h w"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """What an image costs at its mean code (nats beyond those of the image itself),
        and how complex it is.
        """
        evened = even(x)
        mean, logvar = self.encoder(evened).chunk(2, 1)
        flat = evened.flatten(1)
        decoded = functional.binary_cross_entropy_with_logits(
            self.decoder(mean), flat, reduction="none"
        ).sum(1)
        entropy = functional.binary_cross_entropy(flat, flat, reduction="none").sum(1)
        down, right = (evened.diff(dim=axis).abs().flatten(1).sum(1) for axis in (2, 3))
        return decoded - entropy + _divergence(mean, logvar), down + right

    def fit_to(self, x: Float[Tensor, "m c h w"]) -> None:
        """Learn from real images what a complexity costs: a line, and the spread around it."""
        cost, complexity = self.cost(x)
        centred = complexity - complexity.mean()
        slope = (centred * cost).mean() / centred.square().mean().clamp_min(1e-6)
        level = cost.mean() - slope * complexity.mean()
        width = (cost - level - slope * complexity).std().clamp_min(1e-3)
        for name, value in {"level": level, "slope": slope, "width": width}.items():
            getattr(self, name).copy_(value)

    def likeness(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
        """Saving in coding cost against real images of its complexity, in their spreads; below -2:
        unlikely; never above 1.
        """
        cost, complexity = self.cost(x)
        return ((self.level + self.slope * complexity - cost) / self.width).clamp(-20, 1)


def _divergence(mean: Tensor, logvar: Tensor) -> Float[Tensor, " m"]:
    return (mean.square() + logvar.exp() - 1 - logvar).sum(1) / 2


# The classifiers of a panel: small networks that may also answer "nothing of the data".

FEATURES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """A member of the ensemble."""

    view: str
    kernel: int = 5
    width: int = 24
    attack: float = 0.0
    deep: bool = field(default=False, metadata=UNSTATED)


PANEL = (MemberConfig(view="even", kernel=3), MemberConfig(view="soft"))
"""For small grey images. A third member that sees images as they are ranked rated digits no better
(.940 against .940, AUROC over 250 digits), nor did a fourth that was trained against attacks.
"""

PHOTO_PANEL = (
    MemberConfig(view="plain", width=64, deep=True),
    MemberConfig(view="even", width=64, deep=True),
    MemberConfig(view="plain", width=64, deep=True),
    MemberConfig(view="plain", width=64, deep=True, attack=0.25),
)
"""For colour on a GPU: residual networks, one of them trained against small L2 attacks."""


class Member(nn.Module):
    """Convolutions, a dense layer of features, and a last output in addition to the classes:
    "nothing".

    It answers with the mean over an image and the same image moved by a pixel, a deep one over an
    image and its mirror image.
    """

    def __init__(self, config: MemberConfig, *, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.config = config
        if config.deep:
            self.body = _residual(config, channels)
        else:
            self.body = _plain(config, channels, size)
        self.head = nn.Linear(FEATURES, classes + 1)
        # torch's types lack this form of `to`
        self.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
        view = VIEWS[self.config.view](x).contiguous(memory_format=torch.channels_last)
        if self.training:
            out: Tensor = self.body(view)
            return out
        variants = [view, _moved(view, 1), _moved(view, -1)]
        if self.config.deep:
            variants = [view, view.flip(3)]
        return torch.stack([self.body(each) for each in variants]).mean(0)

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k1"]:
        out: Tensor = self.head(self.features(x))
        return out


def _moved(x: Float[Tensor, "m c h w"], by: int) -> Float[Tensor, "m c h w"]:
    """Every image moved down and to the right; what comes in at the edges repeats them."""
    _, _, height, width = x.shape
    rows, columns = (
        (torch.arange(side, device=x.device) - by).clamp(0, side - 1) for side in (height, width)
    )
    return x[:, :, rows[:, None], columns].contiguous(memory_format=torch.channels_last)


def _plain(config: MemberConfig, channels: int, size: int) -> nn.Sequential:
    """Four convolutions and a dense layer."""
    first, second, third, last = (config.width * share // 12 for share in (8, 16, 24, 32))
    widths = ((first, config.kernel, 2), (second, 3, 1), (third, 3, 2), (last, 3, 1))
    layers: list[nn.Module] = []
    before = channels
    side = size
    for width, kernel, stride in widths:
        layers += _convolved(before, width, kernel, stride)
        before = width
        side = -(-side // stride)
    pooled = -(-side // 2)
    layers += [
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(before * pooled**2, FEATURES),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers)


class _Shortcut(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*_convolved(width, width), *_convolved(width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def _residual(config: MemberConfig, channels: int) -> nn.Sequential:
    """Eight convolutions of up to 8 x `width` channels, two shortcuts and a dense layer.

    D. Page, "How to train your ResNet", 2018: as accurate on CIFAR-10 as a ResNet-18 at a third of
    its time. Difference: a dense layer of features before the head.
    """
    width = config.width
    layers: list[nn.Module] = _convolved(channels, width)
    for before, after, shortcut in ((1, 2, True), (2, 4, False), (4, 8, True)):
        layers += [*_convolved(before * width, after * width), nn.MaxPool2d(2)]
        if shortcut:
            layers.append(_Shortcut(after * width))
    layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, FEATURES, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm1d(FEATURES), nn.ReLU())


def _convolved(before: int, width: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]


# The ensemble as one source of signals.

REFERENCES = 10_000
"""Real images whose features are stored to measure nearness."""


class Panel(SignalSource):
    """Members, density and references as a single network, so that it is stored and loaded as a
    file; it holds features of training images. The members come from `trainings`
    trainings, each with all views and with newly made images.
    """

    references: Tensor
    counts: Tensor
    typical: Tensor

    def __init__(
        self,
        ensemble: Sequence[MemberConfig],
        *,
        trainings: int,
        channels: int,
        size: int,
        classes: int,
        references: int,
        learned: int,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.trainings = trainings
        self.members = nn.ModuleList(
            Member(config, channels=channels, size=size, classes=classes)
            for config in [*ensemble] * trainings
        )
        self.density = Density(channels=channels, size=size)
        width = FEATURES * len(ensemble)
        self.register_buffer("references", torch.zeros(trainings, references, width))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("typical", torch.ones(trainings))
        self.register_buffer("learned", torch.zeros(learned, dtype=torch.int64))

    @property
    def networks(self) -> list[Member]:
        """The members of the ensemble."""
        return [net for net in self.members if isinstance(net, Member)]

    def answers(
        self, x: Float[Tensor, "m c h w"]
    ) -> tuple[Float[Tensor, "p m k1"], Float[Tensor, "m f"]]:
        """Return log-probabilities by every member, and their unit features side by side."""
        features = [member.features(x) for member in self.networks]
        pairs = zip(self.networks, features)
        answers = torch.stack(
            [member.head(features_of_member).log_softmax(1) for member, features_of_member in pairs]
        )
        return answers, torch.cat(
            [functional.normalize(features_of_member, dim=1) for features_of_member in features], 1
        )

    def read_batch(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]
    ) -> tuple[list[Signals], Float[Tensor, "m f"]]:
        """Return the signals of every training, and the unit features of all members side by
        side.
        """
        answers, features = self.answers(x)
        low, high = spread(x)
        contrast = ((high - low).flatten() / CONTRAST).clamp(1e-3, 1).log()
        likeness = self.density.likeness(x)
        configs = [member.config for member in self.networks]
        size = len(configs) // self.trainings
        # A deep member that was trained against attacks reads real photographs worse than the
        # others: only its doubts count.
        readers = [
            i for i, config in enumerate(configs[:size]) if not (config.deep and config.attack)
        ]
        outputs = []
        parts = zip(answers.chunk(self.trainings), features.chunk(self.trainings, dim=1))
        for number, (votes, looks) in enumerate(parts):
            near = Neighbours(self.references[number], self.counts).distances(looks)
            something = votes[:, :, :-1].logsumexp(2) - votes[:, :, -1]
            signals = Signals(
                seen=votes[readers].mean(0).argmax(1),
                classifiers=votes.mean(0).gather(1, expected[:, None]).squeeze(1),
                neighbours=closer(near, expected),
                something=something.clamp(-20, 20).mean(0),
                nearness=(self.typical[number] / near.amin(1)).log(),
                likeness=likeness,
                contrast=contrast,
            )
            outputs.append(signals)
        return outputs, features

    def hashes(self) -> dict[str, str]:
        """Return the hash of every member's weights and of the density's."""
        members = {
            f"member {i}": digest_tensors(m.state_dict()) for i, m in enumerate(self.members, 1)
        }
        return {**members, "density": digest_tensors(self.density.state_dict())}


def build(config: Mapping[str, Any]) -> Panel:
    """Return an untrained panel of the shape that a card describes."""
    training = config["training"]
    ensemble = [MemberConfig(**row) for row in training["ensemble"]]
    names = ("channels", "size", "classes", "references", "learned")
    with named_randomness(config["seed"], "judges"):
        panel = Panel(
            ensemble,
            trainings=training.get("trainings", 1),
            **{name: config[name] for name in names},
        )
    left_out = training.get("held_out_families", ())
    panel.families = tuple(name for name in FAMILIES if name not in left_out)
    return panel
