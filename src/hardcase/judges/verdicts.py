"""A judge asked about a run: whether it may be, its verdicts beside the findings,
and the funnel to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from hardcase import companions
from hardcase.cache import sweep
from hardcase.data.sources import large, load
from hardcase.data.streams import HELD, ImageSet, LabelledSet
from hardcase.errors import Problem
from hardcase.judges import photographs, teach
from hardcase.judges.calibration import TooFewRated
from hardcase.judges.distinct import Group, groups, silence, silent
from hardcase.judges.held_out import asked_beside, untaught_judge
from hardcase.judges.judge import NOTICEABLE, NormJudge, PanelJudge, by_norm
from hardcase.judges.photographs import (
    FEWEST_IMAGES,
    encoder_of,
    feature_judge,
    head_of,
    is_made,
)
from hardcase.judges.reserved import ReservedJudge, reserved_judge
from hardcase.judges.teach import Tell, calibrate_on, read
from hardcase.models.load import lineage_of
from hardcase.models.names import aligned
from hardcase.models.pretrained.fetching import fetched_classifiers, is_fetched, known_as
from hardcase.models.pretrained.fetching import load as load_fetched
from hardcase.models.pretrained.roles import roles
from hardcase.models.subject import Subject
from hardcase.models.witnesses import apart
from hardcase.randomness import stream
from hardcase.registry import resolve
from hardcase.runs.files import locked, seal_of, sealed
from hardcase.runs.identity import Identity, judge_identity, require, run_digest
from hardcase.runs.results import Run
from hardcase.runs.tables import group_rows, to_parquet
from hardcase.runs.verify import JUDGE
from hardcase.tensors import chunks, fingerprints, from_bytes
from hardcase.training import cards
from hardcase.types import KINDS, Findings, Images, Judge, Verdicts, is_photographic
from hardcase.usercode import guarded

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
        ("classifiers", "neighbours", "something", "nearness", "likeness", "contrast", "lpips"),
        pa.float32(),
    ),
}

LPIPS = "lpips-alexnet"
SMALLEST = 32
"""The network that says how far apart two images look, and the least side it can see."""
CPU = torch.device("cpu")
SEEN = 200
"""Seeds whose features are beside those of the findings, at most."""
AT_ONCE = 2**26
"""Pixel values of the findings that a judge is asked about at once."""
SMALL = 32
THUMBNAIL = 8
"""Where a judge has no features of its own, findings are compared by their pixels; those of more
than so many pixels a side as thumbnails of so many.
"""
KNOWN = 0.01
"""Share of seeds that a judge may have learned from; data sets do hold some images twice."""


def judge(
    run: Run | str | Path,
    *,
    by: Judge | str | Path | None = None,
    features: Sequence[str] = (),
    calibrate: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
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
        device: Where a panel computes.
        progress: Told how its training goes.

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
    run = run if isinstance(run, Run) else Run(run)
    if by is None:
        judge: Judge = for_run(run, features=features, device=device, progress=progress)
    else:
        judge = named(str(by), device) if isinstance(by, str | Path) else by
    if calibrate is not None:
        judge = with_people(judge, Path(calibrate), [run], device=device)
    return judge_run(Run(run.folder), judge)


def with_people(
    judge: Judge,
    place: Path,
    runs: Sequence[Run],
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = lambda text: None,
) -> Judge:
    """The judge fitted to what people said; of a study, each run keeps what they said of it.

    Args:
        judge: A trained panel.
        place: The folder of a study, or an npz file of rated images.
        runs: Runs that the study may have been made of.
        device: Where the judge computes.
        say: Told that a study has too few answers to fit a judge to, which leaves it as it is.

    Raises:
        Problem: If the judge cannot be fitted, or the file holds too few images.
    """
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


def judge_run(run: Run, judge: Judge, *, seed: int = 0, untaught: PanelJudge | None = None) -> Run:
    """Judge every finding of `run` and write verdicts, counts and the judge's card into its folder.

    Args:
        run: A stored run.
        judge: Any callable from findings to verdicts; the panel is one.
        seed: Of the grouping into likely faults.
        untaught: A second judge whose lessons leave out what was searched; what it confirms is
            recorded beside.

    Returns:
        The run, read anew.

    Raises:
        Problem: If the judge may not judge this run, or its answers do not fit the findings.
    """
    if isinstance(judge, PanelJudge):
        check(run, judge)
    table = run.findings
    verdicts = by_norm(_asked(judge, run), table["linf"].to_pylist())
    shown = [kind == "label" for kind in table["kind"].to_pylist()]
    decided = zip(verdicts.valid, verdicts.label_kept, shown, strict=True)
    confirmed = torch.tensor([bool(v and k and label) for v, k, label in decided], dtype=torch.bool)
    found = _groups(run, verdicts, confirmed, seed)
    quiet, facts = _silence(run, table, confirmed)
    columns = {
        **verdicts.columns,
        "id": table["id"].to_pylist(),
        "valid": list(verdicts.valid),
        "label_kept": list(verdicts.label_kept),
        "silent": (quiet & confirmed).tolist(),
        **_placed(found, len(table)),
        **_perceptual(run),
    }
    about = getattr(judge, "about", None)
    entry = about() if callable(about) else _nameless(judge)
    entry = {**entry, "groups": _described(found, table), "silence": facts}
    if isinstance(judge, PanelJudge):
        entry |= _apart(run, judge, verdicts, seed)
    if isinstance(judge, PanelJudge | ReservedJudge):
        entry["independence"] = _independence(run, judge)
    if untaught is not None:
        check(run, untaught)
        entry["beside"] = asked_beside(run, untaught, _asked(untaught, run))
    _write(run, columns, entry, judge_identity(judge, entry))
    return Run(run.folder)


def finish(
    run: Run,
    *,
    say: Callable[[str], None] = lambda text: None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    train: bool = False,
    images: Callable[[str], ImageSet] | None = None,
) -> Run:
    """What the end of every run does: judge it if its judge is trained, else say how to train one.

    Args:
        run: A complete run.
        say: Told why a run was not judged.
        device: Where the judge computes.
        progress: Told how its training goes.
        train: Train the judge if it is missing.
        images: The splits of the run's data, where they are loaded already.

    Returns:
        The run with verdicts, or unchanged.
    """
    if not len(run):
        return run
    if not (train or is_ready(run, images=images)):
        say(
            f"not judged: the judge of {run.record['data']} is not trained yet; "
            f"hardcase judge {run.folder} trains it once"
        )
        return _judged_by_norm(run)
    try:
        judge = for_run(run, device=device, progress=progress, images=images, make=train)
        return judge_run(
            run, judge, untaught=second_judge(run, judge, device=device, images=images)
        )
    except Problem as problem:
        say(f"not judged: {problem.what}" + (f" try: {problem.fix}" if problem.fix else ""))
        return _judged_by_norm(run)


def _judged_by_norm(run: Run) -> Run:
    """A run without a judge: what changed too little to change a label needs none."""
    small = any(size <= NOTICEABLE + 1e-6 for size in run.findings["linf"].to_pylist())
    return judge_run(run, NormJudge()) if small else run


def for_run(
    run: Run,
    *,
    features: Sequence[str] = (),
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    images: Callable[[str], ImageSet] | None = None,
    make: bool = True,
) -> PanelJudge | ReservedJudge:
    """The judge for a run: of the run's data, taught by the split that the seeds are not from.

    Photographs without enough others beside them to learn from are judged by the network alone.

    Args:
        run: A stored run.
        features: Networks whose features the judge reads; by default those the run was started
            with, else, for photographs, the best one on this machine that took no part.
        offline: Touch no network.
        seed: Of the judge's training.
        device: Where the judge computes.
        progress: Told how its training goes.
        images: The splits of the run's data, where they are loaded already.
        make: Make a judge of photographs that is not in the cache, which takes minutes.

    Raises:
        Problem: If the data are others now, or no independent judge can be had.
    """
    wanted = features_of(run, features)
    first, second = _splits_of(run, offline=offline, images=images)
    if not str(run.seeds["id"][0]).startswith("generated"):
        _same_data(run, second)
    if not wanted:
        return teach.trained(
            first.images(), second.images(), seed=seed, device=device, progress=progress
        )
    for spec in wanted:
        _other_lineage(run, spec, lineage_of(spec))
    encoders = [
        encoder_of(spec, *_needed(spec, first, second), device=device, offline=offline)
        for spec in wanted
    ]
    for each in encoders:
        _took_no_part(run, {each.hash: each.spec, each.subject.weights: each.spec})
    named = bool(features or run.record.get("judge_features"))
    enough = len(first) >= FEWEST_IMAGES
    if not named and not (enough and (make or is_made(encoders, first, seed=seed))):
        if enough and head_of(encoders[0], second) is None:
            raise Problem(
                f"{encoders[0].spec} has to be taught the classes of these photographs first.",
                fix=f"hardcase judge {run.folder}, which takes minutes, once",
            )
        return reserved_judge(encoders[0], _seeds_of(run, second))
    return feature_judge(
        wanted,
        first.images(),
        _some(second, HELD // math.prod(second.shape)),
        seed=seed,
        device=device,
        encoders=encoders,
        progress=progress,
    )


def _needed(spec: str, first: ImageSet, second: ImageSet) -> tuple[Images, Images]:
    """What a network is loaded with: only one that is trained here learns from all images."""
    learns = spec.startswith("zoo:") and not lineage_of(spec)
    return (first.images(), second.images()) if learns else (_some(first), _some(second))


def _some(images: ImageSet, count: int = 256) -> Images:
    """All of what is in memory, some of what is not."""
    if isinstance(images, Images):
        return images
    return images.take(torch.linspace(0, len(images) - 1, min(count, len(images))).long()).images()


def second_judge(
    run: Run,
    judge: Judge,
    *,
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    images: Callable[[str], ImageSet] | None = None,
    make: bool = False,
) -> PanelJudge | None:
    """The judge to stand beside the usual one where that was taught about the searched space; see
    `hardcase.judges.held_out`.
    """
    if not isinstance(judge, PanelJudge) or not run.record.get("space"):
        return None
    first, second = (part.images() for part in _splits_of(run, offline=offline, images=images))
    return untaught_judge(
        run, judge, first, second, seed=seed, device=device, progress=progress, make=make
    )


def features_of(run: Run, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Whose features judge a run: those given, the run's own, or for photographs the best here.

    Args:
        run: A stored run.
        given: What the user asked for now.

    Raises:
        Problem: If the run is about photographs and no independent network is on this machine.
    """
    own = [] if given else list(run.record.get("judge_features") or ())
    require({"judge_features": own}, run.folder)
    named = tuple(given) or tuple(own)
    if named or not is_photographic(run.record["image"]):
        return named
    parameters = (run.record.get("hashes") or {}).get("parameters") or {}
    subject = known_as(run.record["model"], parameters.get("subject", ""))
    used = {run.record["model"], subject, *_names_of_witnesses(run)}
    present = [name for name in fetched_classifiers() if f"zoo:{name}" not in used]
    chosen = roles(subject, present)
    taken = {lineage_of(name) for name in used}
    if not chosen.judge or lineage_of(chosen.judge) in taken:
        raise Problem(
            "no network is on this machine that could judge these photographs: "
            "small networks trained on them read too few rightly.",
            chosen.note or "All that are here took part in the search.",
            fix=f"hardcase fetch model resnet50-imagenet, then hardcase judge {run.folder}",
        )
    return (f"zoo:{chosen.judge}",)


