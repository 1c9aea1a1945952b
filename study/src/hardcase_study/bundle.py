"""A study's folder: settings, items, lists of raters, exact PNGs, language files.

::

    STUDY/
      study.json        settings, what was drawn from which run, the power estimate
      items.json        every item and, for the analysis alone, the key: which image is whose
      assignments.json  a list of item ids for each rater
      images/ID.png     exact images; ids are opaque
      words/en.json     every text a rater reads, consent included; edit it, add languages
      answers.sqlite    what people answered (unless they are in a PostgreSQL database)

The server shows raters images, words and forms; it never sends ``items.json`` or ``study.json``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from hardcase.cache import make_folder, write_atomically
from hardcase.errors import HardcaseError
from hardcase.plain import read_plain
from hardcase.runs.files import LARGE, read_json
from hardcase_study.forms import Item, Stimulus

SCHEMA = 1
ANSWERS = "answers.sqlite"
OTHERS = 0o077
"""The rights of everybody but the owner of a file."""
CONDITIONS = "random failing draws of declared conditions"
"""The population of a study that asks whether these lost their label."""
DESIGNS = ("label", "likert", "rank", "compare", "same", "sinvad", "argus", "fault")


@contextmanager
def private() -> Iterator[None]:
    """Files that are made meanwhile are their owner's alone: some hold the key to the blinding."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def opaque(*parts: str | int) -> str:
    """A name that tells nothing: the same for the same parts, 60 bits of a hash.

    >>> len(opaque(7, "item", 3)), opaque(7, "item", 3) == opaque(7, "item", 4)
    (12, False)
    """
    text = "/".join(map(str, parts)).encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return "".join(letters[(number >> (5 * i)) & 31] for i in range(12))


@dataclass(frozen=True)
class Study:
    """A study that was made. `settings` is what ``study.json`` holds."""

    folder: Path
    settings: Mapping[str, Any]
    items: Mapping[str, Item]
    stimuli: Mapping[str, Stimulus]
    assignments: Sequence[Sequence[str]]
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def design(self) -> str:
        return str(self.settings["design"])

    @property
    def of_conditions(self) -> bool:
        """Whether it asks about failing samples of declared conditions, not about failures."""
        return self.settings.get("population") == CONDITIONS

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.settings["classes"])

    def class_name(self, label: int) -> str:
        """A class in words; an output that is no class of the data by its number, none as ""."""
        if label < 0:
            return ""
        return self.classes[label] if label < len(self.classes) else f"class {label}"

    @property
    def thing(self) -> str:
        """The feature that a fault study asks about."""
        return str(self.settings.get("thing", ""))

    @property
    def raters(self) -> int:
        return int(self.settings["raters"])

    @cached_property
    def main(self) -> dict[str, Item]:
        """Items that count: neither checks nor repeats."""
        return {name: item for name, item in self.items.items() if item.use == "main"}

    def image(self, stimulus: str) -> Path:
        return self.folder / "images" / f"{stimulus}.png"

    def inline(self, stimulus: str) -> str:
        """An image as an address that holds it."""
        return "data:image/png;base64," + base64.b64encode(self.png(stimulus)).decode()

    def png(self, stimulus: str) -> bytes:
        """The bytes of an image: of a file of this folder, never of one that it links to."""
        path = self.image(stimulus)
        try:
            if path.resolve().parent != self.folder.resolve() / "images":
                raise OSError("it lies in another folder")
            return read_plain(path)
        except OSError as error:
            raise HardcaseError(f"{path} cannot be shown: {error}.") from error

    def make_private(self) -> None:
        """Take from others what rights they have on the files."""
        for path in (self.folder, *self.folder.rglob("*")):
            if not path.is_symlink():
                with suppress(PermissionError):
                    path.chmod(path.stat().st_mode & ~OTHERS)

    @classmethod
    def open(cls, folder: str | Path) -> Study:
        """The study in `folder`, checked."""
        folder = Path(folder)
        settings = _read(folder / "study.json")
        if settings.get("schema") != SCHEMA or settings.get("design") not in DESIGNS:
            raise HardcaseError(
                f"{folder / 'study.json'} has schema {settings.get('schema')!r} and design "
                f"{settings.get('design')!r}; this version reads schema {SCHEMA}.",
                fix="hardcase study new RUN --design label --out STUDY",
            )
        try:
            stored = _read(folder / "items.json")
            items = [Item(**_tuples(row)) for row in stored["items"]]
            stimuli = [Stimulus(**row) for row in stored["stimuli"]]
            lists = [list(map(str, one)) for one in _read(folder / "assignments.json")["lists"]]
            words = {path.stem: _read(path) for path in sorted((folder / "words").glob("*.json"))}
        except (KeyError, TypeError) as error:
            raise HardcaseError(
                f"{folder} is no whole study: {type(error).__name__} {error}."
            ) from error
        known = {item.id: item for item in items}
        lost = [name for one in lists for name in one if name not in known]
        if lost or not words:
            raise HardcaseError(f"{folder} is damaged: {lost[0] if lost else 'words/'} is missing.")
        return cls(folder, settings, known, {s.id: s for s in stimuli}, lists, words)


def write(
    folder: Path,
    settings: Mapping[str, Any],
    items: Sequence[Item],
    stimuli: Sequence[Stimulus],
    pictures: Mapping[str, bytes],
    assignments: Sequence[Sequence[str]],
) -> Study:
    """Write a new study into `folder`, which must not hold anything yet; ``study.json`` last."""
    if folder.exists() and any(folder.iterdir()):
        raise HardcaseError(
            f"{folder} is not empty; a study is never overwritten.", fix="--out DIR"
        )
    key = {"items": [asdict(one) for one in items], "stimuli": [asdict(one) for one in stimuli]}
    with private():
        make_folder(folder / "images")
        for name, data in pictures.items():
            write_atomically(folder / "images" / f"{name}.png", data, flush=False)
        for language, words in shipped_words().items():
            write_atomically(folder / "words" / f"{language}.json", _json(words))
        write_atomically(folder / "items.json", _json(key))
        write_atomically(folder / "assignments.json", _json({"lists": assignments}))
        write_atomically(folder / "study.json", _json({"schema": SCHEMA, **settings}))
    return Study.open(folder)


def shipped_words() -> dict[str, dict[str, str]]:
    """The texts that come with hardcase, by language."""
    places = resources.files("hardcase_study").joinpath("words").iterdir()
    files = sorted((one for one in places if one.name.endswith(".json")), key=lambda one: one.name)
    return {one.name[:-5]: dict(json.loads(one.read_text(encoding="utf-8"))) for one in files}


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(read_plain(path, most=LARGE)))
    except FileNotFoundError as error:
        raise HardcaseError(
            f"{path} does not exist, so {path.parent} is no study.",
            fix="hardcase study new RUN --design label --out STUDY",
        ) from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise HardcaseError(f"{path} cannot be read: {error}") from error


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
