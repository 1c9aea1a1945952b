"""Another version of the model: stored findings shown to it (what is fixed, what still fails, what
fails anew), and what a search for regressions shows beyond its nulls.

The nulls are the same search with the roles swapped, and between the old version and a retraining
of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase import registry, statistics, tensors
from hardcase.analysis.references import Excess, changed, excess
from hardcase.analysis.slices import attempted_labels
from hardcase.campaign.claims import Claims, asking, stored_label
from hardcase.claims.load import claim_model
from hardcase.config import parse, previous, read
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import stream
from hardcase.runs.plan import plan_of
from hardcase.runs.results import Run, finding_claims, seed_claims
from hardcase.runs.start import start
from hardcase.runs.verify import REGRESSION, read_side_file, require_intact, write_side_file
from hardcase.statistics import accepted_by
from hardcase.tensors import chunks, digest, from_bytes, margin
from hardcase.types import ClassNames, Model

NULLS = {"swapped": "the roles swapped", "retrained": "a retraining of the old version"}
"""The nulls, and their names."""
RETRAINED = "?seed=1"
"""What makes another training of a zoo network of its name."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Axis `t`: stored findings, `n`: seeds. `before` and `after` say where each model version
    misclassifies."""

    model: str
    tests: pa.Table
    predicted: Int[Tensor, " t"]
    after: Bool[Tensor, " t"]
    seeds_before: Bool[Tensor, " n"]
    seeds_after: Bool[Tensor, " n"]
    accepted: Bool[Tensor, " t"] | None
    alike: list[str] | None = None
    """Seeds with the same word hold the same image and stand and fall together."""

    def summary(self) -> dict[str, Any]:
        """Counts with their denominators; McNemar's test on the seeds alone and on seeds and
        findings together.

        Stored findings all failed the old version, so they can only get better: the seeds show what
        got worse."""
        names = self.tests["original"].to_pylist()
        change = changed(torch.ones_like(self.after), self.after, names)
        seeds = changed(self.seeds_before, self.seeds_after, self.alike)
        copied = ("fixed", "still_failing")
        accepted = None
        if self.accepted is not None:
            after = self.after[self.accepted]
            judged = changed(torch.ones_like(after), after).record()
            accepted = {"tests": len(after), **{name: judged[name] for name in copied}}
        better, _, neither = change.groups
        summary = seeds.record()
        return {
            "model": self.model,
            "tests": len(self.after),
            **{name: change.record()[name] for name in copied},
            "by_seed": {"some_fixed": better, "none_fixed": neither, "total": better + neither},
            "accepted": accepted,
            "seeds": {
                "total": len(self.seeds_after),
                "right_before": int((~self.seeds_before).sum()),
                "right_now": int((~self.seeds_after).sum()),
                "newly_right": summary["fixed"],
                **{name: summary[name] for name in ("newly_failing", "mcnemar_p")},
                **{name: summary[name] for name in ("groups", "groups_p")},
            },
            "mcnemar_p": statistics.mcnemar(seeds.newly, seeds.fixed + change.fixed).p,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row per finding: what was expected, predicted then and predicted now."""
        findings = self.tests.select(["id", "original", "expected", "predicted"]).to_pylist()
        now = zip(self.predicted.tolist(), self.after.tolist())
        return [
            {**row, "now": label, "failing": failing}
            for row, (label, failing) in zip(findings, now)
        ]


def replay(run: Run, model: Model, *, batch: int = 256, allow_damaged: bool = False) -> Replay:
    """Query `model` with the stored failures of `run` that left their label, and with its images.

    Args:
        run: The run whose findings are queried again.
        model: The model to query, e.g. a repaired model.
        batch: Images per call of the network; changes no result.
        allow_damaged: Go on with what is left of a damaged run.

    Raises:
        HardcaseError: If the run is damaged or has no findings that failed.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> bool(hc.replay(run, toy_subject()).after.all())
        True
    """
    require_intact(run.folder, run.verification, allow_damaged=allow_damaged)
    known = run.record.get("claims")
    if known:
        model = claim_model(model, known["task"], run.classes, threshold=known["threshold"])
    rows_of_findings, tests = failing_findings(run, "replay")
    expected = column(tests, "expected").long()
    batches = (run.images(rows_of_findings[rows]) for rows in chunks(len(rows_of_findings), batch))
    claims_moved = finding_claims(run)
    claims = claims_moved and claims_moved.take(torch.tensor(rows_of_findings))
    predicted, after = _predictions(model, batches, expected, len(run.classes), claims)
    accepted = None
    if run.verdicts is not None:
        verdicts = [accepted_by(run.verdicts, name) for name in tests["id"].to_pylist()]
        accepted = torch.tensor(verdicts, dtype=torch.bool)
    seeds = run.seeds
    label = column(seeds, "label").long()
    parts = [range(len(seeds))[rows] for rows in chunks(len(seeds), batch)]
    images = map(run.seed_images, parts)
    _, seeds_after = _predictions(model, images, label, len(run.classes), seed_claims(run))
    return Replay(
        model.name,
        tests,
        predicted,
        after,
        column(seeds, "predicted") != label,
        seeds_after,
        accepted,
        [digest([image]) for rows in parts for image in run.stored_seed_images(rows)],
    )


