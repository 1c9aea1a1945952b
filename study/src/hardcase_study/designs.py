"""The designs of a study: which images stand on a page together, and what is asked of them.

``label``, ``likert``, ``same`` and ``fault`` draw a probability sample of failures. ``rank``,
``compare``, ``sinvad`` and ``argus`` set images of several methods from one seed side by side.

* ``sinvad``: S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023, RQ1:
  two labels on a five-point scale each; ten images of each method and three real ones a rater.
* ``argus``: B. Duan, M. Dwyer, G. Yang, 2025, Figure 3: one original per class, one random image
  of each method, ranked by likeness and graded from excellent to poor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from hardcase.errors import HardcaseError, choice
from hardcase_study import bundle, choosing, drawing
from hardcase_study.assignment import Sizes
from hardcase_study.bundle import CONDITIONS, Study
from hardcase_study.drawing import Source
from hardcase_study.making import Making, StudyPlan, write

REAL = 0.15
"""The share of items that are real images, asked about like the others."""


def new(
    runs: Sequence[str | Path | Source],
    design: str = "label",
    out: str | Path = "study",
    *,
    raters: int | None = None,
    per_rater: int | None = None,
    checks: int | None = None,
    repeats: int | None = None,
    votes: int = 5,
    title: str = "",
    thing: str = "",
    arms: Sequence[str] = (),
    stop: bool = False,
    language: str = "en",
    seed: int = 0,
    ask: int | None = None,
    limit: float | None = None,
    conditions: bool = False,
) -> Study:
    """Make a study of what `runs` found, in the folder `out`.

    Args:
        runs: Run folders, or images made in memory.
        design: One of `hardcase_study.bundle.DESIGNS`.
        raters: People wanted; a design's own number where none is given (so for the next three).
        per_rater: Items of one rater, checks and repeats included.
        checks: Of these, attention checks.
        repeats: Of these, items shown a second time.
        votes: Answers wanted for each item.
        title: What raters read on the first page; must not give away what is compared.
        thing: For ``fault``: the feature in question, as in "Did THING change noticeably?"
        arms: For ``fault``: of each run ``faulty``, ``clean`` or ``placebo``.
        stop: For ``label``: no more answers for an item whose posterior is sure. A random subset
            keeps its fixed number, and rates and agreement come from that subset.
        language: In which the first page is shown; a rater may change it.
        ask: For ``label`` and one run: so many questions at most, each chosen by the answers
            before it, one person each; the study ends when its decision is made.
        limit: With `ask`: the confirmed rate that decides; by default the rate to five points is
            wanted.
        conditions: For ``label``: about the random failing samples of the runs' declared conditions
            instead of their failures. The answers say how many of them lost their label.
    """
    if design not in bundle.DESIGNS:
        raise choice("design", design, bundle.DESIGNS)
    if not runs:
        raise HardcaseError("a study needs at least one run.", fix="hardcase study new runs/NAME")
    if language not in bundle.shipped_words():
        raise choice("language", language, tuple(bundle.shipped_words()))
    if stop and design != "label":
        raise HardcaseError(f"--stop is a rule about labels; the design is {design!r}.")
    if conditions and (design != "label" or ask is not None):
        raise HardcaseError(
            "--conditions goes with the design label, without --ask.",
            fix="hardcase study new RUN --conditions",
        )
    sources = _named([_opened(one, conditions) for one in runs])
    usual = {**_USUAL, **_SIZES.get(design, {})}
    if ask is not None:
        usual |= _asked_sizes(ask, raters or 1)
    given = {"raters": raters, "per_rater": per_rater, "checks": checks, "repeats": repeats}
    sizes = Sizes(**{n: usual[n] if value is None else value for n, value in given.items()})
    plan = StudyPlan(design, sizes, votes, thing, tuple(arms), stop, seed)
    making = Making(plan, sources, _classes(sources), np.random.default_rng(seed))
    if ask is None:
        _MAKERS[design](making)
    else:
        choosing.make_items(making, ask, limit)
    if not any(item.use == "main" for item in making.items):
        raise HardcaseError(
            f"these runs give nothing to ask for design {design!r}: {making.facts.get('lost', '')}",
            fix="runs on the same images, with failures, or another --design",
        )
    making.repeat_items()
    return write(making, Path(out), title=title, language=language)


def _asked_sizes(ask: int, raters: int) -> dict[str, int]:
    """Pages of a rater where `ask` questions are shared by so many people, one answer each."""
    if ask < 1:
        raise HardcaseError(f"--ask {ask} asks nothing.", fix="--ask 40")
    own = -(-ask // raters)
    checks = max(1, own // choosing.CHECK_EVERY)
    return {"raters": raters, "per_rater": own + checks, "checks": checks, "repeats": 0}


def _opened(run: str | Path | Source, conditions: bool) -> Source:
    from hardcase.runs.results import Run

    if isinstance(run, Source):
        return run
    return Source.of_conditions(Run(run)) if conditions else Source.of_run(Run(run))


def _named(sources: Sequence[Source]) -> dict[str, Source]:
    """Sources by their method, or by their folder where two have the same method.

    An image that people have rated in one of them is rated in all.
    """
    rated = {name: word for one in sources for name, word in one.rated.items()}
    methods = Counter(one.method for one in sources)
    named: dict[str, Source] = {}
    for one in sources:
        folder = Path(str(one.about.get("folder", one.method))).name
        name = folder if methods[one.method] > 1 else one.method
        number = sum(each == name or each.startswith(f"{name} #") for each in named)
        named[f"{name} #{number + 1}" if number else name] = replace(one, rated=rated)
    return named


def _classes(sources: Mapping[str, Source]) -> tuple[str, ...]:
    kinds = {tuple(one.classes) for one in sources.values()}
    if len(kinds) > 1:
        raise HardcaseError(
            "these runs have different classes; one study asks about one set of them."
        )
    return kinds.pop()


# Designs that draw a probability sample of failures.


def _sampled(making: Making, count: int) -> list[drawing.Drawn]:
    share = 0.4 if making.plan.stop else 1.0
    drawn, strata = drawing.sample(making.sources, count, making.rng, fixed=share)
    making.facts["strata"] = strata
    making.facts["population"] = "failing images, one failure each, not rated before"
    if any(source.by_itself for source in making.sources.values()):
        making.facts["population"] = CONDITIONS
    return drawn


def _draw_tests(making: Making, count: int) -> list[tuple[drawing.Drawn, str]]:
    """The sample as stimuli."""
    arms = dict(zip(making.sources, making.plan.arms))
    made = []
    for one in _sampled(making, count):
        name = one.stratum.rpartition("/")[0]
        stimulus = making.test(
            name,
            one.row,
            verdict=one.verdict,
            stratum=one.stratum,
            probability=one.probability,
            arm=arms.get(name, ""),
        )
        made.append((one, stimulus))
    return made


def _alone(form: str) -> Callable[[Making], None]:
    """One image a page: tests, real images among them, and checks that are real and clear."""

    def make(making: Making) -> None:
        wanted = making.plan.wanted
        mixed_in = round(REAL * wanted)
        real = drawing.real_images(list(making.sources.values()), making.rng)
        for one, stimulus in _draw_tests(making, wanted - mixed_in):
            labels = making.labels(one.row["expected"], one.row["predicted"])
            making.ask(form, [stimulus], labels=labels, unit=one.row["original"], fixed=one.fixed)
        for row in real[:mixed_in]:
            making.ask(form, [making.real(row)], labels=making.labels(row["label"]), unit=row["id"])
        clear = sorted(real[mixed_in:] or real, key=lambda row: -row["confidence"])
        for row in clear[: 2 * making.plan.sizes.checks]:
            truth = ("label", making.classes[row["label"]]) if form == "label" else ("score", "3")
            making.ask(
                form,
                [making.real(row)],
                labels=making.labels(row["label"]),
                use="attention",
                truth=truth,
                unit=row["id"],
            )

    return make


def _same(making: Making) -> None:
    """Seed and test side by side; the same tests alone; sham pairs of two real images.

    The seed anchors the answer: people who see it beside a test find its class more readily. The
    arm that sees the test alone, and pairs in which no method changed anything, measure how much.
    """
    wanted = making.plan.wanted
    real = drawing.real_images(list(making.sources.values()), making.rng)
    seeds = drawing.seed_rows(list(making.sources.values()))
    for one, stimulus in _draw_tests(making, max(1, wanted * 2 // 5)):
        label = making.classes[one.row["expected"]]
        original = making.real(seeds[one.row["original"]], "seed")
        unit = one.row["original"]
        making.ask("same", [stimulus], reference=original, labels=(label,), unit=unit, quota="pair")
        labels = making.labels(one.row["expected"], one.row["predicted"])
        making.ask("label", [stimulus], labels=labels, unit=unit, quota="pair")
    shams = max(2, wanted // 5)
    pairs = _sham_pairs(real, shams + 2 * making.plan.sizes.checks, making.rng)
    for i, (left, right) in enumerate(pairs):
        same = left["label"] == right["label"]
        check = i >= shams and not same
        if i >= shams and same:
            continue
        making.ask(
            "same",
            [making.real(right)],
            reference=making.real(left, "seed"),
            labels=(making.classes[left["label"]],),
            unit=left["id"],
            quota="pair",
            use="attention" if check else "main",
            truth=("same", "yes" if same else "no"),
        )


def _sham_pairs(
    real: Sequence[dict[str, Any]], count: int, rng: np.random.Generator
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Two real images each: by turns of one class and of two."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for i, left in enumerate(real):
        if len(pairs) == count:
            break
        same = i % 2 == 0
        fits = [r for r in real if r is not left and (r["label"] == left["label"]) == same]
        if fits:
            pairs.append((left, fits[int(rng.integers(len(fits)))]))
    return pairs


def _fault(making: Making) -> None:
    """Seed and test, blind to method and network: did a feature change noticeably, which way?

    I. Dunn, H. Pouget, D. Kroening, T. Melham, ISSTA 2021, label 200 tests a fault by hand, knowing
    the fault. Here tests of a network with the fault, of a clean one and of a placebo are mixed,
    and a check shows the image twice, where nothing can have changed.
    """
    if not making.plan.thing:
        raise HardcaseError("a fault study asks about one feature.", fix='--thing "the sky"')
    arms = making.plan.arms
    if arms and (len(arms) != len(making.sources) or {*arms} - {"faulty", "clean", "placebo"}):
        raise HardcaseError(
            f"{len(making.sources)} runs, arms {', '.join(arms)}.",
            "Each run has one arm: faulty, clean or placebo.",
            fix="--arms faulty,clean,placebo",
        )
    seeds = drawing.seed_rows(list(making.sources.values()))
    for one, stimulus in _draw_tests(making, making.plan.wanted):
        original = making.real(seeds[one.row["original"]], "seed")
        making.ask("change", [stimulus], reference=original, unit=one.row["original"])
    real = drawing.real_images(list(making.sources.values()), making.rng)
    for row in real[: 2 * making.plan.sizes.checks]:
        making.ask(
            "change",
            [making.real(row)],
            reference=making.real(row, "seed"),
            use="attention",
            truth=("change", "none"),
            unit=row["id"],
        )


# Designs that set images of several methods from one seed beside each other.


def _sinvad(making: Making) -> None:
    """Images of every method on the boundary of the same two classes, and the original itself."""
    groups = {name: one.by_seed() for name, one in making.sources.items()}
    seeds = drawing.seed_rows(list(making.sources.values()))
    shared = sorted(set.intersection(*(set(group) for group in groups.values())))
    complete: list[tuple[str, int]] = []
    for seed in shared:
        goals = [{row["predicted"] for row in group[seed]} for group in groups.values()]
        named = set(range(len(making.classes)))  # a network may have outputs without a name
        common = sorted(named.intersection(*goals))
        if common:
            complete.append((seed, common[int(making.rng.integers(len(common)))]))
    making.facts["lost"] = (
        f"{len(shared)} images failed in every run, "
        f"{len(complete)} of them with the same wrong class in all"
    )
    making.facts["quadruples"] = len(complete)
    making.facts["drawn_from"] = "failing findings of the same seed and the same two classes"
    for seed, target in [complete[i] for i in making.rng.permutation(len(complete))[:100]]:
        label = making.classes[seeds[seed]["label"]]
        pair = (label, making.classes[target])
        for name, group in groups.items():
            rows = [row for row in group[seed] if row["predicted"] == target]
            row = rows[int(making.rng.integers(len(rows)))]
            _two_labels(making, making.test(name, row), pair, unit=seed, quota=name)
        _two_labels(making, making.real(seeds[seed]), pair, unit=seed, use="attention")


def _two_labels(making: Making, stimulus: str, pair: tuple[str, str], **known: Any) -> None:
    """The two questions in random order; for a check, the original's own label must score
    higher.
    """
    turned = bool(making.rng.integers(2))
    labels = (pair[1], pair[0]) if turned else pair
    truth = ("second", "first") if turned else ("first", "second")
    making.ask("resemble", [stimulus], labels=labels, truth=truth, **known)


def _argus(making: Making) -> None:
    """Everyone sees every original."""
    making.plan = replace(making.plan, votes=making.plan.sizes.raters)
    _side_by_side(making, "grade", per_class=1)


def _rank(making: Making) -> None:
    _side_by_side(making, "rank", per_class=None)


def _side_by_side(making: Making, form: str, *, per_class: int | None) -> None:
    """An original and one random image of each method, in random order."""
    originals = _originals(making, per_class)
    for seed, rows in originals:
        shown = [making.test(name, row) for name, row in rows.items()]
        order = making.rng.permutation(len(shown)).tolist()
        original = making.real(seed, "seed")
        making.ask(form, [shown[i] for i in order], reference=original, unit=seed["id"])
    for seed, rows in originals[: 2 * making.plan.sizes.checks]:
        shown = [making.test(name, row) for name, row in list(rows.items())[1:]]
        shown.append(making.real(seed, "seed"))
        order = making.rng.permutation(len(shown)).tolist()
        making.ask(
            form,
            [shown[i] for i in order],
            reference=making.real(seed, "seed"),
            use="attention",
            truth=("order", shown[-1]),
            unit=seed["id"],
        )


def _originals(
    making: Making, per_class: int | None
) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Seeds of which every run holds an image, with one random image of each: of all it stored.

    A run made with ``--oracle any --keep all`` stores every image it generated, as ARGUS's study
    needs; another stores failing ones only, and the study says so.
    """
    if len(making.sources) < 2:
        raise HardcaseError(
            f"design {making.plan.design!r} compares methods; one run was given.",
            fix="hardcase study new runs/a runs/b ...",
        )
    groups = {name: one.by_seed(failing=False) for name, one in making.sources.items()}
    only = [n for n, group in groups.items() if _failing_only(group)]
    making.facts["drawn_from"] = (
        f"all stored images; {', '.join(only)} stored failing ones only"
        if only
        else "all generated images"
    )
    seeds = drawing.seed_rows(list(making.sources.values()))
    shared = sorted(set.intersection(*(set(group) for group in groups.values())))
    making.facts["lost"] = f"{len(shared)} originals have an image in every run"
    taken: dict[int, int] = {}
    chosen: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = []
    for i in making.rng.permutation(len(shared)).tolist():
        row = seeds[shared[i]]
        count = taken.get(row["label"], 0)
        if len(chosen) >= making.plan.wanted or (per_class and count >= per_class):
            continue
        taken[row["label"]] = count + 1
        picks = {
            n: g[row["id"]][int(making.rng.integers(len(g[row["id"]])))] for n, g in groups.items()
        }
        chosen.append((row, picks))
    return chosen


