"""Verdicts on a run: a judge is asked about its findings, and the funnel is carried to its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hardcase import companions
from hardcase.analysis.conditions import count_lost_labels
from hardcase.cache import sweep
from hardcase.errors import Problem, guarded, reading
from hardcase.judges import panel, photographs
from hardcase.judges.calibration import (
    TooFewRated,
    calibrate,
    read_arrays,
    read_people,
)
from hardcase.judges.grouping import group_findings
from hardcase.judges.held_out import (
    Splits,
    check,
    for_run,
    held_out_entry,
    held_out_judge,
    independence,
)
from hardcase.judges.judge import (
    NOTICEABLE,
    NormJudge,
    PanelJudge,
    by_norm,
    calibrated,
    keep_calibration,
    unrated_rules,
)
from hardcase.judges.own_run import FEWEST, OwnRule
from hardcase.judges.panel import Tell
from hardcase.judges.people import (
    FILE as ANSWERS,
    PersonAnswer,
    by_people,
    fitted_to_run,
    keep_for_others,
    read_answers,
    trusted,
)
from hardcase.judges.photographs import ReservedJudge
from hardcase.judges.rules import rules_from_card, silent
from hardcase.randomness import stream
from hardcase.registry import parts, resolve
from hardcase.runs.files import locked, size_and_crc
from hardcase.runs.identity import Identity, judge_identity
from hardcase.runs.results import Run
from hardcase.runs.tables import to_parquet
from hardcase.runs.verify import strict_arithmetic
from hardcase.tensors import chunks, from_bytes
from hardcase.training import cards
from hardcase.types import KINDS, Findings, Judge, Verdicts

_COLUMNS = {
    "id": pa.string(),
    "valid": pa.bool_(),
    "label_kept": pa.bool_(),
    "by": pa.string(),
    "group": pa.string(),
    "p_valid": pa.float32(),
    "p_label_kept": pa.float32(),
    "seen": pa.int32(),
    "silent": pa.bool_(),
    "representative": pa.bool_(),
    "closest": pa.bool_(),
    **dict.fromkeys(
        ("classifiers", "neighbours", "something", "nearness", "likeness", "contrast"),
        pa.float32(),
    ),
}

SEEN = 200
"""Seeds whose signals say what is usual, at most."""
AT_ONCE = 2**26
"""Pixel values of the findings that a judge is asked about at once."""


def judge(
    run: Run | str | Path,
    *,
    by: Judge | str | Path | None = None,
    features: Sequence[str] = (),
    calibrate: str | Path | None = None,
    people: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    allow_changes: bool = False,
) -> Run:
    """Judge the findings of a run: valid, label kept, distinct.

    Args:
        run: A stored run or its folder.
        by: Any callable from findings to `Verdicts`, the folder of a trained panel, or a name
            such as ``file.py:name``; without it the judge of the run's data, trained if missing.
        features: Networks whose features the judge of the run's data reads, such as
            ``zoo:resnet50-imagenet``; for photographs the best one at hand by default.
        calibrate: The folder of a study, or a file of images that people have rated; a panel is
            fitted to them and keeps that, and the run keeps what a study's people said of it.
        people: An npz file of images and how many people named each class of them; the judge of
            the run's data is trained with these as its targets.
        device: Where a panel computes.
        progress: Told how its training goes.
        allow_changes: Keep other verdicts than the same judge gave before.

    Returns:
        The run with its verdicts.

    Raises:
        Problem: If the judge may not judge this run.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> def trusting(findings):
        ...     yes = [True] * len(findings)
        ...     return hc.Verdicts(valid=yes, label_kept=yes)
        >>> hc.judge(run, by=trusting).counts()["funnel"]["confirmed"] > 0
        True
    """
    if not isinstance(run, Run):
        run = Run(run)
    judge: Judge
    if by is None:
        judge = for_run(run, features=features, people=people, device=device, progress=progress)
    elif isinstance(by, str | Path):
        judge = named(str(by), device)
    else:
        judge = by
    if calibrate is not None:
        judge = with_people(judge, Path(calibrate), [run], device=device)
    return judge_run(Run(run.folder), judge, allow_changes=allow_changes)


def with_people(
    judge: Judge,
    place: Path,
    runs: Sequence[Run],
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> Judge:
    """Fit a judge to what people said; of a study, each run keeps what they said of it."""
    if not isinstance(judge, PanelJudge):
        raise Problem("only a trained panel can be calibrated.", fix="leave out --judge")
    if place.is_dir():
        companions.reader().record(place, runs=[run.folder for run in runs])
    try:
        return calibrate_on(judge, place, device=device)
    except TooFewRated as few:
        if not place.is_dir():
            raise
        say(f"the judge stays as it was: {few.what}")
        return judge


def calibrate_on(
    judge: PanelJudge, file: Path, *, device: torch.device | str = "cpu"
) -> PanelJudge:
    """Fit the judge's rules to labels of people, measure it, and keep both beside the judge."""
    config = judge.card["configuration"]
    shape = (config["channels"], config["size"], config["size"])
    read: Callable[[Path], Mapping[str, Any]] = read_arrays
    if file.is_dir():
        read = companions.reader().rated
    arrays = read(file)
    people = read_people(arrays, where=str(file), shape=shape, classes=config["classes"])
    x = from_bytes(people.x.to(device))
    signals = judge.panel.to(device).ask(x, people.expected.to(device))
    plain = unrated_rules(judge.panel, judge.card)
    found = calibrate(signals, people, rules_from_card(judge.card), plain=plain)
    keep_calibration(judge, found)
    return calibrated(judge, found)


