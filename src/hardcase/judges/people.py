"""What people answered about a run: kept with it, entered into its verdicts, reused by the next.

``RUN/answers.jsonl`` has two lines for every question: how it was drawn, written before it was
asked, and what was answered. Answers about one run also help to judge later runs of the same space
by the same judge; they are kept in the cache under a name of these, and marked wherever they count.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit

from hardcase import cache
from hardcase.errors import Problem
from hardcase.judges.asking import Asking, Draw, FindingPopulation, stands_for
from hardcase.judges.judge import PanelJudge, where_agreed
from hardcase.judges.own_run import FEWEST, OwnRule, own_rule
from hardcase.plain import read_plain
from hardcase.runs.files import locked, require_plain
from hardcase.runs.identity import run_digest
from hardcase.runs.results import Run
from hardcase.tensors import digest
from hardcase.types import Verdicts

FILE = "answers.jsonl"
NONE = "none"
UNSURE = "unsure"
"""Answers that are no classes: nothing of these is seen, or one cannot tell."""
EARLIER = 200
"""Answers about other runs that count at most, the latest first."""
CERTAIN = 1e-6


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """What one person said of one image."""

    image: str
    said: str
    expected: str
    rater: str
    seconds: float
    probability: float | None
    rule: str
    session: str
    check: bool = False

    @property
    def kept(self) -> bool:
        """Whether the class of the seed was seen."""
        return self.said == self.expected


def outcome_of(answer: PersonAnswer) -> str:
    """One word for the finding: ``confirmed``, ``rejected`` or ``undecided``."""
    if answer.said == UNSURE:
        return "undecided"
    return "confirmed" if answer.kept else "rejected"


class AnswerFile:
    """The answers of one session, written as they come; each line is on disk before it returns."""

    def __init__(self, run: Path, *, rater: str = "") -> None:
        self.path = run / FILE
        self.session = secrets.token_hex(4)
        self.rater = rater or f"rater-{self.session}"

    def ask(self, image: str, draw: Draw | None) -> None:
        """Store what is about to be asked; without `draw` it is a check."""
        drawn: dict[str, Any] = {"check": True} if draw is None else asdict(draw)
        self._append({"asked": image, "session": self.session, "at": time.time(), **drawn})

    def answer(
        self, image: str, said: str, expected: str, seconds: float, draw: Draw | None
    ) -> None:
        """Store an answer."""
        chance, rule = None, "a check: a real image"
        if draw is not None:
            chance, rule = draw.probability, draw.rule
        own = (self.rater, round(seconds, 3), chance, rule, self.session, draw is None)
        self.add(PersonAnswer(image, said, expected, *own))

    def add(self, given: PersonAnswer) -> None:
        """Store an answer that was given elsewhere."""
        self._append({"answered": given.image, "at": time.time(), **asdict(given)})

    def _append(self, row: Mapping[str, Any]) -> None:
        require_plain(self.path)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cache.unwritable(self.path, error) from error


def read_answers(run: Path) -> list[PersonAnswer]:
    """Return what people answered about a run, checks included; of an image the last answer."""
    path = run / FILE
    if not path.exists():
        return []
    found: dict[tuple[str, bool], PersonAnswer] = {}
    try:
        for line in read_plain(path).decode().splitlines():
            row = json.loads(line)
            if "answered" in row:
                given = PersonAnswer(**{name: row[name] for name in PersonAnswer.__slots__})
                found[given.image, given.check] = given
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(
            f"{path} cannot be read: {type(error).__name__} {error}",
            fix="remove its damaged line, or the file",
        ) from error
    return list(found.values())


def trusted(answers: Sequence[PersonAnswer]) -> list[PersonAnswer]:
    """Leave out the sessions in which most check images were named wrongly."""
    checks: dict[str, list[bool]] = {}
    for one in answers:
        if one.check:
            checks.setdefault(one.session, []).append(one.kept)
    bad = {name for name, passed in checks.items() if 2 * sum(passed) < len(passed)}
    return [one for one in answers if one.session not in bad]


def by_people(verdicts: Verdicts, ids: Sequence[str], answers: Sequence[PersonAnswer]) -> Verdicts:
    """Let a person's answer about a finding stand in place of the judge's.

    A person who cannot tell leaves it undecided. The column ``by`` says who decided.
    """
    said = {given.image: given for given in answers if not given.check}
    valid = list(verdicts.valid)
    kept = list(verdicts.label_kept)
    by = list(verdicts.columns.get("by") or ["judge"] * len(ids))
    for row, name in enumerate(ids):
        if name not in said:
            continue
        unsure = said[name].said == UNSURE
        valid[row] = None if unsure else said[name].said != NONE
        kept[row] = None if unsure else said[name].kept
        by[row] = "person"
    return replace(verdicts, valid=valid, label_kept=kept, columns={**verdicts.columns, "by": by})


def fitted_to_run(
    judge: PanelJudge, said: Verdicts, run: Run, answers: Sequence[PersonAnswer] = ()
) -> tuple[Verdicts, dict[str, OwnRule]]:
    """Fit the rules of a judge to one run and to what people said of its findings, which only the
    label's rule follows; say by them what it says of its findings.
    """
    place = {name: row for row, name in enumerate(run.findings["id"].to_pylist())}
    given = [one for one in answers if not one.check and one.image in place]
    people = {
        "asked": [place[one.image] for one in given],
        "answers": [one.kept for one in given],
        "earlier": reusable(run, judge),
    }
    return by_own_signals(judge, said, **people)


def by_own_signals(
    judge: PanelJudge, said: Verdicts, **people: Any
) -> tuple[Verdicts, dict[str, OwnRule]]:
    """Fit the rules of a judge to images of one kind by their own signals, and answer by them.

    Returns:
        The verdicts, and by question the rule; none where there are fewer than `FEWEST` images.
    """
    if len(said.valid) < FEWEST:
        return said, {}
    rules: dict[str, OwnRule] = {}
    columns = dict(said.columns)
    answered: dict[str, list[bool | None]] = {}
    for name, rule in judge.rules.items():
        odds = _odds(columns[f"p_{name}"])
        given: dict[str, Any] = {}
        if name == "label_kept":
            given = people
        rules[name] = own_rule(odds, rule.share, **given)
        probability = rules[name].probability(odds)
        columns[f"p_{name}"] = probability.tolist()
        answered[name] = rules[name].said(probability)
    kept = where_agreed(answered["label_kept"], columns["seen"])
    return replace(said, valid=answered["valid"], label_kept=kept, columns=columns), rules


def asking_of(
    run: Run,
    judge: PanelJudge,
    said: Verdicts,
    looks: np.ndarray,
    *,
    budget: int,
    limit: float | None = None,
    seed: int = 0,
    runs: int = 1,
) -> tuple[Asking, list[int]]:
    """Return the questions about a run, and which of its findings they are about."""
    table = run.findings.select(["id", "seed", "kind"]).to_pylist()
    ids = [row["id"] for row in table]
    seeds = [row["seed"] for row in table]
    before = {one.image: one for one in trusted(read_answers(run.folder)) if not one.check}
    by = {name: verdict.get("by") for name, verdict in (run.verdicts or {}).items()}
    small = {seed for name, seed in zip(ids, seeds) if by.get(name) == "norm"}
    failing = [
        place
        for place, row in enumerate(table)
        if row["kind"] == "label" and row["seed"] not in small
    ]
    odds = _odds(said.columns["p_label_kept"])
    asked = np.array([ids[row] in before for row in failing], dtype=bool)
    chosen = stands_for([seeds[row] for row in failing], odds[failing], asked)
    rows = [failing[place] for place in chosen]
    if not rows:
        raise Problem(
            "there is nothing to ask about: no failing seed that people have not seen.",
            fix=f"hardcase report {run.folder}",
        )
    place = {name: row for row, name in enumerate(ids)}
    known = [(place[name], one.kept) for name, one in before.items() if name in place]
    earlier = [(float(odds[row]), kept) for row, kept in known]
    confirmed = {seeds[row] for row, kept in known if kept}
    population = FindingPopulation(
        tuple(ids[row] for row in rows),
        odds[rows],
        judge.label_kept.share,
        run.counts()["funnel"]["attempted"] or 0,
        known=len(small | confirmed),
        looks=looks[rows],
        earlier=(*earlier, *reusable(run, judge)),
    )
    return Asking(population, budget, limit, seed, runs=runs), rows


def enter_people(run: Run, asking: Asking | None = None) -> dict[str, Any]:
    """Write what people said of a run into its record, as ``"people"``."""
    everything = read_answers(run.folder)
    answers = trusted(everything)
    checks = [one for one in everything if one.check]
    given = [one for one in answers if not one.check]
    with locked(run.folder):
        fresh = Run(run.folder)
        before = fresh.record.get("people") or {}
        findings = {**before.get("findings", {}), **{one.image: outcome_of(one) for one in given}}
        counts = Counter(findings.values())
        entry: dict[str, Any] = {
            "rated": len(findings),
            "confirmed": counts["confirmed"],
            "undecided": counts["undecided"],
            "rate": before.get("rate"),
            "studies": before.get("studies", []),
            "findings": findings,
            "asked": {
                "answers": len(given),
                "people": len({one.rater for one in given}),
                "left_out": sum(not one.check for one in everything) - len(given),
                "checks": len(checks),
                "checks_passed": sum(one.kept for one in checks),
                "chosen": sorted({one.rule for one in given}),
                "seconds": float(np.median([one.seconds for one in given])) if given else None,
            },
        }
        if asking is not None and not entry["asked"]["left_out"]:
            now = asking.standing()
            entry["asked"]["decision"] = asdict(now)
            if now.value is not None:
                failing = fresh.counts()["funnel"]["failing"] or 0
                entry["rate"] = {
                    **{name: getattr(now, name) for name in ("value", "low", "high")},
                    "attempted": asking.population.attempted,
                    "rated": len(findings),
                    "failing": failing,
                }
        fresh.store.write_record({**fresh.record, "people": entry})
    return entry


# Answers about earlier runs of the same space.


def keep_for_others(
    run: Run, judge: PanelJudge, said: Verdicts, answers: Sequence[PersonAnswer]
) -> None:
    """Keep the answers about a run, with the judge's own log-odds, for runs of the same space."""
    own = run_digest(run.record)
    rows = [row for row in _kept(run, judge) if row["run"] != own]
    if answers:
        place = {name: row for row, name in enumerate(run.findings["id"].to_pylist())}
        odds = _odds(said.columns["p_label_kept"])
        rows += [
            {"run": own, "odds": float(odds[place[one.image]]), "kept": one.kept}
            for one in answers
            if not one.check and one.image in place and one.said != UNSURE
        ]
    if rows:
        cache.write_atomically(_place(run, judge), json.dumps(rows).encode())


