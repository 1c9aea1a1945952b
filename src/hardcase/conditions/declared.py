"""Declared conditions: which changes of appearance a model must stand, in physical units.

A declaration is a table of ranges, such as ``rotation = "±8 deg"`` or ``jpeg = "60..100"``. Every
range contains the value of the unchanged image, so that scaled boxes are nested.
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hardcase.errors import HardcaseError, choice
from hardcase.plain import parse_toml, read_text

__all__ = ["DECLARABLE", "PROFILES", "Conditions", "Declarable", "DeclaredRange", "usual_profile"]

PROFILES = ("scanner", "handheld", "phone", "fixed-camera", "outdoors", "microscope")
"""The declarations that come with the package, a file each."""
UNITS: Mapping[str, tuple[str, ...]] = {
    "deg": ("deg", "degree", "degrees", "°"),
    "stops": ("stop", "stops", "ev"),
    "%": ("%", "percent"),
    "levels": ("level", "levels"),
    "times": ("times", "x", "×"),
    "severity": ("", "severity"),
    "": ("",),
}
"""How each unit may be written."""
SIGMAS = 3.0
"""Where a normal distribution is cut off, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Declarable:
    """Something that a declaration can give a range to.

    Args:
        name: What users write.
        about: A short description.
        part: The part of a space of appearance that does it.
        option: The option of that part that sets how far it goes.
        group: The group of coordinates of that part.
        unit: A key of `UNITS`.
        neutral: The value of the unchanged image.
        least: The smallest value that the part can do.
        most: The greatest value that the part can do.
        share: Whether the option is a share where the range is in per cent.
        colour: Whether grey images do not have it.
        also: Plain words for the same.
    """

    name: str
    about: str
    part: str
    option: str
    group: str
    unit: str
    neutral: float = 0.0
    least: float = 0.0
    most: float = 100.0
    share: bool = False
    colour: bool = False
    also: tuple[str, ...] = ()

    def reach(self, low: float, high: float) -> float:
        """Return the option's value with which a part reaches both ends of a range."""
        if self.option == "quality":
            return low
        farthest = max(abs(low - self.neutral), abs(high - self.neutral))
        return farthest / 100 if self.share else farthest


def _read(name: str) -> dict[str, Any]:
    """A TOML file next to this module."""
    return tomllib.loads(files("hardcase.conditions").joinpath(name).read_text("utf-8"))


def _corruption(name: str) -> Declarable:
    """The severity of a standard corruption, from the image itself (0) to the highest (5)."""
    return Declarable(
        f"{CORRUPTION}.{name}",
        f"{name.replace('_', ' ')} of ImageNet-C, by its severity",
        part=CORRUPTION,
        option=name,
        group=name,
        unit="severity",
        most=5.0,
        colour=name == "saturate",
    )


CORRUPTION = "corruption"
"""Declarations name the severity of a corruption ``corruption.fog``."""
_COORDINATES = _read("coordinates.toml")
_SEVERITIES = [_corruption(name) for name in _COORDINATES.pop(CORRUPTION)]
DECLARABLE: Mapping[str, Declarable] = {
    name: Declarable(name, **{**row, "also": tuple(row.get("also", ()))})
    for name, row in _COORDINATES.items()
} | {row.name: row for row in _SEVERITIES}
"""Everything that can be declared, by name."""
_ALIASES = {alias: row.name for row in DECLARABLE.values() for alias in row.also}
_TEXTS = ("profile", "name", "about", "table", "sampler")
_SETTINGS = (*_TEXTS, "worst", "rare")
"""Keys of a declaration that are no ranges."""
LARGEST_DECLARATION = 2**20
"""Bytes, at most, of a declaration."""
LARGEST_TABLE = 2**26
"""Bytes, at most, of a table of logged conditions."""
LONGEST_NAME = 80
"""Characters, at most, of a name of conditions in print."""


