"""A judge asked about a run: verdicts beside the findings, the funnel to its end, and how wrong the judge may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from hardcase.judges.distinct import Group, groups
from hardcase.judges.panel import Signals
from hardcase.judges.silence import silence, silent
from hardcase.judging.independence import check
from hardcase.judging.judge import MEASURED_ELSEWHERE, Judge
from hardcase.randomness import stream
from hardcase.results import Run
from hardcase.store import locked, read_images, to_parquet
from hardcase.tensors import from_bytes

_COLUMNS = {
    "id": pa.string(),
    "valid": pa.bool_(),
    "label_kept": pa.bool_(),
    "group": pa.string(),
    "p_valid": pa.float32(),
    "p_label_kept": pa.float32(),
    "seen": pa.int32(),
    "silent": pa.bool_(),
    "representative": pa.bool_(),
    "closest": pa.bool_(),
    **dict.fromkeys(("classifiers", "neighbours", "something", "nearness", "likeness", "contrast"), pa.float32()),
}


def judge_run(run: Run, judge: Judge, *, seed: int = 0, device: torch.device | str = "cpu") -> Run:
    """Judge every finding of `run`, write verdicts, counts and the judge's card into its folder, return it read anew."""
    check(run, judge)
    table = run.findings
    x = from_bytes(read_images(table["image"])) if len(table) else torch.zeros(0, *run.record["image"])
    expected = _column(table, "expected").long()
    signals = judge.panel.to(device).ask(x.to(device), expected.to(device))
    columns = _answers(judge, signals)
    confirmed = torch.tensor(
        [bool(v and k) and kind == "label" for v, k, kind in zip(columns["valid"], columns["label_kept"], table["kind"].to_pylist())],
        dtype=torch.bool,
    )  # fmt: skip
    found = _groups(judge, x, table, confirmed, seed, device)
    quiet, facts = _silence(run, table, confirmed)
    columns |= {"id": table["id"].to_pylist(), "silent": (quiet & confirmed).tolist(), **_placed(found, len(table))}
    _write(run, columns, {**about(judge), "groups": _described(found, table), "silence": facts})
    return Run(run.folder)


def about(judge: Judge) -> dict[str, Any]:
    """What run.json and the report say of a judge."""
    card = judge.card
    return {
        "name": card["name"],
        "weights": card["weights"],
        "data": card["data"],
        "accuracy": card["accuracy"],
        "measured_images": card["measured_images"],
        "members": card["members"],
        "calibrated": judge.calibration is not None,
        "standing": judge.standing,
        "rules": {name: rule.to_card() for name, rule in judge.rules.items()},
        "calibration": judge.calibration,
        "elsewhere": None if judge.calibration is not None else MEASURED_ELSEWHERE,
    }


def _answers(judge: Judge, signals: Signals) -> dict[str, Sequence[Any]]:
    columns: dict[str, Sequence[Any]] = {"seen": signals.seen.tolist()}
    for name, rule in judge.rules.items():
        probability = rule.probability(signals)
        columns |= {name: rule.answers(probability), f"p_{name}": probability.tolist()}
        columns |= {each: getattr(signals, each).tolist() for each in rule.signals}
    return columns


def _groups(
    judge: Judge, x: Tensor, table: pa.Table, confirmed: Tensor, seed: int, device: torch.device | str
) -> list[Group]:
    """Groups of confirmed tests; their rows are rows of the findings."""
    rows = confirmed.nonzero().squeeze(1)
    if not len(rows):
        return []
    features = judge.panel.features(x[rows].to(device)).cpu()
    expected, predicted, distance = (_column(table, name)[rows] for name in ("expected", "predicted", "l2"))
    found = groups(features, expected, predicted, distance, stream(seed, "judge", "groups"))
    place = rows.tolist()
    return [
        Group(g.expected, g.predicted, tuple(place[i] for i in g.rows), place[g.representative], place[g.closest], g.stability)
        for g in found
    ]  # fmt: skip


def _placed(found: Sequence[Group], count: int) -> dict[str, list[Any]]:
    """The group of every finding (None if it is in none), and whether it stands for it."""
    name: list[str | None] = [None] * count
    middle, closest = [False] * count, [False] * count
    for number, group in enumerate(found, 1):
        for row in group.rows:
            name[row] = f"{group.expected}-{group.predicted}-{number}"
        middle[group.representative] = closest[group.closest] = True
    return {"group": name, "representative": middle, "closest": closest}


def _described(found: Sequence[Group], table: pa.Table) -> list[dict[str, Any]]:
    ids, seeds = table["id"].to_pylist(), table["seed"].to_pylist()
    return [
        {
            "name": f"{group.expected}-{group.predicted}-{number}",
            "expected": group.expected,
            "predicted": group.predicted,
            "tests": len(group.rows),
            "seeds": len({seeds[row] for row in group.rows}),
            "representative": ids[group.representative],
            "closest": ids[group.closest],
            "stability": group.stability,
        }
        for number, group in enumerate(found, 1)
    ]


def _silence(run: Run, table: pa.Table, confirmed: Tensor) -> tuple[Tensor, dict[str, Any]]:
    seeds = run.seeds.select(["label", "predicted", "confidence"])
    own = _column(seeds, "confidence").double()
    right = own[_column(seeds, "label") == _column(seeds, "predicted")]
    confidence = _column(table, "confidence").double()
    return silent(confidence, right), silence(confidence[confirmed], right)


def _column(table: pa.Table, name: str) -> Tensor:
    return torch.from_numpy(table[name].to_numpy().copy())


def _write(run: Run, columns: Mapping[str, Sequence[Any]], entry: Mapping[str, Any]) -> None:
    """Verdicts first, then the counts that follow from them; older verdicts are gone."""
    said = pa.Table.from_pydict({name: columns[name] for name in _COLUMNS}, pa.schema(list(_COLUMNS.items())))
    with locked(run.folder):
        run.store.write("verdicts/part-00000.parquet", to_parquet(said))
        for path in (run.folder / "verdicts").glob("part-*.parquet"):
            if path.name != "part-00000.parquet":
                path.unlink()
        fresh = Run(run.folder)
        run.store.write_record({**fresh.record, **fresh.counts(), "judge": dict(entry)})


__all__ = ["about", "judge_run"]
