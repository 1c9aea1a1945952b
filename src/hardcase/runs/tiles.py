"""Answers that depend on the row alone: the largest constant tile of rows at which a network's bits
hold.

On a device another batch size may choose other kernels, and then the same row gets other last bits.
With deterministic kernels and a constant shape for every call a row's answer depends on that row
alone, unless the kernel mixes rows: so a tile is tested before it is used, never chosen by timing
or by free memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

import torch
from torch import Tensor

from hardcase.cache import cache_folder, write_atomically
from hardcase.environment import arithmetic
from hardcase.errors import HardcaseError
from hardcase.graphs import arithmetic as graph_arithmetic
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.tensors import any_rows, digest, steady, tile_rows, use_tile
from hardcase.types import Answer, Model

LADDER = (1024, 256, 64, 16)
"""Rows of a tile, the largest first."""
NUMBERS = 2**24
"""Numbers of an input tile at most, so that photographs get tiles that fit: 64 of 224 x 224 x 3."""

FEW = 2**10
"""Numbers of an input up to which a tile may have 1,024 rows. Networks of larger inputs keep a
device busy with 256, and searches whose images finish at different times leave less of those empty.
"""

_log = logging.getLogger(__name__)

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Logits:
    """The answers of a model."""

    model: Subject

    def __call__(self, x: Tensor) -> Tensor:
        answer: Answer = self.model(x)
        return answer.logits


def candidates(example: Tensor) -> tuple[int, ...]:
    """The tiles that inputs of this size may have: a rule of their shape alone."""
    size = max(example[:1].numel(), 1)
    ladder = LADDER if size <= FEW else LADDER[1:]
    return tuple(rows for rows in ladder if rows * size <= NUMBERS) or LADDER[-1:]


def largest_tile(networks: Sequence[tuple[Network, Tensor]]) -> int | None:
    """The largest tile at which answers and input gradients depend on the row alone."""
    # A tile must suit every network of the run: a search mixes their answers in one formula, so one
    # network whose bits depend on its neighbours would spoil the bits of all.
    shared = [rows for rows in LADDER if all(rows in candidates(x) for _, x in networks)]
    for rows in shared:
        if all(_known_to_hold(network, x, rows) for network, x in networks):
            return rows
    return None


def _known_to_hold(network: Network, example: Tensor, rows: int) -> bool:
    """Whether this tile holds: by an earlier trial on this kind of device, with this network and
    these versions, or by a trial now.
    """
    kind = device_kind(example.device)
    if not kind or not isinstance(network, Logits):
        return holds(network, example, rows)
    settings = (torch.is_autocast_enabled(example.device.type), *graph_arithmetic())
    versions = (torch.__version__, torch.version.cuda, version("hardcase"))
    # Whether a tile holds depends on all of these. The largest that passes is taken, never the
    # fastest: timing differs from one command to the next, and bytes must not.
    about = (kind, network.model.hash, tuple(example.shape[1:]), rows, settings, versions)
    path = cache_folder() / "tiles" / digest([repr(about)])
    try:
        return path.read_text() == "holds"
    except (OSError, ValueError):
        verdict = holds(network, example, rows)
    with suppress(OSError, HardcaseError):  # the next command tries again
        write_atomically(path, b"holds" if verdict else b"fails", flush=False)
    return verdict


def device_kind(device: torch.device) -> str:
    """The kind of a GPU, for which trials of tiles are remembered; empty elsewhere."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def holds(network: Network, example: Tensor, rows: int) -> bool:
    """Whether permuting rows and replacing neighbours changes no bit of answers and gradients."""
    batch = _filled(example, rows)
    # three ways in which a kernel could mix rows: by chance, by place, by neighbours
    order = torch.randperm(rows, generator=stream(0, "tile")).to(batch.device)
    # The first half keeps its images and gets other neighbours: a kernel that reduces over the
    # whole batch (or picks its algorithm by content) shows here and nowhere else.
    half = torch.arange(rows, device=batch.device) < rows // 2
    others = torch.where(half.reshape(-1, *[1] * (batch.ndim - 1)), batch, batch.flip(0))
    plain = _asked(network, batch)
    again = _asked(network, batch)
    permuted = _asked(network, batch[order])
    replaced = _asked(network, others)
    return all(
        torch.equal(first, second)
        and torch.equal(first[order], third)
        and torch.equal(first[half], fourth[half])
        for first, second, third, fourth in zip(plain, again, permuted, replaced)
    )


