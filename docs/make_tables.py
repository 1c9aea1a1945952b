"""Writes docs/catalogue.md from the catalogue that ``hardcase list`` shows, and the measured table of docs/scale.md from
results/bench-cpu.json, so that they never disagree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hardcase.cli.listing import KINDS, rows
from hardcase.cli.options import CAMPAIGN, Flags
from hardcase.config import Config, MethodConfig

HEAD = """# What there is

Written by `make docs` from the catalogue that `hardcase list` prints.
"""


def section(kind: str) -> str:
    lines = [f"## {kind.capitalize()}", "", "| name | what it is | needs | from |", "|---|---|---|---|"]
    for row in rows(kind):
        cells = (str(row.get(key, "")).replace("|", "\\|") for key in ("summary", "needs", "paper"))
        lines.append(f"| `{row['name']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


MEASURED = ("<!-- measured: written by make docs -->", "<!-- end of measured -->")
SCALE = (
    "workers-2-speedup", "ray-2-speedup", "resume-start-million", "seconds-per-seed-sinvad", "seconds-per-seed-pgd",
    "store-share-sinvad", "store-share-pgd", "store-per-finding", "store-bytes-per-finding", "store-bytes-noise",
    "belief-share-sinvad", "belief-share-pgd", "verified-view", "memory-seeds-2500", "memory-seeds-20000",
)  # fmt: skip


def measured(text: str, results: Path) -> str:
    """`text` with the rows of the table between the two marks as they stand in `results`."""
    known = {row["name"]: row for row in json.loads(results.read_text())["rows"]} if results.is_file() else {}
    before, first, rest = text.partition(MEASURED[0])
    _, last, after = rest.partition(MEASURED[1])
    lines = [first, "| figure | value | compared with |", "|---|---|---|"]
    for name in SCALE:
        row = known.get(name)
        own = "belief" if name.startswith(("belief", "verified")) else "scale"
        value = f"{row['value']:.3g} {row['unit']}" if row else f"not measured yet: `python -m benchmarks {own}`"
        lines.append(f"| `{name}` | {value} | {row['against'] if row else ''} |")
    return before + "\n".join([*lines, *calculated({name: row["value"] for name, row in known.items()}), last]) + after


def calculated(known: dict[str, float]) -> list[str]:
    """One million seeds on more cores: the time for a seed divided by the cores, as well used as two of them were."""
    lines = ["", "Calculated from it, one million seeds on CPU cores of one thread, in hours:", ""]
    lines += ["| method | a seed | 1 core | 8 cores | 64 cores, Ray |", "|---|---|---|---|---|"]
    used = [known.get(name, 0.0) / 2 for name in ("workers-2-speedup", "ray-2-speedup")]
    for method in ("pgd", "sinvad"):
        each = known.get(f"seconds-per-seed-{method}", 0.0)
        hours = [each * 1e6 / 3600 / (cores * part) for cores, part in zip((1, 8, 64), (1.0, *used), strict=True) if part]
        row = [f"{1000 * each:.3g} ms", *(f"{value:.3g}" for value in hours)] if each and len(hours) == 3 else ["not yet"] * 4
        lines.append(f"| `{method}` | {' | '.join(row)} |")
    return lines


CONFIGURATION = """# Configuration

Written by `make docs` from the model that checks `hardcase.toml`. Every key can be given in the file, as `--set KEY=VALUE`, or by
its flag; flags override the file, `--set` overrides both. In Python the keys are keywords of `hc.run` and `hc.search`. Options of a
method are keys of `[method]` beside its `name`: `hardcase list methods NAME` shows them.
"""


def configuration() -> str:
    """The reference of all keys: type, default, flag and meaning."""
    sections = {"": Config, **{name: field.annotation for name, field in Config.model_fields.items()}}
    text = [CONFIGURATION]
    for name, model in sections.items():
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or model is MethodConfig:
            continue
        title, about = ("Top level", "One campaign.") if not name else (f"[{name}]", model.__doc__.splitlines()[0])
        text += [f"## {title}", "", about, "", "| key | values | default | flag | meaning |", "|---|---|---|---|---|"]
        text += [row(key, field) for key, field in model.model_fields.items() if not hasattr(field.annotation, "model_fields")]
        text.append("")
    return "\n".join(text)


def row(key: str, field: FieldInfo) -> str:
    flags = {"peers": "peer", "witnesses": "witness"}
    flag = flags.get(key, key)
    option = get_type_hints(Flags, include_extras=True)[flag].__metadata__[0] if flag in CAMPAIGN else None
    kind = str(field.annotation).replace("typing.", "").replace("<class '", "").replace("'>", "")
    kind = re.sub(r"Annotated\[(\w+), .*?\)\]\)\]", r"\1", kind)
    kind = re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace(", ", " or "), kind)
    kind = re.sub(r"(?:Optional|Union)\[(.*)\]$", r"\1", kind).removesuffix(" | None")
    default = "required" if field.is_required() else f"`{field.default!r}`".replace("`None`", "")
    cells = (f"`{key}`", f"`{kind}`", default, f"`--{flag.replace('_', '-')}`" if option else "", field.description or option.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    here = Path(__file__).parent
    (here / "catalogue.md").write_text("\n".join([HEAD, *(section(kind) for kind in KINDS)]), encoding="utf-8")
    (here / "configuration.md").write_text(configuration(), encoding="utf-8")
    scale = here / "scale.md"
    results = here.parent / "results" / "bench-cpu.json"
    scale.write_text(measured(scale.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
