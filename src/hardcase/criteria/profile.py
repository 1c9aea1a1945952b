"""Activations of a network: those of a batch for the criteria, and those of training data as ranges
of units and traces to measure surprise by.

Shared work of criteria is done once. Ranges and traces come from a single streaming pass;
a profile holds the hash of its model and data, and is refused for others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from hardcase.criteria.network import Selection, join_taps
from hardcase.criteria.surprise import Traces
from hardcase.errors import HardcaseError
from hardcase.tensors import chunks, constant, from_bytes, sent, steady
from hardcase.types import Images, Model, Probe

FORMAT = "hardcase profile 1"
Made = TypeVar("Made")
MANY = 2**25
"""Numbers of a batch above which a device receives them layer by layer."""
WIDE = 1024
"""Units of a layer from which on only the blocks that hold the greatest are looked through."""
BLOCK = 32


def strongest(values: Float[Tensor, "m w"], k: int, *, clean: bool) -> Int[Tensor, "m k"]:
    """Where the `k` greatest values of each row are, ties to the lower place; -1 where none is.

    `clean` says that every value is a number.
    """
    values = values.detach()
    if not clean:
        values = values.masked_fill(values.isnan(), -torch.inf)
    if values.shape[1] <= WIDE or not steady(values.device):
        return _greatest(values.clone(), k)
    width = values.shape[1] - values.shape[1] % BLOCK
    if values.stride(0) == 1:  # units lie together: reduce along them
        most = torch.unflatten(values[:, :width].t(), 0, (-1, BLOCK)).amax(1).t().contiguous()
    else:
        most = torch.unflatten(values[:, :width], 1, (-1, BLOCK)).amax(2)
    if width < values.shape[1]:
        most = torch.cat([most, values[:, width:].amax(1, keepdim=True)], 1)
    blocks = _greatest(most, min(k, most.shape[1])).sort(1).values  # in order, for ties
    places = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    picked = values.gather(1, places.clamp(0, values.shape[1] - 1))
    picked.masked_fill_((places < 0) | (places >= values.shape[1]), -torch.inf)
    index = _greatest(picked, k)
    return torch.where(index < 0, index, places.gather(1, index.clamp_min(0)))


def _greatest(values: Float[Tensor, "m w"], k: int) -> Int[Tensor, "m k"]:
    """The same by repeated subtraction from `values`, in place."""
    places = []
    for _ in range(min(k, values.shape[1])):
        best, place = values.max(1, keepdim=True)  # of equal ones the first
        values.scatter_(1, place, -torch.inf)
        places.append(torch.where(best > -torch.inf, place, -1))
    return pad(torch.cat(places, 1), (0, k - len(places)), value=-1)


def units_at_once(values: Float[Tensor, "m u"]) -> int:
    """Columns of a matrix that are worked on at a time, so that they stay in a core's cache."""
    size = 2**24
    if steady(values.device):
        size = 2**18
    return max(1, size // max(1, len(values)))


@dataclass(frozen=True, slots=True)
class Extremes:
    """The least and the greatest number of each unit; +inf and -inf where it shows none.

    `clean`: without infinities and not-a-number.
    """

    low: Float[Tensor, " u"]
    high: Float[Tensor, " u"]
    clean: bool


class Memo:
    """Cache by key: shared work of criteria is done once."""

    def __init__(self) -> None:
        self._made = dict[Hashable, Any]()

    def __call__(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the cached result of `make` for `key`."""
        if key not in self._made:
            self._made[key] = make()
        value: Made = self._made[key]
        return value


class ActivationBatch:
    """Activations and answers of `m` rows, with their labels and images where available."""

    def __init__(
        self,
        activations: Mapping[str, Tensor],
        logits: Float[Tensor, "m k"],
        *,
        labels: Int[Tensor, " m"] | None = None,
        ids: Int[Tensor, " m"] | None = None,
        are_seeds: Bool[Tensor, " m"] | None = None,
    ) -> None:
        self.activations = activations
        self.logits = logits
        self.labels = labels
        self.ids = ids
        self.are_seeds = are_seeds
        self.once = Memo()

    @staticmethod
    def of(probe: Probe) -> ActivationBatch:
        batch = ActivationBatch(
            probe.activations, probe.logits, labels=probe.origin.y, ids=probe.origin.id
        )
        if probe.x.shape == probe.origin.x.shape:
            batch.are_seeds = (probe.x.detach() == probe.origin.x).flatten(1).all(1)
        return batch

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def predicted(self) -> Int[Tensor, " m"]:
        return self.logits.argmax(1)

    def layers(self, selection: Selection) -> list[Float[Tensor, "m w"]]:
        return self.once(("layers", selection), lambda: selection.read(self.activations))

    def matrix(self, selection: Selection) -> Float[Tensor, "m u"]:
        return self.once(("matrix", selection), lambda: torch.cat(self.layers(selection), 1))

    def blocks(self, selection: Selection) -> list[Float[Tensor, "m w"]]:
        """The units in as few pieces as pay: on a CPU layer by layer, as they lie in its cache; on
        another device, where every call has its price, all at once unless they are too many.
        """
        if steady(self.device) or selection.units * len(self) > MANY:
            return self.layers(selection)
        return [self.matrix(selection)]

    def extremes(self, selection: Selection) -> Extremes:
        return self.once(("extremes", selection), lambda: _extremes(self.blocks(selection)))

    def top(self, selection: Selection, k: int) -> Int[Tensor, "m l k"]:
        """Each layer's `k` greatest units, ties to the lower number; -1 where none is left."""

        def top() -> Tensor:
            clean = self.extremes(selection).clean
            layers = self.layers(selection)
            places_by_layer = dict[int, Tensor]()
            for alike in self._alike(selection):
                values = layers[alike[0]]
                if len(alike) > 1:
                    values = torch.stack([layers[i] for i in alike], 1).flatten(0, 1)
                places = torch.unflatten(strongest(values, k, clean=clean), 0, (-1, len(alike)))
                places_by_layer |= zip(alike, places.unbind(1))
            top = torch.stack([places_by_layer[i] for i in range(len(layers))], 1)
            starts = constant(selection.starts, top.dtype, top.device)[:, None]
            return torch.where(top < 0, top, top + starts)

        return self.once(("top", selection, k), top)

    def _alike(self, selection: Selection) -> Iterable[list[int]]:
        """The numbers of layers that share a call: those of equal width, where blocks are
        joined."""
        if len(self.blocks(selection)) == len(selection.widths):
            return ([i] for i in range(len(selection.widths)))
        groups = dict[int, list[int]]()
        for i, width in enumerate(selection.widths):
            groups.setdefault(width, []).append(i)
        return groups.values()

    def scaled(self, selection: Selection, epsilon: float) -> Float[Tensor, "m u"]:
        """Return the units scaled to [0, 1] by their layer's extremes in the row; constant: 0."""

        def scaled() -> Tensor:
            ranges = selection.ranges(self.activations)
            parts = []
            for values, (low, high) in zip(self.layers(selection), ranges, strict=True):
                width = high - low + epsilon
                parts.append((values - low) / torch.where(width > 0, width, 1))
            return torch.cat(parts, 1)

        return self.once(("scaled", selection, epsilon), scaled)


def _extremes(layers: list[Tensor]) -> Extremes:
    # only on a CPU, where asking costs less than looking at every value again
    if steady(layers[0].device):
        low, high = _bounds(layers, layers)
        if not bool(high.isnan().any()):
            return Extremes(low, high, clean=True)
    missing = [values.isnan() for values in layers]
    floors = [values.masked_fill(nan, torch.inf) for values, nan in zip(layers, missing)]
    tops = [values.masked_fill(nan, -torch.inf) for values, nan in zip(layers, missing)]
    return Extremes(*_bounds(floors, tops), clean=False)


def _bounds(floors: list[Tensor], tops: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The least of the first and the greatest of the second, unit by unit."""
    low = list[Tensor]()
    high = list[Tensor]()
    for floor, top in zip(floors, tops, strict=True):
        # some units at a time, so that the second pass over them finds them in the cache
        for units in chunks(floor.shape[1], units_at_once(floor)):
            low.append(floor.detach()[:, units].amin(0))
            high.append(top.detach()[:, units].amax(0))
    return torch.cat(low), torch.cat(high)


@dataclass(frozen=True, slots=True)
class Range:
    """Least, greatest, mean and variance of each unit over training data, without not-a-number."""

    low: Float[Tensor, " u"]
    high: Float[Tensor, " u"]
    mean: Float[Tensor, " u"]
    variance: Float[Tensor, " u"]

    @staticmethod
    def join(parts: Iterable[Range]) -> Range:
        columns = list(zip(*((p.low, p.high, p.mean, p.variance) for p in parts), strict=True))
        return Range(*(torch.cat(column) for column in columns))


class Running:
    """Extremes and moments of each unit, joined by batch (Chan, Golub, LeVeque, 1979)."""

    def __init__(self, units: int, device: torch.device) -> None:
        self.low = torch.full((units,), torch.inf, device=device)
        self.high = torch.full((units,), -torch.inf, device=device)
        self.count, self.mean, self.spread = (
            torch.zeros(units, dtype=torch.float64, device=device) for _ in range(3)
        )

    def add(self, shown: ActivationBatch, selection: Selection) -> None:
        extremes = shown.extremes(selection)
        self.low = torch.minimum(self.low, extremes.low)
        self.high = torch.maximum(self.high, extremes.high)
        for start, layer in zip(selection.starts, shown.layers(selection), strict=True):
            for part in chunks(layer.shape[1], units_at_once(layer)):
                units = slice(start + part.start, start + part.stop)
                self._moments(units, layer[:, part].double())

    def _moments(self, part: slice, values: Float[Tensor, "m u"]) -> None:
        numbers = values.isfinite()
        count = numbers.sum(0).double()
        mean = values.where(numbers, 0).sum(0) / count.clamp_min(1)
        spread = (values - mean).where(numbers, 0).square().sum(0)
        total = self.count[part] + count
        shift = mean - self.mean[part]
        share = count / total.clamp_min(1)
        self.spread[part] += spread + shift.square() * self.count[part] * share
        self.mean[part] += shift * share
        self.count[part] = total

    def range(self) -> Range:
        """A unit that never showed a number has the range 0 to 0: constant."""
        dead = self.low > self.high
        low = self.low.masked_fill(dead, 0)
        high = self.high.masked_fill(dead, 0)
        variance = self.spread / self.count.clamp_min(1)
        return Range(low.cpu(), high.cpu(), self.mean.float().cpu(), variance.float().cpu())


@dataclass(frozen=True, slots=True)
class Needs:
    """What a profile must hold: ranges, traces, and of some traces the distances."""

    ranges: tuple[Selection, ...] = ()
    traces: tuple[Selection, ...] = ()
    distances: tuple[Selection, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """Ranges by layer and mode, traces by selection, and hashes of their model and data.

    Args:
        model: Hash of the network.
        data: Hash of the images.
        name: Name of the images.
        count: How many images.
        ranges: Ranges by layer and mode.
        traces: Activation traces by selection.
        prefix: What the names of layers begin with where they are looked for.
        once: What criteria have fitted to it.
    """

    model: str
    data: str
    name: str
    count: int
    ranges: Mapping[str, Range] = field(default_factory=dict)
    traces: Mapping[str, Traces] = field(default_factory=dict)
    prefix: str = ""
    once: Memo = field(default_factory=Memo, compare=False, repr=False)

    def range(self, selection: Selection) -> Range:
        """The ranges of all units of a selection."""
        return Range.join(
            self._find(self.ranges, _key(name, selection), "ranges") for name in selection.names
        )

    def trace(self, selection: Selection) -> Traces:
        return self._find(self.traces, _trace_key(selection), "traces")

    def _find(self, table: Mapping[str, Made], key: str, what: str) -> Made:
        key = key.replace(self.prefix, "")
        if key not in table:
            raise HardcaseError(
                f"the profile has no {what} of {key!r}.",
                f"it has: {', '.join(table) or 'none'}",
                fix="a new profile",
            )
        return table[key]

    def check(self, model: str) -> Profile:
        """This profile, if it belongs to the model of that hash."""
        if self.model != model:
            raise HardcaseError(
                f"the profile was made with another model ({self.model}, not {model}).",
                "Its ranges and traces say nothing about this one.",
                fix="a profile of this model",
            )
        return self

    def save(self, path: Path) -> Path:
        from safetensors.torch import save_file

        tensors = {
            f"range/{k}/{n}": getattr(r, n).contiguous()
            for k, r in self.ranges.items()
            for n in Range.__slots__
        }
        for key, traces in self.traces.items():
            tensors |= {
                f"trace/{key}/{name}": value.contiguous()
                for name, value in traces.tensors().items()
            }
        card = {
            "format": FORMAT,
            "model": self.model,
            "data": self.data,
            "name": self.name,
            "count": self.count,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        save_file(tensors, temporary, metadata={"card": json.dumps(card)})
        return temporary.replace(path)

    @staticmethod
    def load(path: Path, *, model: str) -> Profile:
        """The profile in a file; refused if it belongs to another model."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                card = json.loads((file.metadata() or {}).get("card", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            raise HardcaseError(
                f"{path} is not a profile: {error}", fix="a file that hardcase coverage wrote"
            ) from error
        version = isinstance(card, dict) and card.get("format")
        if version != FORMAT:
            raise HardcaseError(
                f"{path} is not a profile of this version: {version or 'unknown format'}.",
                fix="a new profile",
            )
        try:
            return _unpacked(card, tensors).check(model)
        except (KeyError, TypeError, ValueError) as error:
            raise HardcaseError(f"{path} is damaged: {error}", fix="a new profile") from error


def _unpacked(card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Profile:
    """The profile whose parts `tensors` names as ``KIND/KEY/COLUMN``."""
    groups = dict[str, dict[str, dict[str, Tensor]]]()
    for name, value in tensors.items():
        kind, rest = name.split("/", 1)
        key, column = rest.rsplit("/", 1)
        groups.setdefault(kind, {}).setdefault(key, {})[column] = value
    ranges = {key: Range(**columns) for key, columns in groups.get("range", {}).items()}
    traces = {key: Traces(**columns) for key, columns in groups.get("trace", {}).items()}
    return Profile(card["model"], card["data"], card["name"], card["count"], ranges, traces)


def fit_profile(
    subject: Model,
    images: Images,
    needs: Needs,
    *,
    batch: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """A pass over training data: the ranges and traces that are needed.

    Args:
        subject: The network under test.
        images: Training images.
        needs: What the criteria need, see `requirements`.
        batch: Images per call of the network; changes no result.
        progress: Called with how many images are done.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> graph = hc.criteria.trace_layers(subject, from_bytes(toy_images(1).x))
        >>> needs = hc.criteria.requirements(["kmnc"], graph)
        >>> profile = hc.criteria.fit_profile(subject, toy_images(20), needs)
        >>> hc.criteria.build_criteria("kmnc:k=10", graph, profile).value()
        0.0
    """
    if not len(images):
        raise HardcaseError(
            "there are no images to make a profile from.", fix="the train split of the data"
        )
    taps = join_taps(s.taps for s in (*needs.ranges, *needs.traces))
    kept = {s: list[Tensor]() for s in needs.traces}
    predicted = list[Tensor]()
    device = getattr(subject, "device", torch.device("cpu"))
    running = {s: Running(s.units, device) for s in needs.ranges}
    parts = list(chunks(len(images), batch))
    for part, x in zip(parts, sent(images.x, parts, device), strict=True):
        with torch.no_grad():
            answer = subject(from_bytes(x), taps)
            shown = ActivationBatch(answer.activations, answer.logits)
            for selection, state in running.items():
                state.add(shown, selection)
            for selection, values in kept.items():
                values.append(shown.matrix(selection).cpu())
            predicted.append(shown.predicted)
            del answer, shown  # before the next batch is computed
        if progress:
            progress(part.stop, len(images))
    by_layer = {
        key: value
        for s, state in running.items()
        for key, value in _by_layer(s, state.range()).items()
    }
    classes = torch.cat(predicted).cpu().clone()
    traces = {s: Traces(torch.cat(values).clone(), classes, images.y) for s, values in kept.items()}
    chunk = {
        _trace_key(s): t.measured(device=device) if s in needs.distances else t
        for s, t in traces.items()
    }
    return Profile(
        subject.hash, images.hash, f"{images.name}/{images.split}", len(images), by_layer, chunk
    )


def _key(name: str, selection: Selection) -> str:
    return f"{name}|{selection.mode}"


def _trace_key(selection: Selection) -> str:
    return f"{'+'.join(selection.names)}|{selection.mode}"


def _by_layer(selection: Selection, joined: Range) -> dict[str, Range]:
    columns = [
        torch.split(getattr(joined, name), list(selection.widths)) for name in Range.__slots__
    ]
    layers = zip(selection.names, *columns, strict=True)
    return {
        _key(name, selection): Range(*(column.clone() for column in parts))
        for name, *parts in layers
    }
