"""Write docs/reference/configuration.md and python.md; the site adds the catalogue that ``hardcase list`` shows."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hardcase.cli.inspect import KINDS, rows
from hardcase.cli.options import CAMPAIGN, shared
from hardcase.config import Config, MethodConfig

HEAD = """# What there is

Written from the catalogue that `hardcase list` prints.
"""


def catalogue() -> str:
    """Every row of the registry, kind by kind."""
    return "\n".join([HEAD, *(section(kind) for kind in KINDS if kind != "plugins")])


def section(kind: str) -> str:
    lines = [
        f"## {kind.capitalize()}",
        "",
        "| name | what it is | needs | from |",
        "|---|---|---|---|",
    ]
    for row in rows(kind):
        cells = (str(row.get(key, "")).replace("|", "\\|") for key in ("summary", "needs", "paper"))
        lines.append(f"| `{row['name']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


CONFIGURATION = """# Configuration

Written by `make docs` from the model that checks `hardcase.toml`. Every key can be given in the file, as `--set KEY=VALUE`, or by
its flag. A flag or `--set` replaces what `--limits FILE` says, which replaces what the file says. Two values by one of them are an error. In Python the keys are keywords of `hc.run` and `hc.search`. Options of a
method are keys of `[method]`, next to its `name`. `hardcase list methods NAME` shows them.
"""


def configuration() -> str:
    """The reference of all keys: type, default, flag and meaning."""
    sections = {
        "": Config,
        **{name: field.annotation for name, field in Config.model_fields.items()},
    }
    text = [CONFIGURATION]
    for name, model in sections.items():
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or model is MethodConfig:
            continue
        title, about = (
            ("Top level", "One run.")
            if not name
            else (f"`[{name}]`", model.__doc__.splitlines()[0])
        )
        text += [
            f"## {title}",
            "",
            about,
            "",
            "| key, flag | values, default | meaning |",
            "|---|---|---|",
        ]
        text += [
            row(key, field)
            for key, field in model.model_fields.items()
            if not hasattr(field.annotation, "model_fields")
        ]
        text.append("")
    return "\n".join(text)


def row(key: str, field: FieldInfo) -> str:
    flag = {"peers": "peer", "witnesses": "witness"}.get(key, key)
    option = shared(flag) if flag in CAMPAIGN else None
    kind = str(field.annotation).replace("typing.", "").replace("<class '", "").replace("'>", "")
    kind = re.sub(r"Annotated\[(\w+), .*?\)\]\)\]", r"\1", kind)
    kind = re.sub(r"Literal\[([^\]]*)\]", r"\1", kind)
    kind = re.sub(r"(?:Optional|Union)\[(.*)\]$", r"\1", kind).removesuffix(" | None")
    default = "required" if field.is_required() else f"`{field.default!r}`"
    cells = (
        f"`{key}`" + (f", `--{flag.replace('_', '-')}`" if option else ""),
        f"`{kind}`" + ("" if default == "`None`" else f", {default}"),
        field.description or option.help,
    )
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


ROOMS = ["data", "models", "methods", "spaces", "searches", "objectives", "oracles", "guides", "criteria", "generators", "judges", "testing"]
"""Packages whose names users call, each `hc.ROOM`."""
PYTHON = """# Python

`import hardcase as hc`: every public name, each loaded when it is first used. Written by `make docs` from docstrings.
The site has them whole. In Python, `help(hc.run)` shows one.
"""


def python() -> str:
    """Every public name of the package and its rooms, with the first line of its docstring."""
    import hardcase

    text = [PYTHON]
    for title, home in {"hc": hardcase, **{f"hc.{room}": getattr(hardcase, room) for room in ROOMS}}.items():
        rows = [(name, first_line(getattr(home, name))) for name in public_names(home)]
        text += [f"## `{title}`", "", "| name | what it is |", "|---|---|"]
        text += [f"| `{name}` | {cell(about)} |" for name, about in rows]
        text.append("")
    return "\n".join(text)


def public_names(home: Any) -> list[str]:
    """Names that a package offers: those that it lists, else those that it defines."""
    listed = getattr(home, "__all__", None)
    names = listed or [name for name, value in vars(home).items() if getattr(value, "__module__", "") == home.__name__]
    return sorted(name for name in names if not name.startswith("_"))


def first_line(value: Any) -> str:
    """The first sentence of a docstring; of a value that has none, its kind."""
    about = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value) else None
    first = (about or f"a {type(value).__name__}").split("\n\n")[0]
    return re.split(r"(?<=[.:;]) ", " ".join(first.split()))[0].rstrip(".:;")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    (Path(__file__).parent / "reference" / "python.md").write_text(python(), encoding="utf-8")
    (Path(__file__).parent / "reference" / "configuration.md").write_text(configuration(), encoding="utf-8")


if __name__ == "__main__":
    main()
