"""Which images of runs are shown: a probability sample, stratified by the judge's verdict.

The population of a run are its failing seeds, each with one finding that stands for it. Seeds on
which a method failed to find anything belong to the attempted ones and are known not to be
confirmed, so they need no rating. Probabilities are stored; rates of the population follow from
them (see `hardcase_study.confirmed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hardcase.errors import HardcaseError
from hardcase_study.bundle import opaque

if TYPE_CHECKING:
    import pyarrow as pa
    from jaxtyping import Int, UInt8
    from torch import Tensor

    from hardcase.runs.results import Run
    from hardcase.types import Images

VERDICTS = ("accepted", "unsure", "refused", "unjudged")
Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Images of one method that a study draws from: a stored run, or images made in memory."""

    method: str
    classes: tuple[str, ...]
    seeds: Sequence[Row]
    findings: Sequence[Row]
    verdicts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rated: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    by_itself: bool = False

    @classmethod
    def of_run(cls, run: Run) -> Source:
        """What a stored run holds."""
        record = run.record
        counts = run.counts()["search_results"]
        about = {
            "folder": str(run.folder.absolute()),
            **{name: record.get(name) for name in ("method", "model", "data", "split", "seed")},
            **{name: counts[name] for name in ("searched", "failing", "accepted")},
        }
        seeds: Callable[[Sequence[int]], list[bytes]] = run.stored_seed_images
        findings: Callable[[Sequence[int]], list[bytes]] = run.stored_images
        if record.get("claims"):  # people are asked about what is in the box
            from hardcase.report.pictures import ClaimPictures

            pictures = ClaimPictures(run)
            seeds, findings = pictures.seeds, pictures.findings
        return cls(
            str(record.get("method", run.folder.name)),
            run.classes,
            _rows(run.seeds, seeds),
            _rows(run.findings, findings),
            run.verdicts or {},
            rated_before(record),
            about,
        )

    @classmethod
    def of_conditions(cls, run: Run) -> Source:
        """The random failing samples that a run keeps of its declared conditions.

        A draw is named after what it shows, so that a run is known by its draws.
        """
        from hardcase.analysis.conditions import shown_samples

        shown = () if run.record.get("claims") else shown_samples(run)
        if not shown:
            raise HardcaseError(
                f"{run.folder} keeps no failing samples of declared conditions to ask about.",
                "Runs of classifiers with a failure rate above 0 keep up to 60.",
                fix="hardcase study new RUN",
            )
        findings = [
            {
                "id": draw_name(place, row),
                "original": row["original"],
                "kind": "label",
                "expected": row["label"],
                "predicted": row["predicted"],
                "method": "conditions",
                "image": {"bytes": row["image"]},
            }
            for place, row in enumerate(shown)
        ]
        known = cls.of_run(run)
        return replace(
            known, method="conditions", findings=findings, verdicts={}, rated={}, by_itself=True
        )

    @classmethod
    def of_images(
        cls,
        method: str,
        seeds: Images,
        x: UInt8[Tensor, "m c h w"],
        origin: Int[Tensor, " m"],
        predicted: Int[Tensor, " m"],
    ) -> Source:
        """Images `x` that `method` made of `seeds`."""
        from hardcase.tensors import encode_all

        labels = seeds.y.tolist()
        rows = [
            {"id": name, "label": label, "predicted": label, "confidence": 1.0, "image": image}
            for name, label, image in zip(seeds.id, labels, _stored(encode_all(seeds.x)))
        ]
        made = zip(origin.tolist(), predicted.tolist(), _stored(encode_all(x)))
        findings = [
            {
                "id": f"{method}/{i}",
                "original": seeds.id[seed],
                "kind": "label" if said != labels[seed] else "other",
                "expected": labels[seed],
                "predicted": said,
                "method": method,
                "image": image,
            }
            for i, (seed, said, image) in enumerate(made)
        ]
        return cls(method, tuple(seeds.classes), rows, findings, about={"method": method})

    @property
    def failing(self) -> list[Row]:
        """Findings on which the network leaves its original's label."""
        return [row for row in self.findings if row["kind"] == "label"]

    def by_seed(self, *, failing: bool = True) -> dict[str, list[Row]]:
        """Findings by their original; with `failing` false, every image that is stored."""
        groups: dict[str, list[Row]] = {}
        for row in self.failing if failing else self.findings:
            groups.setdefault(row["original"], []).append(row)
        return groups


def draw_name(place: int, row: Mapping[str, Any]) -> str:
    """The name of a failing sample (a row of `shown_draws`), by its label and its pixels."""
    from hardcase.tensors import decode

    return opaque("draw", place, row["label"], decode(row["image"]).numpy().tobytes().hex())


def _stored(images: Sequence[bytes]) -> list[dict[str, bytes]]:
    return [{"bytes": data} for data in images]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One finding of the sample, with the stratum it was drawn from and with which probability."""

    row: Row
    verdict: str
    stratum: str
    probability: float
    fixed: bool = True


def verdict_of(said: Mapping[str, Any] | None) -> str:
    """A judge's row in one word: ``accepted``, ``refused``, ``unsure`` or ``unjudged``."""
    from hardcase.statistics import verdict_status  # loads torch, which the server does without

    return "unjudged" if said is None else verdict_status(said)


