"""A panel: classifiers that took no part in any search, their neighbours, a density;
and the signals it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.imaging.blur import binomial
from hardcase.tensors import chunks, digest_tensors
from hardcase.training.loop import UNSTATED

# Three ways of looking at the same image, so that members of a panel are not fooled by the same
# change.

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
    """Contrast and brightness made alike: a grey or a dim image looks like one that is neither."""
    low, high = spread(x)
    return ((x - low) / (high - low).clamp_min(FAINT)).clamp(0, 1)


def plain(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    return x


def soft(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Evened and blurred: fine changes are gone."""
    return binomial(even(x))


View = Callable[[Tensor], Tensor]
VIEWS: dict[str, View] = {"plain": plain, "even": even, "soft": soft}


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
    """One hidden layer on either side of the code.

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
        """The loss of a training step: reconstruction and divergence, in nats an image."""
        seen = even(x)
        mean, logvar = self.encoder(seen).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device)
        painted = self.decoder(mean + torch.exp(logvar / 2) * noise)
        cost = functional.binary_cross_entropy_with_logits(
            painted, seen.flatten(1), reduction="sum"
        )
        return (cost + _divergence(mean, logvar).sum()) / len(x)

    def cost(self, x: Float[Tensor, "m c h w"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """What an image costs at its mean code (nats beyond those of the image itself),
        and how complex it is.
        """
        seen = even(x)
        mean, logvar = self.encoder(seen).chunk(2, 1)
        flat = seen.flatten(1)
        painted = functional.binary_cross_entropy_with_logits(
            self.decoder(mean), flat, reduction="none"
        ).sum(1)
        own = functional.binary_cross_entropy(flat, flat, reduction="none").sum(1)
        down = seen.diff(dim=2).abs()
        right = seen.diff(dim=3).abs()
        return painted - own + _divergence(mean, logvar), down.flatten(1).sum(1) + right.flatten(
            1
        ).sum(1)

    def settle(self, x: Float[Tensor, "m c h w"]) -> None:
        """Learn from real images what a complexity costs: a line, and the spread around it."""
        cost, complexity = self.cost(x)
        centred = complexity - complexity.mean()
        slope = (centred * cost).mean() / centred.square().mean().clamp_min(1e-6)
        level = cost.mean() - slope * complexity.mean()
        width = (cost - level - slope * complexity).std().clamp_min(1e-3)
        for name, value in {"level": level, "slope": slope, "width": width}.items():
            getattr(self, name).copy_(value)

    def likeness(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
        """How much cheaper than real images of its complexity, in their spreads; below -2:
        unlikely; never above 1.
        """
        cost, complexity = self.cost(x)
        return ((self.level + self.slope * complexity - cost) / self.width).clamp(-20, 1)


def _divergence(mean: Tensor, logvar: Tensor) -> Float[Tensor, " m"]:
    return (mean.square() + logvar.exp() - 1 - logvar).sum(1) / 2


# The classifiers of a panel: small networks that may also answer "nothing of the data".

FEATURES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One place on the panel: how its member sees images, its first kernel and width,
    how far its lessons are attacked (L2), whether it is a residual network for a GPU.
    """

    view: str
    kernel: int = 5
    width: int = 24
    attack: float = 0.0
    deep: bool = field(default=False, metadata=UNSTATED)


PANEL = (
    Seat(view="plain"),
    Seat(view="even", kernel=3),
    Seat(view="soft"),
)
"""For small grey images. A fourth member that was trained against attacks read neither rated nor
attacked digits better, and took a third of the time.
"""

PHOTO_PANEL = (
    Seat(view="plain", width=64, deep=True),
    Seat(view="even", width=64, deep=True),
    Seat(view="plain", width=64, deep=True),
    Seat(view="plain", width=64, deep=True, attack=0.25),
)
"""For colour on a GPU: residual networks, one trained against small L2 attacks."""


