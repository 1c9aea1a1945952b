"""Verdicts on a run: each finding is judged by itself, and the counts of the run follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from hardcase import companions
from hardcase.cache import sweep
from hardcase.errors import HardcaseError, choice, guarded, reading
from hardcase.judges import panel, photographs
from hardcase.judges.answers import (
    FILE as ANSWERS,
    PersonAnswer,
    apply_answers,
    read_answers,
    trusted,
)
from hardcase.judges.calibration import TooFewRated
from hardcase.judges.controls import count_controls, plant_controls
from hardcase.judges.grouping import group_findings
from hardcase.judges.held_out import (
    check,
    default_judge,
    held_out_entry,
    held_out_judge,
    independence,
    provenance_of,
)
from hardcase.judges.judge import (
    JudgeRequest,
    OnProgress,
    Splits,
    TrainedJudge,
    ask,
    name_of,
    too_small,
)
from hardcase.judges.rules import silent
from hardcase.judges.samples import count_lost_labels
from hardcase.judges.visible import visible_change
from hardcase.randomness import stream
from hardcase.registry import parts, resolve
from hardcase.runs.files import size_and_crc
from hardcase.runs.identity import Identity, judge_identity
from hardcase.runs.results import Run
from hardcase.runs.tables import to_parquet
from hardcase.runs.verify import strict_arithmetic
from hardcase.statistics import Rate
from hardcase.tensors import chunks
from hardcase.training import cards
from hardcase.types import ImagePairs, Judge, Verdicts

_COLUMNS = {
    "id": pa.string(),
    "verdict": pa.string(),
    "by": pa.string(),
    "p_kept": pa.float32(),
    "noise": pa.float32(),
    "saturated": pa.float32(),
    "root_mean_square": pa.float32(),
    "group": pa.string(),
    "class_seen": pa.int32(),
    "high_confidence": pa.bool_(),
    "representative": pa.bool_(),
    "closest": pa.bool_(),
    **dict.fromkeys(
        ("classifiers", "neighbours", "something", "nearness", "likeness", "contrast"),
        pa.float32(),
    ),
}
AT_ONCE = 2**26
"""Pixel values of the findings that a judge receives at once."""


def judge(
    run: Run | str | Path,
    *,
    by: Judge | str | Path | None = None,
    features: Sequence[str] = (),
    calibrate: str | Path | None = None,
    people: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: OnProgress = None,
    allow_changes: bool = False,
) -> Run:
    """Judge the failures of a run: is the label kept, lost, or is the judge unsure?

    Args:
        run: A stored run or its folder.
        by: Any callable from `ImagePairs` to `Verdicts`, a name of ``hardcase list judges``,
            ``file.py:name``, or the folder of a trained judge; without it the judge of the run's
            data, trained if missing.
        features: Networks whose features the judge of the run's data reads, such as
            ``zoo:resnet50-imagenet``; for photographs the best available by default.
        calibrate: The folder of a study, or a file of images that people have rated; the judge is
            fitted to them and stores the fit, and the run stores a study's answers about it.
        people: An npz file of images and how many people named each class of them; the judge of
            the run's data is trained with these as its targets.
        device: Where a judge computes.
        progress: Called with the progress of its training.
        allow_changes: Keep other verdicts than the same judge gave before.

    Returns:
        The run with its verdicts.

    Raises:
        HardcaseError: If the judge may not judge this run.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> def trusting(pairs):
        ...     return hc.Verdicts(["kept"] * len(pairs))
        >>> hc.judge(run, by=trusting).counts()["search_results"]["accepted"] > 0
        True
    """
    if not isinstance(run, Run):
        run = Run(run)
    request = JudgeRequest(features=features, people=people, device=device, progress=progress)
    chosen: Judge
    if by is None or isinstance(by, str | Path):
        chosen = judge_named(None if by is None else str(by), run, request)
    else:
        chosen = by
    if calibrate is not None:
        chosen = with_people(chosen, Path(calibrate), [run], device=device)
    return judge_run(Run(run.folder), chosen, allow_changes=allow_changes)


def judge_named(spec: str | None, run: Run | None, request: JudgeRequest) -> Judge:
    """Return a judge by its name.

    Args:
        spec: A row of ``hardcase list judges``, ``file.py:name``, the folder of a trained judge,
            or None for the judge of the run's data.
        run: The run that it will judge.
        request: The settings of the judge.
    """
    if spec is None and run is not None:
        return default_judge(run, request)
    if spec is not None and spec in parts("judge"):
        if run is None:
            raise HardcaseError(
                f"judge {spec!r} is made for a run.", fix="hardcase judge RUN --judge"
            )
        judge: Judge = resolve("judge", spec).make(run, request)
        return judge
    if spec is not None and spec.rpartition(":")[0].endswith(".py"):
        candidate: Any = resolve("judge", spec).make
        if isinstance(candidate, type):  # one that remembers: made once, without arguments
            with guarded(f"making judge {spec}", fix="a class whose arguments all have defaults"):
                candidate = candidate()
        supplied: Judge = candidate
        return supplied
    folder = Path(spec or "")
    if not (folder / cards.CARD).is_file():
        raise choice("judge", str(spec), list(parts("judge")))
    if cards.read_card(folder).get("name") == photographs.NAME:
        return photographs.stored_feature_judge(folder, device=request.device)
    stored = panel.read(folder)
    stored.panel.to(request.device)
    return stored


def with_people(
    judge: Judge,
    place: Path,
    runs: Sequence[Run],
    *,
    device: torch.device | str = "cpu",
    log: Callable[[str], None] = lambda text: None,
) -> Judge:
    """Fit a judge to people's answers; each run of a study stores the answers about it."""
    fit: Callable[..., Judge] | None = getattr(judge, "calibrate", None)
    if fit is None:
        raise HardcaseError("only a trained judge can be calibrated.", fix="leave out --judge")
    if place.is_dir():
        companions.reader().record(place, runs=[run.folder for run in runs])
    try:
        return fit(place, device=device)
    except TooFewRated as few:
        if not place.is_dir():
            raise
        log(f"the judge stays as it was: {few.what}")
        return judge


