"""How often a model fails under declared conditions: the share of (image, condition) pairs.

All images count, also those that the model misreads as they are. Failing is what the answer says:
another class than the label has the largest output, or an output is no number. Samples of
different images are independent, so the images are the units of every interval. A t interval
would be far too narrow: where 1 % of the images carry most of the failures, fifty images
usually show none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from hardcase.campaign.claims import (
    Claims,
    asking,
    claim_context,
    image_of,
    moved_claims,
    stored_label,
)
from hardcase.conditions.box import ConditionBox
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, keys_of
from hardcase.statistics import Bounds, bounded_mean_interval
from hardcase.tensors import (
    TILE,
    chunks,
    from_bytes,
    margin,
    pad_rows,
    steady,
    tile_in_use,
    to_grid,
)
from hardcase.types import Images, Model, Seeds

__all__ = [
    *("MAX_SAMPLES", "SAMPLES", "Answers", "RiskTable", "answered", "measure_risk"),
    "seeds_at_once",
]

SAMPLES = 4
"""Random conditions per image. More tell little: beyond four, the images are the limit."""
MAX_SAMPLES = 64
"""Samples of an image, at most: a bit of a single number for each."""
SHOWN = 60
"""Failing images that are stored for inspection: a random choice of all failing draws."""
ROWS = 512
"""Images that are rendered and answered at once, ..."""
TOGETHER = 2**22
"""... and numbers of these on a CPU, at most: a tile of photographs of 224 pixels."""
LANES = 2
"""Tiles that a device renders and answers side by side: changing images waits for memory while
another tile's network computes."""
DEVICE_SEEDS = 256
"""Seeds per call on a GPU."""
OnProgress = Callable[[int, int], None]
"""Called with how many seeds are done, and with their total."""


class Answers(NamedTuple):
    """The answers of a model on images.

    Args:
        failed: Whether each answer is another than the label, or no number.
        predicted: The answers.
        tied: Whether the label shares the largest output with another class, so that the order of
            the outputs decides.
        margin: The lead of another class over the label, in outputs; below 0 where the label leads.
    """

    failed: Bool[Tensor, " m"]
    predicted: Int[Tensor, " m"]
    tied: Bool[Tensor, " m"]
    margin: Float[Tensor, " m"]


