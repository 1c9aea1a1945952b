"""Calls of networks that a device takes longer to launch than to compute."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor, nn

from hardcase.tensors import steady

__all__ = ["launched"]


def launched(
    owner: nn.Module, call: Callable[..., Tensor], *inputs: Tensor, kind: Hashable = ""
) -> Tensor:
    """``call(*inputs)``; on a device that takes longer to launch it than to compute it, replayed.

    Args:
        owner: The network that is called: what was captured of it goes when it goes.
        call: What is computed.
        inputs: Its arguments; every shape is captured by itself.
        kind: Tells calls of one name and shape apart.
    """
    if steady(inputs[0].device):
        return call(*inputs)
    from hardcase.graphs import replayed

    return replayed(owner, call, *inputs, kind=kind)
