"""``--set a=1 b=2`` means ``--set a=1 --set b=2``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperGroup

_PAIR = re.compile(r"[A-Za-z_][\w.]*=")


class Spreading(TyperGroup):
    """The top command: it spreads settings before any verb sees them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(words: Iterable[str]) -> list[str]:
    """`words` with the flag repeated before every further pair that follows ``--set``."""
    result: list[str] = []
    setting = False
    for word in words:
        if setting and result[-1] != "--set" and _PAIR.match(word):
            result.append("--set")
        setting = word == "--set" or (setting and (result[-1] == "--set" or bool(_PAIR.match(word))))
        result.append(word)
    return result
