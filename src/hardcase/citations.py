"""The BibTeX of what a run used, from the stored catalogue. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hardcase.errors import choice
from hardcase.registry import CATALOGUE, rows

ENTRIES: dict[str, str] = json.loads(CATALOGUE.read_text(encoding="utf-8"))["citations"]
"""Entries by key. They are stated beside the parts that they belong to."""
COMPANIONS: dict[str, tuple[str, ...]] = {
    row["cite"][0]: tuple(row["cite"][1:]) for row in rows("methods") if len(row["cite"]) > 1
}
"""Entries that are cited together with another one: a journal version beside its workshop paper."""


def bibtex(keys: Iterable[str]) -> str:
    """The entries of `keys` and of their companions, each once, in the order given."""
    wanted: dict[str, None] = {}
    for key in keys:
        if key not in ENTRIES:
            raise choice("citation", key, list(ENTRIES))
        wanted |= dict.fromkeys((key, *COMPANIONS.get(key, ())))
    return "\n\n".join(ENTRIES[key] for key in wanted)