SMALL = 4
"""Rows of a tile for photographs on a CPU: padding small batches costs more than it saves."""


def small_tile(networks: Sequence[tuple[Network, Tensor]]) -> int | None:
    """The tile of photographs on a CPU; None if their bits do not hold at it."""
    use_tile("cpu", SMALL)
    try:
        if all(holds(network, x[:SMALL], SMALL) for network, x in networks):
            return SMALL
        return None
    finally:
        use_tile("cpu", None)


def settle(networks: Sequence[tuple[Network, Tensor]], device: torch.device) -> int | None:
    """Choose the tile of a device and use it from now on; None where no tile holds."""
    if steady(device):
        return tile_rows(device)
    with any_rows(device):  # the tile of another run would cut the calls that are tested
        largest = largest_tile(networks)
    if largest is None:
        _log.warning("no tile of rows makes the answers of this network repeatable bit by bit")
    use_tile(device.type, largest or LADDER[-2])
    return largest


def campaign_tile(
    models: Sequence[Model],
    decoder: Callable[[Tensor], tuple[Network, Tensor] | None],
    images: Tensor,
    *,
    precision: str,
) -> int | None:
    """The tile of a campaign: on a CPU that of photographs, on a device the largest that holds.

    Args:
        models: Subject, peers and witnesses; those that are no networks of ours have no tile.
        decoder: The decoder of the space with examples of its codes, if the space has a decoder.
    """
    device = images.device
    networks: list[tuple[Network, Tensor]] = [
        (Logits(model), images) for model in models if isinstance(model, Subject)
    ]
    # A CPU pads to whole tiles anyway; only photographs, whose rows are dear, are worth the trial
    # of a smaller tile.
    if steady(device):
        if networks:
            return small_tile(networks)
        return None
    coder = decoder(images)
    with arithmetic(precision, device.type):
        try:
            return settle([*networks, *([coder] if coder else [])], device)
        except torch.OutOfMemoryError as error:
            raise HardcaseError(
                f"one tile of rows does not fit into the memory of {device}.",
                "Tiles are not made smaller by themselves: failures would depend on the"
                " memory that happens to be free.",
                fix="--set campaign.tile=64 (or 16)",
            ) from error


def _filled(example: Tensor, rows: int) -> Tensor:
    """`count` rows: slightly mixed examples, so that no two are equal."""
    place = torch.arange(rows, device=example.device)
    share = (place // len(example)).reshape(-1, *[1] * (example.ndim - 1)).to(example.dtype)
    first = example[place % len(example)]
    second = example[(place * 7 + 1) % len(example)]
    # Weights stay below a half and differ from lap to lap, so repeated examples are never bit-
    # equal: equal rows would hide a kernel that mixes them up.
    weight = (share % 8) / 16
    return first * (1 - weight) + second * weight


def _asked(network: Network, batch: Tensor) -> tuple[Tensor, ...]:
    """The answers of a tile and, if the network is differentiable, the gradient of their sum by the
    input."""
    with torch.enable_grad():
        x = batch.detach().clone().requires_grad_()
        out = network(x)
        if not out.requires_grad:
            return (out.detach(),)
        # Unequal weights: a plain sum of logits has gradient 0 where the last layer is normalised,
        # and a gradient of 0 would pass every test.
        weights = torch.linspace(-1, 1, out[0].numel(), device=out.device).reshape(out[:1].shape)
        (gradient,) = torch.autograd.grad((out * weights).sum(), x)
    return out.detach(), gradient
