"""Answers to and from other tools: Label Studio's JSON, CSV, rated images."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from hardcase.cache import write_atomically
from hardcase.environment import FORMULA, escape_csv
from hardcase.errors import HardcaseError, choice
from hardcase.plain import read_text
from hardcase_study.answers import KINDS, Answers, ChosenItem, Given, Rater
from hardcase_study.bundle import Study
from hardcase_study.forms import Item, checked, questions

COLUMNS = (
    "rater",
    "kind",
    "item",
    "position",
    "question",
    "value",
    "seconds",
    "hidden",
    "lost",
    "revision",
    "probability",
    "rule",
)
FORMATS = ("csv", "label-studio", "npz")
NOT_OURS = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What reading JSON of another form raises."""
LONGEST = 10**9
"""What no position, count or number of seconds exceeds."""
LARGEST_EXPORT = 2**29
"""Bytes, at most, of a file that answers are read from; Label Studio's may hold the images."""


def export(study: Study, to: str, out: Path, *, database: str = "") -> Path:
    """Write the answers of `study` to `out`.

    Args:
        to: ``csv`` (a row per answered question), ``label-studio`` (tasks with annotations, and the
            labelling interface beside them as XML) or ``npz`` (rated images, as
            ``hardcase judge --calibrate`` reads them).
    """
    if to not in FORMATS:
        raise choice("format", to, FORMATS)
    store = Answers(database or study.folder)
    raters = store.raters()
    given = store.all()
    drawn = store.drawn()
    store.close()
    if to == "csv":
        return write_atomically(out, to_csv(raters, given, drawn).encode())
    if to == "npz":
        import numpy as np

        from hardcase_study.calibration import rated

        file = io.BytesIO()
        np.savez_compressed(file, **rated(study.folder, database=database))
        return write_atomically(out, file.getvalue())
    write_atomically(out.with_suffix(".xml"), label_studio_interface(study).encode())
    text = json.dumps(to_label_studio(study, raters, given), indent=1, ensure_ascii=False)
    return write_atomically(out, (text + "\n").encode())


def load(study: Study, file: Path, *, database: str = "") -> int:
    """Answers from a CSV or Label Studio file into a study; returns how many were new.

    Every answer is checked against its item first; nothing is stored if one is wrong. Raters keep
    the kind they were exported with; those of other tools are ``imported``.
    """
    text = read_text(file, most=LARGEST_EXPORT).removeprefix("\ufeff")  # as Excel begins a file
    if text.lstrip().startswith("["):
        kinds, given = from_label_studio(study, text, str(file))
    else:
        kinds, given = from_csv(study, text, str(file))
    strange = [kind for kind in kinds.values() if kind not in KINDS]
    if strange:
        raise choice("kind of rater", strange[0], KINDS)
    store = Answers(database or study.folder)
    known = {(one.rater, one.item) for one in store.all()}
    there = {one.id: one for one in store.raters()}
    if {"simulated"} < {*kinds.values(), *(one.kind for one in there.values())}:
        raise HardcaseError(f"{file} would mix a simulated crowd with people in {study.folder}.")
    fresh = [name for name in kinds if name not in there]
    first = max([one.slot for one in there.values()] + [len(study.assignments) - 1]) + 1
    raters = [Rater(n, first + i, kinds[n], "en", 0.0, 1.0) for i, n in enumerate(fresh)]
    store.add(raters, given)
    store.close()
    return sum((one.rater, one.item) not in known for one in given)


def to_csv(
    raters: Sequence[Rater], given: Sequence[Given], drawn: Sequence[ChosenItem] = ()
) -> str:
    """A row per answered question; an order as ids with spaces between."""
    chosen = {one.item: (f"{one.probability:.6g}", one.rule) for one in drawn}
    kinds = {one.id: one.kind for one in raters}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in given:
        for name, value in sorted(one.value.items()):
            text = " ".join(value) if isinstance(value, list) else value
            numbers = (f"{one.seconds:.3f}", f"{one.hidden:.3f}", one.lost, one.revision)
            kind = kinds.get(one.rater, "imported")
            words = (one.rater, kind, one.item, one.position, name, text)
            writer.writerow((*map(escape_csv, words), *numbers, *chosen.get(one.item, ("", ""))))
    return file.getvalue()


def _unescaped(value: Any) -> Any:
    """What `escape_csv` was given."""
    if isinstance(value, str) and value.startswith("'") and value[1:].startswith(FORMULA):
        return value[1:]
    return value


def from_csv(study: Study, text: str, where: str) -> tuple[dict[str, str], list[Given]]:
    """Raters' kinds and answers from what `to_csv` writes; ``kind`` and later columns may lack."""
    try:
        table = list(csv.DictReader(io.StringIO(text), restval=""))
    except csv.Error as error:
        raise HardcaseError(f"{where} is no CSV: {error}.") from error
    rows = [{name: _unescaped(value) for name, value in row.items()} for row in table]
    missing = [n for n in ("rater", "item", "question", "value") if not rows or n not in rows[0]]
    if missing:
        raise HardcaseError(
            f"{where} has no column {missing[0]!r} or no rows.", f"columns: {', '.join(COLUMNS)}"
        )
    kinds: dict[str, str] = {}
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    about: dict[tuple[str, str], Mapping[str, str]] = {}
    for row in rows:
        kinds.setdefault(row["rater"], row.get("kind") or "imported")
        key = (row["rater"], row["item"])
        ordered = row["question"] == "order"
        parts.setdefault(key, {})[row["question"]] = (
            row["value"].split() if ordered else row["value"]
        )
        about.setdefault(key, row)
    return kinds, [
        _answer(study, key, value, about[key], where, n)
        for n, (key, value) in enumerate(parts.items(), 1)
    ]


