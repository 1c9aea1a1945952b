"""Annotated images: what is in each of them and where, from the formats that people have."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from hardcase.claims.outputs import Annotation
from hardcase.tensors import digest, digest_tensors
from hardcase.types import Images

__all__ = ["AnnotatedImages"]


@dataclass(frozen=True, slots=True)
class AnnotatedImages:
    """Images with what is known of each.

    Args:
        images: The images; their labels are all 0 and say nothing.
        annotations: One for each image.
        notes: What a user should know of them: boxes that were cut, images without an object.
    """

    images: Images
    annotations: tuple[Annotation, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.annotations)

    @property
    def hash(self) -> str:
        """Of the images and of all that is known of them."""
        parts = [self.images.hash]
        for each in self.annotations:
            parts.append(
                digest_tensors({"labels": each.labels, "boxes": each.boxes, "mask": each.mask})
            )
        return digest(parts)

    def take(self, rows: Int[Tensor, " r"]) -> AnnotatedImages:
        """Some of them."""
        chosen = tuple(self.annotations[row] for row in rows.tolist())
        return AnnotatedImages(self.images.take(rows), chosen, self.notes)
