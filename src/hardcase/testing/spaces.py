"""The laws every space must pass."""

from __future__ import annotations

from typing import Any

import torch

from hardcase.randomness import Rng, stream
from hardcase.registry import Part
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images
from hardcase.types import Images, Seeds, Space

__all__ = ["check_space", "space_facts"]

LAWS = ("decodes what it encodes", "projects once", "rows independent", "edits nothing in place")
"""What `check_space` holds a space to."""

PARTS = ("name", "keeps_code", "encode", "decode", "project", "distance")
"""What every space has."""


def space_facts(part: Part) -> dict[str, Any]:
    """The laws of a space."""
    return {"laws": list(LAWS)}


def check_space(space: Space, *, images: Images | None = None, tolerance: float = 1e-3) -> None:
    """Codes give images back, projection is idempotent, rows do not see each other.

    Args:
        space: The space.
        images: Images to encode; by default toy ones.
        tolerance: Largest difference of a decoded image, in units of [0, 1].

    Example:
        >>> import hardcase as hc
        >>> hc.testing.check_space(hc.spaces.Pixels())
    """
    missing = [name for name in PARTS if not hasattr(space, name)]
    assert not missing, f"a space has {', '.join(PARTS)}; this one lacks {', '.join(missing)}"
    images = toy_images() if images is None else images
    x = from_bytes(images.x)
    y = images.y
    given = x.clone()
    z, context = space.encode(x, y, Rng.numbered(0, "check", len(x)))
    assert space.keeps_code or z.shape == x.shape, (
        "keeps_code is False, so that the image is the code; these codes are no images"
    )
    seeds = Seeds(z, x, y, torch.arange(len(y)), context)
    back = space.decode(space.project(z, seeds), seeds)
    assert back.shape == x.shape, f"decoded to {tuple(back.shape)}, images are {tuple(x.shape)}"
    worst = float((back - x).detach().abs().amax())
    assert worst <= tolerance, f"decode(encode(x)) is off by {worst:.3g}"
    assert bool((space.distance(z, seeds).abs() < 1e-6).all()), (
        "a seed is not at distance 0 of itself"
    )
    code = z.clone()
    moved = z + torch.randn(z.shape, generator=stream(1, "check"))
    once = space.project(moved, seeds)
    assert torch.allclose(space.project(once, seeds), once, atol=1e-6), (
        "projecting twice is not projecting once"
    )
    _rows_independent(space, once, seeds)
    assert torch.equal(x, given), "the images were edited in place"
    assert torch.equal(z, code), "the codes were edited in place"


def _rows_independent(space: Space, z: torch.Tensor, seeds: Seeds) -> None:
    whole = space.decode(z, seeds)
    for i in range(len(z)):
        row = torch.tensor([i])
        alone = space.decode(z[row], seeds.take(row))
        assert torch.allclose(alone, whole[row], atol=1e-6), (
            f"row {i} is decoded differently beside others"
        )
