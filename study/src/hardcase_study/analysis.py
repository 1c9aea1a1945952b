"""What people said, as numbers: raw shares first, then agreement, a posterior, rates, screening."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hardcase.cache import write_atomically
from hardcase.errors import HardcaseError
from hardcase.statistics import Interval
from hardcase_study import confirmed, papers
from hardcase_study.agreement import (
    bradley_terry,
    crossed_mean,
    krippendorff_alpha,
    over_units,
)
from hardcase_study.answers import Answers, Given, Rater
from hardcase_study.bundle import Study
from hardcase_study.forms import NONE, UNSURE
from hardcase_study.posterior import SURE, posterior
from hardcase_study.screening import screen
from hardcase_study.tables import LEVELS, PRIMARY, rating_table, shares

SIMULATED = "A simulated crowd answered. No person did: nothing here says anything about people."


def analyse(
    folder: str | Path, *, database: str = "", seed: int = 0, out: str | Path | None = None
) -> dict[str, Any]:
    """Analyse a study and write ``analysis/index.html`` and ``analysis/analysis.json`` into it.

    Args:
        folder: The study.
        database: Where its answers are, if not in the folder.
        seed: Of the resampling and of the posterior's draws.
        out: Another folder for the two files.

    Returns:
        What the JSON file holds: ``all`` raters, those left after screening (``screened``), both
        with the same keys, and the confirmed rates of the runs.
    """
    from hardcase_study.report import page

    study = Study.open(folder)
    store = Answers(database or study.folder)
    raters, given = counted(store.raters(), store.all())
    pilots = sum(one.kind == "pilot" for one in store.raters())
    store.close()
    if not given:
        raise HardcaseError(
            f"nobody has answered {study.folder}.",
            *([f"{pilots} raters of a trial run are left out."] if pilots else []),
            fix=f"hardcase study serve {study.folder}",
        )
    screened = screen(study, given)
    bad = {one.rater for one in screened if one.flags}
    good = [one for one in given if one.rater not in bad]
    everyone = measured(study, given, seed)
    found: dict[str, Any] = {
        "study": study.settings["id"],
        "design": study.design,
        "simulated": any(one.kind == "simulated" for one in raters),
        "warning": SIMULATED if any(one.kind == "simulated" for one in raters) else None,
        "raters": [asdict(one) for one in screened],
        "flagged": len(bad),
        "pilots": pilots,
        "all": everyone,
        "screened": measured(study, good, seed) if good and bad else everyone,
        "shares": shares(study, given),
        "lost_labels": lost_labels(study, good or given),
        "confirmed": {name: one.to_json() for name, one in rates(study, good or given).items()},
    }
    place = Path(out) if out else study.folder / "analysis"
    text = json.dumps(_plain(found), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(place / "analysis.json", (text + "\n").encode())
    write_atomically(place / "index.html", page(study, found).encode())
    return found


def counted(raters: Sequence[Rater], given: Sequence[Given]) -> tuple[list[Rater], list[Given]]:
    """Raters and answers that count: not of a trial run; a simulated crowd only if it is alone."""
    people = [one for one in raters if one.kind in ("person", "imported")]
    kept = people or [one for one in raters if one.kind == "simulated"]
    names = {one.id for one in kept}
    return kept, [one for one in given if one.rater in names]


def measured(study: Study, given: Sequence[Given], seed: int = 0) -> dict[str, Any]:
    """Everything a design allows to say of `given`."""
    rng = np.random.default_rng([seed, 3])
    main = [one for one in given if one.item in study.main]
    fixed = [one for one in main if study.items[one.item].fixed]
    made: dict[str, Any] = {
        "raters": len({one.rater for one in given}),
        "answers": len(given),
        "main_answers": len(main),
        "fixed_answers": len(fixed),
        "seconds": _seconds(main),
    }
    if study.design in PRIMARY:
        made["agreement"] = agreement(study, fixed)
    if study.design in ("label", "same"):
        made["labels"] = labels(study, main, fixed, rng)
    if study.design == "same":
        made["anchoring"] = anchoring(study, fixed)
    if study.design == "likert":
        made["scores"] = _by_method(study, fixed, lambda one: float(one.value["score"]))
    if study.design == "fault":
        made["fault"] = fault(study, fixed)
    if study.design == "compare":
        made["compare"] = compare(study, main)
    if study.design == "sinvad":
        made["sinvad"] = papers.sinvad(study, given)
    if study.design in ("argus", "rank"):
        made["argus"] = papers.argus(study, given)
    return made


def agreement(study: Study, given: Sequence[Given]) -> dict[str, Any]:
    """Krippendorff's α with an interval over images, of items whose number of answers was fixed
    beforehand.
    """
    table, (items, raters) = rating_table(study, given)
    level = LEVELS[study.design]
    alpha = over_units(lambda rows: krippendorff_alpha(rows, level), table) if len(items) else None
    return {
        "level": level,
        "alpha": asdict(alpha) if alpha else None,
        "items": len(items),
        "raters": len(raters),
    }


def labels(
    study: Study, main: Sequence[Given], fixed: Sequence[Given], rng: np.random.Generator
) -> dict[str, Any]:
    """By method: the raw share of answers that see the original's class, and the posterior's
    outcomes.

    Shares come from items with a fixed number of answers; the posterior uses all.
    """
    rows = [one for one in main if study.items[one.item].form == "label"]
    if not rows:
        return {"methods": [], "posterior": None}
    shown = [one for one in fixed if study.items[one.item].form == "label"]
    made = _by_method(study, shown, lambda one: float(_kept(study, one)))
    for name in (NONE, UNSURE):
        other = _by_method(study, shown, lambda one, n=name: float(one.value["label"] == n))
        for row, extra in zip(made, other):
            row[name] = extra["mean"]["value"]
    return {"methods": made, "posterior": _outcomes(study, rows, rng)}


def _outcomes(study: Study, rows: Sequence[Given], rng: np.random.Generator) -> dict[str, Any]:
    """The posterior of every label item, and how many of each method ended how."""
    telling = [one for one in rows if one.value["label"] != UNSURE]
    items = sorted({one.item for one in telling})
    raters = sorted({one.rater for one in telling})
    if not items:
        return {"items": [], "methods": []}
    image = np.array([items.index(one.item) for one in telling])
    rater = np.array([raters.index(one.rater) for one in telling])
    names = {item: [*study.items[item].labels, NONE] for item in items}
    width = max(len(one) for one in names.values())
    answer = np.array([names[one.item].index(one.value["label"]) for one in telling])
    found = posterior(image, rater, answer, width, rng)
    made = []
    tally: dict[str, Counter[str]] = {}
    for place, item in enumerate(items):
        stimulus = study.stimuli[study.items[item].stimuli[0]]
        best = int(found.outcome[place].argmax())
        sure = float(found.outcome[place, best])
        words = [*names[item], *["ambiguous"] * (width + 1 - len(names[item]))]
        own = study.classes[stimulus.expected]
        said = words[best] if sure >= SURE else "open"
        kind = {own: "confirmed", "ambiguous": "ambiguous", "open": "open", NONE: "no class"}.get(
            said, "another class"
        )
        method = stimulus.method or stimulus.role
        tally.setdefault(method, Counter())[kind] += 1
        made.append({"item": item, "outcome": words[best], "certainty": sure, "kind": kind})
    return {
        "items": made,
        "methods": [{"method": m, "items": c.total(), **c} for m, c in sorted(tally.items())],
        "ability": {name: float(found.ability[i]) for i, name in enumerate(raters)},
        "pooled_ability": found.pooled,
        "ambiguous": found.ambiguous,
        "sure": SURE,
    }


def anchoring(study: Study, given: Sequence[Given]) -> dict[str, Any]:
    """Does the image beside a test make people find its class? Pairs, tests alone, sham pairs."""
    groups: dict[str, list[Given]] = {"pair": [], "alone": [], "sham same": [], "sham other": []}
    for one in given:
        item = study.items[one.item]
        if item.form == "label":
            groups["alone"].append(one)
        elif study.stimuli[item.stimuli[0]].role == "test":
            groups["pair"].append(one)
        else:
            groups["sham same" if item.truth[1] == "yes" else "sham other"].append(one)
    made: dict[str, Any] = {
        name: asdict(_mean(rows, [float(_kept(study, one)) for one in rows]))
        for name, rows in groups.items()
    }
    made["difference"] = made["pair"]["value"] - made["alone"]["value"]
    return made


def fault(study: Study, given: Sequence[Given]) -> list[dict[str, Any]]:
    """By arm: the share of answers that see a change, more of it, less of it."""
    rows = []
    arms = sorted({study.stimuli[study.items[one.item].stimuli[0]].arm for one in given})
    for arm in arms:
        own = [one for one in given if study.stimuli[study.items[one.item].stimuli[0]].arm == arm]
        row: dict[str, Any] = {"arm": arm or "all", "answers": len(own)}
        for name, wanted in (
            ("changed", ("more", "less")),
            ("more", ("more",)),
            ("less", ("less",)),
        ):
            values = [float(one.value["change"] in wanted) for one in own]
            row[name] = asdict(_mean(own, values))
        rows.append(row)
    return rows


def compare(study: Study, given: Sequence[Given]) -> list[dict[str, Any]]:
    """Bradley–Terry strengths of methods; "cannot tell" counts half for each."""
    methods = sorted({study.stimuli[s].run for item in study.main.values() for s in item.stimuli})
    wins = np.zeros((len(methods), len(methods)))
    for one in given:
        left, right = (methods.index(study.stimuli[s].run) for s in study.items[one.item].stimuli)
        better = one.value["better"]
        if better == UNSURE:
            wins[left, right] += 0.5
            wins[right, left] += 0.5
            continue
        won = methods.index(study.stimuli[better].run)
        wins[won, left + right - won] += 1
    found = bradley_terry(wins)
    return [
        {
            "method": name,
            "strength": float(found.log[i]),
            "error": float(found.error[i]),
            "won": float(wins[i].sum()),
            "of": float(wins[i].sum() + wins[:, i].sum()),
        }
        for i, name in enumerate(methods)
    ]


def outcomes(study: Study, given: Sequence[Given]) -> dict[str, str]:
    """What people say of rated findings: ``confirmed``, ``rejected``, ``undecided``, by stimulus.

    A strict majority of the answers to a label item with a fixed number of answers, by two people
    or more. Pairs of image and test do not count: the image anchors them.
    """
    votes: dict[str, list[str]] = {}
    for one in given:
        item = study.items[one.item]
        counts = item.use == "main" and item.fixed and item.form == "label"
        if counts and study.stimuli[item.stimuli[0]].finding:
            votes.setdefault(item.stimuli[0], []).append(one.value["label"])
    made = {}
    for name, answers in votes.items():
        if len(answers) >= 2:
            own = study.classes[study.stimuli[name].expected]
            made[name] = confirmed.outcome(answers, own)
    return made


def rates(study: Study, given: Sequence[Given]) -> dict[str, confirmed.ConfirmedRate]:
    """The people-confirmed rate of each run; empty for designs that draw no sample of labels."""
    said = outcomes(study, given)
    strata = study.settings.get("strata")
    if not said or not strata or study.of_conditions:
        return {}
    made = {}
    for name, about in study.settings["runs"].items():
        sizes = {
            key: value["size"] for key, value in strata.items() if key.rpartition("/")[0] == name
        }
        rated = []
        for stimulus, word in said.items():
            one = study.stimuli[stimulus]
            if one.run == name and one.probability:
                share = _rated_share(study, said, one.stratum, sizes[one.stratum])
                rated.append(confirmed.Rated(one.stratum, one.verdict == "accepted", word, share))
        judged = sizes.get(f"{name}/accepted", 0)
        if rated:
            before = (about["rated_before"], about["confirmed_before"])
            made[name] = confirmed.confirmed_rate(
                rated, sizes, judged, about["searched"] or 0, before=before
            )
    return made


def lost_labels(study: Study, given: Sequence[Given]) -> dict[str, dict[str, Any]]:
    """Of each run: how many of its random failing samples lost their label by people.

    Empty for studies of failures.
    """
    from hardcase.analysis.conditions import lost_share

    if not study.of_conditions:
        return {}
    said = outcomes(study, given)
    found = {}
    for name in study.settings["runs"]:
        own = {stimulus for stimulus in said if study.stimuli[stimulus].run == name}
        counts = Counter(said[stimulus] for stimulus in own)
        people = {one.rater for one in given if own & {*study.items[one.item].stimuli}}
        if own:
            decided = len(own) - counts["undecided"]
            share = lost_share(counts["rejected"], decided, len(own))
            found[name] = {**share, "people": len(people)}
    return found


def _rated_share(study: Study, said: dict[str, str], stratum: str, size: int) -> float:
    """The probability of having been drawn *and* rated by two people.

    Which of the drawn items have their answers when a study ends depends on the order of lists
    alone, which is random, so rated items are a random part of the drawn ones.
    """
    return sum(study.stimuli[name].stratum == stratum for name in said) / size


def _kept(study: Study, one: Given) -> bool:
    item = study.items[one.item]
    if item.form == "same":
        return bool(one.value["same"] == "yes")
    own = study.classes[study.stimuli[item.stimuli[0]].expected]
    return bool(one.value["label"] == own)


def _by_method(study: Study, given: Sequence[Given], value: Any) -> list[dict[str, Any]]:
    groups: dict[str, list[Given]] = {}
    for one in given:
        stimulus = study.stimuli[study.items[one.item].stimuli[0]]
        groups.setdefault(stimulus.run or "real images", []).append(one)
    return [
        {
            "method": name,
            "items": len({one.item for one in rows}),
            "answers": len(rows),
            "mean": asdict(_mean(rows, [value(one) for one in rows])),
        }
        for name, rows in sorted(groups.items())
    ]


def _mean(rows: Sequence[Given], values: Sequence[float]) -> Interval:
    raters = {name: i for i, name in enumerate(sorted({one.rater for one in rows}))}
    items = {name: i for i, name in enumerate(sorted({one.item for one in rows}))}
    return crossed_mean(
        np.array(values, dtype=np.float64),
        np.array([raters[one.rater] for one in rows], dtype=np.int64),
        np.array([items[one.item] for one in rows], dtype=np.int64),
    )


def _seconds(given: Sequence[Given]) -> dict[str, float]:
    values = [one.seconds for one in given] or [0.0]
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return {"low": low, "median": middle, "high": high}


def _plain(value: Any) -> Any:
    """`value` as JSON knows it: a number that is none becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
