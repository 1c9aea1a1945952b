"""A judge asked about a run: whether it may be, its verdicts beside the findings, and the funnel to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.judges import teach
from hardcase.judges.calibration import calibrate as _calibrate
from hardcase.judges.calibration import read_people
from hardcase.judges.distinct import Group, groups, silence, silent
from hardcase.judges.judge import MEASURED_ELSEWHERE, Judge, calibrated, judge_of, keep_calibration
from hardcase.judges.panel import Panel, Signals
from hardcase.judges.teach import Tell, fingerprints
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.runs.folder import locked
from hardcase.runs.results import Run
from hardcase.runs.tables import read_images, to_parquet
from hardcase.tensors import from_bytes
from hardcase.training import cards
from hardcase.types import Images

# --- Which judge a run, or a data set, is judged by; and what people say of it.


def for_data(
    name: str,
    *,
    learn_from: str = "train",
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Judge:
    """The judge of a data set by name, trained if it is missing; it learns from one split and is measured on the other."""
    first, second = _splits(name, learn_from, offline=offline)
    return teach.trained(first, second, seed=seed, device=device, progress=progress)


def for_run(
    run: Run,
    *,
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Judge:
    """The judge for a run: of the run's data, learned from the split that the seeds are not from."""
    name, split = run.record["data"], run.record.get("split", "test")
    learn_from = "train" if split == "test" else "test"
    first, second = _splits(name, learn_from, offline=offline)
    if not str(run.seeds["id"][0]).startswith("generated"):
        _same_data(run, second)
    return teach.trained(first, second, seed=seed, device=device, progress=progress)


def is_ready(run: Run, *, offline: bool = True, seed: int = 0) -> bool:
    """Whether the judge of a run's data is in the cache, so that judging takes seconds."""
    split = run.record.get("split", "test")
    try:
        first, second = _splits(
            run.record["data"], "train" if split == "test" else "test", offline=offline
        )
        return teach.folder(first, second, seed=seed).is_dir()
    except Problem:
        return False


def read(folder: Path) -> Judge:
    """A judge from its folder."""
    net, card = cards.load_card(folder, teach.build, kind=teach.KIND)
    assert isinstance(net, Panel)
    return judge_of(net, card, folder)


def calibrate_on(
    judge: Judge, file: Path, *, seed: int = 0, device: torch.device | str = "cpu"
) -> Judge:
    """Fit the judge's rules to the labels of people in `file`, measure it, and keep both beside the judge."""
    config = judge.card["configuration"]
    try:
        with np.load(file, allow_pickle=False) as arrays:
            given = {name: arrays[name] for name in arrays}
    except FileNotFoundError:
        raise Problem(f"there is no file {file}.") from None
    except Exception as error:  # damaged archives raise many kinds
        raise Problem(f"{file} is not an npz file of plain arrays: {error}") from error
    shape = (config["channels"], config["size"], config["size"])
    people = read_people(given, where=str(file), shape=shape, classes=config["classes"])
    signals = judge.panel.to(device).ask(
        from_bytes(people.x.to(device)), people.expected.to(device)
    )
    found = _calibrate(
        signals, people, teach.made(judge.card), stream(seed, "judge", "calibration")
    )
    keep_calibration(judge, found)
    return calibrated(judge, found)


def _splits(name: str, learn_from: str, *, offline: bool) -> tuple[Images, Images]:
    other = "test" if learn_from == "train" else "train"
    first, second = (load(name, split=split, offline=offline) for split in (learn_from, other))
    return first, second


def _same_data(run: Run, images: Images) -> None:
    """Refuse a data set of the same name that does not hold the run's seeds."""
    table = run.seeds.select(["id", "image"])
    rows = {name: i for i, name in enumerate(images.id)}
    ids = table["id"].to_pylist()
    strange = [name for name in ids if name not in rows]
    if not strange and len(ids):
        own = images.x[torch.tensor([rows[name] for name in ids])]
        stored = read_images(table["image"])
        same = own.shape == stored.shape and bool((own == stored).all())
        strange = [] if same else ids[:1]
    if strange:
        raise Problem(
            f"{images.name} as it is now does not hold the run's seed {strange[0]!r}; these are other data.",
            "A judge of other data says little about these images.",
            fix="the data that the run was made with, or --data D",
        )


# --- Whether a judge may judge a run: the same kind of images, no network of its own in the search, seeds it has not seen.

KNOWN = 0.01
"""Share of seeds that a judge may have learned from; data sets do hold some images twice."""


def check(run: Run, judge: Judge) -> None:
    """Raise the problem that forbids it."""
    _fits(run, judge)
    _took_no_part(run, judge)
    _never_seen(run, judge)


def _fits(run: Run, judge: Judge) -> None:
    config = judge.card["configuration"]
    own = (config["channels"], config["size"], config["size"], config["classes"])
    given = (*run.record["image"], len(run.record["classes"]))
    if own != given:
        shapes = ["{} x {} x {} with {} classes".format(*shape) for shape in (given, own)]
        raise Problem(
            f"the run has images of {shapes[0]}; the judge was made for {shapes[1]}.",
            fix="hardcase judge RUN without --judge trains one for the run's own data",
        )