@dataclass(frozen=True, slots=True)
class DeclaredRange:
    """The declared values of a coordinate, in its unit.

    Args:
        name: A name of `DECLARABLE`.
        low: The smallest value.
        high: The greatest value.
        mean: Centre of a normal distribution; None: a uniform distribution.
        deviation: Its standard deviation.
        why: Where the range comes from.
        people: Measurements of people's reading there.
    """

    name: str
    low: float
    high: float
    mean: float | None = None
    deviation: float = 0.0
    why: str = ""
    people: str = ""

    def __str__(self) -> str:
        row = DECLARABLE[self.name]
        unit = f" {row.unit}".rstrip()
        if self.mean is not None:
            return f"normal({self.mean:g}, {self.deviation:g}){unit}"
        if row.neutral == 0 and self.low == -self.high:
            return f"±{self.high:g}{unit}"
        return f"{self.low:g}..{self.high:g}{unit}"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Changes of appearance that a model must stand: a range for each, in physical units.

    Args:
        ranges: By coordinate, as text (``"±8 deg"``) or as `DeclaredRange`.
        name: What reports call the declaration.
        about: What it stands for.
        table: A CSV file of logged conditions, a column per coordinate: a row is drawn as
            a unit, so that columns stay correlated.
        sampler: ``file.py:name`` of a function that turns uniform numbers (rows x coordinates)
            into values by coordinate.
        rows: The rows of `table`, where they were read before.
        worst: Also search for the least scale at which each image fails.
        rare: Also estimate the failing volume of images without a failing draw.
        field: What a fit says of the field whose conditions these are, in sentences, and where its
            sheet of images is; empty where they were declared by hand.

    Raises:
        HardcaseError: For a coordinate, a unit or a range that is not possible.

    Example:
        >>> import hardcase as hc
        >>> print(hc.Conditions({"rotation": "±8 deg", "jpeg": "60..100"}))
        rotation ±8 deg, jpeg 60..100
    """

    ranges: Mapping[str, Any]
    name: str = "declared"
    about: str = ""
    table: str = ""
    sampler: str = ""
    rows: tuple[Mapping[str, float], ...] = field(default=(), repr=False)
    worst: bool = False
    rare: bool = False
    field: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        declared = _declared_once(self.ranges.items())
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise HardcaseError(
                f"conditions.name = {self.name[:LONGEST_NAME]!r} is no name for a line of text.",
                fix=f"at most {LONGEST_NAME} characters that can be printed",
            )
        if self.sampler and ".py:" not in self.sampler:
            raise HardcaseError(
                f"conditions.sampler = {self.sampler!r} names no function.", fix="file.py:name"
            )
        if self.table and not self.rows:
            rows = _logged(Path(self.table), declared)
            declared |= {name: _spanned(name, rows) for name in rows[0] if name not in declared}
            object.__setattr__(self, "rows", rows)
        if not declared:
            raise HardcaseError("conditions declare nothing.", fix='rotation = "±8 deg"')
        ordered = {name: declared[name] for name in DECLARABLE if name in declared}
        object.__setattr__(self, "ranges", ordered)

    def __str__(self) -> str:
        return ", ".join(f"{name} {declared}" for name, declared in self.ranges.items())

    @classmethod
    def load(cls, spec: str | Mapping[str, Any]) -> Conditions:
        """Return the conditions that a name, a file or a table of a configuration declares.

        Args:
            spec: A name of `PROFILES`, a path that ends in ``.toml`` (its ``[conditions]`` table,
                or all of it), or the table itself.
        """
        if not isinstance(spec, str):
            return cls._from_table(spec)
        if spec in PROFILES:
            return profile(spec)
        path = Path(spec)
        if path.suffix != ".toml":
            raise choice("profile of conditions", spec, [*PROFILES, "FILE.toml"])
        text = read_text(path, most=LARGEST_DECLARATION)
        try:
            values = parse_toml(text)
        except ValueError as error:
            raise HardcaseError(f"{spec} is no TOML: {error}.") from error
        if {"conditions", "ranges"} <= values.keys():
            raise HardcaseError(
                f"{spec} has the tables [conditions] and [ranges].", fix="one of them"
            )
        try:
            conditions = cls._from_table(values.get("conditions", values), folder=path.parent)
            return replace(conditions, field=_fitted_to(values, path.parent))
        except HardcaseError as problem:
            place = _place(path, text, problem.what)
            raise HardcaseError(
                f"{place}: {problem.what}", *problem.why, fix=problem.fix
            ) from problem

    @classmethod
    def _from_table(cls, values: Any, folder: Path = Path()) -> Conditions:
        if not isinstance(values, Mapping):
            raise HardcaseError(f"conditions = {values!r} is no table.", fix='rotation = "±8 deg"')
        for key in _TEXTS:
            if not isinstance(values.get(key, ""), str):
                raise HardcaseError(f"conditions.{key} = {values[key]!r} is no text.")
            if not values.get(key, key).strip():
                raise HardcaseError(
                    f"conditions.{key} is empty.", fix="a value, or none of that line"
                )
        settings = {key: values[key] for key in _SETTINGS if key in values}
        base: Mapping[str, DeclaredRange] = {}
        if "profile" in settings:
            base = profile(str(settings["profile"])).ranges
        ranges_of_table = _declared_once(_lines(values))
        table = settings.get("table", "")
        return cls(
            {**base, **ranges_of_table},
            name=str(settings.get("name") or settings.get("profile") or "declared"),
            about=str(settings.get("about", "")),
            table=str(folder / table) if table else "",
            sampler=str(settings.get("sampler", "")),
            worst=_switch(settings, "worst"),
            rare=_switch(settings, "rare"),
        )

    def to_record(self) -> dict[str, Any]:
        """Return what run.json keeps; `load` reads it."""
        record: dict[str, Any] = {name: str(declared) for name, declared in self.ranges.items()}
        record |= {"name": self.name}
        for key in ("table", "sampler"):
            if getattr(self, key):
                record[key] = getattr(self, key)
        return record

    def without(self, name: str) -> Conditions:
        """Return the same declaration with a coordinate held at neutral."""
        left = {key: value for key, value in self.ranges.items() if key != name}
        return replace(self, ranges=left)


def _fitted_to(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a declaration that was fitted says of its field; empty for any other."""
    field = values.get("field", {})
    if "conditions" not in values or not isinstance(field, Mapping):
        return {}
    sentences = field.get("sentences", [])
    sheet = field.get("sheet", "")
    if not (isinstance(sentences, list) and isinstance(sheet, str) and sheet):
        return {}
    return {"sentences": [str(text) for text in sentences], "sheet": str(folder / sheet)}


