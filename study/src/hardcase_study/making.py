"""A study while it is put together: what was asked for, items and stimuli under opaque ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hardcase_study import bundle
from hardcase_study.assignment import Sizes, assign
from hardcase_study.bundle import Study, opaque
from hardcase_study.drawing import Source
from hardcase_study.forms import Item, Stimulus
from hardcase_study.power import precision

MOST_LABELS = 20
"""Above this many classes a page offers `OFFERED` of them: the two in question among others."""
OFFERED = 8


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """What `new` was asked for."""

    design: str
    sizes: Sizes
    votes: int = 5
    thing: str = ""
    arms: tuple[str, ...] = ()
    stop: bool = False
    seed: int = 0

    @property
    def wanted(self) -> int:
        """Main items that `votes` answers each leave room for."""
        return max(1, self.sizes.raters * self.sizes.own // max(1, self.votes))


@dataclass
class Making:
    """A study while it is being put together: items, stimuli and their pixels under opaque ids."""

    plan: StudyPlan
    sources: dict[str, Source]
    classes: tuple[str, ...]
    rng: np.random.Generator
    items: list[Item] = field(default_factory=list)
    stimuli: list[Stimulus] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """What opaque ids are made with: only who has the findings themselves can work it out."""
        ids = [row["id"] for one in self.sources.values() for row in one.findings]
        return opaque(repr(self.plan), *self.sources, *ids)

    def show(self, row: Mapping[str, Any], role: str, **known: Any) -> str:
        """Add an image; returns its opaque id. The pixels are kept, nothing else is."""
        from hardcase import tensors

        name = opaque(self.key, "image", len(self.stimuli))
        self.pictures[name] = tensors.encode(tensors.decode(row["image"]["bytes"]))
        self.stimuli.append(Stimulus(name, role, **known))
        return name

    def ask(self, form: str, stimuli: Sequence[str], **known: Any) -> Item:
        name = opaque(self.key, "item", len(self.items))
        self.items.append(Item(name, form, tuple(stimuli), **known))
        return self.items[-1]

    def test(self, name: str, row: Mapping[str, Any], **known: Any) -> str:
        """Add a finding of the source `name`."""
        return self.show(
            row,
            "test",
            seed=row["original"],
            expected=row["expected"],
            predicted=row["predicted"],
            run=name,
            method=row["method"],
            finding=row["id"],
            **known,
        )

    def real(self, row: Mapping[str, Any], role: str = "real") -> str:
        return self.show(row, role, seed=row["id"], expected=row["label"], predicted=row["label"])

    def labels(self, expected: int, predicted: int = -1) -> tuple[str, ...]:
        """The choices of a page: all classes, or the two in question among others, in order.

        A page of a real image offers as many as that of a test, or their number would tell.
        """
        count = len(self.classes)
        if count <= MOST_LABELS:
            return self.classes
        asked = {expected, predicted} & set(range(count))
        others = [i for i in self.rng.permutation(count).tolist() if i not in asked]
        chosen = sorted([*asked, *others[: OFFERED - len(asked)]])
        return tuple(self.classes[i] for i in chosen)

    def repeat_items(self) -> None:
        """A twin, under other ids, of every main item: the consistency checks."""
        if not self.plan.sizes.repeats:
            return
        for item in [one for one in self.items if one.use == "main"]:
            twins = {one: self._twin(one) for one in (*item.stimuli, item.reference) if one}
            self.ask(
                item.form,
                tuple(twins[one] for one in item.stimuli),
                labels=item.labels,
                reference=twins.get(item.reference, ""),
                use="repeat",
                repeats=item.id,
                unit=item.unit,
                quota=item.quota,
            )

    def _twin(self, stimulus: str) -> str:
        old = next(one for one in self.stimuli if one.id == stimulus)
        name = opaque(self.key, "image", len(self.stimuli))
        self.pictures[name] = self.pictures[stimulus]
        self.stimuli.append(replace(old, id=name))
        return name


def write(making: Making, out: Path, *, title: str, language: str) -> Study:
    """Assign items to raters and write the study into the folder `out`."""
    plan = making.plan
    own = sum(item.use == "main" for item in making.items)
    sizes = plan.sizes
    if plan.design == "argus" and own < sizes.own:
        sizes = replace(sizes, per_rater=own + sizes.checks + sizes.repeats)
    lists = assign(making.items, sizes, making.rng, lists=2 * sizes.raters)
    settings = {
        "id": opaque(making.key, "study"),
        "design": plan.design,
        "title": title,
        "thing": plan.thing,
        "language": language,
        "classes": making.classes,
        "raters": sizes.raters,
        "per_rater": sizes.per_rater,
        "checks": sizes.checks,
        "repeats": sizes.repeats,
        "votes": plan.votes,
        "stop": plan.stop,
        "seed": plan.seed,
        "runs": {name: _about(source) for name, source in making.sources.items()},
        "main_items": own,
        "spare_lists": sizes.raters,
        "power": precision(sizes, own, design=plan.design, seed=plan.seed),
        **making.facts,
    }
    order = making.rng.permutation(len(making.items)).tolist()
    items = [making.items[i] for i in order]
    stimuli = sorted(making.stimuli, key=lambda one: one.id)
    study = bundle.write(out, settings, items, stimuli, making.pictures, lists)
    if making.arrays:
        from hardcase_study.choosing import write_arrays

        write_arrays(out, making.arrays)
    return study


def _about(source: Source) -> dict[str, Any]:
    seeds = {
        row["original"]: source.rated[row["id"]]
        for row in source.failing
        if row["id"] in source.rated
    }
    return {
        **source.about,
        "rated_before": len(seeds),
        "confirmed_before": sum(word == "confirmed" for word in seeds.values()),
    }
