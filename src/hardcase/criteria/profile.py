"""What training data did to a network: ranges of units, and traces to measure surprise by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.batch import ActivationBatch, Memo, units_at_once
from hardcase.criteria.network import Selection, join_taps
from hardcase.criteria.surprise import Traces
from hardcase.errors import Problem
from hardcase.tensors import chunks, from_bytes, sent
from hardcase.types import Images, Model

# The range of every unit over training data, gathered batch by batch.


@dataclass(frozen=True, slots=True)
class Range:
    """Least, greatest, mean and variance of each unit over training data, not-a-number apart."""

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


# Both come from one streaming pass; a profile knows its model and data, and is refused for others.

FORMAT = "hardcase profile 1"
Found = TypeVar("Found")


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

    def _find(self, table: Mapping[str, Found], key: str, what: str) -> Found:
        key = key.replace(self.prefix, "")
        if key not in table:
            raise Problem(
                f"the profile has no {what} of {key!r}.",
                f"it has: {', '.join(table) or 'none'}",
                fix="a new profile",
            )
        return table[key]

    def check(self, model: str) -> Profile:
        """This profile, if it was made with the model of that hash."""
        if self.model != model:
            raise Problem(
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
        """The profile in a file; refused if it was made with another model."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                card = json.loads((file.metadata() or {}).get("card", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            raise Problem(
                f"{path} is not a profile: {error}", fix="a file that hardcase coverage wrote"
            ) from error
        version = isinstance(card, dict) and card.get("format")
        if version != FORMAT:
            raise Problem(
                f"{path} is not a profile of this version: {version or 'unknown format'}.",
                fix="a new profile",
            )
        try:
            return _unpacked(card, tensors).check(model)
        except (KeyError, TypeError, ValueError) as error:
            raise Problem(f"{path} is damaged: {error}", fix="a new profile") from error


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
    """One pass over training data: the ranges and traces that are needed.

    Args:
        subject: The network under test.
        images: Training images.
        needs: What the criteria need, see `requirements`.
        batch: Images that the network is given in one call; changes no result.
        progress: Told how many images are done.

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
        raise Problem(
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
    seen = {
        _trace_key(s): t.measured(device=device) if s in needs.distances else t
        for s, t in traces.items()
    }
    return Profile(
        subject.hash, images.hash, f"{images.name}/{images.split}", len(images), by_layer, seen
    )


def _key(name: str, selection: Selection) -> str:
    return f"{name}|{selection.mode}"


def _trace_key(selection: Selection) -> str:
    return f"{'+'.join(selection.names)}|{selection.mode}"


def _by_layer(selection: Selection, whole: Range) -> dict[str, Range]:
    columns = [
        torch.split(getattr(whole, name), list(selection.widths)) for name in Range.__slots__
    ]
    layers = zip(selection.names, *columns, strict=True)
    return {
        _key(name, selection): Range(*(column.clone() for column in parts))
        for name, *parts in layers
    }