def judge_run(
    run: Run,
    judge: Judge,
    *,
    held_out: TrainedJudge | None = None,
    allow_changes: bool = False,
) -> Run:
    """Judge every finding of `run`; write verdicts, counts and the judge's card into its folder."""
    provenance = provenance_of(judge)
    check(run, provenance)
    if hasattr(judge, "check"):
        with guarded(f"judge {name_of(judge)}"):
            judge.check(run)
    table = run.findings
    ids = table["id"].to_pylist()
    verdicts, measured = judge_findings(judge, run)
    answers = list[PersonAnswer]()
    if (run.folder / ANSWERS).exists():
        answers = trusted(read_answers(run.folder))
        verdicts = apply_answers(verdicts, ids, answers)
    shown = [kind == "label" for kind in table["kind"].to_pylist()]
    accepted = torch.tensor(
        [word == "kept" and label for word, label in zip(verdicts.verdict, shown, strict=True)],
        dtype=torch.bool,
    )
    placed = dict[str, list[Any]]()
    groups = list[dict[str, Any]]()
    if accepted.any():
        rng = stream(0, "judge", "groups")
        placed, groups = group_findings(run, accepted, verdicts.features, rng)
    sure = _column(run.seeds, "confidence").double()
    right = sure[_column(run.seeds, "label") == _column(run.seeds, "predicted")]
    quiet, facts = silent(_column(table, "confidence").double(), right, accepted)
    columns = {
        **verdicts.columns,
        **measured,
        "id": ids,
        "verdict": list(verdicts.verdict),
        "high_confidence": quiet.tolist(),
        "representative": [False] * len(table),
        "closest": [False] * len(table),
        **placed,
    }
    if verdicts.p_kept is not None:
        columns["p_kept"] = list(verdicts.p_kept)
    entry = {
        **_described(judge),
        "groups": groups,
        "high_confidence": facts,
        "independence": independence(run, provenance),
        "controls": _judge_controls(run, judge),
    }
    entry["against_people"] = against_people(run, entry)
    if held_out is not None:
        check(run, held_out.provenance)
        entry["held_out_check"] = held_out_entry(run, held_out, judge_findings(held_out, run)[0])
    by = judge_identity(judge, entry)
    changed = 0
    if run.verdicts is not None and not answers:
        changed = _count_changed(run, run.verdicts, columns, by)
    if changed and strict_arithmetic() and not allow_changes:
        raise HardcaseError(
            f"the judge says something else of {changed} of {len(run)} failures than it did"
            " before.",
            "Weights and source are the same, so what it answers hangs on something else.",
            "The verdicts from before are kept.",
            fix="--allow-changes, if that is meant",
        )
    if changed:
        entry["moved"] = changed
    _write(run, columns, entry, by)
    judged = Run(run.store)
    if not judged.record.get("risk"):
        return judged
    return count_lost_labels(judged, judge)


