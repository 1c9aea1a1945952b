"""A panel: classifiers that took no part in any search, their neighbours, a density; and the signals it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.judges.density import Density
from hardcase.judges.members import FEATURES, Member, Seat
from hardcase.judges.neighbours import Neighbours, closer, keep
from hardcase.judges.views import spread
from hardcase.tensors import chunks, digest_tensors

REFERENCES = 10_000
"""Real images whose features are kept to measure nearness."""
WEAK = 0.8
"""A judge that takes fewer real test images for what they are is called weak."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What a panel sees in images. `seen` is its own answer; the others are explained in `MEANINGS`; higher is better."""

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
        return Signals(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Signals)})


MEANINGS = {
    "classifiers": "mean log-probability of the expected class over the members",
    "neighbours": "how much nearer training images of the expected class are than those of any other class (logarithm)",
    "something": "mean log-odds, over the members, that the image shows a class at all",
    "nearness": "how near the nearest training images are, against real images that were held out (logarithm)",
    "likeness": "likelihood under a generative model, against real images of the same complexity",
    "contrast": "range of shades in use, against what the eye needs (logarithm, at most 0)",
}


class Panel(nn.Module):
    """Members, density and references as one network, so that it is stored and loaded as one file."""

    references: Tensor
    counts: Tensor
    typical: Tensor
    learned: Tensor

    def __init__(
        self, places: Sequence[Seat], *, channels: int, size: int, classes: int, references: int, learned: int
    ) -> None:
        super().__init__()
        self.classes = classes
        self.members = nn.ModuleList(Member(seat, channels=channels, size=size, classes=classes) for seat in places)
        self.density = Density(channels=channels, size=size)
        self.register_buffer("references", torch.zeros(references, FEATURES * len(places)))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("typical", torch.tensor(1.0))
        self.register_buffer("learned", torch.zeros(learned, dtype=torch.int64))

    def opinions(self, x: Float[Tensor, "m c h w"]) -> tuple[Float[Tensor, "p m k1"], Float[Tensor, "m f"]]:
        """Log-probabilities by every member, and the features of all of them side by side."""
        features = [member.features(x) for member in self._members()]
        spoken = [member.head(seen).log_softmax(1) for member, seen in zip(self._members(), features)]
        return torch.stack(spoken), torch.cat([functional.normalize(seen, dim=1) for seen in features], 1)

    def signals(self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]) -> Signals:
        """Everything the rules need to know of these images, given the class each is expected to show."""
        spoken, features = self.opinions(x)
        distances = Neighbours(self.references, self.counts).distances(features)
        low, high = spread(x)
        mean = spoken.mean(0)
        return Signals(
            seen=mean.argmax(1),
            classifiers=mean.gather(1, expected[:, None]).squeeze(1),
            neighbours=closer(distances, expected),
            something=(spoken[:, :, :-1].logsumexp(2) - spoken[:, :, -1]).clamp(-20, 20).mean(0),
            nearness=(self.typical / distances.amin(1)).log(),
            likeness=self.density.likeness(x),
            contrast=((high - low).flatten() / 0.1).clamp(1e-3, 1).log(),
        )

    @torch.no_grad()
    def ask(self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 256) -> Signals:
        """`signals` in batches."""
        parts = [self.signals(x[rows], expected[rows]) for rows in chunks(len(x), batch)]
        return Signals.join(parts) if parts else self.signals(x, expected)

    @torch.no_grad()
    def features(self, x: Float[Tensor, "m c h w"], *, batch: int = 256) -> Float[Tensor, "m f"]:
        """Unit features of all members, side by side."""
        return torch.cat([self.opinions(x[rows])[1] for rows in chunks(len(x), batch)])

    @torch.no_grad()
    def remember(
        self, features: Float[Tensor, "n f"], labels: Int[Tensor, " n"], held_out: Float[Tensor, "h f"]
    ) -> None:
        """Keep features of real images, and how near the nearest of them usually are."""
        kept, counts = keep(features, labels, self.classes, most=per_class(self.classes))
        self.references.copy_(kept)
        self.counts.copy_(counts)
        self.typical.copy_(Neighbours(self.references, self.counts).distances(held_out).amin(1).median())

    def hashes(self) -> dict[str, str]:
        """The weights of every network on the panel, so that a search that used one of them is recognised."""
        members = {f"member {i}": digest_tensors(net.state_dict()) for i, net in enumerate(self.members, 1)}
        return {**members, "density": digest_tensors(self.density.state_dict())}

    def _members(self) -> list[Member]:
        return [net for net in self.members if isinstance(net, Member)]


def per_class(classes: int) -> int:
    return max(1, REFERENCES // classes)


__all__ = ["MEANINGS", "REFERENCES", "Panel", "Signals", "per_class"]
