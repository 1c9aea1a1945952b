"""Hold the words of this repository against its glossary (``make lint``).

What is looked at, and the ceilings, are in ``tools/words.toml``:

* words that were replaced, in pages, in strings that people read, and in keys of records;
* the length of sentences and the number of semicolons in pages;
* carrier words in names and docstrings of the core: ``kept`` or ``one`` says nothing of a value.

``--figures`` prints every figure, ``--list strings|names|docstrings`` what a figure counts.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 35
"""Words in the longest sentence of a page."""
HISTORY = "CHANGELOG.md"
"""The page that tells what was, in the words of its day."""
STUDIES = "studies/"
"""Experiments speak the words of their papers."""
SOURCES = ("src", "studies/src", "study/src", "teams/src")
CORE = "src"
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
MADE_BY_PROGRAM = re.compile(r"<!-- (?:figure|sources|table|goals|papers): .*?<!-- end -->", re.S)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)(?:\{[^}]*\})?")
CODE = re.compile(r"`[^`\n]*`")
WORD = re.compile(r"[A-Za-zÀ-ÿ0-9][\w'’.,%-]*")
SENTENCE_END = re.compile(r"(?<=[.!?:])[\"”)*_]*\s+(?=[\"“(*_`]*[A-ZÀ-Ý0-9`])")
NEW_ITEM = re.compile(r"^\s*(?:[*+-]|\d+\.|:)\s+|^#+\s|^>\s?", re.M)


@dataclass(frozen=True)
class Page:
    """A page of Markdown, without what is no prose."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def prose(self) -> str:
        """The text without code blocks, comments, marks of programs and addresses of links."""
        text = MADE_BY_PROGRAM.sub("\n\n", self.text)
        text = FENCE.sub("\n\n", text)
        text = re.sub(r"<!--.*?-->|<[a-z/][^>]*>", " ", text, flags=re.S)
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S)
        return LINK.sub(r"\1", text)

    @cached_property
    def words(self) -> list[str]:
        return WORD.findall(CODE.sub("code", self.prose))

    @cached_property
    def sentences(self) -> list[str]:
        """Sentences of running text and of lists; tables and headings have none."""
        lines = self.prose.splitlines()
        running = "\n".join("" if line.lstrip().startswith(("|", "#")) else line for line in lines)
        found = []
        for block in re.split(r"\n\s*\n", running):
            for item in NEW_ITEM.split(block):
                text = CODE.sub("Code", " ".join(item.split()))
                found += [part for part in SENTENCE_END.split(text) if len(WORD.findall(part)) > 2]
        return found

    @property
    def mean_sentence(self) -> float:
        """Mean number of words in a sentence."""
        return sum(map(length, self.sentences)) / max(1, len(self.sentences))

    @property
    def semicolons(self) -> int:
        return CODE.sub("", self.prose).count(";")

    @property
    def semicolon_rate(self) -> float:
        """Semicolons per 1,000 words."""
        return 1000 * self.semicolons / max(1, len(self.words))


def length(sentence: str) -> int:
    """Return how many words a sentence has."""
    return len(WORD.findall(sentence))