def _seeds_of(run: Run, images: ImageSet) -> ImageSet:
    """The run's seeds, in the order of its table."""
    place = {name: row for row, name in enumerate(images.id)}
    return images.take(torch.tensor([place[name] for name in run.seeds["id"].to_pylist()]))


def _names_of_witnesses(run: Run) -> list[str]:
    known = run.record.get("witnesses") or {}
    return list(map(str, known.get("models", ()))) if isinstance(known, Mapping) else []


def is_ready(
    run: Run,
    *,
    offline: bool = True,
    seed: int = 0,
    images: Callable[[str], ImageSet] | None = None,
) -> bool:
    """Whether the judge of a run's data is in the cache, so that judging takes seconds."""
    if run.record.get("judge_features") or is_photographic(run.record["image"]):
        return True  # or there is no network for it, and why is said then
    try:
        first, second = _splits_of(run, offline=offline, images=images)
        return teach.folder(first.images(), second.images(), seed=seed).is_dir()
    except Problem:
        return False


@torch.no_grad()
def _perceptual(run: Run) -> dict[str, list[float]]:
    """LPIPS of each finding to its seed, for colour where the network of LPIPS was fetched."""
    shape = run.record["image"]
    if not len(run) or shape[0] != 3 or min(shape[1:]) < SMALLEST or not is_fetched(LPIPS):
        return {}
    net, _ = load_fetched(LPIPS)
    place = [run.seed_rows[name] for name in run.findings["seed"].to_pylist()]
    parts = [
        net(from_bytes(run.images(rows)), from_bytes(run.seed_images([place[i] for i in rows])))
        for rows in _parts(len(run), 16)
    ]
    return {"lpips": torch.cat(parts).tolist()}


