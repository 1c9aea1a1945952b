"""Training data with the labels of two classes mixed, as SINVAD's RQ3 damages networks on purpose."""

from __future__ import annotations

from dataclasses import replace

import torch

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.types import Images


def pollute(images: Images, pair: tuple[int, int], share: float, *, seed: int = 0) -> Images:
    """`images` with a `share` of each class of `pair` labelled as the other; a larger share contains a smaller one."""
    if not 0 <= share <= 1 or pair[0] == pair[1]:
        raise Problem(
            f"a share of {share} of classes {pair} cannot be mixed.",
            fix="a share from 0 to 1 of two classes",
        )
    y = images.y.clone()
    for own, other in (pair, pair[::-1]):
        members = (images.y == own).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=stream(seed, "pollution", own, other))
        y[members[order[: round(share * len(members))]]] = other
    return replace(
        images,
        y=y,
        name=f"{images.name}, {share:g} of {pair[0]} and {pair[1]} mixed" if share else images.name,
    )