@dataclass(frozen=True)
class Source:
    """A file of Python."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def names(self) -> set[str]:
        """Distinct names that this file uses or defines; attributes are counted where defined."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
        return found

    @cached_property
    def documentation(self) -> list[ast.Constant]:
        """Strings that stand as a statement: docstrings, and those below a constant."""
        return [
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Strings with words in them that a person may read, with their lines."""
        skipped = {id(node) for node in self.documentation}
        for node in ast.walk(self.tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            if id(node) not in skipped and re.search(r"[a-z]{2,} [a-z(]", node.value):
                yield node.lineno, CODE.sub("", node.value)

    def keys_of_records(self) -> Iterator[tuple[int, str]]:
        """Keys of dictionaries that are written as strings, with their lines."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Dict):
                for key in node.keys:
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.lineno, key.value


def carriers_of(name: str, carriers: set[str]) -> set[str]:
    """Return the carrier words that a name has between its underscores."""
    return carriers & set(name.lower().split("_"))


@dataclass(frozen=True)
class Repository:
    """Pages, sources and the rules that they are held against."""

    rules: dict[str, Any]
    pages: list[Page]
    sources: list[Source]

    @classmethod
    def read(cls, root: Path = ROOT) -> Repository:
        pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
        sources = [path for home in SOURCES for path in sorted((root / home).rglob("*.py"))]
        return cls(
            tomllib.loads((root / "tools/words.toml").read_text(encoding="utf-8")),
            [Page(path, path.read_text(encoding="utf-8")) for path in pages],
            [Source(path, path.read_text(encoding="utf-8")) for path in sources],
        )

    @property
    def core(self) -> list[Source]:
        return [source for source in self.sources if source.name.startswith(f"{CORE}/")]

    @property
    def carriers(self) -> set[str]:
        return set(self.rules["names"]["carriers"].split())

    def is_research(self, page: Page) -> bool:
        return any(fnmatch(page.name, pattern) for pattern in self.rules["research"]["pages"])

    @property
    def read_pages(self) -> list[Page]:
        """Pages that are held against all rules: no research, no history, none being rewritten."""
        waiting = self.rules["pages"]["waiting"]
        return [
            page
            for page in self.pages
            if not self.is_research(page) and page.name not in (HISTORY, *waiting)
        ]

    # ---- what is wrong -------------------------------------------------------------------------

    def replaced_in_pages(self) -> Iterator[str]:
        """Where a page has a word that the glossary replaced."""
        return self._replaced(self._prose())

    def replaced_in_strings(self) -> Iterator[str]:
        """Where a string that people read has a word that the glossary replaced."""
        return self._replaced(self._strings())

    def _replaced(self, texts: Iterator[tuple[str, str]]) -> Iterator[str]:
        rules = {re.compile(old, re.I): new for old, new in self.rules["replaced"].items()}
        for place, text in texts:
            for old, new in rules.items():
                for match in old.finditer(text):
                    yield f"{place}: write '{new}' for '{match[0].strip()}'"

    def _prose(self) -> Iterator[tuple[str, str]]:
        for page in self.read_pages:
            for line in page.prose.splitlines():
                yield page.name, CODE.sub("", line)

    def _strings(self) -> Iterator[tuple[str, str]]:
        for source in self.sources:
            if not source.name.startswith(STUDIES):
                for line, text in source.sentences():
                    yield f"{source.name}:{line}", text

    def replaced_keys(self) -> Iterator[str]:
        """Keys of records that were renamed before formats froze."""
        old = set(self.rules["keys"]["replaced"])
        for source in self.sources:
            for line, key in source.keys_of_records():
                if key in old:
                    yield f"{source.name}:{line}: the key '{key}' was renamed"

    def long_sentences(self) -> Iterator[str]:
        """Sentences that are longer than a reader holds."""
        for page in self.read_pages:
            for sentence in page.sentences:
                if length(sentence) > LONGEST:
                    yield f"{page.name}: {length(sentence)} words: {sentence[:120]} …"

    def long_winded_pages(self) -> Iterator[str]:
        """Pages whose mean sentence, or whose number of semicolons, is above its ceiling."""
        for page in [*self.read_pages, *filter(self.is_research, self.pages)]:
            limits = self.rules["research" if self.is_research(page) else "pages"]
            if len(page.sentences) > 2 and page.mean_sentence > limits["sentence_words"]:
                yield f"{page.name}: {page.mean_sentence:.1f} words a sentence"
            if page.semicolons > 1 and page.semicolon_rate > limits["semicolons"]:
                yield f"{page.name}: {page.semicolon_rate:.1f} semicolons per 1,000 words"

    # ---- figures that only fall ----------------------------------------------------------------

    def carriers_in_names(self) -> Iterator[str]:
        for source in self.core:
            for name in sorted(source.names):
                if carriers_of(name, self.carriers):
                    yield f"{source.name}: {name}"

    def carriers_in_docstrings(self) -> Iterator[str]:
        for source in self.core:
            for node in source.documentation:
                for word in re.findall(r"[a-z]+", str(node.value).lower()):
                    if word in self.carriers:
                        yield f"{source.name}:{node.lineno}: {word}"

    def figures(self) -> dict[str, float]:
        """Return what is held against a ceiling, by the name of the ceiling."""
        lines = sum(len(source.text.splitlines()) for source in self.core)
        documented = sum(
            len(re.findall(r"[a-z]+", str(node.value).lower()))
            for source in self.core
            for node in source.documentation
        )
        return {
            "replaced_in_strings": len(list(self.replaced_in_strings())),
            "carriers_in_names": 1e4 * len(list(self.carriers_in_names())) / lines,
            "carriers_in_docstrings": 1e4 * len(list(self.carriers_in_docstrings())) / documented,
        }

    def faults(self) -> list[str]:
        """Return everything that is not as the rules want it."""
        ceilings = self.rules["ceilings"]
        above = [
            f"{name}: {value:.1f} is above the ceiling {ceilings[name]}"
            for name, value in self.figures().items()
            if value > ceilings[name]
        ]
        found = (
            self.replaced_in_pages(),
            self.replaced_keys(),
            self.long_sentences(),
            self.long_winded_pages(),
        )
        return [*(line for kind in found for line in kind), *above]


def main() -> int:
    repository = Repository.read()
    counted = {
        "strings": repository.replaced_in_strings,
        "names": repository.carriers_in_names,
        "docstrings": repository.carriers_in_docstrings,
    }
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--figures", action="store_true", help="print every figure")
    parser.add_argument("--list", choices=counted, help="print what a figure counts")
    flags = parser.parse_args()
    if flags.list:
        print(*counted[flags.list](), sep="\n")
        return 0
    if flags.figures:
        for name, value in repository.figures().items():
            print(f"{name}: {value:.1f}")
        for page in repository.pages:
            mean, rate = page.mean_sentence, page.semicolon_rate
            print(f"{page.name}: {mean:.1f} words a sentence, {rate:.1f} semicolons")
    faults = repository.faults()
    for fault in faults:
        print(fault)
    if faults:
        print(f"{len(faults)} faults of words; the glossary is docs/reference/glossary.md")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
