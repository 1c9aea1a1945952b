"""ARGUS's manual evaluation (RQ1): are its images more like their originals, to people, than those of other methods?

B. Duan, M. Dwyer, G. Yang, 2025. Makes everything a rating page needs: for each of ten originals one failing image of each of
seven methods, without a sign of who made it; with ``--ratings FILE`` analyses what people answered. ``--set joint=true``
trains ARGUS's generator jointly at each share, as the paper does; ``fill=true`` shows an image that does not fail where a method
has none that does; ``model=… raters=… partners=… rival_queries=…`` as elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hardcase.experiments import figures
from hardcase.experiments.argus_answers import COLUMNS, Ratings, by_original, friedman, pairs, read
from hardcase.experiments.argus_measured import Measured
from hardcase.experiments.argus_methods import RIVALS, equal, interpolated, rival, weights
from hardcase.experiments.argus_study import METHODS, MIXES, Study, chosen, write_study
from hardcase.experiments.argus_world import interval, networks, originals, painter
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.statistics import ssim
from hardcase.tensors import from_bytes

NAME, RATERS = "argus-ratings", 10
PAPER = {
    "ARGUS 0.1": ("near 1", "the highest"), "ARGUS 0.2": ("second", "second"), "ARGUS 0.3": ("third", "above 3"),
    **dict.fromkeys(RIVALS, ("5 to 7", "mostly below 2")),
}  # fmt: skip
"""What the text says of Figure 3; it prints no numbers."""


def run(bench: Bench) -> Outcome:
    """Export the study, or analyse its ratings."""
    if "ratings" in bench.options:
        path = Path(str(bench.options["ratings"]))
        key = Path(str(bench.options.get("key", path.parent / "key.csv")))
        return analyse(by_original(read(path, key), METHODS), bench)
    study, notes = made(bench)
    raters = int(bench.options.get("raters", RATERS))
    write_study(study, bench.out, raters=raters, seed=bench.seed)
    rows = [_described(study, i, name) for i, name in enumerate(METHODS)]
    notes += [
        f"{len(study.originals)} originals, one failing image of each method where there is one, chosen at random"
        + ("; where there is none, one that does not fail" if bench.options.get("fill") else ""),
        f"study: {raters} raters; images/, items.csv, assignments.csv, study.json for the page; key.csv, which names methods, for nobody but the analysis",
        f"ratings come back as CSV with the columns {', '.join(COLUMNS)}; then: hardcase reproduce {NAME} --ratings FILE --set key={bench.out / 'key.csv'}",
    ]
    shown = {
        "original": study.originals.x,
        **{name: study.x[:, i] for i, name in enumerate(METHODS)},
    }
    sheet = figures.images(bench.out / "methods.png", shown)
    columns = ["method", "images", "of these failing", "SSIM", "MSE"]
    return Outcome(NAME, [Table("Images to be rated", columns, rows, notes)], [sheet])


def made(bench: Bench) -> tuple[Study, list[str]]:
    """An image of every method for each of the originals of the first repeat."""
    named = [str(bench.options["model"])] if "model" in bench.options else []
    train, test, subjects, notes = networks(bench, named, most=1)
    subject = next(iter(subjects.values()))
    seeds = originals(bench, subject, test)[0]
    joint = bool(bench.options.get("joint", False))
    found: list[Measured] = []
    for mix in MIXES:
        options = (
            {"kind": str(bench.options.get("kind", "gradient")), "mix": mix, **weights(bench)}
            if joint
            else {}
        )
        own = painter(bench, train, test, subject, **options)
        notes += [own.note] if own.note not in notes else []
        bench.say(f"ARGUS {mix}")
        found.append(interpolated(bench, subject, own, mix, [seeds]))
    for name in RIVALS:
        bench.say(name)
        found.append(rival(bench, name, subject, test, [seeds], equal(bench)))
    return chosen(seeds, found, bench.seed, fill=bool(bench.options.get("fill", False))), notes


def analyse(ratings: Ratings, bench: Bench) -> Outcome:
    """Figure 3 as numbers, and tests of the differences."""
    partly = bool(ratings.rank.isnan().any())
    rows: list[list[Cell]] = [
        [name, int(ratings.rank[:, i].isfinite().sum()), str(interval(ratings.rank[:, i])), PAPER.get(name, ("", ""))[0],
         str(interval(ratings.score[:, i])), PAPER.get(name, ("", ""))[1]]
        for i, name in enumerate(ratings.methods)
    ]  # fmt: skip
    notes = [
        "means over people for each original, then over originals; 95 % intervals by bootstrap over originals",
        "rank: 1 is the most like the original; score: 4 excellent, 3 good, 2 fair, 1 poor",
        "paper: ten people, Figure 3 only; it prints no numbers, so what its text says stands here",
        *(
            [
                "ranks are among the images shown: originals of which methods have no image have fewer ranks"
            ]
            if partly
            else []
        ),
        *(
            _overall(name, values)
            for name, values in (("rank", ratings.rank), ("score", ratings.score))
        ),
    ]
    columns = ["method", "originals", "mean rank", "paper", "mean score", "paper "]
    panels = {
        what: {
            name: values[:, i][values[:, i].isfinite()].tolist()
            for i, name in enumerate(ratings.methods)
        }
        for what, values in (("rank", ratings.rank), ("score", ratings.score))
    }
    shown = [figures.boxes(bench.out / "ratings.png", panels, y="mean of an original")]
    return Outcome(NAME, [Table("What people saw", columns, rows, notes), _tests(ratings)], shown)


def _overall(name: str, values: Tensor) -> str:
    test = friedman(values)
    if test is None:
        return f"{name}: no Friedman test; it needs two originals with an image of each of three methods that differ"
    return f"{name}: Friedman χ² {test.statistic:.2f}, p {test.p:.2g}, Kendall's W {test.w:.2f}, over {test.blocks} complete originals"


def _tests(ratings: Ratings) -> Table:
    rows: list[list[Cell]] = [
        [
            what,
            pair.one,
            pair.two,
            pair.count,
            pair.difference,
            f"{pair.p:.2g}",
            f"{pair.corrected:.2g}",
        ]
        for what, values in (("rank", ratings.rank), ("score", ratings.score))
        for pair in pairs(values, ratings.methods)
    ]
    columns = ["of", "method", "minus", "originals", "difference of means", "Wilcoxon p", "p, Holm"]
    return Table(
        "Methods two by two",
        columns,
        rows,
        ["Holm's correction over all pairs of ranks, and of scores"],
    )


def _described(study: Study, m: int, name: str) -> list[Cell]:
    there = study.there[:, m]
    x, origin = from_bytes(study.x[there, m]), from_bytes(study.originals.x[there])
    if not len(x):
        return [name, 0, 0, "", ""]
    return [
        name,
        len(x),
        int((study.predicted[:, m] >= 0).sum()),
        float(ssim(x, origin).mean()),
        f"{float((x - origin).square().mean()):.4f}",
    ]
