"""The classifiers of a panel: small networks that may also answer "nothing of the data"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.judges.views import VIEWS

FEATURES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One place on the panel: how its member sees images, its first kernel and width, how far its lessons are attacked (L2)."""

    view: str
    kernel: int = 5
    width: int = 24
    attack: float = 0.0


PANEL = (Seat(view="plain"), Seat(view="even", kernel=3), Seat(view="soft"), Seat(view="plain", attack=0.5))


class Member(nn.Module):
    """Four convolutions, a dense layer of features, and a last output beside the classes: "nothing"."""

    def __init__(self, seat: Seat, *, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.seat = seat
        first, second, third, last = (seat.width * share // 12 for share in (12, 16, 24, 32))
        widths = ((first, seat.kernel, 2), (second, 3, 1), (third, 3, 2), (last, 3, 1))
        layers: list[nn.Module] = []
        before, side = channels, size
        for width, kernel, stride in widths:
            layers += [
                nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            before, side = width, -(-side // stride)
        pooled = -(-side // 2)
        layers += [nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(before * pooled**2, FEATURES), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(FEATURES, classes + 1)

    def features(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
        seen = VIEWS[self.seat.view](x).contiguous(memory_format=torch.channels_last)
        out: Tensor = self.body(seen)
        return out

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k1"]:
        out: Tensor = self.head(self.features(x))
        return out


def seats(config: Sequence[dict[str, object]]) -> tuple[Seat, ...]:
    """Seats as they are read from a card."""
    return tuple(Seat(**row) for row in config)  # type: ignore[arg-type]  # a card's rows are Seat's own fields
