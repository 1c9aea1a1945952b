"""Training steps of small networks as a CUDA graph: they take longer to launch than to compute.

A step is taken as usual a few times, aside, so that libraries make their plans; then it is captured
once and replayed. Where the capture does not work, steps are taken as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["ReplayedStep"]

WARM = 4
"""Steps before the capture."""
Step = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Takes one optimiser step on a batch; returns its loss, which stays on the device."""

_log = logging.getLogger(__name__)


class ReplayedStep:
    """`step` with every call after the first few replayed as a graph.

    Args:
        step: The same kernels at every call for batches of one shape, without a synchronisation.
        noise: What the step draws from.
    """

    def __init__(self, step: Step, noise: torch.Generator) -> None:
        self.step = step
        self.noise = noise
        self.calls = 0
        self.usual = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == WARM + 1:
            self._capture(x, y)
        if self.usual:
            return self.step(x, y, self.noise)
        if self.graph is None:
            return self._aside(x, y)
        if x.shape != self.x.shape:
            return self.step(x, y, self.noise)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss.clone()

    def _aside(self, x: Tensor, y: Tensor) -> Tensor:
        """A step on another stream, as a capture wants it before."""
        # torch leaves its streams without types
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self.step(x, y, self.noise)
        torch.cuda.current_stream().wait_stream(stream)
        return loss

    def _capture(self, x: Tensor, y: Tensor) -> None:
        """Record the step; nothing is computed, so nothing is trained by it."""
        self.x = x.clone()
        self.y = y.clone()
        state = self.noise.get_state()
        graph = torch.cuda.CUDAGraph()
        try:
            graph.register_generator_state(self.noise)
            with torch.cuda.graph(graph):
                self.loss = self.step(self.x, self.y, self.noise)
            self.graph = graph
        except Exception as error:  # whatever a network does that a capture forbids
            _log.info("a training is not replayed as a graph: %s", error)
            torch.cuda.synchronize()
            self.usual = True
            self.noise = torch.Generator(self.noise.device)  # the other one still waits for the end
            self.noise.set_state(state)
