"""The commands that the first pages show, as they stand there: one that is added to a page joins."""

import re
from dataclasses import dataclass
from pathlib import Path
from shlex import split

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/start.md")


@dataclass(frozen=True)
class Typed:
    """A command of a page, as words after ``hardcase``; or a block of Python."""

    words: tuple[str, ...] = ()
    python: str = ""

    @property
    def name(self):
        """What a cell of the matrix is called."""
        if self.python:
            return "python"
        return " ".join(self.words[:2] if self.words[0] == "list" else self.words[:1])


def typed(root=ROOT, pages=PAGES):
    """Every command in a shell block or in backticks, and every Python block, in their order."""
    found = {}
    for page in pages:
        text = (root / page).read_text(encoding="utf-8")
        for kind, body in re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S):
            if kind == "sh":
                lines = re.findall(r"^hardcase (.*?)(?:\s+#.*)?$", body, re.M)
                found |= dict.fromkeys(Typed(tuple(split(line))) for line in lines)
            elif kind == "python":
                found[Typed(python=body)] = None
        shown = re.findall(r"`hardcase ([^`]*)`", re.sub(r"```.*?```", "", text, flags=re.S))
        lines = map(split, shown)
        found |= dict.fromkeys(Typed(tuple(words)) for words in lines if _is_whole(words))
    return list(found)


def _is_whole(words):
    """Whether words in a sentence are a command to type, rather than the name of a verb."""
    return len(words) > 1 and not any(word.isupper() or "…" in word for word in words)
