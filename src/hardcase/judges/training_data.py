"""Images with true answers, synthesised from real images, on which judges are trained and examined.

Label-preserving augmentations, interpolations between two images, and corruptions after which
nothing is left to see. `FAMILIES` is the only list of which augmentations
and corruptions a judge is trained on and which part of an appearance space each belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.imaging.blur import binomial, stroke_width
from hardcase.imaging.colour import compressed
from hardcase.tensors import from_bytes
from hardcase.training.cards import UNSTATED
from hardcase.training.loop import Bend, RowSampler, bend, crop
from hardcase.types import Images

# Small random drawings that the made images share. Every function follows the device of its images
# and of its generator.


def cloud(like: Float[Tensor, "m c h w"], cells: int, dice: RowSampler) -> Float[Tensor, "m 1 h w"]:
    """Smooth noise between 0 and 1: `cells` x `cells` random values, enlarged."""
    coarse = dice.uniform(len(like), 1, cells, cells)
    return functional.interpolate(
        coarse, size=like.shape[2:], mode="bicubic", align_corners=False
    ).clamp(0, 1)


def background(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c 1 1"]:
    """The commonest shade of each channel, as its median."""
    return x.flatten(2).median(2).values[:, :, None, None]


def content(x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
    """Share of the image that is no background."""
    return (x - background(x)).abs().flatten(1).sum(1)


def with_shades_of(
    x: Float[Tensor, "m c h w"], model: Float[Tensor, "m c h w"]
) -> Float[Tensor, "m c h w"]:
    """`x` with the rank order of its pixels and the values of `model`: the same histogram,
    channel by channel.
    """
    shades = model.flatten(2).sort(2).values
    order = x.flatten(2).argsort(2)
    return torch.empty_like(shades).scatter_(2, order, shades).reshape(x.shape)


# Images between two others, and to what degree they still are the first one.


@runtime_checkable
class Codec(Protocol):
    """A small generative model: codes of images, images of codes."""

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d"]: ...

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]: ...


def interpolate(
    x: Float[Tensor, "m c h w"], other: Float[Tensor, "m c h w"], codes: Codec, rng: torch.Generator
) -> tuple[Float[Tensor, "m c h w"], Float[Tensor, " m"]]:
    """An image between `x` and `other`, and its visual share of `x` (0 to 1).

    Half of them lie between the codes of a generative model (for grey images; a small model cannot
    do this in colour), the others are mixed after a blur and get the shades of an image again
    (which forms strokes), joined along a wavy line, or laid over each other.
    """
    dice = RowSampler(len(x), rng)
    share = dice()
    between = share.flatten()[:, None] * codes.encode(x) + (
        1 - share.flatten()[:, None]
    ) * codes.encode(other)
    mixed = share * binomial(x) + (1 - share) * binomial(other)
    crisp = with_shades_of(mixed, torch.where(share > 0.5, x, other))
    wave = torch.sigmoid(24 * (cloud(x, 3 + dice.one_of(3), dice) - 1 + share))
    way = dice()
    between_images = torch.where(
        way < (0.5 if x.shape[1] == 1 else 0.0), codes.decode(between), crisp
    )
    between_images = torch.where(way > 0.8, wave * x + (1 - wave) * other, between_images)
    between_images = torch.where(way > 0.9, share * x + (1 - share) * other, between_images)
    return between_images.clamp(0, 1), towards(share.flatten())


def towards(share: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """What the eye makes of a mixture: the larger part counts for more than its share."""
    return share.square() / (share.square() + (1 - share).square())


# Changes after which people still see the same thing: turned, bent, blurred, dimmed, lit, noisy,
# partly covered.


def mirror(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every other image, by chance, from left to right; only for colour photographs,
    where it changes no label.
    """
    if x.shape[1] == 1:
        return x
    return torch.where(RowSampler(len(x), rng).chance(0.5) > 0, x.flip(3), x)