def _apart(run: Run, judge: PanelJudge, verdicts: Verdicts, seed: int) -> dict[str, Any]:
    """FID and KID of the findings of colour images beside their seeds, in the judge's features."""
    known = verdicts.features
    if known is None or run.record["image"][0] != 3:
        return {}
    from hardcase.judges.distributions import apart

    x = run.seed_images(range(min(SEEN, len(run.seeds))))
    device = next(judge.panel.buffers()).device
    seen = judge.panel.features(from_bytes(x.to(device)))
    said = apart(known, seen, stream(seed, "judge", "distributions"))
    return {} if said is None else {"distributions": said}


def findings_of(run: Run, rows: Sequence[int] | None = None) -> Findings:
    """Findings of a stored run as tensors, all of them or some rows; seeds are positions in its
    table of seeds.
    """
    chosen = range(len(run)) if rows is None else rows
    table = run.findings.take(pa.array(chosen, pa.int64()))
    count = len(table)
    place = run.seed_rows
    empty = torch.zeros(0, *run.record["image"], dtype=torch.uint8)
    kinds = [KINDS.index(kind) for kind in table["kind"].to_pylist()]
    return Findings(
        seed=torch.tensor([place[name] for name in table["seed"].to_pylist()], dtype=torch.int64),
        x=run.images(chosen) if count else empty,
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
        witness_margin=torch.tensor(
            [math.nan if w is None else w for w in table["witness_margin"].to_pylist()]
        ),
    )