class Member(nn.Module):
    """Convolutions, a dense layer of features, and a last output beside the classes: "nothing".

    It answers with the mean over an image and the same image moved by a pixel, a deep one over an
    image and its mirror image.
    """

    def __init__(self, seat: Seat, *, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.seat = seat
        self.body = _residual(seat, channels) if seat.deep else _plain(seat, channels, size)
        self.head = nn.Linear(FEATURES, classes + 1)
        # torch's types lack this form of `to`
        self.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
        seen = VIEWS[self.seat.view](x).contiguous(memory_format=torch.channels_last)
        if self.training:
            out: Tensor = self.body(seen)
            return out
        others = (seen.flip(3),) if self.seat.deep else (_moved(seen, 1), _moved(seen, -1))
        return torch.stack([self.body(one) for one in (seen, *others)]).mean(0)

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


def _plain(seat: Seat, channels: int, size: int) -> nn.Sequential:
    """Four convolutions and a dense layer."""
    first, second, third, last = (seat.width * share // 12 for share in (8, 16, 24, 32))
    widths = ((first, seat.kernel, 2), (second, 3, 1), (third, 3, 2), (last, 3, 1))
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
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*_convolved(width, width), *_convolved(width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def _residual(seat: Seat, channels: int) -> nn.Sequential:
    """Eight convolutions of up to 8 x `width` channels, two shortcuts and a dense layer.

    D. Page, "How to train your ResNet", 2018: as accurate on CIFAR-10 as a ResNet-18 at a third of
    its time. Difference: a dense layer of features before the head.
    """
    width = seat.width
    layers: list[nn.Module] = _convolved(channels, width)
    for before, after, shortcut in ((1, 2, True), (2, 4, False), (4, 8, True)):
        layers += [*_convolved(before * width, after * width), nn.MaxPool2d(2)]
        layers += [_Shortcut(after * width)] if shortcut else []
    layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, FEATURES, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm1d(FEATURES), nn.ReLU())


def _convolved(before: int, width: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]


def seats(config: Sequence[dict[str, object]]) -> tuple[Seat, ...]:
    """Seats as they are read from a card."""
    # a card's rows are Seat's own fields
    return tuple(Seat(**row) for row in config)  # type: ignore[arg-type]


# Nearest training images in the features of the panel.

NEAREST = 5


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Unit features of real images, sorted by class; `counts` says how many of each class there
    are.
    """

    features: Float[Tensor, "n f"]
    counts: Int[Tensor, " k"]

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """The mean distance (1 - cosine) to the nearest images of every class."""
        likeness = functional.normalize(features, dim=1) @ self.features.T
        parts = torch.split(likeness, self.counts.tolist(), dim=1)
        return (1 - torch.stack([_nearest(part) for part in parts], 1)).clamp_min(1e-6)


def _nearest(likeness: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """The mean of the largest few; a class without images is as far away as can be."""
    if not likeness.shape[1]:
        return torch.full_like(likeness[:, :1].sum(1), -1.0)
    return likeness.topk(min(NEAREST, likeness.shape[1]), dim=1).values.mean(1)


def closer(distances: Float[Tensor, "m k"], label: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Logarithm of how much nearer the label's images are than those of any other class; above 0:
    nearer.
    """
    own = distances.gather(1, label[:, None])
    others = distances.scatter(1, label[:, None], torch.inf)
    return (others.amin(1, keepdim=True) / own).log().squeeze(1)


def keep(
    features: Float[Tensor, "n f"], labels: Int[Tensor, " n"], classes: int, *, most: int
) -> tuple[Float[Tensor, "r f"], Int[Tensor, " k"]]:
    """Up to `most` features of each class in the order given,
    made unit length and sorted by class.
    """
    rows = [(labels == label).nonzero().squeeze(1)[:most] for label in range(classes)]
    kept = functional.normalize(features[torch.cat(rows)], dim=1)
    return kept, torch.tensor([len(part) for part in rows], device=features.device)


# A panel: classifiers that took no part in any search, their neighbours, a density; and the signals
# it gives.

REFERENCES = 10_000
"""Real images whose features are kept to measure nearness."""
WEAK = 0.8
"""A judge that takes fewer real test images for what they are is called weak."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What a panel sees in images. `seen` is its own answer; the others are explained in
    `MEANINGS`; higher is better.

    Args:
        seen: The panel's own answer.
        classifiers: How sure its members are of the label.
        neighbours: How many of the nearest training images have the label.
        something: How sure members are that the image shows anything of the data.
        nearness: How near the nearest training images are.
        likeness: How likely the image is to the density.
        contrast: Contrast of the image.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> zero = torch.zeros(2)
        >>> signals = hc.judges.Signals(torch.tensor([0, 1]), *[zero] * 6)
        >>> signals.seen.tolist()
        [0, 1]
    """

    seen: Int[Tensor, " m"]
    classifiers: Float[Tensor, " m"]
    neighbours: Float[Tensor, " m"]
    something: Float[Tensor, " m"]
    nearness: Float[Tensor, " m"]
    likeness: Float[Tensor, " m"]
    contrast: Float[Tensor, " m"]

    def of(self, names: Sequence[str]) -> Float[Tensor, "m s"]:
        return torch.stack([getattr(self, name) for name in names], 1)

    def __getitem__(self, rows: Tensor) -> Signals:
        return Signals(**{f.name: getattr(self, f.name)[rows] for f in fields(Signals)})

    @staticmethod
    def join(parts: Sequence[Signals]) -> Signals:
        return Signals(
            **{
                f.name: torch.cat([getattr(part, f.name) for part in parts])
                for f in fields(Signals)
            }
        )


MEANINGS = {
    "classifiers": "mean log-probability of the expected class over the members",
    "neighbours": (
        "how much nearer training images of the expected class are than those of any other class"
        " (logarithm)"
    ),
    "something": "mean log-odds, over the members, that the image shows a class at all",
    "nearness": (
        "how near the nearest training images are, against real images that were held out"
        " (logarithm)"
    ),
    "likeness": "likelihood under a generative model, against real images of the same complexity",
    "contrast": "range of shades in use, against what the eye needs (logarithm, at most 0)",
}


class Panel(nn.Module):
    """Members, density and references as one network, so that it is stored and loaded as one
    file.

    Args:
        places: What each member sees and how it was taught.
        channels: Colour channels of the images.
        size: Side of the square images in pixels.
        classes: Number of classes.
        references: Training images that are remembered.
        learned: Hashes of images that were learnt from.
    """

    references: Tensor
    counts: Tensor
    typical: Tensor
    learned: Tensor

    def __init__(
        self,
        places: Sequence[Seat],
        *,
        channels: int,
        size: int,
        classes: int,
        references: int,
        learned: int,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.members = nn.ModuleList(
            Member(seat, channels=channels, size=size, classes=classes) for seat in places
        )
        self.density = Density(channels=channels, size=size)
        self.register_buffer("references", torch.zeros(references, FEATURES * len(places)))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("typical", torch.tensor(1.0))
        self.register_buffer("learned", torch.zeros(learned, dtype=torch.int64))

    def opinions(
        self, x: Float[Tensor, "m c h w"]
    ) -> tuple[Float[Tensor, "p m k1"], Float[Tensor, "m f"]]:
        """Log-probabilities by every member, and the features of all of them side by side."""
        features = [member.features(x) for member in self._members()]
        spoken = [
            member.head(seen).log_softmax(1) for member, seen in zip(self._members(), features)
        ]
        return torch.stack(spoken), torch.cat(
            [functional.normalize(seen, dim=1) for seen in features], 1
        )

    def signals(self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]) -> Signals:
        """Everything the rules need to know of these images, given the class each is expected to
        show.
        """
        return self._read(x, expected)[0]

    def _read(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]
    ) -> tuple[Signals, Float[Tensor, "m f"]]:
        spoken, features = self.opinions(x)
        distances = Neighbours(self.references, self.counts).distances(features)
        low, high = spread(x)
        mean = spoken.mean(0)
        signals = Signals(
            seen=spoken[self._readers()].mean(0).argmax(1),
            classifiers=mean.gather(1, expected[:, None]).squeeze(1),
            neighbours=closer(distances, expected),
            something=(spoken[:, :, :-1].logsumexp(2) - spoken[:, :, -1]).clamp(-20, 20).mean(0),
            nearness=(self.typical / distances.amin(1)).log(),
            likeness=self.density.likeness(x),
            contrast=((high - low).flatten() / 0.1).clamp(1e-3, 1).log(),
        )
        return signals, features

    @torch.no_grad()
    def read(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 256
    ) -> tuple[Signals, Float[Tensor, "m f"]]:
        """`signals` and `features` together, in batches: every network is asked once."""
        parts = [self._read(x[rows], expected[rows]) for rows in chunks(len(x), batch)]
        parts = parts or [self._read(x, expected)]
        return Signals.join([one for one, _ in parts]), torch.cat([seen for _, seen in parts])

    def ask(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 256
    ) -> Signals:
        """`signals` in batches."""
        return self.read(x, expected, batch=batch)[0]

    @torch.no_grad()
    def features(self, x: Float[Tensor, "m c h w"], *, batch: int = 256) -> Float[Tensor, "m f"]:
        """Unit features of all members, side by side."""
        parts = [self.opinions(x[rows])[1] for rows in chunks(len(x), batch)]
        return torch.cat(parts) if parts else self.opinions(x)[1]

    @torch.no_grad()
    def remember(
        self,
        features: Float[Tensor, "n f"],
        labels: Int[Tensor, " n"],
        held_out: Float[Tensor, "h f"],
    ) -> None:
        """Keep features of real images, and how near the nearest of them usually are."""
        kept, counts = keep(features, labels, self.classes, most=per_class(self.classes))
        self.references.copy_(kept)
        self.counts.copy_(counts)
        self.typical.copy_(
            Neighbours(self.references, self.counts).distances(held_out).amin(1).median()
        )

    def hashes(self) -> dict[str, str]:
        """The weights of every network on the panel, so that a search that used one of them is
        recognised.
        """
        members = {
            f"member {i}": digest_tensors(net.state_dict()) for i, net in enumerate(self.members, 1)
        }
        return {**members, "density": digest_tensors(self.density.state_dict())}

    def _readers(self) -> list[int]:
        """Members that say which class is seen: a deep one that was trained against attacks reads
        real photographs worse than the others, and only its doubts count.
        """
        seats = [member.seat for member in self._members()]
        return [i for i, seat in enumerate(seats) if not (seat.deep and seat.attack)]

    def _members(self) -> list[Member]:
        return [net for net in self.members if isinstance(net, Member)]


def per_class(classes: int) -> int:
    return max(1, REFERENCES // classes)
