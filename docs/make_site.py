"""Assembles the pages of the documentation site and builds it with Sphinx (``make site``).

Pages are this folder's, those of the repository's root, the tables of stored results, and the reference, which is written from docstrings,
the command line and the catalogue. A page is written anew only if it changed, so that a second build is quick and executed notebooks are kept.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
ROOT_PAGES = {
    "RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "ROADMAP.md": "roadmap.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "RELEASING.md": "releasing.md",
}
"""Pages of the repository's root, and their names on the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def relinked(text: str, place: str) -> str:
    """The links of a page, written for the repository, as they are on the site: what is not on it becomes plain text.

    Args:
        text: The page.
        place: Its path from the repository's root.
    """

    def replaced(found: re.Match[str]) -> str:
        picture, words, link, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in link or link.startswith("mailto:"):
            return found[0]
        target = os.path.normpath(os.path.join(os.path.dirname(place), link))
        if target in ROOT_PAGES:
            target = f"docs/{ROOT_PAGES[target]}"
        target = target.replace("results/tables/", "docs/tables/") if target.startswith("results/tables/") else target
        if not target.startswith("docs/") or target.endswith(".py"):
            return words
        here = "docs" if not place.startswith("docs/") else os.path.dirname(place)
        return f"{picture}[{words}]({os.path.relpath(target, here)}{anchor})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def pages() -> Iterator[tuple[str, str]]:
    """Every page by its path on the site."""
    from make_tables import catalogue

    for path in sorted(HERE.rglob("*.md")):
        name = path.relative_to(HERE).as_posix()
        yield name, relinked(path.read_text(encoding="utf-8"), f"docs/{name}")
    for source, name in ROOT_PAGES.items():
        yield name, relinked((ROOT / source).read_text(encoding="utf-8"), source)
    for path in sorted((ROOT / "results/tables").glob("*.md")):
        yield f"tables/{path.name}", "---\norphan: true\n---\n\n" + relinked(path.read_text(encoding="utf-8"), f"results/tables/{path.name}")
    yield "reference/commands.md", commands()
    yield "reference/catalogue.md", catalogue()
    yield from python()
    yield from methods()


def commands() -> str:
    """The command line's own help, verb by verb."""
    from typer.main import get_command

    from hardcase.cli.main import build

    lines = ["# Commands", "", "Written from `hardcase --help`. Exit codes: 0 done, 1 gate failed, 2 usage, configuration, model or data error,"]
    lines += ["3 internal error, 4 inconclusive, 5 no usable seeds, 130 interrupted (resumable).", ""]
    for name, command in _verbs(get_command(build()), "hardcase"):
        lines += [f"## `{name}`", "", " ".join((command.help or "").split()), "", "| | |", "|---|---|"]
        for one in command.params:
            if one.name != "help":
                lines.append(f"| {_names(one)} | {_cell(getattr(one, 'help', '') or '')} |")
        lines.append("")
    return "\n".join(lines)


def _verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word in inner:
        yield from _verbs(inner[word], f"{name} {word}")