def _predictions(
    model: Model,
    batches: Iterable[UInt8[Tensor, "b c h w"]],
    label: Int[Tensor, " m"],
    classes: int,
    claims: Claims | None,
) -> tuple[Int[Tensor, " m"], Bool[Tensor, " m"]]:
    """What the model answers, and where it leaves the label by at least the margin that counts as
    failing."""
    parts = list[Tensor]()
    done = 0
    with torch.inference_mode():
        for x in batches:
            part = slice(done, done + len(x))
            part_claims = claims and claims.take(part).to(model.device)
            parts.append(asking(model, part_claims)(from_bytes(x).to(model.device)).logits.cpu())
            done += len(x)
    logits = torch.cat(parts)
    if logits.shape[1] < classes:
        raise HardcaseError(
            f"{model.name} has {logits.shape[1]} outputs; the run has {classes} classes."
        )
    predicted = stored_label(logits.argmax(1), logits.shape[1], claims)
    return predicted.clone(), (margin(logits.softmax(1), label) >= MIN_MARGIN).clone()


def failing_findings(run: Run, verb: str) -> tuple[list[int], pa.Table]:
    """The rows of a run's findings that left their label, and these findings."""
    rows = pc.indices_nonzero(pc.equal(run.findings["kind"], "label"))
    if not len(rows):
        raise HardcaseError(
            f"{run.folder} holds no failures to {verb}.", fix="a run that found some"
        )
    return rows.to_pylist(), run.findings.take(rows)


def column(table: pa.Table, name: str) -> Tensor:
    return torch.from_numpy(table[name].to_numpy().copy())


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored finding: its expected class, and the prediction of the tested model."""

    id: str
    seed: str
    expected: int
    predicted: int
    classes: ClassNames
    data: bytes

    @property
    def image(self) -> Float[Tensor, "c h w"]:
        """The image, in [0, 1]."""
        return from_bytes(tensors.decode(self.data))

    @property
    def name(self) -> str:
        return f"{self.classes[self.expected]}-{self.classes[self.predicted]}-{self.id}"


def stored(run: Run, *, accepted: bool = False, allow_damaged: bool = False) -> list[Stored]:
    """The findings on which the model left the seed's label; with `accepted`, only those the judge
    accepted. A damaged run is refused, unless it is allowed."""
    require_intact(run.folder, run.verification, allow_damaged=allow_damaged)
    verdicts = run.verdicts
    if accepted and verdicts is None:
        raise HardcaseError(
            f"no judge has read the failures of {run.folder}.", fix=f"hardcase judge {run.folder}"
        )
    rows = run.findings.select(["id", "original", "kind", "expected", "predicted"]).to_pylist()
    return [
        Stored(row["id"], row["original"], row["expected"], row["predicted"], run.classes, image)
        for row, image in zip(rows, run.stored_images())
        if row["kind"] == "label" and (not accepted or accepted_by(verdicts or {}, row["id"]))
    ]


def against_nulls(
    run: Run | str | Path,
    *,
    retrained: str | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Excess:
    """Run the nulls of a complete search for regressions, and keep the excess over them.

    The nulls are separate runs, ``RUN-swapped`` and ``RUN-retrained``; existing runs are read, or
    finished.

    Args:
        run: A run that was started with ``--baseline``.
        retrained: A retraining of the old version; a zoo network is trained again.
            Without it, the swapped roles are the only null.
        log: Called with a line per step.
    """
    done = run if isinstance(run, Run) else Run(run)
    config = parse(read(done.folder / "config.toml"))
    old = previous(config)
    if old is None:
        raise HardcaseError(
            f"{done.folder} did not search for regressions.", fix="hardcase run --baseline OLD"
        )
    retraining = retrained or _another_training(old)
    models = {"swapped": (old, config.model.name)}
    if retraining is not None:
        models["retrained"] = (retraining, old)
    else:
        log("no retraining of the old version is known (--retrained MODEL): one null only")
    nulls = {}
    for name, (model, was) in models.items():
        log(f"null: {model} in place of {config.model.name}, {was} in place of {old}")
        named = {"model": config.model.with_name(model), "baseline": (was,)}
        null = config.model_copy(update=named)
        folder = done.folder.with_name(f"{done.folder.name}-{name}")
        again = (folder / "run.json").is_file()
        nulls[NULLS[name]] = nearest(start(plan_of(Context(null)), folder, again=again))
    beyond = excess(nearest(done), nulls, rng=stream(config.seed, "excess"))
    write_side_file(done.store, REGRESSION, {**beyond.to_json(), "retraining": retraining})
    return beyond


def nearest(run: Run) -> dict[str, float]:
    """For each searched seed the severity of its nearest failure, in the distance of its space;
    with witnesses, of the nearest whose label they all keep."""
    witnessed = bool(run.record.get("witnesses"))
    near = dict.fromkeys(attempted_labels(run), math.inf)
    for row in run.findings.select(["original", "kind", "witnessed", "distance"]).to_pylist():
        if (
            row["original"] in near
            and row["kind"] == "label"
            and (row["witnessed"] or not witnessed)
        ):
            near[row["original"]] = min(near[row["original"]], row["distance"])
    return near


def _another_training(was: str) -> str | None:
    """The name of a retraining of a zoo network; None for what only its owner can retrain."""
    if not was.startswith("zoo:") or "?" in was:
        return None
    trained = {str(row["name"]) for row in registry.rows("models") if row.get("recipe")}
    return f"{was}{RETRAINED}" if was.removeprefix("zoo:") in trained else None


def stored_excess(run: Run) -> Mapping[str, Any] | None:
    """What a run folder keeps of the comparison; None if nothing, or nothing that can be read."""
    record = read_side_file(run.store, REGRESSION) or {}
    try:
        numbers = {name: float(record[name]) for name in ("found", "excess", "low", "high")}
        counts = {"seeds": int(record["seeds"]), "shown": bool(record["shown"])}
        return {**numbers, **counts, "sentence": str(record["sentence"])}
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