def _took_no_part(run: Run, judge: Judge) -> None:
    used = _hashes(run.record.get("hashes") or {})
    own = {**judge.card["members"], "panel": judge.card["weights"]}
    names = {digest: name for name, digest in own.items()}
    names |= {Subject(net).hash: f"member {i}" for i, net in enumerate(judge.panel.members, 1)}
    for role, digest in used.items():
        if digest in names:
            raise Problem(
                f"the search used a network of this judge: its {role} is the judge's {names[digest]}.",
                "It would confirm its own mistakes.", fix="train another judge: hardcase train judge --seed N, then --judge",
            )  # fmt: skip


def _never_seen(run: Run, judge: Judge) -> None:
    seeds = read_images(run.seeds["image"])
    count = int(torch.isin(fingerprints(seeds), judge.panel.learned.cpu()).sum())
    if count > KNOWN * len(seeds):
        raise Problem(
            f"the judge has learned from {count} of the {len(seeds)} seeds.",
            "It knows them by heart and would find their neighbours valid whatever was done to them.",
            fix="a judge trained on another split: hardcase judge RUN without --judge picks it",
        )


def _hashes(record: Mapping[str, Any]) -> dict[str, str]:
    """Every network hash of a run, by the role it played."""
    flat: dict[str, str] = {}
    for role, value in record.items():
        if role == "data" or value is None:
            continue
        inner = (
            value
            if isinstance(value, Mapping)
            else dict(enumerate(value, 1))
            if isinstance(value, list)
            else {"": value}
        )
        flat |= {f"{role} {name}".strip(): str(digest) for name, digest in inner.items()}
    return flat


# --- A judge asked about a run: verdicts beside the findings, the funnel to its end, and how wrong the judge may be.

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
    **dict.fromkeys(
        ("classifiers", "neighbours", "something", "nearness", "likeness", "contrast"), pa.float32()
    ),
}


def judge_run(run: Run, judge: Judge, *, seed: int = 0, device: torch.device | str = "cpu") -> Run:
    """Judge every finding of `run`, write verdicts, counts and the judge's card into its folder, return it read anew."""
    check(run, judge)
    table = run.findings
    x = (
        from_bytes(read_images(table["image"]))
        if len(table)
        else torch.zeros(0, *run.record["image"])
    )
    expected = _column(table, "expected").long()
    signals = judge.panel.to(device).ask(x.to(device), expected.to(device))
    columns = _answers(judge, signals)
    confirmed = torch.tensor(
        [bool(v and k) and kind == "label" for v, k, kind in zip(columns["valid"], columns["label_kept"], table["kind"].to_pylist())],
        dtype=torch.bool,
    )  # fmt: skip
    found = _groups(judge, x, table, confirmed, seed, device)
    quiet, facts = _silence(run, table, confirmed)
    columns |= {
        "id": table["id"].to_pylist(),
        "silent": (quiet & confirmed).tolist(),
        **_placed(found, len(table)),
    }
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
    judge: Judge,
    x: Tensor,
    table: pa.Table,
    confirmed: Tensor,
    seed: int,
    device: torch.device | str,
) -> list[Group]:
    """Groups of confirmed tests; their rows are rows of the findings."""
    rows = confirmed.nonzero().squeeze(1)
    if not len(rows):
        return []
    features = judge.panel.features(x[rows].to(device)).cpu()
    expected, predicted, distance = (
        _column(table, name)[rows] for name in ("expected", "predicted", "l2")
    )
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
    said = pa.Table.from_pydict(
        {name: columns[name] for name in _COLUMNS}, pa.schema(list(_COLUMNS.items()))
    )
    with locked(run.folder):
        run.store.write("verdicts/part-00000.parquet", to_parquet(said))
        for path in (run.folder / "verdicts").glob("part-*.parquet"):
            if path.name != "part-00000.parquet":
                path.unlink()
        fresh = Run(run.folder)
        run.store.write_record({**fresh.record, **fresh.counts(), "judge": dict(entry)})


# --- The front door of judging: a run, its judge, and what people said.


def judge(
    run: Run | str | Path,
    *,
    by: Judge | str | Path | None = None,
    calibrate: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Run:
    """Judge the findings of a run: valid, label kept, distinct. Returns the run with its verdicts.

    `by` is a judge or the folder of one; without it the judge of the run's data, trained if it is missing. `calibrate` is
    a file of images that people have rated; the judge is fitted to them first, and keeps that.
    """
    run = run if isinstance(run, Run) else Run(run)
    if by is None:
        by = for_run(run, device=device, progress=progress)
    elif not isinstance(by, Judge):
        by = read(Path(by))
    if calibrate is not None:
        by = calibrate_on(by, Path(calibrate), device=device)
    return judge_run(run, by, device=device)


def finish(
    run: Run,
    *,
    say: Callable[[str], None] = lambda text: None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    train: bool = False,
) -> Run:
    """What the end of every run does: judge it if its judge is trained (or `train` says to train one), else say how to.

    A run that cannot be judged stays as it is, and why is said.
    """
    if not len(run):
        return run
    if not (train or is_ready(run)):
        say(
            f"not judged: the judge of {run.record['data']} is not trained yet; hardcase judge {run.folder} trains it once"
        )
        return run
    try:
        return judge(run, device=device, progress=progress)
    except Problem as problem:
        say(f"not judged: {problem.what}")
        return run
