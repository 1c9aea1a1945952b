"""`hc.conditions.fit`: labelled images, the field's images, and the conditions between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.claims.annotations import AnnotatedImages, load_annotations
from hardcase.claims.subjects import Task
from hardcase.conditions.declared import DECLARABLE, Conditions, DeclaredRange
from hardcase.conditions.fitting.accuracy import ExpectedAccuracy, expected_accuracy
from hardcase.conditions.fitting.coordinates import (
    Fittable,
    Spread,
    conditions_of,
    declared_range,
    fittable,
)
from hardcase.conditions.fitting.embedding import Embedding
from hardcase.conditions.fitting.evidence import (
    Chance,
    ChanceOfField,
    Found,
    Unexplained,
    detectable,
    instead,
    needed,
    unexplained,
    widths,
)
from hardcase.conditions.fitting.field_images import FieldImages, read_field
from hardcase.conditions.fitting.render import Candidate, Renderer
from hardcase.conditions.fitting.search import Kept, Matching, Place, search
from hardcase.conditions.fitting.traits import RandomNetwork
from hardcase.data.files import ImageSet
from hardcase.data.sources import images_of, load
from hardcase.errors import HardcaseError
from hardcase.models.load import model_of
from hardcase.registry import parts
from hardcase.tensors import digest, from_bytes
from hardcase.types import Images, Model

__all__ = ["FieldFit", "Ingredients", "fit", "known_images"]

LEAST_LABELLED = 100
"""Labelled images, at least."""
MOST_LABELLED = 600
"""Labelled images that are shown under every candidate, at most."""
PIXELS = 12_000_000
"""Values of all labelled images together that are rendered for a candidate."""
READOUT = 3_000
"""Images from which the random network learns its readout, at most."""
LARGE_FIELD = 500
"""Images of a field that are used where they are photographs."""
SOME = 0.3
"""Standard deviation, in sizes, of every condition on images that say how chance varies."""
NEIGHBOURS = 5
"""The how-manieth nearest image tells how far an image is from many."""
Progress = Callable[[str, int], None]
"""Called with the present step, and with how much of it is done."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a fit works on.

    Args:
        images: Labelled images that are shown under candidates.
        readout: Labelled images from which the random network learns, others than `images`.
        field: The field's images.
        coordinates: What can be fitted.
        seed: Everything random follows from it.
    """

    images: Images
    readout: Images
    field: FieldImages
    coordinates: tuple[Fittable, ...]
    seed: int = 0

    def digest(self) -> str:
        """Return a digest of everything that a fit follows from."""
        parts: list[bytes | str] = [self.images.hash, self.readout.hash, str(self.seed)]
        parts += [self.field.x.numpy().tobytes(), repr(self.coordinates)]
        return digest(parts)


@dataclass(frozen=True)
class FieldFit:
    """Conditions under which labelled images look like those of a field, and what stays open.

    Args:
        candidate: The conditions.
        found: The evidence for each coordinate that the field needs.
        smallest: By coordinate that it does not need, the smallest width that would have shown.
        unexplained: What of the field no coordinate explains.
        classes: The share of each class in the field.
        least_explained: The field's images that are least like any under the conditions, the
            least alike first.
        accuracy: The accuracy to expect of a model; None without a model.
        notes: What was left out or changed, in sentences.
        field: The field's images.
        images: Labelled images, and ...
        shown: ... how they look under the conditions.
        seed: What everything random followed from.
    """

    candidate: Candidate
    found: tuple[Found, ...]
    smallest: Mapping[str, float]
    unexplained: Unexplained
    classes: Mapping[str, float]
    least_explained: tuple[int, ...]
    accuracy: ExpectedAccuracy | None
    notes: tuple[str, ...]
    field: FieldImages
    images: Images
    shown: Float[Tensor, "n c h w"]
    seed: int = 0

    @property
    def conditions(self) -> Conditions:
        """The declaration; conditions that go together are rows of a table.

        Raises:
            HardcaseError: If the field needs no conditions: nothing can be declared.
        """
        if not self.found:
            raise HardcaseError(
                "the field looks like the labelled images: no conditions were found.",
                fix="--conditions none, or a profile",
            )
        spreads = dict(self.candidate.spreads)
        tied = {name for pair in self.candidate.together for name in pair}
        plain = {name: spread for name, spread in spreads.items() if name not in tied}
        ranges = {name: declared_range(name, spread) for name, spread in plain.items()}
        for name in self.rows[0] if tied else ():
            values = [DECLARABLE[name].neutral, *(row[name] for row in self.rows)]
            ranges[name] = DeclaredRange(name, min(values), max(values))
        return Conditions(ranges, name="field", rows=self.rows) if tied else conditions_of(spreads)

    @property
    def rows(self) -> tuple[Mapping[str, float], ...]:
        """Values of the conditions that go together, image by image; empty where none do."""
        tied = [n for n in self.candidate.spreads if any(n in p for p in self.candidate.together)]
        if not tied:
            return ()
        drawn = Renderer(self.images, self.seed).values(self.candidate)
        columns = {name: [float(f"{v:.4g}") for v in drawn[name].tolist()] for name in tied}
        return tuple(dict(zip(columns, row)) for row in zip(*columns.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the figures: the coordinates, those that were not needed, and the unexplained
        part."""
        conditions = []
        for coordinate in self.found:
            conditions.append(
                {
                    "condition": coordinate.name,
                    "unit": DECLARABLE[coordinate.name].unit,
                    "declared": str(declared_range(coordinate.name, coordinate.spread)),
                    "mean": coordinate.spread.mean,
                    "deviation": coordinate.spread.deviation,
                    "width": coordinate.width,
                    "low": coordinate.low,
                    "high": coordinate.high,
                    "p": coordinate.p,
                    "instead": [list(names) for names in coordinate.instead],
                }
            )
        return {
            "images": len(self.images),
            "field_images": len(self.field),
            "conditions": conditions,
            "not_needed": [
                {
                    "condition": name,
                    "unit": DECLARABLE[name].unit,
                    "detectable": value if np.isfinite(value) else None,
                }
                for name, value in self.smallest.items()
            ],
            "together": [
                {"conditions": list(pair), "correlation": value}
                for pair, value in self.candidate.together.items()
            ],
            "classes": dict(self.classes),
            "distance": self.unexplained.distance,
            "unexplained": self.unexplained.share,
            "unexplained_p": self.unexplained.p,
            "explained": not self.unexplained.rejects,
            "least_explained": [self.field.names[i] for i in self.least_explained[:12]],
            "accuracy": None if self.accuracy is None else self.accuracy.to_json(),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> Path:
        """Write ``FILE.toml``, which ``--conditions`` takes, and with it ``FILE.json`` with all
        figures and ``FILE.png`` with images of the field and under the conditions; returns the
        first.
        """
        from hardcase.conditions.fitting.files import save

        return save(self, Path(path))


def fit(
    data: Any,
    field: Any,
    *,
    model: Any = None,
    train: Any = None,
    coordinates: Sequence[str] = (),
    seed: int = 0,
    out: str | Path | None = None,
    on_progress: Progress = lambda what, count: None,
) -> FieldFit:
    """Find the conditions under which labelled images look like the unlabelled ones of a field.

    Args:
        data: Labelled images: the name of a data set (its test split is used), `hc.Images`, or
            whatever `hc.run` takes. Of images for detectors, boxes are not looked at.
        field: Images of the field: ``folder:PATH``, ``npz:PATH``, another data set, or an array of
            8-bit images. Labels are not looked at.
        model: The model whose accuracy in the field is predicted; None: no prediction.
        train: Further labelled images, from which a random network learns to tell classes; None:
            the training split of a data set that has a name, else half of `data`. So it is where
            they are `data` themselves.
        coordinates: Which conditions are looked for; by default all that suit such images.
        seed: Everything random follows from it.
        out: Where ``field.toml`` goes. A repeated call continues an interrupted fit.
        on_progress: Called with the present step, and with how much of it is done.

    Raises:
        HardcaseError: If there are too few images, or of other sizes.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images
        >>> fit = hc.conditions.fit(toy_images(160), toy_images(320).x[200:], seed=1)
        >>> [coordinate.name for coordinate in fit.found]
        []
    """
    labelled = known_images(data)
    if train is None and isinstance(data, str):
        train = known_images(data, "train")
    network = None if model is None else model_of(model, labelled)
    return finished(
        labelled,
        field,
        model=network,
        train=train,
        coordinates=coordinates,
        seed=seed,
        out=None if out is None else Path(out),
        on_progress=on_progress,
    )


def known_images(data: Any, split: str = "test", *, offline: bool = False) -> Images:
    """Return the images that a field is compared with; no boxes, tags or masks are looked at.

    Args:
        data: A name, or whatever `hc.run` takes.
        split: Which part of data that have a name.
        offline: Touch no network.
    """
    if isinstance(data, AnnotatedImages):
        return data.images
    if isinstance(data, str) and (task := _annotated_as(data)) is not None:
        return load_annotations(data, split, task).images
    if isinstance(data, str) and offline:
        return load(data, split=split, offline=True)
    return images_of(data, split=split)


def _annotated_as(data: str) -> Task | None:
    """The task of data of this name, where its images have more than a class each."""
    kind = data.partition(":")[0].partition("?")[0]
    for name, row in parts("data", data).items():
        if name.partition(":")[0] == kind and "task" in row.facts:
            return cast("Task", row.facts["task"])
    return None


def finished(
    labelled: Images,
    field: Any,
    *,
    model: Model | None = None,
    train: ImageSet | None = None,
    coordinates: Sequence[str] = (),
    seed: int = 0,
    out: Path | None = None,
    on_progress: Progress = lambda what, count: None,
) -> FieldFit:
    """Return a fit whose images and model are at hand, written where `out` says; see `fit`.

    Intermediate results stay in a folder next to `out` until the fit ends.
    """
    ready = prepared(labelled, field, train=train, coordinates=coordinates, seed=seed)
    folder = None
    if out is not None:
        folder = out.with_name(f".{out.name}-{ready.digest()[:12]}")
    result = fitted(ready, model=model, folder=folder, on_progress=on_progress)
    if out is not None and folder is not None:
        result.save(out)
        shutil.rmtree(folder, ignore_errors=True)
    return result


def prepared(
    labelled: Images,
    field: Any,
    *,
    train: ImageSet | None = None,
    coordinates: Sequence[str] = (),
    seed: int = 0,
) -> Ingredients:
    """Return what a fit works on: labelled images of a number that is bounded, in two parts."""
    count = min(MOST_LABELLED, max(PIXELS // int(np.prod(labelled.shape)), LEAST_LABELLED))
    large = int(np.prod(labelled.shape)) > PIXELS // MOST_LABELLED
    most = LARGE_FIELD if large else 2 * LARGE_FIELD
    pictures = read_field(field, labelled, seed=seed, most=most)
    if train is None or train.hash == labelled.hash:  # ``?split=all`` names everything twice
        half = len(labelled) // 2
        shuffled = labelled.sample(count=len(labelled), seed=seed)
        readout, images = (
            shuffled.take(torch.arange(half)),
            shuffled.take(torch.arange(half, len(labelled))),
        )
    else:
        images = labelled
        readout = train.sample(count=min(READOUT, len(train)), seed=seed).images()
    images = images.sample(count=min(count, len(images)), seed=seed)
    if len(images) < LEAST_LABELLED // 2:
        raise HardcaseError(
            f"{len(labelled)} labelled images are too few; a fit needs {LEAST_LABELLED}.",
            fix="more labelled images",
        )
    return Ingredients(images, readout, pictures, fittable(labelled.shape, coordinates), seed)


def fitted(
    ready: Ingredients,
    *,
    model: Model | None = None,
    folder: Path | None = None,
    on_progress: Progress = lambda what, count: None,
) -> FieldFit:
    """Return what the field's images say.

    Args:
        ready: The images.
        model: Whose accuracy is to be expected, if anybody's.
        folder: The cache of intermediate results, from which an interrupted fit continues.
        on_progress: Called with the present step, and with how much of it is done.
    """
    images, field = ready.images, from_bytes(ready.field.x)
    classes = len(images.classes)
    network = RandomNetwork.fit(from_bytes(ready.readout.x), ready.readout.y, classes, ready.seed)
    others = _like_both(ready)
    embedding = Embedding.fit(from_bytes(images.x), field, others, network)
    rows = embedding.rows(field)
    matching = Matching(
        Renderer(images, ready.seed),
        embedding,
        embedding.measured(rows.double().mean(0).numpy()),
        ready.coordinates,
        Kept(folder),
        lambda count: on_progress("candidates", count),
    )
    place = search(matching, ChanceOfField(matching, rows, ready.seed))
    place, p_values = needed(matching, place, rows, ready.seed)
    differences = Chance(matching, place, rows, ready.seed).differences
    intervals = widths(matching, place, differences)
    smallest = detectable(matching, place, differences)
    left = unexplained(matching, place, differences)
    found = tuple(
        Found(
            name,
            spread,
            *intervals[name],
            p=p_values[name],
            instead=instead(matching, place, name, differences),
        )
        for name, spread in place.candidate.spreads.items()
    )
    accuracy = None
    if model is not None:
        accuracy = expected_accuracy(
            model,
            images,
            field,
            matching,
            place,
            rejected=left.rejects,
            seed=ready.seed,
            kept=Kept(folder),
            on_progress=lambda done, total: on_progress(f"of {total} synthetic fields", done),
        )
    shown = matching.renderer(place.candidate)
    return FieldFit(
        candidate=place.candidate,
        found=found,
        smallest={n: v for n, v in smallest.items() if n not in place.candidate.spreads},
        unexplained=left,
        classes=_class_shares(images, place),
        least_explained=_least_explained(embedding, field, shown),
        accuracy=accuracy,
        notes=ready.field.notes,
        field=ready.field,
        images=images,
        shown=shown,
        seed=ready.seed,
    )


def _like_both(ready: Ingredients) -> Float[Tensor, "n c h w"]:
    """Other labelled images, half of them under a moderate amount of every condition."""
    half = len(ready.readout) // 2
    spreads = {row.name: Spread.of(row, 0.0, SOME) for row in ready.coordinates}
    changed = ready.readout.take(torch.arange(half))
    same = ready.readout.take(torch.arange(half, len(ready.readout)))
    shown = Renderer(changed, ready.seed, "others")(Candidate(spreads))
    return torch.cat([from_bytes(same.x), shown])


def _class_shares(images: Images, place: Place) -> dict[str, float]:
    """The share of each class in the field; empty where it was not fitted."""
    present = torch.bincount(images.y, minlength=len(images.classes)).nonzero().flatten().tolist()
    if len(place.shares) != len(present):
        return {}
    return {images.classes[i]: float(s) for i, s in zip(present, place.shares)}


def _least_explained(
    embedding: Embedding, field: Float[Tensor, "n c h w"], shown: Float[Tensor, "m c h w"]
) -> tuple[int, ...]:
    """The field's images by how far they are from those under the conditions, the farthest first.

    Distance is that from the fifth nearest image, in units of the statistics.
    """
    between = torch.cdist(embedding.points(field), embedding.points(shown))
    nearest = between.topk(min(NEIGHBOURS, len(shown)), largest=False).values[:, -1]
    return tuple(nearest.argsort(descending=True, stable=True).tolist())