def judge_run(
    run: Run,
    judge: Judge,
    *,
    held_out: PanelJudge | None = None,
    allow_changes: bool = False,
    said: Verdicts | None = None,
) -> Run:
    """Judge every finding of `run`; write verdicts, counts and the judge's card into its folder."""
    if isinstance(judge, PanelJudge):
        check(run, judge)
    elif hasattr(judge, "check"):
        with guarded(f"judge {_name_of(judge)}"):
            judge.check(run)
    table = run.findings
    said = said or verdicts_of(judge, run)
    answers = list[PersonAnswer]()
    if (run.folder / ANSWERS).exists():
        answers = trusted(read_answers(run.folder))
    own = dict[str, OwnRule]()
    if isinstance(judge, PanelJudge) and (answers or run.record.get("people")):
        keep_for_others(run, judge, said, answers)  # or forget those that were taken back
    if isinstance(judge, PanelJudge) and len(run) >= FEWEST:
        said, own = fitted_to_run(judge, said, run, answers)
    verdicts = by_norm(said, table["linf"].to_pylist())
    if answers:
        verdicts = by_people(verdicts, table["id"].to_pylist(), answers)
    shown = [kind == "label" for kind in table["kind"].to_pylist()]
    decided = zip(verdicts.valid, verdicts.label_kept, shown, strict=True)
    confirmed = torch.tensor([bool(v and k and label) for v, k, label in decided], dtype=torch.bool)
    placed = dict[str, list[Any]]()
    groups = list[dict[str, Any]]()
    if confirmed.any():
        rng = stream(0, "judge", "groups")
        placed, groups = group_findings(run, confirmed, verdicts.features, rng)
    sure = _column(run.seeds, "confidence").double()
    right = sure[_column(run.seeds, "label") == _column(run.seeds, "predicted")]
    quiet, facts = silent(_column(table, "confidence").double(), right, confirmed)
    columns = {
        **verdicts.columns,
        "id": table["id"].to_pylist(),
        "valid": list(verdicts.valid),
        "label_kept": list(verdicts.label_kept),
        "silent": quiet.tolist(),
        "representative": [False] * len(table),
        "closest": [False] * len(table),
        **placed,
    }
    entry: dict[str, Any] = {
        "name": _name_of(judge),
        "calibrated": False,
        "standing": "supplied by the user; its error rates are not known here",
    }
    if hasattr(judge, "about"):
        about = judge.about()
        if not isinstance(about, Mapping):
            raise Problem(
                f"about() of judge {_name_of(judge)} returned {type(about).__name__}.",
                fix='a dictionary, e.g. {"name": "ssim", "least": 0.6}',
            )
        entry |= about
    if own:
        entry["own_rules"] = {name: rule.to_json() for name, rule in own.items()}
        entry["standing"] += _own_in_words(own["label_kept"], len(run))
    entry = {**entry, "groups": groups, "silence": facts}
    if isinstance(judge, PanelJudge | ReservedJudge):
        entry["independence"] = independence(run, judge)
    if held_out is not None:
        check(run, held_out)
        beside, _ = fitted_to_run(held_out, verdicts_of(held_out, run), run, answers)
        entry["beside"] = held_out_entry(run, held_out, beside)
    by = judge_identity(judge, entry)
    asked = any(rule.answers or rule.reused for rule in own.values())  # people may change verdicts
    moved = 0
    if run.verdicts is not None and not (answers or asked):
        moved = _moved(run, run.verdicts, columns, by)
    if moved and strict_arithmetic() and not allow_changes:
        raise Problem(
            f"the judge says something else of {moved} of {len(run)} findings than it did before.",
            "Weights and source are the same, so what it answers hangs on something else.",
            "The verdicts from before are kept.",
            fix="--allow-changes, if that is meant",
        )
    if moved:
        entry["moved"] = moved
    _write(run, columns, entry, by)
    judged = Run(run.folder)
    if not judged.record.get("risk"):
        return judged

    return count_lost_labels(judged, judge)


