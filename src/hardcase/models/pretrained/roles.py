"""Which of the fetched networks judges a run on photographs, and which are witnesses in its search.

The most accurate network of another lineage than the subject's is the judge; the others that do not
share the judge's lineage are witnesses. With one network only it is the judge, and there is no
witness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hardcase.models.load import lineage_of
from hardcase.models.pretrained.catalogue import PRETRAINED


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the judge (empty if there is none) and of the witnesses,
    and in `note` what to tell the user.
    """

    judge: str
    witnesses: tuple[str, ...]
    note: str


def roles(subject: str, present: Sequence[str]) -> Roles:
    """Divide the networks that are `present` between judge and witnesses of a run on `subject`.

    Example:
        >>> roles("zoo:efficientnet-lite0", ["resnet50-imagenet", "efficientnet-lite1"]).judge
        'resnet50-imagenet'
    """
    own = lineage_of(subject)
    rows = [PRETRAINED[name] for name in present if PRETRAINED[name].accuracy is not None]
    others = [row for row in rows if row.name != subject.removeprefix("zoo:")]
    ranked = sorted(others, key=lambda row: (row.lineage != own, row.accuracy or 0.0), reverse=True)
    strange = [row for row in ranked if row.lineage != own]
    if not strange:
        return Roles("", (), _missing(own))
    judge = strange[0]
    witnesses = tuple(row.name for row in ranked if row.lineage != judge.lineage)
    siblings = [name for name in witnesses if PRETRAINED[name].lineage == own]
    notes = [] if witnesses else [f"no witness: {judge.name} is reserved for the judge"]
    if siblings:
        notes.append(
            f"{', '.join(siblings)} {'is' if len(siblings) == 1 else 'are'} of the subject's own"
            " lineage"
        )
    return Roles(judge.name, witnesses, "; ".join(notes))


def _missing(own: str) -> str:
    best = max(
        (
            row
            for row in PRETRAINED.values()
            if row.accuracy is not None and row.lineage != own and row.licensed
        ),
        key=lambda row: row.accuracy or 0.0,
        default=None,
    )
    if best is None:
        return "no network of another lineage is known to judge photographs"
    return (
        "no network of another lineage is on this machine to judge photographs: hardcase fetch"
        f" model {best.name}"
    )
