"""Named random streams below one seed: nothing in hardcase draws from global randomness.

Searches, spaces and guides draw from an `Rng`: every original has a separate sequence, so that a
seed's numbers depend on no other seed, on no shard and on no device. Training, where a network
sees all images, samples from a `stream`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.tensors import ordinal


def stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of a named purpose, e.g.

    ``stream(7, "training", 3)``; streams do not overlap or interact.
    """
    return torch.Generator(device=device).manual_seed(_number(seed, *names))


@contextmanager
def named_randomness(
    seed: int, *names: str | int, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Let layers that draw from torch's global generator draw from a named stream in here."""
    place = torch.device(device)
    generators = [torch.default_generator]
    devices = []
    if place.type == "cuda":
        devices = [torch.cuda.current_device() if place.index is None else place.index]
        generators.append(torch.cuda.default_generators[devices[0]])
    with torch.random.fork_rng(devices=devices):
        for generator in generators:
            generator.manual_seed(_number(seed, *names))
        yield


def keys_of(ids: Sequence[str]) -> Int[Tensor, " n"]:
    """What an `Rng` knows an image by: 63 bits of the hash of its id.

    >>> both = keys_of(["other", "mnist/test/00000"])
    >>> keys_of(["mnist/test/00000"]).tolist() == both[1:].tolist()
    True
    """
    return _keys(tuple(ids)).clone()


def reserved(ids: Sequence[str]) -> Bool[Tensor, " n"]:
    """Return which images are reserved for proofs of repair: about half, by the hash of their id.

    Reserved images are measured, but never searched, shown or used to choose anything, so that a
    repair can be proved on them. An image is reserved in every run, whatever the seed and whichever
    other images there are. Claims about the same image share its fate: pass the ids of their
    images.

    >>> reserved(["mnist/test/00000", "mnist/test/00001", "mnist/test/00002"]).tolist()
    [True, False, False]
    """
    return keys_of(ids) % 2 == 1


def hashed_order(names: Sequence[str], seed: int) -> Int[Tensor, " n"]:
    """Return positions in a random order in which the presence of a name moves no other; equal
    names stay together.

    >>> hashed_order(["a", "b", "c", "d"], seed=0).tolist()
    [2, 1, 3, 0]
    """
    return keys_of([f"{seed}/{name}" for name in names]).argsort(stable=True)


@lru_cache(maxsize=8)
def _keys(ids: tuple[str, ...]) -> Int[Tensor, " n"]:
    """The same of a shard, which draws for more than one purpose."""
    first = b"".join([hashlib.sha256(name.encode()).digest()[:8] for name in ids])
    return torch.from_numpy((np.frombuffer(first, ">u8") >> 1).astype(np.int64))


def _number(*words: str | int) -> int:
    """63 bits of the hash of an image and what it is for."""
    text = "/".join(map(str, words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _signed(constant: int) -> int:
    """64 bits as torch's signed integers hold them."""
    return constant - 2**64 if constant >= 2**63 else constant


PLACE = _signed(0x9E3779B97F4A7C15)
"""What a place further in a draw adds to the counter: 2^64 over the golden ratio, as in SplitMix.
"""
DRAW = _signed(0xD1342543DE82EF95)
"""What a further draw adds. Two counters of a seed meet only after some 2^31 draws or places."""
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


class Rng:
    """Random numbers for the rows of a batch, each row from its original's sequence.

    A number is a hash of (run seed, stream name, seed key, how often the seed drew before, place in
    the draw), computed by integer tensor operations alone: it is the same on every device and
    with any neighbours, and a longer draw begins as a shorter one. Rows of the same seed in a
    call are consecutive draws. A draw takes the seed of each row (`rows`, positions among
    the keys) and the `shape` of what each row gets. `drawn`, how often each image drew, is all that
    changes; pickle the object, or keep `drawn` beside a search's state, to go on later with the
    same numbers.

    The hash is SplitMix64's (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom
    number generators", OOPSLA 2014); each 64-bit word gives two numbers.

    Args:
        seed: The run's seed.
        name: What the numbers are for; streams of different names have nothing in common.
        keys: A number for every image, from `keys_of`. Numbers are computed on their device.

    >>> rng = Rng(7, "search", keys_of(["a", "b", "c"]))
    >>> both = rng.normal(torch.tensor([0, 2]), (4,))
    >>> alone = Rng(7, "search", keys_of(["c"])).normal(torch.tensor([0]), (4,))
    >>> torch.equal(both[1:], alone)
    True
    """

    def __init__(self, seed: int, name: str, keys: Int[Tensor, " n"]) -> None:
        self.name = name
        self.drawn = torch.zeros_like(keys)
        self._base = _mixed(_mixed(keys.clone()) + _number(seed, name))

    @classmethod
    def numbered(
        cls, seed: int, name: str, count: int, *, device: torch.device | str = "cpu"
    ) -> Rng:
        """For rows without ids: named by their number."""
        return cls(seed, name, torch.arange(count, device=device))

    def __repr__(self) -> str:
        return f"Rng({self.name!r}, {len(self.drawn)} images)"

    def uniform(self, rows: Int[Tensor, " m"], shape: Sequence[int] = ()) -> Float[Tensor, "m *_"]:
        """Even in [0, 1): multiples of 2^-24."""
        words = self._words(rows, shape)
        return ((words >> 8) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)

    def normal(self, rows: Int[Tensor, " m"], shape: Sequence[int] = ()) -> Float[Tensor, "m *_"]:
        """Standard normal numbers: multiples of 2^-20, none beyond 6.05.

        A logarithm or a sine differs in its last bits from device to device. So each number is the
        exact sum of two entries of a table of 65,536 normal quantiles, whose sum has unit
        variance; its distribution function is off by less than 1e-5.
        """
        words = self._words(rows, shape)
        table = _quantiles(self.drawn.device)
        low = table.index_select(0, (words & 0xFFFF).reshape(-1))
        two = table.index_select(0, ((words >> 16) & 0xFFFF).reshape(-1))
        return low.add_(two).reshape(words.shape)

    def integers(
        self, rows: Int[Tensor, " m"], high: int | Int[Tensor, "..."], shape: Sequence[int] = ()
    ) -> Int[Tensor, "m *_"]:
        """Integers from 0 to `high` - 1, uniform to 1 part in 2^32 / `high`; a bound below 2^31
        for all, or a tensor of bounds that broadcasts against the result.
        """
        if isinstance(high, int) and not 0 < high < 2**31:
            raise HardcaseError(
                f"integers are drawn below {high}.", fix="a bound from 1 to 2147483647"
            )
        words = self._words(rows, shape).to(torch.int64).bitwise_and_(0xFFFFFFFF)
        # Multiply and shift instead of a remainder (D. Lemire, "Fast random integer generation in
        # an interval", 2019), without his rejection step: its bias is at most high / 2^32.
        return words.mul_(high) >> 32

    def permutation(self, rows: Int[Tensor, " m"], count: int) -> Int[Tensor, "m c"]:
        """For each row the numbers from 0 to `count` - 1 in a random order."""
        return self._words(rows, (count,)).argsort(dim=1, stable=True)

    def _words(self, rows: Int[Tensor, " m"], shape: Sequence[int]) -> Int32[Tensor, "m *_"]:
        """32 random bits for every number of the next draw of each row."""
        count = torch.Size(shape).numel()
        number = self.drawn[rows]
        if not bool((rows[1:] > rows[:-1]).all()):  # several rows may belong to one seed
            # The k-th row of a seed in this call is its k-th further draw, so a call with many rows
            # gives the numbers of many calls with one row.
            number = number + ordinal(rows)
        self.drawn.index_add_(0, rows, torch.ones_like(rows))
        start = torch.add(self._base[rows], number, alpha=DRAW)
        place = torch.arange((count + 1) // 2, device=rows.device)
        words = _mixed(torch.add(start[:, None], place, alpha=PLACE))
        halves = words.flatten().view(torch.int32).reshape(len(rows), 2 * len(place))
        return halves[:, :count].reshape(len(rows), *shape)


def _mixed(x: Int[Tensor, " *shape"]) -> Int[Tensor, " *shape"]:
    """Each word scrambled, in place.

    Torch shifts the sign in from the left; the mask takes it away again.
    """
    # The finaliser of SplitMix64, constants included (Stafford's variant 13 of MurmurHash3's):
    # every input bit flips each output bit with a chance of about one half.
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(_FIRST)
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(_SECOND)
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


@lru_cache(maxsize=16)
def _quantiles(device: torch.device) -> Float[Tensor, " q"]:
    """65,536 normal quantiles, of which the sum of two drawn evenly is standard normal; on a grid,
    so that sums are exact.
    """
    # Midpoints of equal shares of the lower half; the upper half mirrors it, so the mean is exactly
    # 0. Division by the root of twice the mean square gives the sum of two entries unit variance.
    place = (torch.arange(32768, dtype=torch.float64) + 0.5) / 65536
    lower = torch.special.ndtri(place)
    lower = lower / (2 * lower.square().mean()).sqrt()
    grid = (lower * 2**20).round() / 2**20
    return torch.cat([grid, -grid.flip(0)]).to(device, torch.float32)


def balanced_order(
    labels: Int[Tensor, " n"], ids: Sequence[str], *, seed: int
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """All rows in a random order in which the classes take turns, and the turn (from 0) of each row
    in it.

    The order follows from ids, labels and seed alone, however the rows are stored; a shorter draw
    begins a longer one.
    """
    by_name = torch.tensor(sorted(range(len(ids)), key=ids.__getitem__), dtype=torch.int64)
    drawn = by_name[torch.randperm(len(ids), generator=stream(seed, "sample"))]
    grouped = labels[drawn].argsort(stable=True)
    sorted_labels = labels[drawn][grouped].contiguous()
    turn = torch.empty_like(grouped)
    turn[grouped] = torch.arange(len(ids)) - torch.searchsorted(sorted_labels, sorted_labels)
    order = turn.argsort(stable=True)
    return drawn[order], turn[order]