def _moved(
    run: Run,
    verdicts: Mapping[str, Mapping[str, Any]],
    columns: Mapping[str, Sequence[Any]],
    by: Identity,
) -> int:
    """Of how many findings the same judge said something else before."""
    if run.judged_by is None or run.judged_by.digest != by.digest:
        return 0
    now = zip(columns["id"], columns["valid"], columns["label_kept"], strict=True)
    told = ((verdicts.get(name), valid, kept) for name, valid, kept in now)
    return sum(
        before is not None and (before["valid"], before["label_kept"]) != (valid, kept)
        for before, valid, kept in told
    )


def _own_in_words(rule: OwnRule, count: int) -> str:
    """What the standing of a judge says of the rule that a run gave it."""
    text = f"; thresholds are those of this run, from its own {count} findings"
    if rule.answers:
        text += f" and {rule.answers} answers of people about them"
    if rule.reused:
        text += f", and {rule.reused} answers about earlier runs of the same space"
    return text


def finish(
    run: Run,
    *,
    say: Callable[[str], None] = lambda text: None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    train: bool = False,
    images: Splits | None = None,
) -> Run:
    """Judge a run at its end if its judge is trained, else say how to train one."""
    if not len(run) and not run.record.get("risk"):
        return run
    try:
        judge = for_run(run, device=device, progress=progress, images=images, make=train)
        second = held_out_judge(run, judge, device=device, images=images)
        return judge_run(run, judge, held_out=second)
    except Problem as problem:
        advice = ""
        if problem.fix:
            advice = f" try: {problem.fix}"
        say(f"not judged: {problem.what}{advice}")
        return _judged_by_norm(run)


def _judged_by_norm(run: Run) -> Run:
    """A run without a judge: what changed too little to change a label needs none."""
    if any(size <= NOTICEABLE + 1e-6 for size in run.findings["linf"].to_pylist()):
        return judge_run(run, NormJudge())
    return run


def findings_of(run: Run, rows: Sequence[int]) -> Findings:
    """Return findings of a stored run as tensors; seeds are positions in its table of seeds."""
    table = run.findings.take(pa.array(rows, pa.int64()))
    count = len(table)
    place = run.seed_rows
    x = torch.zeros(0, *run.record["image"], dtype=torch.uint8)
    if count:
        x = run.images(rows)
    margins = np.array(table["witness_margin"].to_pylist(), dtype=np.float32)  # None becomes NaN
    kinds = [KINDS.index(kind) for kind in table["kind"].to_pylist()]
    return Findings(
        seed=torch.tensor([place[name] for name in table["seed"].to_pylist()], dtype=torch.int64),
        x=x,
        kind=torch.tensor(kinds, dtype=torch.int64),
        expected=_column(table, "expected").long(),
        predicted=_column(table, "predicted").long(),
        peer_predicted=torch.zeros(count, 0, dtype=torch.int64),
        confidence=_column(table, "confidence").float(),
        score=_column(table, "score").float(),
        distance=_column(table, "distance").float(),
        queries=_column(table, "queries").long(),
        code=torch.zeros(count, 0),
        witnessed=torch.tensor([bool(w) for w in table["witnessed"].to_pylist()], dtype=torch.bool),
        witness_margin=torch.from_numpy(margins),
    )