def retouch(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Blur or sharpness, thickness, contrast and light, stains, noise and a small patch,
    each on a random part of the images.
    """
    dice = RowSampler(len(x), rng)
    x = x + (binomial(x) - x) * dice.chance(0.3) * dice(-0.5, 1.3)
    way = dice()
    strength = dice()
    x = stroke_width(x, thicker=(way < 0.15) * strength, thinner=(way > 0.85) * strength)
    contrast = 1 - dice.chance(0.5) * dice(0.0, 0.85)
    x = x * contrast + (1 - contrast) * dice.chance(0.5) * dice()
    x = x + contrast * dice.chance(0.2) * dice(-0.3, 0.3) * cloud(x, 4 + dice.one_of(8), dice)
    x = x + contrast * dice.chance(0.4) * dice(0.0, 0.3) * dice.normal(*x.shape)
    return _patch(x, dice).clamp(0, 1)


def cover(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """A rectangle of noise or of uniform shade, up to half as long and wide as the image, on most
    of the images.
    """
    return _patch(x, RowSampler(len(x), rng), share=0.8, largest=0.45)


def camera_processed(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Pictures as cameras and files make them: each darker or brighter, at random
    blurred, noisy or compressed.
    """
    dice = RowSampler(len(x), rng)
    x = (x * 2 ** dice(-0.7, 0.7)).clamp(0, 1)
    x = x + (binomial(x) - x) * dice.chance(0.4) * dice()
    x = (x + dice.chance(0.4) * dice(0.0, 0.06) * dice.normal(*x.shape)).clamp(0, 1)
    quality = dice(25.0, 95.0).flatten()
    return torch.where(dice.chance(0.5) > 0, compressed(x, quality), x)


def _patch(x: Tensor, dice: RowSampler, share: float = 0.3, largest: float = 0.33) -> Tensor:
    """A small rectangle of noise or of uniform shade, anywhere."""
    _, _, height, width = x.shape
    down = torch.arange(height, device=x.device)[None, None, :, None] + 0.5
    right = torch.arange(width, device=x.device)[None, None, None, :] + 0.5
    inside = ((down - dice() * height).abs() < dice(0.02, largest / 2) * height) & (
        (right - dice() * width).abs() < dice(0.02, largest / 2) * width
    )
    fill = torch.where(dice.chance(0.5) > 0, dice.uniform(*x.shape), dice().expand_as(x))
    return torch.where(inside & (dice.chance(share) > 0), fill, x)


# Images that no longer show anything of the data, made from images that do; `lost` says to what
# degree (0 to 1).

Made = tuple[Float[Tensor, "m c h w"], Float[Tensor, " m"]]
Corruption = Callable[[Tensor, Codec, RowSampler], Made]


def corrupt(x: Float[Tensor, "m c h w"], codes: Codec, rng: torch.Generator, *, kind: str) -> Made:
    return CORRUPTIONS[kind](x, codes, RowSampler(len(x), rng))


def _blank(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """A nearly uniform shade: a trace of noise and of the image."""
    shade = dice() * dice.chance(0.5)
    return _whole((shade + 0.02 * dice() * dice.normal(*x.shape) + dice(0.0, 0.06) * x).clamp(0, 1))


def _noise(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Noise, coarse or fine, soft or in two shades."""
    soft = cloud(x, 3 + dice.one_of(x.shape[2] - 2), dice).expand_as(x)
    hard = torch.sigmoid(12 * (soft - dice(0.3, 0.8)))
    return _whole(torch.where(dice.chance(0.5) > 0, hard, soft) * dice(0.3, 1.0))


def _scribble(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Smooth noise in exactly the shades of the image: blobs and strokes that mean nothing."""
    return _whole(
        with_shades_of(
            cloud(x, 4 + dice.one_of(7), dice).expand_as(x) + 0.01 * dice.uniform(*x.shape), x
        )
    )


def _shuffle(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """The image cut into squares that changed places."""
    count, channels, height, width = x.shape
    parts = (2, 3, 4, 7)[dice.one_of(4)]
    side = height // parts
    across = width // parts
    cut = x[:, :, : parts * side, : parts * across].reshape(
        count, channels, parts, side, parts, across
    )
    squares = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, parts**2, -1)
    order = dice.uniform(count, parts**2).argsort(1)[:, :, None].expand_as(squares)
    back = (
        squares.gather(1, order)
        .reshape(count, parts, parts, channels, side, across)
        .permute(0, 3, 1, 4, 2, 5)
    )
    shuffled = background(x).expand_as(x).clone()
    shuffled[:, :, : parts * side, : parts * across] = back.reshape(
        count, channels, parts * side, parts * across
    )
    return shuffled, torch.full((count,), 0.8 if parts == 2 else 1.0, device=x.device)


def _collage(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """The upper or the left half of an image and the other half of another image."""
    down = torch.arange(x.shape[2], device=x.device)[:, None] < x.shape[2] / 2
    right = torch.arange(x.shape[3], device=x.device)[None, :] < x.shape[3] / 2
    half = torch.where(dice.chance(0.5) > 0, down, right)
    return torch.where(half, x, x.roll(1, 0)), torch.full((len(x),), 0.4, device=x.device)


def _overlay(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Two images on top of each other."""
    return torch.maximum(x, x.roll(1, 0)), torch.full((len(x),), 0.5, device=x.device)


def _invert(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    return _whole(1 - x)


def _black(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Darken unevenly until only the brightest spots are left."""
    darker = x * (1 - 0.6 * cloud(x, 3 + dice.one_of(10), dice)) - dice(0.3, 0.95)
    left = (darker > 0.02).flatten(1).sum(1) / (x > 0.2).flatten(1).sum(1).clamp_min(1)
    return (darker.clamp_min(0) * (1 + 2 * dice() * dice.chance(0.5))).clamp(0, 1), _falling(
        left, 0.15, 0.5
    )


def _erase(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Large soft parts of the image become background."""
    stays = torch.sigmoid(25 * (cloud(x, 3 + dice.one_of(6), dice) - dice(0.3, 0.8)))
    erased = stays * x + (1 - stays) * background(x)
    return erased, _falling(content(erased) / content(x).clamp_min(1e-3), 0.25, 0.65)


def _fold(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Bent so far and so finely that shapes are lost."""
    depth = float(dice.uniform(1))
    how = Bend(
        turn=40,
        stretch=0.3,
        shear=0.4,
        move=0.1,
        wave=0.06 + 0.15 * depth,
        cells=5 + dice.one_of(3),
    )
    return bend(x, dice.rng, how), torch.full(
        (len(x),), min(1.0, 0.4 + 1.2 * depth), device=x.device
    )


def _soften(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Reduce to a handful of pixels and enlarge again."""
    cells = 2 + dice.one_of(4)
    small = functional.adaptive_avg_pool2d(x, cells)
    softened = functional.interpolate(
        small, size=x.shape[2:], mode="bicubic", align_corners=False
    ).clamp(0, 1)
    return softened, torch.full((len(x),), 0.6 if cells == 5 else 1.0, device=x.device)


def _shuffle_codes(x: Tensor, codes: Codec, dice: RowSampler) -> Made:
    """Codes of four images shuffled together, place by place, and pushed outwards:
    what generators make far from data.
    """
    z = codes.encode(x)
    pick = torch.randint(4, z.shape, generator=dice.rng, device=z.device)
    shuffled = torch.stack([z.roll(i, 0) for i in range(4)]).gather(0, pick[None])[0]
    push = dice(1.5, 3.5).flatten()
    return codes.decode(shuffled * push[:, None]), _falling(-push, -3.0, -1.0)


def _whole(x: Tensor) -> Made:
    return x, torch.ones(len(x), device=x.device)


def _falling(left: Float[Tensor, " m"], low: float, high: float) -> Float[Tensor, " m"]:
    """1 where no more than `low` is left, 0 from `high` on, a straight line between."""
    return ((high - left) / (high - low)).clamp(0, 1)


CORRUPTIONS: dict[str, Corruption] = {
    "blank": _blank,
    "noise": _noise,
    "scribble": _scribble,
    "shuffle": _shuffle,
    "collage": _collage,
    "overlay": _overlay,
    "inverted": _invert,
    "near-black": _black,
    "erased": _erase,
    "folded": _fold,
    "blurred": _soften,
    "scrambled": _shuffle_codes,
}
OFTEN = ("near-black", "erased")
"""Corruptions that are drawn twice as often: the limit of readability runs through them."""
SHARED = ("collage", "overlay", "scrambled")
"""Corruptions that combine an image with its predecessor: the rest belongs to both."""
SEEN_BY_PEOPLE = ("collage", "overlay", "inverted")
"""Of photographs these still show something to people."""


@dataclass(frozen=True, slots=True)
class TrainedFamily:
    """A family of changes that a judge is trained on: label-preserving changes of an image, and the
    corruptions after which the label is lost.
    """

    change: Callable[[Tensor, torch.Generator], Tensor]
    parts: tuple[str, ...]
    corruptions: tuple[str, ...]
    words: tuple[str, ...]


FAMILIES: dict[str, TrainedFamily] = {
    "bending": TrainedFamily(
        change=bend,
        parts=("warp", "camera"),
        corruptions=("folded",),
        words=("turned", "stretched", "sheared", "moved", "bent"),
    ),
    "retouching": TrainedFamily(
        change=retouch,
        parts=("light", "focus", "sensor", "weather"),
        corruptions=("near-black", "blurred"),
        words=("blurred", "light and contrast", "noise"),
    ),
}
"""The families of the panel; a held-out judge leaves out at least a family."""


def families_of_space(text: str) -> dict[str, list[str]]:
    """Return the parts of a space that belong to a family, by family."""
    parts = re.findall(r"[a-z]+", re.sub(r"\([^)]*\)", "", text))
    parts_by_name = {
        name: [part for part in parts if part in family.parts] for name, family in FAMILIES.items()
    }
    return {name: family for name, family in parts_by_name.items() if family}


# Batches that members of a panel are trained on: augmented images, images between classes, and
# images of nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The composition of a training batch; the rest is only augmented."""

    interpolated: float = 0.125
    corrupted: float = 0.25
    kinds: int = 3
    easy: float = field(default=0.0, metadata=UNSTATED)


@torch.no_grad()
def training_batch(
    x: Float[Tensor, "m c h w"],
    targets: Float[Tensor, "m k1"],
    codes: Codec,
    rng: torch.Generator,
    shares: Shares,
    held_out: Collection[str] = (),
) -> tuple[Float[Tensor, "m c h w"], Float[Tensor, "m k1"]]:
    """Return synthetic images and their soft targets: shares of the classes, last the share of
    none."""
    corrupted = int(len(x) * shares.corrupted)
    start = len(x) - corrupted
    augmented = start - int(len(x) * shares.interpolated)
    cuts = [augmented, *(start + corrupted * i // shares.kinds for i in range(shares.kinds))]
    easy = round(shares.easy * augmented)
    moved = x[:easy]
    if easy:
        moved = mirror(crop(moved, 4, rng), rng)
        if "retouching" not in held_out:
            moved = cover(moved, rng)
    x = mirror(_changed(x[easy:], "bending", rng, held_out), rng)
    rest = targets[easy:]
    after = [cut - easy for cut in cuts]
    preserved, between, *nothing = zip(x.tensor_split(after), rest.tensor_split(after), strict=True)
    replaced = [
        preserved,
        _between_classes(*between, (x, rest), codes, rng),
        *(_corrupted_part(*part, codes, rng, held_out) for part in nothing),
    ]
    images, soft_targets = (torch.cat(part) for part in zip(*replaced, strict=True))
    images = _changed(images, "retouching", rng, held_out)
    return torch.cat([moved, images]), torch.cat([targets[:easy], soft_targets])


def _changed(x: Tensor, family: str, rng: torch.Generator, held_out: Collection[str]) -> Tensor:
    if family in held_out:
        return x
    return FAMILIES[family].change(x, rng)


def _between_classes(
    x: Tensor,
    targets: Tensor,
    others: tuple[Tensor, Tensor],
    codes: Codec,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Interpolate with any image, every second image with the nearest image of another class:
    shapes on the boundary.
    """
    if not len(x):
        return x, targets
    others_x, others_targets = others
    gap = torch.cdist(codes.encode(x[::2]), codes.encode(others_x))
    same_class = targets[::2] @ others_targets.T > 0
    near = gap.masked_fill(same_class, torch.inf).argmin(1)
    other = x.roll(1, 0)
    second = targets.roll(1, 0)
    other[::2] = others_x[near]
    second[::2] = others_targets[near]
    mixed, share = interpolate(x, other, codes, rng)
    return mixed, share[:, None] * targets + (1 - share[:, None]) * second


def _corrupted_part(
    x: Tensor, targets: Tensor, codes: Codec, rng: torch.Generator, held_out: Collection[str]
) -> tuple[Tensor, Tensor]:
    """Corrupt images; the remaining share belongs to the class, shared with the image that is
    combined with it.
    """
    if not len(x):
        return x, targets
    kinds = _kinds((*CORRUPTIONS, *OFTEN), held_out)
    kind = kinds[int(torch.randint(len(kinds), (1,), generator=rng, device=rng.device))]
    corrupted, lost = corrupt(x, codes, rng, kind=kind)
    if kind in SHARED:
        targets = (targets + targets.roll(1, 0)) / 2
    soft_targets = (1 - lost[:, None]) * targets
    soft_targets[:, -1] += lost
    return corrupted, soft_targets


def _kinds(kinds: Iterable[str], held_out: Collection[str]) -> list[str]:
    """The corruptions that belong to no held-out family."""
    left_out = {kind for family in held_out for kind in FAMILIES[family].corruptions}
    return [kind for kind in kinds if kind not in left_out]


# Exams: made images of which it is known whether they belong to the domain and keep their label.

SURE = 0.85
"""An interpolation or a corruption enters if it is clearly either class; between, the answer is
undefined.
"""
SMALL = Bend(turn=6, stretch=0.06, shear=0.05, move=0.04, wave=0.006)


@dataclass(frozen=True, slots=True)
class Exam:
    """Images, the class each should show, and the truth: 1 yes, 0 no, -1 unknown."""

    x: Float[Tensor, "m c h w"]
    expected: Int[Tensor, " m"]
    domain: Int[Tensor, " m"]
    label_kept: Int[Tensor, " m"]


class _PixelCodes:
    """The identity as a codec, for corruptions that shuffle codes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d"]:
        return x.flatten(1)

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]:
        return z.reshape(len(z), *self.shape).clamp(0, 1)


@torch.no_grad()
def exam_of_digits(
    images: Images,
    codes: Codec,
    rng: torch.Generator,
    device: torch.device | str = "cpu",
    held_out: Collection[str] = (),
) -> Exam:
    """Return each image four times: augmented, interpolated with another, and corrupted twice."""
    x = from_bytes(images.x.to(device))
    y = images.y.to(device).long()
    bent = [mirror(_changed(x, "bending", rng, held_out), rng) for _ in range(4)]
    between, share = interpolate(bent[1], bent[1].roll(1, 0), codes, rng)
    kinds = _kinds(CORRUPTIONS, held_out)
    corrupted, lost = zip(*(_corrupted_evenly(each, codes, rng, kinds) for each in bent[2:]))
    exam = _assembled([bent[0]], [y], between, share, corrupted, lost, y)
    return replace(exam, x=_changed(exam.x, "retouching", rng, held_out))


@torch.no_grad()
def exam_of_photographs(
    images: Images, rng: torch.Generator, device: torch.device | str = "cpu"
) -> Exam:
    """Return each photograph four times: as cameras and files leave it (twice, once under the label
    of another), interpolated with another, and corrupted.
    """
    x = from_bytes(images.x.to(device))
    y = images.y.to(device).long()
    preserved = [camera_processed(mirror(bend(x, rng, SMALL), rng), rng) for _ in range(2)]
    dice = RowSampler(len(x), rng)
    share = dice()
    wave = torch.sigmoid(24 * (cloud(x, 3 + dice.one_of(3), dice) - 1 + share))
    laid_over = share * x + (1 - share) * x.roll(1, 0)
    joined = wave * x + (1 - wave) * x.roll(1, 0)
    between = torch.where(dice.chance(0.5) > 0, laid_over, joined)
    codes = _PixelCodes(tuple(x.shape[1:]))
    unseen = [kind for kind in CORRUPTIONS if kind not in SEEN_BY_PEOPLE]
    corrupted, lost = _corrupted_evenly(x, codes, rng, unseen)
    shares = towards(share.flatten())
    return _assembled(preserved, [y, y.roll(1, 0)], between, shares, [corrupted], [lost], y)


def _assembled(
    kept: Sequence[Tensor],
    kept_under: Sequence[Tensor],
    between: Tensor,
    share: Float[Tensor, " m"],
    corrupted: Sequence[Tensor],
    lost: Sequence[Tensor],
    y: Int[Tensor, " m"],
) -> Exam:
    """Put the parts of an exam together with what is true of them."""
    differ = y != y.roll(1, 0)
    ones = torch.ones_like(y)
    gone = _sure(1 - torch.cat(list(lost)))
    return Exam(
        x=torch.cat([*kept, between, *corrupted]),
        expected=torch.cat([*kept_under, y, *[y] * len(corrupted)]),
        domain=torch.cat([*[ones] * len(kept), _sure(torch.maximum(share, 1 - share)), gone]),
        label_kept=torch.cat(
            [*((label == y).long() for label in kept_under), _sure(share).where(differ, ones), gone]
        ),
    )


def _corrupted_evenly(
    x: Tensor, codes: Codec, rng: torch.Generator, kinds: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """Apply every kind of corruption to an equal part of the images."""
    parts = zip(kinds, x.tensor_split(len(kinds)))
    corrupted = [corrupt(part, codes, rng, kind=kind) for kind, part in parts if len(part)]
    return torch.cat([images for images, _ in corrupted]), torch.cat(
        [lost for _, lost in corrupted]
    )


def _sure(share: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
    """1 where the share is large, 0 where it is small, -1 between."""
    return torch.where(share >= SURE, 1, torch.where(share <= 1 - SURE, 0, -1))
