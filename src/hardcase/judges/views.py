"""Three ways of looking at the same image, so that members of a panel are not fooled by the same change."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from hardcase.judges.drawing import blur

FAINT = 0.12
"""A smaller range of shades than this is not stretched to the full one."""


def spread(x: Float[Tensor, "m c h w"]) -> tuple[Float[Tensor, "m 1 1 1"], Float[Tensor, "m 1 1 1"]]:
    """The shades between which almost all pixels of an image lie."""
    pixels = x.flatten(1)
    last = pixels.shape[1] - 1
    ends = pixels.sort(1).values[:, [round(0.02 * last), round(0.98 * last)]]
    low, high = ends[:, :, None, None, None].unbind(1)
    return low, high


def even(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Contrast and brightness made alike: a grey or a dim image looks like one that is neither."""
    low, high = spread(x)
    return ((x - low) / (high - low).clamp_min(FAINT)).clamp(0, 1)


def plain(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    return x


def soft(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Evened and blurred: fine changes are gone."""
    return blur(even(x))


View = Callable[[Tensor], Tensor]
VIEWS: dict[str, View] = {"plain": plain, "even": even, "soft": soft}