def _answer(
    study: Study,
    key: tuple[str, str],
    value: dict[str, Any],
    row: Mapping[str, Any],
    where: str,
    n: int,
) -> Given:
    rater, item = key
    if item not in study.items:
        raise HardcaseError(
            f"{where}: the study has no item {item!r}.", fix="the file of this study"
        )
    answer = checked(study.items[item], value, study.thing)
    try:
        position = int(row.get("position") or n)
        seconds, hidden = (float(row.get(name) or 0) for name in ("seconds", "hidden"))
        lost, revision = (int(row.get(name) or 0) for name in ("lost", "revision"))
        if max(map(abs, (position, seconds, hidden, lost, revision))) > LONGEST:
            raise ValueError(f"a number is larger than {LONGEST:,}")
    except (ValueError, TypeError) as error:
        raise HardcaseError(f"{where}: {error} in the answer of {rater} to {item}.") from error
    return Given(rater, item, position, answer, seconds, hidden, lost, revision)


# Label Studio: a task per item, an annotation per rater, a result per question.


def label_studio_interface(study: Study) -> str:
    """The labelling interface (XML) that asks what the study asks."""
    lines = ["<View>"]
    sample = next(iter(study.main.values()))
    for i in range(len(sample.stimuli) + bool(sample.reference)):
        lines.append(f'  <Image name="image{i}" value="$image{i}" smoothing="false"/>')
    for question in questions(sample, study.thing):
        name = quoteattr(question.name)
        if question.kind == "order":
            lines.append(f'  <Ranker name={name} toName="image0"/>')
            continue
        lines.append(f'  <Choices name={name} toName="image0" choice="single" required="true">')
        lines += [f"    <Choice value={quoteattr(option)}/>" for option in question.options]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>", ""])


def to_label_studio(
    study: Study, raters: Sequence[Rater], given: Sequence[Given]
) -> list[dict[str, Any]]:
    """Tasks in Label Studio's JSON, images inside; as blind as the study: no method, no label."""
    kinds = {one.id: one.kind for one in raters}
    by_item: dict[str, list[Given]] = {}
    for one in given:
        by_item.setdefault(one.item, []).append(one)
    tasks = []
    for number, item in enumerate(study.items.values(), 1):
        names = [name for name in (item.reference, *item.stimuli) if name]
        data = {f"image{i}": study.inline(name) for i, name in enumerate(names)}
        made = [_annotation(item, one, kinds, study) for one in by_item.get(item.id, [])]
        tasks.append({"id": number, "data": {"item": item.id, **data}, "annotations": made})
    return tasks


def _annotation(item: Item, one: Given, kinds: Mapping[str, str], study: Study) -> dict[str, Any]:
    results = []
    for question in questions(item, study.thing):
        value = one.value[question.name]
        ordered = question.kind == "order"
        results.append(
            {
                "from_name": question.name,
                "to_name": "image0",
                "type": "ranker" if ordered else "choices",
                "value": {"ranker": {question.name: value}} if ordered else {"choices": [value]},
            }
        )
    return {
        "completed_by": {"email": one.rater},
        "lead_time": one.seconds,
        "result": results,
        "meta": {
            "kind": kinds.get(one.rater, "imported"),
            "position": one.position,
            "hidden": one.hidden,
            "lost": one.lost,
            "revision": one.revision,
        },
    }


def from_label_studio(study: Study, text: str, where: str) -> tuple[dict[str, str], list[Given]]:
    """Raters' kinds and answers from an export of Label Studio (or from `to_label_studio`)."""
    kinds: dict[str, str] = {}
    given: list[Given] = []
    try:
        for task in json.loads(text):
            item = str(task["data"]["item"])
            for note in task.get("annotations", ()):
                who = note["completed_by"]
                rater = str(who["email"] if isinstance(who, dict) and "email" in who else who)
                meta = {**note.get("meta", {}), "seconds": note.get("lead_time")}
                kinds.setdefault(rater, str(meta.get("kind", "imported")))
                value = {result["from_name"]: _result(result) for result in note["result"]}
                given.append(_answer(study, (rater, item), value, meta, where, len(given) + 1))
    except (*NOT_OURS, RecursionError, StopIteration) as error:
        raise HardcaseError(
            f"{where} is no export of Label Studio for this study: {type(error).__name__} {error}.",
            fix="export as JSON; tasks need data.item",
        ) from error
    return kinds, given


def _result(result: Mapping[str, Any]) -> Any:
    value = result["value"]
    if "ranker" in value:
        return list(next(iter(value["ranker"].values())))
    return value["choices"][0]
