"""How often a model fails under declared conditions: the share of (image, condition) pairs.

All images count, also those that the model misreads as they are. Draws of different seeds are
independent, so the seeds are the units of every interval that speaks of other images. A t interval
would be far too narrow: where one seed in a hundred carries most of the risk, fifty seeds usually
show none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, cast

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
from hardcase.errors import Problem
from hardcase.graphs import replayed
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import Rng, keys_of
from hardcase.statistics import Bounds, binomial_interval, bounded_mean_interval
from hardcase.tensors import chunks, from_bytes, margin, pad_rows, steady, tile_in_use, to_grid
from hardcase.types import Images, Model, Seeds

__all__ = [
    *("COST_DRAWS", "DRAWS", "RiskComparison", "RiskTable", "compare_risk", "failing_rows"),
    *("measure_risk", "seeds_at_once"),
]

DRAWS = 64
"""Random conditions per seed."""
COST_DRAWS = 16
"""How many of them are asked again with each condition held at neutral."""
SHOWN = 60
"""Failing images that are kept to be looked at: a random choice of all failing draws."""
ROWS = 512
"""Images that are rendered and answered at once."""
DEVICE_SEEDS = 256
"""Seeds that are asked about at once on a GPU."""
Tell = Callable[[int, int], None]
"""Told how many seeds of how many are done."""


@dataclass(frozen=True, slots=True)
class RiskTable:
    """What happened to every seed under random draws of the declared conditions.

    Args:
        id: Names of the seeds.
        y: Their labels.
        clean: Whether the model misreads the unchanged image.
        failing: Draws that failed, of `draws`.
        draws: Draws per seed.
        held: By condition: of the first `COST_DRAWS` draws, how many failed as drawn and how many
            with that condition at neutral.
        shown_seed: Seeds of a random choice of failing draws.
        shown_z: Their codes.
        shown_pattern: What their random patterns follow from.
        shown_predicted: What the model answered.
        least_z: The failing draw of each seed that lies in the smallest box; 0 where none failed.
        least_pattern: What its random patterns follow from.
        image: The image of each seed, where seeds are claims; claims about one image stand and
            fall together.
    """

    id: tuple[str, ...]
    y: Int[Tensor, " n"]
    clean: Bool[Tensor, " n"]
    failing: Int[Tensor, " n"]
    draws: int
    held: Mapping[str, tuple[Int[Tensor, " n"], Int[Tensor, " n"]]]
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
    def shares(self) -> NDArray[np.float64]:
        """The share of draws that failed, per seed."""
        shares: NDArray[np.float64] = self.failing.double().numpy() / self.draws
        return shares

    @property
    def value(self) -> float:
        """The risk: the mean share over all seeds."""
        return float(self.shares.mean())

    @property
    def these_images(self) -> Bounds:
        """An interval for these very seeds under all conditions: only the draws are random."""
        return binomial_interval(int(self.failing.sum()), len(self) * self.draws)

    @property
    def images_like_these(self) -> Bounds:
        """An interval for the population that the seeds are a sample of."""
        return bounded_mean_interval(self.shares, clusters=self.image)

    @property
    def excess(self) -> NDArray[np.float64]:
        """The share of draws that failed minus the clean error, per seed."""
        excess: NDArray[np.float64] = self.shares - self.clean.double().numpy()
        return excess

    def costs(self) -> list[dict[str, Any]]:
        """Return by how much each condition raises the risk, the dearest first.

        The same draws with that condition at neutral, per seed, with an interval over seeds.
        """
        rows = list[dict[str, Any]]()
        asked = min(self.draws, COST_DRAWS)
        for name, (drawn, neutral) in self.held.items():
            difference = (drawn - neutral).double().numpy() / asked
            low, high = bounded_mean_interval(difference, -1.0, 1.0, clusters=self.image)
            rows.append(
                {"condition": name, "cost": float(difference.mean()), "low": low, "high": high}
            )
        return sorted(rows, key=lambda row: -float(row["cost"]))

    def to_json(self) -> dict[str, Any]:
        """Return what run.json and report.json keep under ``risk`` and ``risk_excess``."""
        excess = self.excess
        return {
            "risk": {
                "value": self.value,
                "failing": int(self.failing.sum()),
                "draws": self.draws,
                "seeds": len(self),
                "these_images": list(self.these_images),
                "images_like_these": list(self.images_like_these),
                "clean_error": float(self.clean.double().mean()),
                "costs": self.costs(),
            },
            "risk_excess": {
                "value": float(excess.mean()),
                "images_like_these": list(
                    bounded_mean_interval(excess, -1.0, 1.0, clusters=self.image)
                ),
            },
        }


def measure_risk(
    subject: Model,
    images: ImageSet,
    box: ConditionBox,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    costs: bool = True,
    rows: int = ROWS,
    tell: Tell | None = None,
) -> RiskTable:
    """Ask a model about every image under random draws of the declared conditions.

    Args:
        subject: The model.
        images: All images, also those that it misreads as they are.
        box: The declared conditions for images of this shape.
        draws: Draws per image; powers of two fill the box best.
        seed: Everything random follows from it and from the names of the images.
        costs: Ask some of the draws again with each condition at neutral.
        rows: Images that are rendered at once on a CPU; changes no result.
        tell: Told how many seeds are done.

    Raises:
        Problem: If there are no images, or the number of draws is not positive.
    """
    if len(images) == 0:
        raise Problem("risk needs images.")
    if draws < 1:
        raise Problem(f"risk of {draws} draws per image.", fix="draws=64")
    whole = joined_tables(
        [
            _measured(subject, shard, box, draws, seed, costs, rows, before)
            for before, shard in told_shards(images, seeds_at_once(subject, draws, rows), tell)
        ]
    )
    shown = whole.shown_pattern.argsort(stable=True)[:SHOWN]
    columns = ("shown_seed", "shown_z", "shown_pattern", "shown_predicted")
    kept: Any = {name: getattr(whole, name)[shown] for name in columns}
    return replace(whole, **kept)


def seeds_at_once(subject: Model, draws: int, rows: int = ROWS) -> int:
    """Return how many seeds are asked about at once: on a device, whose calls have one size, as
    many as leave no call nearly empty.
    """
    return max(rows // draws, 1) if steady(subject.device) else DEVICE_SEEDS


def told_shards(images: ImageSet, size: int, tell: Tell | None) -> Iterator[tuple[int, Images]]:
    """Yield each shard with the number of images before it, and tell when it is done."""
    done = 0
    for shard in images.shards(size):
        yield done, shard
        done += len(shard)
        if tell is not None:
            tell(done, len(images))


def _measured(
    subject: Model,
    shard: Images,
    box: ConditionBox,
    draws: int,
    seed: int,
    costs: bool,
    rows: int,
    offset: int,
) -> RiskTable:
    """The risk of some images; `offset` of them came before."""
    device = subject.device
    seeds = seeds_of(shard, box, device)
    rng = Rng(seed, "conditions", keys_of(shard.id).to(device))
    drawn = box.draw(rng, torch.arange(len(shard), device=device), draws)
    clean = failing_rows(asking(subject, Claims.of(seeds))(to_grid(seeds.x)).logits, seeds.y)[0]
    failed, predicted = _asked(subject, seeds, box, drawn.z, drawn.pattern, rows)
    held = dict[str, tuple[Tensor, Tensor]]()
    if costs and len(box.conditions.ranges) > 1:
        few = min(draws, COST_DRAWS)
        before = failed[:, :few].sum(1).cpu()
        for name in box.conditions.ranges:
            z = box.held(drawn.z[:, :few], name)
            again, _ = _asked(subject, seeds, box, z, drawn.pattern[:, :few], rows)
            held[name] = (before, again.sum(1).cpu())
    # every failing draw has the same chance to be shown: the smallest random patterns are
    place = failed.nonzero()
    of, draw = place[drawn.pattern[failed].argsort(stable=True)[:SHOWN]].unbind(1)
    gauge = box.gauge(drawn.z.flatten(0, 1)).reshape(failed.shape)
    near = torch.where(failed, gauge, torch.inf).argmin(1)
    own = torch.arange(len(shard), device=device)
    none = ~failed.any(1)
    images = map(image_of, shard.id) if claim_context(shard.context) else ()
    return RiskTable(
        id=shard.id,
        y=shard.y,
        clean=clean.cpu(),
        failing=failed.sum(1).cpu(),
        draws=draws,
        held=held,
        shown_seed=of.cpu() + offset,
        shown_z=drawn.z[of, draw].cpu(),
        shown_pattern=drawn.pattern[of, draw].cpu(),
        shown_predicted=predicted[of, draw].cpu(),
        least_z=drawn.z[own, near].masked_fill(none[:, None], 0).cpu(),
        least_pattern=drawn.pattern[own, near].masked_fill(none, 0).cpu(),
        image=tuple(images),
    )


T = TypeVar("T")


def joined_tables(parts: Sequence[T]) -> T:
    """Tables of several shards as one: names and rows of tensors one after the other."""

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

    names = [one.name for one in fields(cast(Any, parts[0]))]
    return type(parts[0])(
        **{name: joined([getattr(part, name) for part in parts]) for name in names}
    )


def _asked(
    subject: Model,
    seeds: Seeds,
    box: ConditionBox,
    z: Float[Tensor, "n k d"],
    pattern: Int[Tensor, "n k"],
    rows: int,
) -> tuple[Bool[Tensor, "n k"], Int[Tensor, "n k"]]:
    """Whether each draw fails, and what the model answers."""
    of = torch.arange(len(seeds), device=z.device).repeat_interleave(z.shape[1])
    logits = asked_under(subject, box, seeds, of, z.flatten(0, 1), pattern.flatten(), rows=rows)
    failed, said = failing_rows(logits, seeds.y[of])
    predicted = stored_label(said, logits.shape[1], claim_context(seeds.context))
    return failed.reshape(pattern.shape), predicted.reshape(pattern.shape)


@torch.no_grad()  # no inference mode: what is made in it cannot be captured
def asked_under(
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

    def answered(x: Tensor, y: Tensor, code: Tensor, pattern: Tensor, *claims: Tensor) -> Tensor:
        number = torch.arange(len(x), device=x.device)
        origin = Seeds(code, x, y, number, {**dict(zip(names, claims)), "pattern": pattern})
        shown = to_grid(box.decode(code, origin))
        return asking(subject, moved_claims(box, code, origin))(shown).logits

    tables = (seeds.x, seeds.y, *(seeds.context[name] for name in names))
    tile = None if steady(z.device) else tile_in_use(z.device.type)
    kind = (names, repr(box.to_record()))
    logits = list[Tensor]()
    for part in chunks(len(z), tile or rows):
        x, y, *claims = (table[of[part]] for table in tables)
        given = (x, y, z[part], pattern[part], *claims)
        if tile and isinstance(subject, nn.Module):
            padded = (pad_rows(one, tile) for one in given)
            found = replayed(subject, answered, *padded, kind=kind)[: len(x)]
        else:
            found = answered(*given)
        logits.append(found)
    return torch.cat(logits)


def with_pattern(origin: Seeds, pattern: Int[Tensor, " m"]) -> Seeds:
    """Return seeds whose random patterns follow from a draw; what is claimed of them stays."""
    context = {**claim_context(origin.context), "pattern": pattern}
    return Seeds(origin.z, origin.x, origin.y, origin.id, context)


def failing_rows(
    logits: Float[Tensor, "m k"], y: Int[Tensor, " m"]
) -> tuple[Bool[Tensor, " m"], Int[Tensor, " m"]]:
    """Return which rows leave their label by the margin that counts everywhere, and the answers.

    Answers that are no numbers fail.
    """
    broken = ~logits.isfinite().all(1)
    leads = margin(logits.softmax(1), y) >= MIN_MARGIN
    return leads | broken, logits.argmax(1)


def seeds_of(shard: Images, box: ConditionBox, device: torch.device) -> Seeds:
    """Return images as seeds in a box: unchanged."""
    x = from_bytes(shard.x).to(device)
    z = torch.zeros(len(x), box.size, device=device)
    claims = {name: one.to(device) for name, one in claim_context(shard.context).items()}
    return Seeds(z, x, shard.y.to(device), torch.arange(len(x), device=device), claims)


@dataclass(frozen=True, slots=True)
class RiskComparison:
    """Two models under the same conditions on common seeds: the first minus the second.

    Args:
        difference: Mean difference of risks; above 0 the first is worse.
        bounds: An interval for images like these.
        seeds: Common seeds.
        margin: By how much the first may be worse.
    """

    difference: float
    bounds: Bounds
    seeds: int
    margin: float

    @property
    def verdict(self) -> Literal["pass", "fail", "cannot tell"]:
        """Within the margin, beyond it, or neither can be said."""
        if self.bounds.high <= self.margin:
            return "pass"
        if self.bounds.low > self.margin:
            return "fail"
        return "cannot tell"


def compare_risk(
    shares: Mapping[str, float],
    reference: Mapping[str, float],
    *,
    margin: float,
    claims: bool = False,
) -> RiskComparison:
    """Compare two models seed by seed.

    Args:
        shares: Share of failing draws by seed of the model under test.
        reference: The same of the other model.
        margin: By how much the model under test may be worse.
        claims: Whether seeds are claims, of which several may be about one image.

    Raises:
        Problem: If they have no seed in common.

    Example:
        >>> from hardcase.conditions.risk import compare_risk
        >>> both = {str(i): 0.1 for i in range(400)}
        >>> compare_risk(both, both, margin=0.02).verdict
        'pass'
    """
    common = [name for name in shares if name in reference]
    if not common:
        raise Problem("the two runs have no seed in common: their risks cannot be compared.")
    differences = np.array([shares[name] - reference[name] for name in common])
    images = [image_of(name) for name in common] if claims else []
    bounds = bounded_mean_interval(differences, -1.0, 1.0, clusters=images)
    return RiskComparison(float(differences.mean()), bounds, len(common), margin)