def reusable(run: Run, judge: PanelJudge) -> list[tuple[float, bool]]:
    """Return log-odds and answers about other runs of the same space by the same judge."""
    own = run_digest(run.record)
    rows = [row for row in _kept(run, judge) if row["run"] != own]
    return [(row["odds"], row["kept"]) for row in rows[-EARLIER:]]


def _kept(run: Run, judge: PanelJudge) -> list[dict[str, Any]]:
    path = _place(run, judge)
    if not path.exists():
        return []
    try:
        return [dict(row) for row in json.loads(read_plain(path))]
    except (OSError, ValueError, TypeError):  # a cache; the answers are with their run
        return []


def _place(run: Run, judge: PanelJudge) -> Path:
    """One file for each space, data and judge whose answers belong together."""
    space = (run.record.get("space") or {}).get("text") or run.record.get("method")
    rule = judge.label_kept
    parts = [run.record.get("data"), space, judge.card["weights"], rule.scale, rule.offset]
    return cache.cache_folder() / "answers" / f"{digest([json.dumps(parts, default=str)])}.json"


def _odds(probability: Sequence[float]) -> np.ndarray:
    found: np.ndarray = logit(
        np.clip(np.array(probability, dtype=np.float64), CERTAIN, 1 - CERTAIN)
    )
    return found