def _lines(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The lines of a declaration that are ranges: of the table itself, of a table ``ranges`` as in
    the packaged profiles, and of ``corruption``.
    """
    inner = values.get("ranges", {})
    if not isinstance(inner, Mapping):
        raise HardcaseError(
            f"conditions.ranges = {inner!r} is no table.", fix='rotation = "±8 deg"'
        )
    rest = {key: value for key, value in values.items() if key not in (*_SETTINGS, "ranges")}
    lines = list[tuple[str, Any]]()
    for key, value in (*rest.items(), *inner.items()):
        if key != CORRUPTION:
            lines.append((key, value))
        elif isinstance(value, Mapping):
            lines += [(f"{CORRUPTION}.{name}", severity) for name, severity in value.items()]
        else:
            raise HardcaseError(
                f"conditions.{CORRUPTION} = {value!r} names no corruption.",
                fix=f'{CORRUPTION}.fog = "0..3"',
            )
    return lines


def _declared_once(lines: Iterable[tuple[str, Any]]) -> dict[str, DeclaredRange]:
    """The ranges by coordinate; two lines about the same, perhaps under two names, are refused."""
    collected = dict[str, DeclaredRange]()
    keys = dict[str, str]()
    for key, value in lines:
        declared = value if isinstance(value, DeclaredRange) else parse_range(key, value)
        if declared.name in collected:
            raise HardcaseError(
                f"conditions.{key} declares {declared.name!r} twice: {keys[declared.name]!r} is"
                " the same.",
                fix="one of the two lines",
            )
        collected[declared.name] = declared
        keys[declared.name] = key
    return collected


def _place(path: Path, text: str, what: str) -> str:
    """The file, and the line of the declaration that a sentence names, if any."""
    match = re.match(r"conditions\.(\S+)|there is no condition '([^']+)'", what)
    key = next(filter(None, match.groups()), "") if match else ""
    last = re.escape(key.rpartition(".")[2])
    for number, line in enumerate(text.splitlines(), start=1):
        if key and re.match(rf'\s*(\w+\.)?"?([\w.]+\.)?{last}"?\s*=', line):
            return f"{path}, line {number}"
    return str(path)


def _switch(settings: Mapping[str, Any], name: str) -> bool:
    value = settings.get(name, False)
    if not isinstance(value, bool):
        raise HardcaseError(f"conditions.{name} = {value!r} is neither true nor false.")
    return value


def usual_profile(shape: tuple[int, ...]) -> str:
    """Return the profile that suits images of a shape: small grey ones are figures on paper."""
    if shape[0] == 1 and max(shape[1:]) <= 64:
        return "scanner"
    return "handheld"


def profile(name: str) -> Conditions:
    """Return a declaration that comes with the package."""
    if name not in PROFILES:
        raise choice("profile of conditions", name, list(PROFILES))
    card = _read(f"profiles/{name}.toml")
    ranges = {key: parse_range(key, value) for key, value in card["ranges"].items()}
    return Conditions(ranges, name=name, about=card["about"])


def canonical(name: str) -> str:
    """Return the coordinate that a plain word means."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    plain = _ALIASES.get(plain, plain)
    if plain not in DECLARABLE:
        if name in ("draws", "samples"):  # how many are drawn is no part of what is declared
            raise HardcaseError(f"there is no condition {name!r}.", fix="--set samples=N")
        raise choice("condition", name, [*DECLARABLE, *_ALIASES])
    return plain


def parse_range(key: str, value: Any) -> DeclaredRange:
    """Return the range that a line of a declaration declares."""
    row = DECLARABLE[canonical(key)]
    notes: dict[str, str] = {}
    if isinstance(value, Mapping):
        unknown = set(value) - {"range", "why", "people"}
        if unknown or "range" not in value:
            raise HardcaseError(
                f"conditions.{key} has {', '.join(sorted(map(str, value)))}.",
                "a table of a condition has the keys range, why and people.",
            )
        notes = {name: str(value[name]) for name in ("why", "people") if name in value}
        value = value["range"]
    line = f"conditions.{key} = {value!r}"
    example = f'{key} = "{_example(row)}"'
    if not isinstance(value, str):
        raise HardcaseError(f"{line} has no unit: a range is text.", fix=example)
    text = value.strip()
    normal = re.fullmatch(r"normal\(\s*(\S+?)\s*,\s*(\S+?)\s*\)\s*(\S*)", text)
    plus = re.fullmatch(r"(?:±|\+-|\+/-)\s*([^\s%°a-zA-Z]+)\s*(\S*)", text)
    between = re.fullmatch(r"(\S+?)\s*\.\.\s*([^\s%°a-zA-Z]+)\s*(\S*)", text)
    match = normal or plus or between
    if match is None:
        raise HardcaseError(
            f"{line} is no range.", "±a, a..b or normal(mean, deviation).", fix=example
        )
    *numbers, unit = match.groups()
    limits = [_number(number, line, example) for number in numbers]
    if unit.lower() not in UNITS[row.unit]:
        missing = "has no unit" if not unit else f"has the unit {unit!r}"
        raise HardcaseError(
            f"{line} {missing}; {row.name} is in {row.unit or 'plain numbers'}.", fix=example
        )
    mean = None
    deviation = 0.0
    if normal:
        mean, deviation = limits
        if deviation <= 0:
            raise HardcaseError(
                f"{line} has a standard deviation that is not above 0.", fix=example
            )
        if not row.least <= mean <= row.most or deviation > row.most - row.least:
            raise HardcaseError(
                f"{line} has its centre, or most of its values, past what is possible: {row.name}"
                f" goes from {row.least:g} to {row.most:g} {row.unit}".rstrip()
                + ".",
                fix=example,
            )
        low = max(row.least, mean - SIGMAS * deviation)
        high = min(row.most, mean + SIGMAS * deviation)
        low = min(low, row.neutral)
        high = max(high, row.neutral)
    elif plus:
        low = row.neutral - limits[0]
        high = row.neutral + limits[0]
    else:
        low, high = limits
    if low > high:
        raise HardcaseError(f"{line} is turned round: {low:g} is more than {high:g}.", fix=example)
    if not low <= row.neutral <= high:
        raise HardcaseError(
            f"{line} leaves out {row.neutral:g}, the value of the unchanged image.",
            "boxes of conditions are nested around the image as it is.",
            fix=example,
        )
    if low == high:
        raise HardcaseError(f"{line} allows no change.", fix=example)
    if low < row.least or high > row.most:
        raise HardcaseError(
            f"{line} goes past what is possible: {row.name} goes from {row.least:g} to "
            f"{row.most:g} {row.unit}".rstrip()
            + ".",
            fix=example,
        )
    return DeclaredRange(row.name, low, high, mean, deviation, **notes)


def _number(text: str, line: str, example: str) -> float:
    try:
        value = float(text.replace("−", "-"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HardcaseError(f"{line}: {text!r} is not a number.", fix=example)
    return value


def _example(row: Declarable) -> str:
    if row.neutral == 100:
        return "60..100"
    if row.neutral == 1:
        return f"{row.least if row.least >= 1 else 0.8:g}..1.5 {row.unit}".rstrip()
    size = {"deg": 8, "stops": 1, "%": 5, "levels": 8, "severity": 3}[row.unit]
    start = f"±{size}" if row.least < 0 else f"0..{size}"
    return f"{start} {row.unit}"


def _logged(path: Path, declared: Mapping[str, DeclaredRange]) -> tuple[Mapping[str, float], ...]:
    """The rows of a table of logged conditions, all within the declared ranges."""
    lines = _cells(path)
    if len(lines) < 3:
        raise HardcaseError(
            f"the table of conditions {path} has {max(len(lines) - 1, 0)} rows; it needs 2 or more."
        )
    (_, header), *lines = lines
    names = list[str]()
    for key in header:
        if not key.strip():
            raise HardcaseError(f"{path}, line 1: a column has no name.", fix="rotation,blur")
        if canonical(key) in names:
            raise HardcaseError(f"{path}, line 1 has {canonical(key)!r} twice.")
        names.append(canonical(key))
    rows = list[Mapping[str, float]]()
    for number, line in lines:
        if len(line) > len(names):
            raise HardcaseError(f"{path}, line {number} has more columns than the first line.")
        row = dict[str, float]()
        for key, name, text in zip_longest(header, names, line, fillvalue=""):
            row[name] = _number(text, f"{path}, line {number}, {key}", "a number in every row")
            limits = DECLARABLE[name]
            if not limits.least <= row[name] <= limits.most:
                raise HardcaseError(
                    f"{path}, line {number}: {key} is {row[name]:g}; "
                    f"{name} goes from {limits.least:g} to {limits.most:g} {limits.unit}."
                )
            limit = declared.get(name)
            if limit is not None and not limit.low <= row[name] <= limit.high:
                raise HardcaseError(
                    f"{path}, line {number}: {key} is {row[name]:g}, outside what is declared "
                    f"({name} = {limit}).",
                    fix="a wider range, or none: it is then that of the table",
                )
        rows.append(row)
    return tuple(rows)


def _cells(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, with their numbers."""
    try:
        reader = csv.reader(read_text(path, most=LARGEST_TABLE).splitlines())
        return [(reader.line_num, line) for line in reader if line]
    except csv.Error as error:
        raise HardcaseError(f"the table of conditions {path} cannot be read: {error}.") from error


def _spanned(name: str, rows: tuple[Mapping[str, float], ...]) -> DeclaredRange:
    """The smallest range that contains a column of a table and the unchanged image."""
    values = [DECLARABLE[name].neutral, *(row[name] for row in rows)]
    return DeclaredRange(name, min(values), max(values))
