"""The blocks of code of every page, and the lines of their commands."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "studies/README.md",
    ROOT / "study/README.md",
    ROOT / "teams/README.md",
)
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.M | re.S)
SHELL = ("sh", "bash", "console")
CELL = "{code-cell} ipython3"


@dataclass(frozen=True)
class Block:
    """A block of a page: where it begins, its language, its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self):
        return f"{self.page}:{self.line}"


def blocks(*languages):
    """Every block of every page, or those in these languages."""
    found = []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(page):
            indent, language, body = match.groups()
            text = "\n".join(line.removeprefix(indent) for line in body.splitlines())
            line = page[: match.start()].count("\n") + 1
            name = path.relative_to(ROOT).as_posix()
            found.append(Block(name, line, language.strip(), text))
    return [block for block in found if not languages or block.language in languages]


def lines_of(block):
    """The commands of a shell block, without comments and prompts, continued lines joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        bare = re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("$ ")
        if bare:
            yield bare
