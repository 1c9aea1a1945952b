"""Small networks replayed as CUDA graphs: a call that takes longer to launch than to compute.

A call of a small network costs half a millisecond in launches and a tenth of that as a graph. The
kernels are those of the eager call, so the bits are the same. Where capture does not work, or a
gradient is asked for, the call is eager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

SMALL = 2**21
"""Numbers of an input above which launches do not matter."""

_log = logging.getLogger(__name__)


class _Graph:
    """One captured call: a place for its input, and the output that each replay writes anew."""

    def __init__(self, call: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.x = x.clone()
        # torch leaves its streams without types
        aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # libraries make their plans and workspaces before the capture
                call(self.x)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = call(self.x)

    def __call__(self, x: Tensor) -> Tensor:
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()


_graphs: WeakKeyDictionary[nn.Module, dict[Hashable, _Graph | None]] = WeakKeyDictionary()


def replayed(owner: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``call(x)``, as a graph where that works and pays.

    Args:
        owner: The network that `call` computes with; its graphs end with it.
        call: A method of it, or the network itself, that takes and gives one tensor.
        x: The input; every shape has a graph of its own.
    """
    eager = torch.is_grad_enabled() or torch.is_inference_mode_enabled()
    if eager or not x.is_cuda or x.numel() > SMALL:
        return call(x)
    known = _graphs.setdefault(owner, {})
    arithmetic = torch.is_autocast_enabled("cuda"), torch.backends.cuda.matmul.allow_tf32
    key = getattr(call, "__name__", ""), tuple(x.shape), x.dtype, arithmetic
    if key not in known:
        known[key] = _captured(call, x)
    graph = known[key]
    return call(x) if graph is None else graph(x)


def _captured(call: Callable[[Tensor], Tensor], x: Tensor) -> _Graph | None:
    """The call as a graph; None, for good, if it cannot be captured or answers otherwise."""
    try:
        graph = _Graph(call, x)
        same = torch.equal(graph(x), call(x))
    except Exception as error:  # whatever a network does that a capture forbids
        _log.info("a network is not replayed as a graph: %s", error)
        torch.cuda.synchronize()
        return None
    return graph if same else None