def _parts(count: int, size: int) -> list[range]:
    """Rows, so many at a time."""
    return [range(part.start, part.stop) for part in chunks(count, size)]


def named(spec: str, device: torch.device | str = "cpu") -> Judge:
    """A judge by its name: ``file.py:name``, or the folder of a trained panel."""
    if spec.rpartition(":")[0].endswith(".py"):
        made: Judge = resolve("judge", spec).make
        return made
    if cards.read_card(Path(spec)).get("name") == photographs.NAME:
        return photographs.stored_feature_judge(Path(spec), device=device)
    panel = read(Path(spec))
    panel.panel.to(device)
    return panel


def _asked(judge: Judge, run: Run) -> Verdicts:
    """The judge's verdicts, whatever it is, checked for their form; no more than a part of the
    findings is in memory.
    """
    name = _name_of(judge)
    size = max(256, AT_ONCE // math.prod(run.record["image"]))
    parts = list[Verdicts]()
    for rows in _parts(len(run), size) or [range(0)]:
        findings = findings_of(run, rows)
        with guarded(f"judge {name}"):
            said = judge(findings)
        if not isinstance(said, Verdicts):
            raise Problem(
                f"judge {name} returned {type(said).__name__}; it must return hardcase.Verdicts.",
                fix="hc.Verdicts(valid=[...], label_kept=[...])",
            )
        for answers in (said.valid, said.label_kept):
            if len(answers) != len(rows):
                raise Problem(f"judge {name} gave {len(answers)} answers on {len(rows)} findings.")
        parts.append(said)
    return Verdicts.join(parts)


def _nameless(judge: Judge) -> dict[str, Any]:
    """What is known of a judge that says nothing of itself."""
    return {
        "name": _name_of(judge),
        "calibrated": False,
        "standing": "supplied by the user; its error rates are not known here",
    }


def _name_of(judge: Judge) -> str:
    return str(getattr(judge, "__name__", type(judge).__name__))


def _splits_of(
    run: Run, *, offline: bool, images: Callable[[str], ImageSet] | None
) -> tuple[ImageSet, ImageSet]:
    """What the judge of a run learns from, and the split that holds the run's seeds; very many
    images stay in their files.
    """
    name = run.record["data"]

    def get(split: str) -> ImageSet:
        if images is not None:
            return images(split).held()
        found = large(name, split) or load(name, split=split, offline=offline)
        return _under(run, found).held()

    own = run.record.get("split", "test")
    photographs = is_photographic(run.record["image"])
    if own == "all" and photographs:  # all may serve as seeds: nothing is left to learn from
        second = get("test")
        return _some(second).take(torch.arange(0)), second
    second = get("train" if own == "train" else "test")
    try:
        return get("test" if own == "train" else "train"), second
    except Problem:
        if not photographs:
            raise
        return _some(second).take(torch.arange(0)), second  # one photograph a class leaves no other


def _under(run: Run, images: LabelledSet) -> LabelledSet:
    """The images under the classes of the run."""
    names = tuple(run.record["classes"])
    return images if images.classes == names else aligned(images, names)


def _same_data(run: Run, images: ImageSet) -> None:
    """Refuse a data set of the same name that does not hold the run's seeds."""
    rows = {name: i for i, name in enumerate(images.id)}
    ids = run.seeds["id"].to_pylist()
    strange = [name for name in ids if name not in rows]
    for part in [] if strange else _parts(len(ids), group_rows(images.shape)):
        own = images.take(torch.tensor([rows[ids[i]] for i in part])).images().x
        stored = run.seed_images(part)
        if own.shape != stored.shape or not bool((own == stored).all()):
            strange = [ids[part.start]]
            break
    if strange:
        raise Problem(
            f"{images.name} as it is now does not hold the run's seed {strange[0]!r}; these are"
            " other data.",
            "A judge of other data says little about these images.",
            fix="the data that the run was made with, or --data D",
        )


def check(run: Run, judge: PanelJudge) -> None:
    """Raise the problem that forbids it."""
    _fits(run, judge)
    own = {**judge.card["members"], "panel": judge.card["weights"]}
    names = {digest: name for name, digest in own.items()}
    for i, net in enumerate(map(Subject, judge.panel.members), 1):
        names |= {net.hash: f"member {i}", net.weights: f"member {i}"}
    _took_no_part(run, names)
    for lineage in judge.card.get("lineages", ()):
        _other_lineage(run, "its encoder", lineage)
    _never_seen(run, judge)


def _fits(run: Run, judge: PanelJudge) -> None:
    config = judge.card["configuration"]
    own = (config["channels"], config["size"], config["size"], config["classes"])
    given = (*run.record["image"], len(run.record["classes"]))
    if own != given:
        shapes = ["{} x {} x {} with {} classes".format(*shape) for shape in (given, own)]
        raise Problem(
            f"the run has images of {shapes[0]}; the judge was made for {shapes[1]}.",
            fix="hardcase judge RUN without --judge trains one for the run's own data",
        )


def _took_no_part(run: Run, names: Mapping[str, str]) -> None:
    """Refuse a judge one of whose networks (name by hash) the search has used."""
    used = _hashes(run.record.get("hashes") or {})
    for role, digest in used.items():
        if digest in names:
            raise Problem(
                f"the search used a network of this judge: its {role.removeprefix('parameters ')}"
                f" is the judge's {names[digest]}.",
                "It would confirm its own mistakes.",
                fix="train another judge: hardcase train judge --seed N, then --judge",
            )


def _other_lineage(run: Run, network: str, lineage: str) -> None:
    """Refuse a network of the judge whose lineage the search has used: they err together."""
    record = run.record
    used = {"subject": lineage_of(str(record["model"]))}
    used |= {f"witness {name}": lineage_of(name) for name in _names_of_witnesses(run)}
    used |= _hashes(record.get("lineages") or {})
    for role, other in used.items():
        if lineage and lineage == other:
            raise Problem(
                f"the run's {role} and the judge's network ({network}) are of one lineage,"
                f" {lineage}.",
                "Networks of one lineage err together; it would confirm their common mistakes.",
                fix="--judge-features with a network of another lineage, as zoo:resnet50-imagenet",
            )


def _never_seen(run: Run, judge: PanelJudge) -> None:
    total = len(run.seeds)
    known = judge.panel.learned.cpu()
    count = sum(
        int(torch.isin(fingerprints(run.seed_images(part)), known).sum())
        for part in _parts(total, group_rows(run.record["image"]))
    )
    if count > KNOWN * total:
        raise Problem(
            f"the judge has learned from {count} of the {total} seeds.",
            "It knows them by heart and would find their neighbours valid whatever was done to"
            " them.",
            fix="a judge trained on another split: hardcase judge RUN without --judge picks it",
        )


def _independence(run: Run, judge: PanelJudge | ReservedJudge) -> dict[str, Any] | None:
    """What the judge shares with the run's witnesses, and what it was taught of the searched
    space.
    """
    witnesses = run.record.get("witnesses")
    if not witnesses:
        return None
    if isinstance(judge, ReservedJudge):
        return apart(witnesses, None, "", None, (judge.encoder.lineage,))
    space = (run.record.get("space") or {}).get("text")
    lineages = tuple(map(str, judge.card.get("lineages", ())))
    return apart(witnesses, judge.panel.learned.cpu(), judge.card["data"], space, lineages)


def _hashes(record: Mapping[str, Any]) -> dict[str, str]:
    """Every network hash of a run, by the role it played."""
    flat: dict[str, str] = {}
    for role, value in record.items():
        if role == "data" or value is None:
            continue
        inner: dict[Any, Any] = {"": value}
        if isinstance(value, Mapping):
            inner = dict(value)
        elif isinstance(value, list):
            inner = dict(enumerate(value, 1))
        flat |= {f"{role} {name}".strip(): str(digest) for name, digest in inner.items()}
    return flat


def _groups(run: Run, verdicts: Verdicts, confirmed: Tensor, seed: int) -> list[Group]:
    """Groups of confirmed findings; their rows are rows of the findings."""
    rows = confirmed.nonzero().squeeze(1)
    if not len(rows):
        return []
    known = verdicts.features
    features = _small(run, rows.tolist()) if known is None else known[rows]
    expected, predicted, distance = (
        _column(run.findings, name)[rows] for name in ("expected", "predicted", "l2")
    )
    found = groups(features, expected, predicted, distance, stream(seed, "judge", "groups"))
    place = rows.tolist()
    return [
        Group(
            g.expected,
            g.predicted,
            tuple(place[i] for i in g.rows),
            place[g.representative],
            place[g.closest],
            g.stability,
        )
        for g in found
    ]


def _small(run: Run, rows: Sequence[int]) -> Tensor:
    """Findings as rows of numbers: their pixels, or those of their thumbnails."""
    channels, height, width = run.record["image"]
    large = max(height, width) > SMALL
    size = (THUMBNAIL, THUMBNAIL) if large else (height, width)
    # made before anything else: small blocks among large ones that come and go keep both
    found = torch.empty(len(rows), channels * size[0] * size[1])
    for part in chunks(len(rows), 32 if large else 4096):
        x = from_bytes(run.images(rows[part]))
        found[part] = (functional.adaptive_avg_pool2d(x, size) if large else x).flatten(1)
    return found


def _placed(found: Sequence[Group], count: int) -> dict[str, list[Any]]:
    """The group of every finding (None if it is in none), and whether it stands for it."""
    name: list[str | None] = [None] * count
    middle = [False] * count
    closest = [False] * count
    for number, group in enumerate(found, 1):
        for row in group.rows:
            name[row] = f"{group.expected}-{group.predicted}-{number}"
        middle[group.representative] = closest[group.closest] = True
    return {"group": name, "representative": middle, "closest": closest}


def _described(found: Sequence[Group], table: pa.Table) -> list[dict[str, Any]]:
    ids = table["id"].to_pylist()
    seeds = table["seed"].to_pylist()
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


def _write(
    run: Run, columns: Mapping[str, Sequence[Any]], entry: Mapping[str, Any], by: Identity
) -> None:
    """Verdicts and whose they are first, then the counts that follow from them; older verdicts are
    gone.
    """
    said = pa.Table.from_pydict(
        {name: columns.get(name, [None] * len(columns["id"])) for name in _COLUMNS},
        pa.schema(list(_COLUMNS.items())),
    )
    with locked(run.folder):
        sweep(run.folder, run.folder / "verdicts")
        whose = {"identity": by.to_json(), "run": run_digest(run.record)}
        files = {"part-00000.parquet": to_parquet(said), JUDGE: sealed(whose)}
        for name, data in files.items():
            run.store.write(f"verdicts/{name}", data)
        for path in (run.folder / "verdicts").glob("part-*.parquet"):
            if path.name != "part-00000.parquet":
                path.unlink()
        fresh = Run(run.folder)
        seals = {name: seal_of(data) for name, data in files.items()}
        fresh.record |= {"judge": dict(entry), "verdicts": seals}
        run.store.write_record({**fresh.record, **fresh.counts()})
