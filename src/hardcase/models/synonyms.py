"""ImageNet's classes that mean the same thing: to be given one for the other is no failure.

Some of the 1,000 classes are one thing under two names, or a thing and its WordNet parent, and the
photographs of both show the same (Beyer et al. 2020; Northcutt, Jiang and Chuang 2021; Vasudevan et
al. 2022). Such outputs are read as one: the first of a group has the greatest of their scores, and
labels of the others are the first's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.data.streams import LabelledSet

COUNT = 1000
SAME: dict[tuple[str, str], str] = {
    ("bathtub", "tub"): "a bathtub is a tub (WordNet parent)",
    ("breastplate", "cuirass"): "armour of the chest (parents: armor plate, body armor)",
    ("cassette player", "tape player"): "a cassette player is a tape player (WordNet parent)",
    ("corn", "ear"): "the photographs of ear are of corn (parents: cereal, fruit)",
    ("laptop", "notebook"): "portable computers (one WordNet parent)",
    ("maillot", "maillot tank suit"): "swimsuits; WordNet's first maillot are tights",
    ("missile", "projectile"): "missile is a name of both in WordNet",
    ("sunglass", "sunglasses"): "WordNet's sunglass is a lens; the photographs are of sunglasses",
}
"""Groups by the first name of each class, and what WordNet says of them."""

Groups = tuple[tuple[int, ...], ...]


def same_outputs(classes: Sequence[str]) -> Groups:
    """The outputs of a network that mean the same, where its classes are ImageNet's.

    Args:
        classes: Names of its outputs, such as ``bathtub, bathing tub`` or ``bathtub``.
    """
    if len(classes) != COUNT:
        return ()
    first = [name.partition(",")[0].replace("_", " ").strip().lower() for name in classes]
    found = (
        tuple(at for at, name in enumerate(first) if name in words) for words in map(set, SAME)
    )
    return tuple(group for group in found if len(group) > 1)


def merged(logits: Float[Tensor, "m k"], groups: Groups) -> Float[Tensor, "m k"]:
    """Scores in which each group is one class, its first; the others have the least score.

    Args:
        logits: Scores of all classes.
        groups: Outputs that mean the same.
    """
    columns = list(logits.unbind(1))
    least = logits.amin(1)
    for first, *others in groups:
        columns[first] = logits[:, [first, *others]].amax(1)
        for other in others:
            columns[other] = least
    return torch.stack(columns, 1)


def folded(images: LabelledSet) -> LabelledSet:
    """The images with the labels of a group's first class; themselves where there is no group.

    Args:
        images: Labelled images under a network's classes.
    """
    groups = same_outputs(images.classes)
    if not groups:
        return images
    to = torch.arange(len(images.classes))
    for first, *others in groups:
        to[others] = first
    return replace(images, y=to[images.y])