def _names(one: Any) -> str:
    """An option's names and the kind of value that it takes."""
    if not one.opts[0].startswith("-"):
        return f"`{one.metavar or one.name.upper()}`"
    kind = getattr(getattr(one, "type_descriptor", None), "annotation", None)
    choices = [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    value = "|".join(choices) or one.metavar or getattr(kind, "__name__", "value").upper()
    return f"`{_cell(', '.join(one.opts) + ('' if one.is_flag else ' ' + value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python() -> Iterator[tuple[str, str]]:
    """A page for the package and each of its rooms: every public name with its docstring."""
    import hardcase
    from make_tables import ROOMS

    lines = ["# Python", "", "`import hardcase as hc`: the names below, each loaded when it is first used.", ""]
    lines += ["```{toctree}", ":maxdepth: 1", "", *(f"python-{room}" for room in ROOMS), "```", ""]
    seen: set[int] = set()
    yield "reference/python.md", "\n".join([*lines, *_documented("hardcase", hardcase, seen)])
    for room in ROOMS:
        home = getattr(hardcase, room)
        about = (inspect.getdoc(home) or "").split("\n\n")[0].replace("\n", " ")
        yield f"reference/python-{room}.md", "\n".join([f"# `hc.{room}`", "", about, "", *_documented(f"hardcase.{room}", home, seen)])


def _documented(module: str, home: Any, seen: set[int]) -> Iterator[str]:
    """Every public name of a module that was not documented elsewhere before."""
    yield "```{eval-rst}"
    yield f".. currentmodule:: {module}"
    yield ""
    for name in getattr(home, "__all__", None) or sorted(vars(home)):
        value = getattr(home, name)
        own = hasattr(home, "__all__") or getattr(value, "__module__", "") == module
        if own and not name.startswith("_") and id(value) not in seen:
            seen.add(id(value))
            if inspect.isclass(value):
                kind = "exception" if issubclass(value, Exception) else "class"
                yield from (f".. auto{kind}:: {name}", *([] if kind == "exception" else ["   :members:"]), "")
            elif inspect.isfunction(value):
                yield from (f".. autofunction:: {name}", "")
    yield "```"


def methods() -> Iterator[tuple[str, str]]:
    """A page per method: idea, when, cost, weaknesses, differences, options, citation."""
    from hardcase import registry
    from hardcase.catalogue import bibtex

    rows = {row["name"]: row for row in registry.rows("methods")}
    notes = tomllib.loads((HERE / "method_notes.toml").read_text(encoding="utf-8"))
    plain = [name for name in rows if "@" not in name]
    lines = ["# Methods", "", "| method | idea | needs | budget |", "|---|---|---|---|"]
    for name in plain:
        row = rows[name]
        lines.append(f"| [{name}](method-{name}.md) | {_cell(row['summary'])} | {row['needs']} | {row['budget']} |")
    lines += ["", "```{toctree}", ":hidden:", "", *(f"method-{name}" for name in plain), "```", ""]
    yield "reference/methods.md", "\n".join(lines)
    for name in plain:
        presets = [row for row in rows.values() if row["name"].startswith(f"{name}@")]
        yield f"reference/method-{name}.md", _method(rows[name], presets, notes[name], bibtex(rows[name]["cite"]))


def _method(row: dict[str, Any], presets: list[dict[str, Any]], note: dict[str, str], source: str) -> str:
    needs = [f"a subject that offers {row['needs']}"]
    needs += [f"the generator `{row['generator']}`, trained if missing"] if row.get("generator") else []
    needs += [f"peers: {row['peers']}"] if row.get("peers") else []
    needs += [f"witnesses: {row['witnesses']}"] if row.get("witnesses") else []
    lines = [f"# {row['name']}", "", f"{row['summary']}. *{row['paper']}.*", ""]
    picture = HERE / "pictures" / f"{row['name']}.png"
    if picture.is_file():
        lines += [f"```{{image}} ../pictures/{picture.name}", f":alt: Seeds and what {row['name']} made of them", "```", ""]
        lines += ["Above: seeds of `mnist5k`; below: what the method made of them, under the label that LeNet-5 then gives.", ""]
    cited = "http" in row["definition"]  # a docstring whose second paragraph is the citation
    lines += [] if cited or not row["definition"] else [f"**Idea.** {row['definition']}", ""]
    lines += [f"**When.** {note['when']}", ""]
    lines += [f"**Cost.** At most {row['budget']}; needs {', '.join(needs)}.", "", f"**Weaknesses.** {note['weak']}", ""]
    differences = [row["differences"] and f"{row['differences']}.", note.get("differs", "")]
    if any(differences):
        lines += [f"**Differences.** {' '.join(filter(None, differences))}", ""]
    lines += [f"More: [{note['page'].removesuffix('.md')}](../{note['page']}).", "", "```sh", f"hardcase run --model zoo:lenet5 --data mnist5k --method {row['name']} --images 20 --out runs/{row['name']}", "```", ""]
    if presets:
        lines += ["## Published forms", "", "| name | what differs | budget |", "|---|---|---|"]
        lines += [f"| `{one['name']}` | {_cell(one['summary'])} | {one['budget']} |" for one in presets] + [""]
    lines += ["## Options", "", "`--set method.NAME=VALUE`", "", "| name | default | |", "|---|---|---|"]
    for name, option in row["options"].items():
        lines.append(f"| `{name}` | `{_cell(str(option['default']))}` | {_cell(option['help'])} |")
    return "\n".join([*lines, "", "## Citation", "", "```bibtex", source, "```", ""])


def assemble(source: Path) -> None:
    """Bring `source` up to date; what did not change keeps its time."""
    wanted = {name: text.encode() for name, text in pages()}
    for pattern in ("*.png", "*.svg", "pictures/*.png", "pictures/results/*.svg", "pictures/teams/*.png", "screenshots/*.png"):
        wanted |= {path.relative_to(HERE).as_posix(): path.read_bytes() for path in HERE.glob(pattern)}
    for name, data in wanted.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
    for path in source.rglob("*"):
        if path.is_file() and path.relative_to(source).as_posix() not in wanted:
            path.unlink()


def main() -> int:
    from sphinx.cmd.build import main as sphinx

    place = Path(os.environ.get("HARDCASE_SITE", ROOT / "build" / "site"))
    assemble(place / "source")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    if "--fresh" in sys.argv:
        shutil.rmtree(place / "html", ignore_errors=True)
    cache = f"nb_execution_cache_path={place / 'cache'}"
    words = ["-W", "--keep-going", "-q", "-c", HERE, "-b", "html", "-d", place / "doctrees", "-D", cache]
    failed = sphinx(list(map(str, [*words, place / "source", place / "html"])))
    (place / "html" / "yardstick.html").write_text(yardstick(), encoding="utf-8")
    return failed


def yardstick() -> str:
    """Return every stored row of the yardstick as a page whose tables sort."""
    from hardcase_studies.yardstick_table import YardstickTable, page, read

    stored = sorted((ROOT / "results" / "yardstick").glob("*.json"))
    return page(YardstickTable(schema=1, rows=tuple(row for path in stored for row in read(path).rows)))


if __name__ == "__main__":
    sys.exit(main())