@dataclass(frozen=True, slots=True)
class RiskTable:
    """What happened to every image under random samples of the declared conditions.

    Args:
        id: Names of the images.
        y: Their labels.
        clean: Whether the model misreads the unmodified image.
        predicted: What the model answers about it.
        clean_tied: Whether that is a tie.
        failed: Which samples failed.
        tied: Which samples are ties.
        margin: The lead of another class over the label in each sample.
        shown_seed: Images of a random choice of failing samples.
        shown_z: Their codes.
        shown_pattern: What their random patterns follow from.
        shown_predicted: What the model answered.
        least_z: The failing sample of each image that lies in the smallest box; 0 where none
            failed.
        least_pattern: What its random patterns follow from.
        image: The image of each row, where rows are claims; claims about the same image stand
            and fall together.
    """

    id: tuple[str, ...]
    y: Int[Tensor, " n"]
    clean: Bool[Tensor, " n"]
    predicted: Int[Tensor, " n"]
    clean_tied: Bool[Tensor, " n"]
    failed: Bool[Tensor, "n k"]
    tied: Bool[Tensor, "n k"]
    margin: Float[Tensor, "n k"]
    shown_seed: Int[Tensor, " t"]
    shown_z: Float[Tensor, "t d"]
    shown_pattern: Int[Tensor, " t"]
    shown_predicted: Int[Tensor, " t"]
    least_z: Float[Tensor, "n d"]
    least_pattern: Int[Tensor, " n"]
    image: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.id)

    @property
    def samples(self) -> int:
        """Samples per image."""
        return self.failed.shape[1]

    @property
    def failing(self) -> Int[Tensor, " n"]:
        """How many samples of each image failed."""
        return self.failed.sum(1)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of samples that failed, per image."""
        shares: NDArray[np.float64] = self.failed.double().mean(1).numpy()
        return shares

    @property
    def value(self) -> float:
        """The failure rate: the mean share over all images."""
        return float(self.shares.mean())

    @property
    def images_like_these(self) -> Bounds:
        """An interval for the population that the images are a sample of."""
        return bounded_mean_interval(self.shares, clusters=self.image)

    @property
    def excess(self) -> NDArray[np.float64]:
        """The share of samples that failed minus the error on the unmodified image, per image."""
        excess: NDArray[np.float64] = self.shares - self.clean.double().numpy()
        return excess

    def to_json(self) -> dict[str, Any]:
        """Return the figures of a model: its failure rate, with and without the conditions."""
        return {
            **rate_of(self.shares, self.image),
            "failing": int(self.failed.sum()),
            "samples": self.samples,
            "images": len(self),
            "ties": int((self.tied.any(1) | self.clean_tied).sum()),
            "unmodified": {
                **rate_of(self.clean.double().numpy(), self.image),
                "failing": int(self.clean.sum()),
            },
            "gap": rate_of(self.excess, self.image, low=-1.0),
        }


def rate_of(
    values: NDArray[Any], clusters: Sequence[str] = (), *, low: float = 0.0
) -> dict[str, float]:
    """Return the mean of a figure per image and its interval, as records keep them."""
    bounds = bounded_mean_interval(values, low, 1.0, clusters=clusters)
    return {"value": float(values.mean()), "low": bounds.low, "high": bounds.high}


def measure_risk(
    subject: Model,
    images: ImageSet,
    box: ConditionBox | None,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    rows: int = ROWS,
    on_progress: OnProgress | None = None,
) -> RiskTable:
    """Ask a model about every image, unmodified and under random samples of declared conditions.

    Args:
        subject: The model.
        images: All images, also those that it misreads as they are.
        box: The declared conditions for images of this shape; None: unmodified images alone.
        samples: Conditions per image; the first of many are those of fewer.
        seed: Everything random follows from it and from the names of the images.
        rows: Images that are rendered at once on a CPU; changes no result.
        on_progress: Called with how many images are done.

    Raises:
        HardcaseError: If there are no images, or the number of samples is none from 1 to 64.
    """
    if len(images) == 0:
        raise HardcaseError("a failure rate needs images.")
    if not 1 <= samples <= MAX_SAMPLES:
        raise HardcaseError(f"{samples} samples per image.", fix=f"samples from 1 to {MAX_SAMPLES}")
    table = joined_tables(
        [
            measure_shard(subject, shard, box, samples, seed, rows=rows, offset=before)
            for before, shard in iter_shards(
                images, seeds_at_once(subject, samples, rows), on_progress
            )
        ]
    )
    shown = table.shown_pattern.argsort(stable=True)[:SHOWN]
    columns = ("shown_seed", "shown_z", "shown_pattern", "shown_predicted")
    columns_shown: Any = {name: getattr(table, name)[shown] for name in columns}
    return replace(table, **columns_shown)


def seeds_at_once(subject: Model, samples: int, rows: int = ROWS) -> int:
    """Return how many images are classified at once: on a device, whose calls have a fixed size, as
    many as leave no call nearly empty.
    """
    return max(rows // samples, 1) if steady(subject.device) else DEVICE_SEEDS


def iter_shards(
    images: ImageSet, size: int, on_progress: OnProgress | None
) -> Iterator[tuple[int, Images]]:
    """Yield each shard with the number of images before it, and tell when it is done."""
    done = 0
    for shard in images.shards(size):
        yield done, shard
        done += len(shard)
        if on_progress is not None:
            on_progress(done, len(images))


def measure_shard(
    subject: Model,
    shard: Images,
    box: ConditionBox | None,
    samples: int,
    seed: int,
    *,
    rows: int = ROWS,
    offset: int = 0,
) -> RiskTable:
    """Return the outcomes of images; `offset` others came before."""
    device = subject.device
    x = from_bytes(shard.x.to(device))  # bytes are a quarter of what their numbers are
    claims = {name: column.to(device) for name, column in claim_context(shard.context).items()}
    size = 0 if box is None else box.size
    place = torch.arange(len(shard), device=device)
    seeds = Seeds(x.new_zeros(len(x), size), x, shard.y.to(device), place, claims)
    clean = answered(asking(subject, Claims.of(seeds))(to_grid(seeds.x)).logits, seeds.y)
    images = map(image_of, shard.id) if claim_context(shard.context) else ()
    if box is None:
        none = torch.zeros(len(shard), 0, dtype=torch.bool)
        table = torch.zeros(0, dtype=torch.int64)
        empty = torch.zeros(0, 0)
        return RiskTable(
            *(shard.id, shard.y, clean.failed.cpu(), clean.predicted.cpu(), clean.tied.cpu()),
            *(none, none, none.float(), table, empty, table, table, torch.zeros(len(shard), 0)),
            torch.zeros(len(shard), dtype=torch.int64),
            tuple(images),
        )
    drawn = box.draw(Rng(seed, "conditions", keys_of(shard.id).to(device)), place, samples)
    answers = _answers_under(subject, seeds, box, drawn.z, drawn.pattern, rows)
    failed = answers.failed.reshape(drawn.pattern.shape)
    predicted = answers.predicted.reshape(drawn.pattern.shape)
    # every failing sample has the same chance to be shown: the smallest random patterns are
    where = failed.nonzero()
    of, sample = where[drawn.pattern[failed].argsort(stable=True)[:SHOWN]].unbind(1)
    gauge = box.gauge(drawn.z.flatten(0, 1)).reshape(failed.shape)
    near = torch.where(failed, gauge, torch.inf).argmin(1)
    never = ~failed.any(1)
    return RiskTable(
        id=shard.id,
        y=shard.y,
        clean=clean.failed.cpu(),
        predicted=clean.predicted.cpu(),
        clean_tied=clean.tied.cpu(),
        failed=failed.cpu(),
        tied=answers.tied.reshape(failed.shape).cpu(),
        margin=answers.margin.reshape(failed.shape).cpu(),
        shown_seed=of.cpu() + offset,
        shown_z=drawn.z[of, sample].cpu(),
        shown_pattern=drawn.pattern[of, sample].cpu(),
        shown_predicted=predicted[of, sample].cpu(),
        least_z=drawn.z[place, near].masked_fill(never[:, None], 0).cpu(),
        least_pattern=drawn.pattern[place, near].masked_fill(never, 0).cpu(),
        image=tuple(images),
    )


T = TypeVar("T")


def joined_tables(parts: Sequence[T]) -> T:
    """Concatenate the tables of shards: names, and rows of tensors."""

    def joined(values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, Tensor):
            return torch.cat(list(values))
        if isinstance(first, Mapping):
            return {name: joined([value[name] for value in values]) for name in first}
        if isinstance(first, tuple) and first and isinstance(first[0], Tensor):
            return tuple(joined(column) for column in zip(*values))
        if isinstance(first, tuple):
            return tuple(name for value in values for name in value)
        return first

    names = [field_of.name for field_of in fields(cast(Any, parts[0]))]
    return type(parts[0])(
        **{name: joined([getattr(part, name) for part in parts]) for name in names}
    )


def _answers_under(
    subject: Model,
    seeds: Seeds,
    box: ConditionBox,
    z: Float[Tensor, "n k d"],
    pattern: Int[Tensor, "n k"],
    rows: int,
) -> Answers:
    """What the model says of every sample, image by image."""
    of = torch.arange(len(seeds), device=z.device).repeat_interleave(z.shape[1])
    logits = logits_under_conditions(
        subject, box, seeds, of, z.flatten(0, 1), pattern.flatten(), rows=rows
    )
    answers = answered(logits, seeds.y[of])
    label = stored_label(answers.predicted, logits.shape[1], claim_context(seeds.context))
    return answers._replace(predicted=label)


@torch.no_grad()  # no inference mode: what is made in it cannot be captured
def logits_under_conditions(
    subject: Model,
    box: ConditionBox,
    seeds: Seeds,
    of: Int[Tensor, " m"],
    z: Float[Tensor, "m d"],
    pattern: Int[Tensor, " m"],
    *,
    rows: int = ROWS,
) -> Float[Tensor, "m k"]:
    """Return what a model answers about seeds under conditions.

    Args:
        of: The seed that each row is about.
        z: The condition of each row.
        pattern: What its random patterns follow from.
        rows: Images that are rendered at once on a CPU; on another device it is its tile.
    """
    names = tuple(claim_context(seeds.context))

    def logits_of(x: Tensor, y: Tensor, code: Tensor, pattern: Tensor, *claims: Tensor) -> Tensor:
        number = torch.arange(len(x), device=x.device)
        origin = Seeds(code, x, y, number, {**dict(zip(names, claims)), "pattern": pattern})
        shown = to_grid(box.decode(code, origin))
        return asking(subject, moved_claims(box, code, origin))(shown).logits

    tables = (seeds.x, seeds.y, *(seeds.context[name] for name in names))
    tile = None if steady(z.device) else tile_in_use(z.device.type)
    kind = (names, repr(box.to_record()))
    logits = list[Tensor]()
    for part in _calls(len(z), tile, min(rows, rows_together(seeds.x.shape[1:]))):
        x, y, *claims = (table[of[part]] for table in tables)
        inputs = (x, y, z[part], pattern[part], *claims)
        if tile and isinstance(subject, nn.Module):
            from hardcase.graphs import replayed

            lanes = max(len(x) // tile, 1)
            padded = (pad_rows(tensor, tile) for tensor in inputs)
            answered_logits = replayed(subject, logits_of, *padded, kind=kind, lanes=lanes)[
                : len(x)
            ]
        else:
            answered_logits = logits_of(*inputs)
        logits.append(answered_logits)
    return torch.cat(logits)


def rows_together(shape: Sequence[int]) -> int:
    """Return how many images of this shape a CPU changes at once, in tiles: changing them takes
    dozens of copies.
    """
    return max(1, TOGETHER // math.prod(shape) // TILE) * TILE


def _calls(count: int, tile: int | None, rows: int) -> Iterator[slice]:
    """The rows of each call: a fixed number on a CPU; on a device tiles side by side while enough
    are left, then single tiles.
    """
    if not tile:
        return chunks(count, rows)
    wide = LANES * tile
    table = count // wide * wide
    single = (slice(at, min(at + tile, count)) for at in range(table, count, tile))
    return chain(chunks(table, wide), single)


def with_pattern(origin: Seeds, pattern: Int[Tensor, " m"]) -> Seeds:
    """Return seeds whose random patterns follow from a draw; what is claimed of them stays."""
    context = {**claim_context(origin.context), "pattern": pattern}
    return Seeds(origin.z, origin.x, origin.y, origin.id, context)


def answered(logits: Float[Tensor, "m k"], y: Int[Tensor, " m"]) -> Answers:
    """Return what outputs say of rows with these labels; outputs that are no numbers fail."""
    predicted = logits.argmax(1)
    broken = ~logits.isfinite().all(1)
    largest = logits == logits.amax(1, keepdim=True)
    is_label = torch.zeros_like(largest).scatter_(1, y[:, None], value=True)
    tied = (largest & is_label).any(1) & (largest & ~is_label).any(1) & ~broken
    return Answers((predicted != y) | broken, predicted, tied, margin(logits, y))


def seeds_of(shard: Images, box: ConditionBox, device: torch.device) -> Seeds:
    """Return images as seeds in a box: unchanged."""
    x = from_bytes(shard.x.to(device))
    z = torch.zeros(len(x), box.size, device=device)
    claims = {name: tensor.to(device) for name, tensor in claim_context(shard.context).items()}
    return Seeds(z, x, shard.y.to(device), torch.arange(len(x), device=device), claims)