def rated_before(record: Mapping[str, Any]) -> dict[str, str]:
    """Findings of a run (by its record) that people have rated, and what they said."""
    people = record.get("people")
    known = people.get("findings") if isinstance(people, Mapping) else None
    return dict(known) if isinstance(known, Mapping) else {}


def population(source: Source, rng: np.random.Generator) -> dict[str, tuple[Row, str]]:
    """Each failing original's finding and the judge's verdict on it, by seed.

    The one that stands for a seed is drawn at random among those with the best verdict, so a seed
    of which the judge accepts a finding is represented by one that it accepts. Seeds with a finding
    that people have rated before are no longer unseen and left out. Where failures stand for
    themselves, it is each of them by its own name.
    """
    if source.by_itself:
        return {row["id"]: (row, "unjudged") for row in source.failing}
    over = {row["original"] for row in source.failing if row["id"] in source.rated}
    best: dict[str, list[tuple[Row, str]]] = {}
    for row in source.failing:
        if row["original"] in over:
            continue
        verdict = verdict_of(source.verdicts.get(row["id"]))
        held = best.get(row["original"], [])
        rank = VERDICTS.index(verdict) - (VERDICTS.index(held[0][1]) if held else len(VERDICTS))
        if rank < 0:
            best[row["original"]] = [(row, verdict)]
        elif rank == 0:
            held.append((row, verdict))
    return {seed: held[int(rng.integers(len(held)))] for seed, held in sorted(best.items())}


def sample(
    sources: Mapping[str, Source],
    count: int,
    rng: np.random.Generator,
    *,
    fixed: float = 1.0,
) -> tuple[list[Drawn], dict[str, dict[str, Any]]]:
    """`count` failures, without replacement inside each stratum (run and verdict).

    Strata share `count` in proportion to their size, at least two each where they have them.
    """
    strata: dict[str, list[tuple[Row, str]]] = {}
    for name, source in sources.items():
        for row, verdict in population(source, rng).values():
            strata.setdefault(f"{name}/{verdict}", []).append((row, verdict))
    sizes = allocate({name: len(rows) for name, rows in strata.items()}, count)
    drawn: list[Drawn] = []
    facts: dict[str, dict[str, Any]] = {}
    for name in sorted(strata):
        rows = strata[name]
        number = sizes[name]
        kept = number if fixed >= 1 else max(min(2, number), round(fixed * number))
        chosen = rng.permutation(len(rows))[:number].tolist()
        facts[name] = {"size": len(rows), "drawn": number, "fixed": kept}
        for place, i in enumerate(chosen):
            row, verdict = rows[i]
            probability = (kept if place < kept else number) / len(rows)
            drawn.append(Drawn(row, verdict, name, probability, place < kept))
    return drawn, facts


def allocate(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` over strata in proportion to size, never above it, two at least where there are two.

    >>> allocate({"a": 90, "b": 9, "c": 1}, 20)
    {'a': 17, 'b': 2, 'c': 1}
    """
    total = sum(sizes.values())
    if total <= count:
        return dict(sizes)
    least = {name: min(2, size) for name, size in sizes.items()}
    wanted = {name: max(least[name], count * size / total) for name, size in sizes.items()}
    given = {name: min(sizes[name], int(share)) for name, share in wanted.items()}
    while sum(given.values()) > count and any(given[n] > least[n] for n in given):
        most = max((n for n in given if given[n] > least[n]), key=lambda n: given[n] - wanted[n])
        given[most] -= 1
    while sum(given.values()) < count:
        gaps = [name for name in given if given[name] < sizes[name]]
        given[max(gaps, key=lambda n: wanted[n] - given[n])] += 1
    return given


def real_images(sources: Sequence[Source], rng: np.random.Generator) -> list[Row]:
    """Seeds that the model correctly classified, each once, in random order."""
    rows = [row for row in seed_rows(sources).values() if row["label"] == row["predicted"]]
    rows.sort(key=lambda row: row["id"])
    return [rows[i] for i in rng.permutation(len(rows))]


@dataclass(frozen=True, slots=True)
class _Image:
    """The image of a row, read when it is asked for."""

    read: Callable[[Sequence[int]], list[bytes]]
    row: int

    def __getitem__(self, name: str) -> Any:
        return self.read([self.row])[0]


def _rows(table: pa.Table, read: Callable[[Sequence[int]], list[bytes]]) -> list[Row]:
    """Rows of a run's table with their images, which stay in their files."""
    return [{**row, "image": _Image(read, i)} for i, row in enumerate(table.to_pylist())]


def seed_rows(sources: Sequence[Source]) -> dict[str, Row]:
    """Rows of all images of all sources by id."""
    return {row["id"]: row for source in sources for row in source.seeds}
