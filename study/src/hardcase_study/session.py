"""What a rater sees next: the rules of a running study, without any web in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardcase.errors import HardcaseError
from hardcase_study import choosing
from hardcase_study.answers import Answers, Given, Rater, rater_id
from hardcase_study.asking import SessionStatus
from hardcase_study.bundle import Study, opaque
from hardcase_study.forms import UNSURE, Answer, Item, checked
from hardcase_study.posterior import certainty

STOP = 0.92
"""With this certainty of its class an item outside the fixed subset gets no more answers.

In simulated crowds a label is then named wrongly on 7.0 % of all images, ambiguous ones included
(of these 59 %), after 2.6 answers each; by the majority of five answers on 10.7 % (90 %).
"""
MOST_SECONDS = 24 * 3600.0


class Session:
    """A study and its answers, as the server uses them."""

    def __init__(self, study: Study, store: Answers, *, pilot: bool = False) -> None:
        self.study = study
        self.store = store
        self.kind = "pilot" if pilot else "person"
        self._decided: set[str] = set()
        self._status: tuple[Any, SessionStatus] | None = None

    @property
    def asks(self) -> bool:
        """Whether the next question follows from the answers so far."""
        return "ask" in self.study.settings

    def decision(self) -> SessionStatus | None:
        """How far the decision is, in a study that chooses by its answers."""
        if not self.asks:
            return None
        key = (self.store.drawn(), self.store.all())
        if self._status is None or self._status[0] != key:
            self._status = (key, choosing.asking_of(self.study, *key).status())
        return self._status[1]

    def enter(self, token: str, language: str) -> Rater | None:
        """A new rater, or None where the study has everybody it needs."""
        known = self.store.raters()
        finished = sum(one.finished is not None and one.kind == self.kind for one in known)
        if finished >= self.study.raters:
            return None
        return self.store.enter(rater_id(token), kind=self.kind, language=language)

    def plan(self, rater: Rater) -> Sequence[str]:
        """The list of this rater; when all are taken and people gave up, the first ones again."""
        return self.study.assignments[rater.slot % len(self.study.assignments)]

    def frontier(self, rater: Rater) -> int:
        """The position of the first item that this rater has not answered."""
        return len(self.store.of(rater.id)) + 1

    def shown(self, rater: Rater, position: int) -> Item | None:
        """What this rater was shown at `position`; None where nothing was yet."""
        names = self.store.shown(rater.id)
        return self.study.items[names[position - 1]] if 1 <= position <= len(names) else None

    def item(self, rater: Rater, position: int) -> Item | None:
        """What stands at `position` (from 1) of this rater's list; None after the last one.

        An item is entered as shown before it is returned, so it stands there for good, and no item
        is ever entered twice for one rater.
        """
        shown = self.store.shown(rater.id)
        if position <= len(shown):
            return self.study.items[shown[position - 1]]
        chosen = self._next(rater, shown)
        if chosen is None:
            self.store.finish(rater.id)
            return None
        return self.study.items[self.store.show(rater.id, position, chosen)]

    def save(self, rater: Rater, item: str, value: Mapping[str, Any], **sent: Any) -> str:
        """Check and store an answer to an item this rater was shown; see `Answers.save`."""
        shown = self.store.shown(rater.id)
        if item not in shown:
            raise HardcaseError(f"item {item!r} was not shown to this rater.")
        answer: Answer = checked(self.study.items[item], value, self.study.thing)
        given = Given(
            rater.id,
            item,
            shown.index(item) + 1,
            answer,
            _bounded(sent.get("seconds")),
            _bounded(sent.get("hidden")),
            int(_bounded(sent.get("lost"))),
        )
        key = opaque("key", str(sent["key"]).encode("utf-8", "replace").hex())
        # what later questions followed from is not changed any more
        return self.store.save(given, key, revise=bool(sent.get("revise")) and not self.asks)

    def _next(self, rater: Rater, shown: Sequence[str]) -> str | None:
        """The next item of the list that is still needed, else one that needs answers most."""
        if self.asks:
            return choosing.next_item(self.study, self.store, rater, shown)
        plan = self.plan(rater)
        if len(shown) >= len(plan):
            return None
        seen = set(shown)
        left = [name for name in plan if name not in seen]
        left = [name for name in left if self._possible(self.study.items[name], seen)]
        if not self.study.settings["stop"]:
            return left[0] if left else None
        for name in left:
            if self.study.items[name].fixed or not self._over({name}):
                return name
        loose = {n for n, item in self.study.main.items() if not item.fixed and n not in seen}
        still = loose - self._over(loose)
        votes = self.store.votes(still) if still else {}
        return min(sorted(still), key=lambda n: len(votes.get(n, ())), default=None)

    @staticmethod
    def _possible(item: Item, seen: set[str]) -> bool:
        return item.use != "repeat" or item.repeats in seen

    def _over(self, names: set[str]) -> set[str]:
        """Those of `names` that need no more answers; what was over once stays so."""
        asked = names - self._decided
        votes = self.store.votes(asked) if asked else {}
        fresh = {n for n in asked if decided(votes.get(n, ()), self.study.items[n])}
        self._decided |= fresh
        return names & self._decided


def decided(votes: Sequence[Mapping[str, Any]], item: Item, sure: float = STOP) -> bool:
    """Whether the answers to a label item leave no doubt about its class.

    "Cannot tell" favours no class, so it never ends an item.
    """
    names = [*item.labels, "none"]
    counts = np.zeros(len(names), dtype=np.int64)
    for vote in votes:
        if vote.get("label", UNSURE) in names:
            counts[names.index(vote["label"])] += 1
    return bool(counts.sum() >= 2) and certainty(counts) >= sure


def first_sure(
    votes: Sequence[int], categories: int, sure: float = STOP, *, least: int = 2
) -> tuple[int, int]:
    """What an item is called by answers that come one after the other, and after how many."""
    counts = np.zeros(categories, dtype=np.int64)
    for number, vote in enumerate(votes, 1):
        counts[vote] += 1
        if number >= least and certainty(counts) >= sure:
            return int(counts.argmax()), number
    return int(counts.argmax()), len(votes)


def _bounded(value: Any) -> float:
    """A number a browser sent, as a sane one."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(number, 0.0), MOST_SECONDS) if number == number else 0.0
