"""Small networks replayed as CUDA graphs: calls that take longer to launch than to compute.

A call of a small network costs half a millisecond in launches and a tenth of that as a graph; its
complete query (decode, round, classify, score, gradient) takes milliseconds. The kernels are those
of the eager call, so the bits are the same. Where capture does not work, calls are eager.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hardcase.tensors import steady

__all__ = [
    *("LARGE", "SMALL", "CapturedCall", "CapturedCalls"),
    *("arithmetic", "captured", "replayed", "replays", "side_by_side"),
]

SMALL = 2**21
"""Numbers of an input above which a single tile fills a device."""
LARGE = 2**24
"""Numbers of an input above which launches do not matter: those of a deep network take longer than
what they launch even for sixty photographs.
"""
MAX_GRAPHS = 32
"""Captured calls per network: shapes may be many."""
GRAPHS_SHARE = 1 / 16
"""Share of a device's memory that the captured calls of a network may hold."""
FIRST = 4
"""Calls of a large input before it is captured: a capture takes the time of five."""
WARM = 3
"""Calls before a capture, in which libraries make their plans and workspaces."""

Call = Callable[..., Sequence[Tensor]]

_log = logging.getLogger(__name__)
_inside = False


class CapturedCall:
    """A call captured once: places for its inputs, and outputs that each replay writes anew.

    Fill `inputs` and call it, then read `out`. On a CPU, where a device is only played, the call
    itself is repeated. `share` is how much of the device's memory the capture holds.
    """

    def __init__(self, call: Call, *inputs: Tensor) -> None:
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.share = 0.0
        if not self.inputs[0].is_cuda:
            self.call = call  # a graph does not hold on to its network
            self.out = tuple(call(*self.inputs))
            return
        # torch leaves its streams without types
        aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                call(*self.inputs)
            torch.cuda.synchronize()
            before = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            # the shard before is packed by another thread, which may use the device meanwhile
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.out = tuple(call(*self.inputs))
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)
        held = torch.cuda.memory_reserved() - before
        self.share = held / torch.cuda.get_device_properties(inputs[0].device).total_memory
        self.graph = graph

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            for place, value in zip(self.out, self.call(*self.inputs)):
                place.copy_(value)

    def answer(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs for these inputs, copied."""
        for place, value in zip(self.inputs, inputs):
            place.copy_(value)
        self()
        return tuple(output.clone() for output in self.out)


class CapturedCalls(dict[Hashable, CapturedCall | None]):
    """Captured calls by what tells them apart, the newest up to a limit; a copy or a
    pickle starts with none.
    """

    def __setitem__(self, key: Hashable, value: CapturedCall | None) -> None:
        super().__setitem__(key, value)
        # A graph holds the memory of all its intermediate tensors for good. A search that asks in
        # many shapes would fill the device, so the oldest goes.
        while len(self) > 1 and (len(self) > MAX_GRAPHS or self._share() > GRAPHS_SHARE):
            del self[next(iter(self))]

    def _share(self) -> float:
        return sum(call.share for call in self.values() if call is not None)

    def __reduce__(self) -> tuple[type[CapturedCalls], tuple[()]]:
        return CapturedCalls, ()


def side_by_side(call: Call, lanes: int) -> Call:
    """A call of tiles side by side; in a capture each on a separate stream, so that all run at
    once."""
    if lanes == 1:
        return call

    def several(*inputs: Tensor) -> list[Tensor]:
        tiles = [tensor.chunk(lanes) for tensor in inputs]
        if not (inputs[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return _joined([call(*tile) for tile in zip(*tiles)])
        main = torch.cuda.current_stream()
        outputs = []
        for tile in zip(*tiles):
            lane: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # A capture follows data across streams only by such events: each lane begins after the
            # main stream, and the main stream waits for all of them before it joins the tiles.
            lane.wait_stream(main)
            with torch.cuda.stream(lane):
                outputs.append((lane, call(*tile)))
        for lane, _ in outputs:
            main.wait_stream(lane)
        return _joined([out for _, out in outputs])

    return several


def _joined(tiles: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.cat(column) for column in zip(*tiles)]


def captured(call: Call, *inputs: Tensor) -> CapturedCall | None:
    """The call as a graph; None if it cannot be captured, or answers otherwise."""
    try:
        with _eagerly():
            replay = CapturedCall(call, *inputs)
            usual = call(*inputs)
        # A network may behave otherwise under capture (a branch on a value, a lazy buffer). Then
        # the graph answers something else, and is not used.
        same = all(
            torch.equal(replayed_answer, usual_answer)
            for replayed_answer, usual_answer in zip(replay.answer(*inputs), usual)
        )
    except Exception as error:  # whatever a network does that a capture forbids
        _log.info("a network is not replayed as a graph: %s", error)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        return None
    return replay if same else None


def replays(device: torch.device) -> bool:
    """Whether calls on this device can be captured: on a GPU, and where tests simulate a GPU."""
    fast = device.type == "cuda" and torch.is_autocast_enabled("cuda")
    return not fast and (device.type == "cuda" or (device.type == "cpu" and not steady(device)))


@contextmanager
def _eagerly() -> Iterator[None]:
    """Calls inside a captured call are part of its graph."""
    global _inside
    before = _inside
    _inside = True
    try:
        yield
    finally:
        _inside = before


def arithmetic() -> tuple[bool, ...]:
    """What a captured call has settled for good."""
    products = torch.backends.cuda.matmul.allow_tf32
    return torch.is_autocast_enabled("cuda"), products, torch.backends.cudnn.allow_tf32


_graphs: WeakKeyDictionary[nn.Module, CapturedCalls] = WeakKeyDictionary()
_counts: WeakKeyDictionary[nn.Module, Counter[Hashable]] = WeakKeyDictionary()
"""How often a network ran in each way."""


def replayed(
    owner: nn.Module,
    call: Callable[..., Tensor],
    *inputs: Tensor,
    kind: Hashable = "",
    lanes: int = 1,
) -> Tensor:
    """``call(*inputs)``, as a graph of `owner` where that works and pays; every `kind` and every
    shape has a separate graph. Inputs with `lanes` are that many tiles, each a call.
    """
    tiles = side_by_side(lambda *inputs_of_tile: (call(*inputs_of_tile),), lanes)
    eager = torch.is_grad_enabled() or torch.is_inference_mode_enabled() or _inside
    if eager or not replays(inputs[0].device) or inputs[0].numel() > LARGE * lanes:
        return tiles(*inputs)[0]
    graphs = _graphs.setdefault(owner, CapturedCalls())
    counts = _counts.setdefault(owner, Counter())
    shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in inputs]
    key = getattr(call, "__name__", ""), kind, lanes, *shapes, arithmetic()
    counts[key] += 1
    # A capture costs several calls. Small calls gain so much that the first is captured; others
    # must come back `FIRST` times before they are worth it.
    if inputs[0].numel() > SMALL and counts[key] <= FIRST:
        return tiles(*inputs)[0]
    if key not in graphs:
        graphs[key] = captured(tiles, *inputs)
    graph = graphs[key]
    return tiles(*inputs)[0] if graph is None else graph.answer(*inputs)[0]