def _failing_only(group: Mapping[str, list[dict[str, Any]]]) -> bool:
    return all(row["predicted"] != row["expected"] for rows in group.values() for row in rows)


def _compare(making: Making) -> None:
    """Two methods' images of one original; every pair of methods equally often."""
    if len(making.sources) < 2:
        raise HardcaseError(
            "design 'compare' sets two methods beside each other; one run was given."
        )
    names = list(making.sources)
    pairs = len(names) * (len(names) - 1) // 2
    making.plan = replace(making.plan, votes=making.plan.votes * pairs)
    originals = _originals(making, None)
    for seed, rows in originals:
        for one, two in combinations(names, 2):
            turned = bool(making.rng.integers(2))
            left, right = (two, one) if turned else (one, two)
            shown = [making.test(left, rows[left]), making.test(right, rows[right])]
            original = making.real(seed, "seed")
            making.ask("choose", shown, reference=original, unit=seed["id"], quota=f"{one}/{two}")
    for seed, rows in originals[: 2 * making.plan.sizes.checks]:
        shown = [making.real(seed, "seed"), making.test(names[0], rows[names[0]])]
        truth = ("better", shown[0])
        shown = shown[:: 1 if making.rng.integers(2) else -1]
        making.ask(
            "choose",
            shown,
            reference=making.real(seed, "seed"),
            use="attention",
            truth=truth,
            unit=seed["id"],
        )


_USUAL = {"raters": 12, "per_rater": 33, "checks": 3, "repeats": 0}
_SIZES: dict[str, dict[str, int]] = {
    "label": {"repeats": 2},
    "same": {"repeats": 2},
    "sinvad": {"raters": 300},
    "argus": {"raters": 10, "per_rater": 10, "checks": 0},
    "rank": {"per_rater": 13, "checks": 1},
}
_MAKERS: dict[str, Callable[[Making], None]] = {
    "label": _alone("label"),
    "likert": _alone("scale"),
    "same": _same,
    "fault": _fault,
    "sinvad": _sinvad,
    "argus": _argus,
    "rank": _rank,
    "compare": _compare,
}
