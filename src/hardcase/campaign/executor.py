"""The executor of a search's calls: in sequence on a CPU, or in tiles on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from hardcase.campaign.evaluator import Ask, Evaluation, Query
from hardcase.campaign.record import Campaign
from hardcase.tensors import steady
from hardcase.types import Guide, Seeds

__all__ = ["Executor", "SerialExecutor", "executor_of"]

Item = TypeVar("Item")
Found = TypeVar("Found")


@runtime_checkable
class Executor(Protocol):
    """How the shards of a campaign ask its networks; what they find does not depend on it."""

    def ask(self, seeds: Seeds, guides: Sequence[Guide]) -> Callable[..., Evaluation]:
        """Return the evaluator of a shard's seeds."""

    def shards(
        self, searches: Iterable[Callable[[Ask], Found]], guides: Sequence[Guide]
    ) -> Iterator[Found]:
        """Yield what each search returns, in the order in which they end."""

    def packed(self, pack: Callable[[Item], Found], searched: Iterable[Item]) -> Iterator[Found]:
        """Yield what was searched as it is stored."""


class SerialExecutor:
    """Shards in sequence, each call at once."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    def shards(
        self, searches: Iterable[Callable[[Ask], Found]], guides: Sequence[Guide]
    ) -> Iterator[Found]:
        return (search(self.ask) for search in searches)

    def packed(self, pack: Callable[[Item], Found], searched: Iterable[Item]) -> Iterator[Found]:
        return map(pack, searched)


def executor_of(campaign: Campaign) -> Executor:
    """Return what computes a campaign where its model is."""
    if steady(campaign.subject.device):
        return SerialExecutor(partial(Query, campaign))
    from hardcase.campaign.device import DeviceExecutor

    return DeviceExecutor(campaign)