def _described(judge: Judge) -> dict[str, Any]:
    """What run.json says of a judge."""
    entry: dict[str, Any] = {
        "name": name_of(judge),
        "calibrated": False,
        "status": "supplied by the user; its error rates are not known here",
    }
    if not hasattr(judge, "about"):
        return entry
    about = judge.about()
    if not isinstance(about, Mapping):
        raise HardcaseError(
            f"about() of judge {name_of(judge)} returned {type(about).__name__}.",
            fix='a dictionary, e.g. {"name": "ssim", "least": 0.6}',
        )
    return {**entry, **about}


def _judge_controls(run: Run, judge: Judge) -> dict[str, Any] | None:
    """Judge the controls of a run, as blind as its findings."""
    if not len(run):
        return None
    controls = plant_controls(run)
    return count_controls(controls, ask(judge, controls.pairs).verdict)


def against_people(run: Run, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a judge did on images of the run's method that people rated and that it was not
    fitted to; None where there are none.
    """
    measured = (entry.get("calibration") or {}).get("methods")
    method = str(run.record.get("method")).partition("@")[0]
    if measured:
        rates = measured.get(method)
        return rates and {
            "method": method,
            **{name: rates[name] for name in ("precision", "losses")},
        }
    rated = entry.get("rated") or {}
    if run.record.get("data") not in rated.get("data", ()):
        return None
    row = rated["methods"].get(method)
    precision = row and Rate(row["right"], row["accepted"]).to_json()
    return row and {"method": method, "precision": precision, "losses": row["losses"]}


def _count_changed(
    run: Run,
    verdicts: Mapping[str, Mapping[str, Any]],
    columns: Mapping[str, Sequence[Any]],
    by: Identity,
) -> int:
    """Return on how many findings the same judge gave another verdict before."""
    if run.judged_by is None or run.judged_by.digest != by.digest:
        return 0
    now = zip(columns["id"], columns["verdict"], strict=True)
    return sum(name in verdicts and verdicts[name]["verdict"] != word for name, word in now)


def finish(
    run: Run,
    *,
    log: Callable[[str], None] = lambda text: None,
    device: torch.device | str = "cpu",
    progress: OnProgress = None,
    train: bool = False,
    images: Splits | None = None,
) -> Run:
    """Judge a run at its end if its judge is stored, else log the command that trains it."""
    if not len(run) and not run.record.get("risk"):
        return run
    request = JudgeRequest(device=device, progress=progress, images=images, train=train)
    try:
        judge = default_judge(run, request)
        second = held_out_judge(run, judge, replace(request, train=False))
        return judge_run(run, judge, held_out=second)
    except HardcaseError as problem:
        advice = ""
        if problem.fix:
            advice = f" try: {problem.fix}"
        log(f"not judged: {problem.what}{advice}")
        return run


def pairs_of(run: Run, rows: Sequence[int]) -> ImagePairs:
    """Return findings of a stored run with their originals."""
    table = run.findings.take(pa.array(rows, pa.int64()))
    places = [run.seed_rows[name] for name in table["original"].to_pylist()]
    x = original = torch.zeros(0, *run.record["shape"], dtype=torch.uint8)
    if places:
        x = run.images(rows)
        original = run.seed_images(places)
    return ImagePairs(x, original, _column(table, "expected").long())


def judge_findings(judge: Judge, run: Run) -> tuple[Verdicts, dict[str, list[float]]]:
    """Return the verdicts on all findings and how visible their changes are; no more than a part of
    the images is in memory. What changed too little to change a label keeps it, whoever judges.
    """
    size = max(256, AT_ONCE // math.prod(run.record["shape"]))
    parts = list[Verdicts]()
    measured: dict[str, list[float]] = {}
    for part in chunks(max(len(run), 1), size):
        pairs = pairs_of(run, range(len(run))[part])
        verdicts = ask(judge, pairs)
        small = too_small(pairs).tolist()
        words = ["kept" if tiny else word for tiny, word in zip(small, verdicts.verdict)]
        by = [("judge", "norm")[tiny] for tiny in small]
        parts.append(replace(verdicts, verdict=words, columns={**verdicts.columns, "by": by}))
        for name, values in visible_change(pairs).items():
            measured.setdefault(name, []).extend(values)
    return Verdicts.join(parts), measured


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
    with run.store.writing():
        sweep(run.folder, run.folder / "verdicts")
        name, data = "part-00000.parquet", to_parquet(table)
        run.store.write(f"verdicts/{name}", data)
        for path in (run.folder / "verdicts").iterdir():
            if path.name != name:
                path.unlink()
        fresh = Run(run.store)
        whose = {**entry, "identity": by.to_json()}
        fresh.record |= {"judge": whose, "verdicts": {name: size_and_crc(data)}}
        run.store.write_record({**fresh.record, **fresh.counts()})