def named(spec: str, device: torch.device | str = "cpu") -> Judge:
    """Return a judge by its name: ``file.py:name``, an installed one, or the folder of a trained
    one.
    """
    installed = parts("judge", spec).get(spec)
    ours = installed is None or installed.make.__module__.startswith("hardcase.")
    if spec.rpartition(":")[0].endswith(".py") or not ours:
        made: Any = resolve("judge", spec).make
        if isinstance(made, type):  # one that remembers: made once, without arguments
            with guarded(f"making judge {spec}", fix="a class whose arguments all have defaults"):
                made = made()
        judge: Judge = made
        return judge
    if cards.read_card(Path(spec)).get("name") == photographs.NAME:
        return photographs.stored_feature_judge(Path(spec), device=device)
    stored = panel.read(Path(spec))
    stored.panel.to(device)
    return stored


def verdicts_of(judge: Judge, run: Run) -> Verdicts:
    """The judge's verdicts, whatever it is, checked for their form; no more than a part of the
    findings is in memory.
    """
    name = _name_of(judge)
    size = max(256, AT_ONCE // math.prod(run.record["image"]))
    parts = list[Verdicts]()
    for part in chunks(max(len(run), 1), size):
        rows = range(len(run))[part]
        findings = findings_of(run, rows)
        with guarded(f"judge {name}"):
            said = judge(findings)
        if not isinstance(said, Verdicts):
            raise Problem(
                f"judge {name} returned {type(said).__name__}; it must return hardcase.Verdicts.",
                fix="hc.Verdicts(valid=[...], label_kept=[...])",
            )
        for answers in (said.valid, said.label_kept, *said.columns.values()):
            if len(answers) != len(rows):
                raise Problem(
                    f"judge {name} gave {len(answers)} answers on {len(rows)} findings.",
                    fix="one answer for each finding, None where it cannot tell",
                )
        for answer in (*said.valid, *said.label_kept):
            if not isinstance(answer, bool | np.bool_ | None):
                raise Problem(
                    f"judge {name} said {answer!r} of a finding; it says True, False or None.",
                    "A probability can be kept beside it, as a column of its own.",
                    fix=f"compare it with a limit, and columns={{'p_{name}': [...]}}",
                )
        parts.append(said)
    return Verdicts.join(parts)


def _name_of(judge: Judge) -> str:
    return str(getattr(judge, "__name__", type(judge).__name__))


def _column(table: pa.Table, name: str) -> Tensor:
    return torch.from_numpy(table[name].to_numpy().copy())


def _write(
    run: Run, columns: Mapping[str, Sequence[Any]], entry: Mapping[str, Any], by: Identity
) -> None:
    """Verdicts first, then whose they are and the counts that follow; older verdicts are gone."""
    table = pa.Table.from_pydict(
        {name: columns.get(name, [None] * len(columns["id"])) for name in _COLUMNS},
        pa.schema(list(_COLUMNS.items())),
    )
    for name in [name for name in columns if name not in _COLUMNS]:  # a judge's own
        with reading(f"column {name} of the verdicts cannot be stored"):
            table = table.append_column(name, pa.array(columns[name]))
    with locked(run.folder):
        sweep(run.folder, run.folder / "verdicts")
        name, data = "part-00000.parquet", to_parquet(table)
        run.store.write(f"verdicts/{name}", data)
        for path in (run.folder / "verdicts").iterdir():
            if path.name != name:
                path.unlink()
        fresh = Run(run.folder)
        whose = {**entry, "identity": by.to_json()}
        fresh.record |= {"judge": whose, "verdicts": {name: size_and_crc(data)}}
        run.store.write_record({**fresh.record, **fresh.counts()})
