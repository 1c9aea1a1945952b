"""How a running study stands: progress, agreement, suspicious raters, what precision to expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase_study.answers import Answers
from hardcase_study.bundle import Study
from hardcase_study.screening import screen
from hardcase_study.session import decided
from hardcase_study.tables import LEVELS, PRIMARY, rating_table


def progress(study: Study, store: Answers) -> dict[str, Any]:
    """The numbers of the dashboard, now."""
    raters = store.raters()
    given = store.all()
    main = [one for one in given if one.item in study.main]
    votes: dict[str, list[dict[str, Any]]] = {name: [] for name in study.main}
    for one in main:
        votes[one.item].append(one.value)
    counts = [len(each) for each in votes.values()]
    wanted = study.raters * (study.settings["per_rater"])
    screened = screen(study, given)
    loose = [item for item in study.main.values() if not item.fixed]
    power = study.settings["power"]
    own = sum(name in study.main for name in study.assignments[0])
    done = len(main) / max(1, study.raters * max(1, own))
    return {
        "simulated": any(one.kind == "simulated" for one in raters),
        "pilots": sum(one.kind == "pilot" for one in raters),
        "started": len(raters),
        "finished": sum(one.finished is not None for one in raters),
        "wanted": study.raters,
        "answers": len(given),
        "answers_wanted": wanted,
        "share": min(1.0, len(given) / max(wanted, 1)),
        "items": len(study.main),
        "votes_least": min(counts, default=0),
        "votes_most": max(counts, default=0),
        "votes_mean": sum(counts) / max(len(counts), 1),
        "stop": bool(study.settings["stop"]),
        "loose": len(loose),
        "decided": sum(decided(votes[item.id], item) for item in loose),
        "alpha": _alpha(study, main),
        "level": LEVELS.get(study.design, "nominal"),
        "suspicious": [one for one in screened if one.flags],
        "raters": screened,
        "precision": _shown(power, max(done, 0.01)) if given else None,
        "precision_end": _shown(power, 1.0),
        "precision_unit": power["unit"],
        "precision_source": power["source"],
    }


def _shown(power: Mapping[str, Any], done: float) -> str:
    """The half-width when a share `done` of the answers is there, in the unit of the design."""
    half = power["half_width"] / done**0.5
    return f"± {100 * half:.0f}" if power["unit"] == "points" else f"± {half:.2f}"


def _alpha(study: Study, main: list[Any]) -> float | None:
    """Of the items whose number of answers does not depend on the answers."""
    if study.design not in PRIMARY:
        return None
    fixed = [one for one in main if study.items[one.item].fixed]
    table, _ = rating_table(study, fixed)
    from hardcase_study.agreement import krippendorff_alpha  # loads torch

    value = krippendorff_alpha(table, LEVELS[study.design])
    return value if value == value else None
