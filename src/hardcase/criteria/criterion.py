"""A criterion is a rule and a memory: this class is the one that campaigns and `measure` handle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase import registry
from hardcase.catalogue import Option, options_of
from hardcase.criteria.conventions import Options, convention_of
from hardcase.criteria.frame import Frame
from hardcase.criteria.memory import Memory
from hardcase.criteria.network import Anatomy, Layered, Selection, join_taps, survey
from hardcase.criteria.profile import Needs, Profile, fit_profile
from hardcase.criteria.surprise import Likelihood, Mahalanobis, fit_notes
from hardcase.errors import Problem, choice
from hardcase.randomness import Rng
from hardcase.tensors import from_bytes, steady
from hardcase.types import Aim, Images, Model, Probe, State, Tap
from hardcase.usercode import guarded

LAWS = {
    "ratio": "its value lies in [0, 1]",
    "monotone": "more inputs never lower it",
    "order-free": "the order of the inputs does not matter",
    "idempotent": "seeing the same inputs again changes nothing",
    "mergeable": "any cut of the inputs into batches and shards gives the same result",
    "to rounding": "the last two hold up to the last digits of a sum",
}
"""What a criterion may promise; `hardcase.testing.check_criterion` tests each."""
RATIO = ("ratio", "monotone", "order-free", "idempotent", "mergeable")
COUNT = ("monotone", "order-free", "idempotent", "mergeable")
SUM = ("order-free", "mergeable", "to rounding")

criterion = partial(registry.criterion, laws=RATIO, needs="activations")
"""The registry's decorator with what most criteria promise and need: a ratio of activations."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a criterion says so far. `covered` of `total` where it is a ratio or a count;
    `detail` is worth printing.

    Args:
        value: The criterion's value.
        covered: How many are covered, where it is a count or a ratio.
        total: Of how many.
        detail: Further facts worth printing.

    Example:
        >>> import hardcase as hc
        >>> hc.criteria.Tally(0.5, covered=2, total=4).total
        4
    """

    value: float
    covered: int | None = None
    total: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Rule(Protocol):
    """The mathematics of a criterion. Only `observe` changes the memory; rows are independent in
    `gain` and `pull`.

    A rule may also have `patience`: the number of rows that are better observed together.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> anatomy = hc.criteria.survey(subject, from_bytes(toy_images(1).x))
        >>> isinstance(hc.criteria.build_criteria("nc", anatomy).rule, hc.criteria.Rule)
        True
    """

    @property
    def selections(self) -> tuple[Selection, ...]: ...

    def memory(self) -> Any: ...

    def observe(self, frame: Frame, memory: Any) -> None: ...

    def gain(self, frame: Frame, memory: Any) -> Float[Tensor, " m"]: ...

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Any) -> dict[str, Tensor]: ...

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Any) -> Float[Tensor, " m"]: ...

    def tally(self, memory: Any) -> Tally: ...


class Measure:
    """Implements `types.Criterion`: a guide that is also a measure.

    `profiled`: it compares with training data.

    Args:
        name: Name in a campaign.
        rule: The mathematics.
        laws: The laws that it obeys.
        convention: How ambiguities were settled, for reports.
        profiled: Whether it compares with training data.
        memory: What it remembers so far.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> anatomy = hc.criteria.survey(subject, from_bytes(toy_images(1).x))
        >>> measure = hc.criteria.build_criteria("nc", anatomy)
        >>> measure.value()
        0.0
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        *,
        laws: frozenset[str] = frozenset(),
        convention: Mapping[str, Any] | None = None,
        profiled: bool = False,
        memory: Memory | None = None,
    ) -> None:
        self.name = name
        self.rule = rule
        self.laws = laws
        self.profiled = profiled
        self.convention = dict(convention or {})
        self._memory: Any = rule.memory() if memory is None else memory
        self._waiting = list[Frame]()
        self._seen: tuple[Probe, Frame] | None = None

    @property
    def taps(self) -> Mapping[str, Tap]:
        return join_taps(selection.taps for selection in self.rule.selections)

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Aim:
        """For each row something that is not covered yet, drawn evenly."""
        aim = self.rule.choose(rows, rng, self.memory)
        return {f"{self.name}/{key}": value.to(rows.device) for key, value in aim.items()}

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        self._seen = (
            probe,
            Frame.of(probe),
        )  # an update with the same probe need not reduce it again
        with torch.no_grad():
            return self.rule.gain(self._seen[1], self.memory).to(
                probe.logits.device, probe.logits.dtype
            )

    def update(self, probe: Probe) -> None:
        seen = self._seen
        self._seen = None
        self.observe(seen[1] if seen is not None and seen[0] is probe else Frame.of(probe))

    def observe(self, frame: Frame) -> None:
        patience = getattr(self.rule, "patience", 0) * (1 if steady(frame.device) else 4)
        if not patience:
            with torch.no_grad():
                return self.rule.observe(frame, self._memory)
        self._waiting.append(frame.only(self.rule.selections))
        if sum(map(len, self._waiting)) >= patience:
            self._settle()

    @property
    def memory(self) -> Any:
        """What was observed so far, all of it."""
        self._settle()
        return self._memory

    def _settle(self) -> None:
        waiting = self._waiting
        self._waiting = []
        if waiting:
            with torch.no_grad():
                self.rule.observe(Frame.join(waiting), self._memory)

    def pull(self, probe: Probe) -> Float[Tensor, " m"]:
        """How near each row is to what `choose` aimed it at: differentiable, higher is nearer."""
        prefix = f"{self.name}/"
        aim = {
            key.removeprefix(prefix): value
            for key, value in probe.aim.items()
            if key.startswith(prefix)
        }
        nobody = torch.zeros(0, dtype=torch.int64)
        missing = set(self.rule.choose(nobody, Rng(0, "nobody", nobody), self.memory)) - set(aim)
        if missing:
            raise Problem(
                f"criterion {self.name!r} is followed, but no aim was chosen for it.",
                fix="the criterion among the guides",
            )
        return self.rule.pull(Frame.of(probe), aim, self.memory)

    def fork(self) -> Measure:
        like: dict[str, Any] = {
            "laws": self.laws,
            "convention": self.convention,
            "profiled": self.profiled,
        }
        return Measure(self.name, self.rule, memory=self.memory.fork(), **like)

    def delta(self) -> State:
        state: State = self.memory.delta()
        return state

    def merge(self, deltas: Sequence[State]) -> None:
        self.memory.merge(deltas)

    def tally(self) -> Tally:
        return self.rule.tally(self.memory)

    def value(self) -> float:
        return self.tally().value


# Names become criteria: the one place where a spec, a network's anatomy and a profile meet.


@dataclass(frozen=True, slots=True)
class Spec:
    """A criterion by name, and the options that were given.

    Args:
        name: The criterion's name.
        options: The options that were given.

    Example:
        >>> import hardcase as hc
        >>> hc.criteria.parse("nc:threshold=0.5").name
        'nc'
    """

    name: str
    options: Options = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{given}" if given else self.name


def parse(text: str) -> Spec:
    """The criterion that `text` names, its options typed by their defaults.

    Args:
        text: ``name`` or ``name:option=value,option=value``; the name may be ``file.py:factory``.

    Raises:
        Problem: For an unknown name, option or value; it lists the choices.

    Example:
        >>> from hardcase.criteria.criterion import parse
        >>> parse("kmnc:k=1_000,mode=unit").options
        {'k': 1000, 'mode': 'unit'}
    """
    name, rest = _divided(text.strip())
    known = options_of(registry.resolve("criterion", name))
    options = dict[str, str | int | float | bool]()
    for piece in filter(None, rest.split(",")):
        key, equals, value = piece.partition("=")
        if not equals:
            raise Problem(
                f"option {piece!r} of criterion {name!r} has no value.", fix=f"{name}:{piece}=..."
            )
        options[key.strip()] = _value(name, known, key.strip(), value.strip())
    return Spec(name, options)


def parse_list(text: str) -> list[Spec]:
    """The criteria of a list: a piece with ``=`` but no name belongs to the criterion before it.

    Args:
        text: Specs joined by commas, such as ``nc,kmnc:k=1000,mode=unit,nbc``.
    """
    texts = list[str]()
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if texts and "=" in piece.split(":")[0]:
            texts[-1] += f",{piece}" if _divided(texts[-1])[1] else f":{piece}"
        else:
            texts.append(piece)
    if not texts:
        raise Problem("no criterion was named.", f"known: {', '.join(registry.parts('criterion'))}")
    return [parse(text) for text in texts]


def names(specs: Sequence[Spec]) -> list[str]:
    """A name for each, different even if two ask for the same."""
    texts = [str(spec) for spec in specs]
    return [
        text if texts.count(text) == 1 else f"{text}#{texts[: i + 1].count(text)}"
        for i, text in enumerate(texts)
    ]


def settings(spec: Spec, convention: str = "default") -> dict[str, Any]:
    """All options of a criterion: those given, then the convention's, then the defaults."""
    implied = convention_of(convention).options(spec.name)
    known = options_of(registry.resolve("criterion", spec.name))
    return {
        key: spec.options.get(key, implied.get(key, option.default))
        for key, option in known.items()
    }


def _divided(text: str) -> tuple[str, str]:
    """The name and the options of a spec; the name of a part of a file has a colon of its own."""
    supplied = re.match(r"(.*\.py:\w+)(?::(.*))?$", text)
    if supplied:
        return supplied[1], supplied[2] or ""
    name, _, rest = text.partition(":")
    return name, rest


def _value(name: str, known: Mapping[str, Option], key: str, text: str) -> str | int | float | bool:
    """An option's value, of the type of its default."""
    if key not in known:
        raise choice(f"option of criterion {name!r}", key, list(known))
    option = known[key]
    if option.choices and text not in option.choices:
        raise choice(f"value of {name}:{key}", text, list(option.choices))
    try:
        return _typed(option.default, text)
    except ValueError as error:
        kind = type(option.default).__name__
        raise Problem(
            f"{name}:{key}={text} is not a value of the right kind ({kind}).",
            fix=f"{key}={option.default}",
        ) from error


def _typed(default: object, text: str) -> str | int | float | bool:
    if isinstance(default, bool):
        return _yes(text)
    if isinstance(default, int):
        return int(text.replace("_", ""))
    return float(text) if isinstance(default, float) else text


def _yes(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class CriterionPlan:
    """A criterion for a known network, still without training data: what its factory returns.

    Args:
        selection: The units that it counts.
        make: Builds its rule from a profile of training data (None where it needs none).
        ranges: Selections whose ranges over training data it needs.
        traces: Selections whose training traces it needs.
        distances: Selections whose traces it compares with one another.
        without: Laws that these options break.
        details: What else a report should print of its convention.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> anatomy = hc.criteria.survey(subject, from_bytes(toy_images(1).x))
        >>> units = hc.criteria.select(anatomy, "dense", "channel")
        >>> hc.criteria.CriterionPlan(units, make=lambda profile: None).ranges
        ()
    """

    selection: Selection
    make: Callable[[Profile | None], Rule]
    ranges: tuple[Selection, ...] = ()
    traces: tuple[Selection, ...] = ()
    distances: tuple[Selection, ...] = ()
    without: frozenset[str] = frozenset()
    details: Mapping[str, Any] = field(default_factory=dict)


def plan(spec: Spec | str, anatomy: Anatomy, *, convention: str = "default") -> CriterionPlan:
    """The plan of a criterion: its factory called with the network's anatomy and its options.

    A supplied factory (``file.py:name``) may return a `Rule` where it needs no training data.
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    supplied = ".py:" in spec.name
    with guarded(f"criterion {spec}") if supplied else nullcontext():
        made = registry.resolve("criterion", spec.name)(anatomy, **settings(spec, convention))
    if isinstance(made, CriterionPlan):
        return made
    if isinstance(made, Rule):
        return CriterionPlan(made.selections[0], lambda _: made)
    raise Problem(
        f"criterion {spec.name} returned {type(made).__name__}; it must return a Rule or a Plan."
    )


def requirements(
    specs: Iterable[Spec | str], anatomy: Anatomy, *, convention: str = "default"
) -> Needs:
    """What a profile must hold for these criteria.

    Args:
        specs: Criteria as ``--criteria`` names them.
        anatomy: The network's layers, see `survey`.
        convention: How published ambiguities are settled, see ``hardcase list criteria``.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> anatomy = hc.criteria.survey(subject, from_bytes(toy_images(1).x))
        >>> needs = hc.criteria.requirements(["kmnc"], anatomy)
        >>> hc.criteria.fit_profile(subject, toy_images(20), needs).count
        20
    """
    plans = [plan(spec, anatomy, convention=convention) for spec in specs]
    ranges, traces, distances = (
        dict.fromkeys(s for p in plans for s in getattr(p, what)) for what in Needs.__slots__
    )
    return Needs(tuple(ranges), tuple(traces), tuple(distances))


def build_criteria(
    spec: Spec | str,
    anatomy: Anatomy,
    profile: Profile | None = None,
    *,
    convention: str = "default",
    name: str = "",
) -> Measure:
    """The criterion, ready to be updated.

    `name` (by default the spec's text) is its name in a campaign.

    Args:
        spec: A criterion as ``--criteria`` names it.
        anatomy: The network's layers, see `survey`.
        profile: What training data did to the network, for criteria that compare with it.
        convention: How published ambiguities are settled, see ``hardcase list criteria``.
        name: Name in a campaign; by default the text of `spec`.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> anatomy = hc.criteria.survey(subject, from_bytes(toy_images(1).x))
        >>> hc.criteria.build_criteria("nc:threshold=0.5", anatomy).value()
        0.0
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    planned = plan(spec, anatomy, convention=convention)
    if profile is None and (planned.ranges or planned.traces):
        raise Problem(
            f"criterion {str(spec)!r} needs a profile of training data.",
            "It compares with what training data did to the network.",
            fix="profile=... (training images, or a saved profile)",
        )
    rule = planned.make(profile)
    declared = registry.resolve("criterion", spec.name).facts.get("laws", ())
    printed = {
        "name": convention,
        **settings(spec, convention),
        **_counted(planned.selection),
        **_found(rule),
        **planned.details,
    }
    laws = frozenset(declared) - planned.without
    return Measure(
        name or str(spec),
        rule,
        laws=laws,
        convention=printed,
        profiled=bool(planned.ranges or planned.traces),
    )


def _counted(selection: Selection) -> dict[str, Any]:
    return {"layers": list(selection.names), "mode": selection.mode, "units": selection.units}


def _found(rule: Rule) -> dict[str, Any]:
    """What only training data could tell: bounds, singular classes, and whether images were few."""
    found = {name: getattr(rule, name) for name in ("lower", "upper") if hasattr(rule, name)}
    model = getattr(rule, "model", None)
    if isinstance(model, Likelihood | Mahalanobis):
        found |= fit_notes(model)
    return found


# The gradient of each criterion: a score that pulls every candidate toward something its criterion
# has not covered.
#
# A criterion's `choose` draws an uncovered target for each row (a unit, a corner, a section, a
# pair, a bucket); `toward` scores how near the row is to it: up for an inactive unit, down for a
# lower corner, toward the centre of a section, past its rivals for a unit that was never among the
# strongest, toward a surprise that was never met. Rows are independent.
#
# "Define a gradient for each coverage" is the promise of the project "Adversarial image generation
# based on various neuron coverage"; the code known of it changes only which neuron counts as
# uncovered and always pushes it up.


@dataclass(frozen=True, slots=True)
class Toward:
    """An `Objective`: how near each row is to what its aim asks for, times `weight`.

    In a campaign the memory is the shard's own, under the criterion's name, wherever the shard is
    searched.
    """

    criterion: Measure
    weight: float = 1.0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        live = probe.guides.get(self.criterion.name)
        return self.weight * (live if isinstance(live, Measure) else self.criterion).pull(probe)


def toward(criterion: Measure, *, weight: float = 1.0) -> Toward:
    """The objective that raises what `criterion` has not covered yet.

    Args:
        criterion: A criterion that guides the same search.
        weight: Weight of the pull.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> anatomy = hc.criteria.survey(toy_subject(), from_bytes(toy_images(1).x))
        >>> hc.criteria.toward(hc.criteria.build_criteria("nc", anatomy), weight=0.5).weight
        0.5
    """
    return Toward(criterion, weight)


# What these criteria need to know of a network and its training data.

KEPT = 2**26
"""Activations (numbers) that a batch may keep."""


def specs_of(criteria: str | Sequence[str | Spec]) -> list[Spec]:
    if isinstance(criteria, str):
        return parse_list(criteria)
    return [parse(one) if isinstance(one, str) else one for one in criteria]


def anatomy_of(subject: Model, images: Images) -> Anatomy:
    if not isinstance(subject, Layered):
        raise Problem(
            f"coverage needs the activations of layers; {subject.name} offers {subject.offers}.",
            fix="a torch model",
        )
    return survey(subject, from_bytes(images.x[:1]).to(getattr(subject, "device", "cpu")))


def profile_for(
    subject: Model,
    training: Images,
    criteria: str | Sequence[str | Spec],
    *,
    convention: str = "default",
    anatomy: Anatomy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """A profile of training data that holds what these criteria need;
    an empty one if they need none.
    """
    anatomy = anatomy or anatomy_of(subject, training)
    needs = requirements(specs_of(criteria), anatomy, convention=convention)
    if needs == Needs():
        return Profile(subject.hash, training.hash, f"{training.name}/{training.split}", 0)
    taps = join_taps(selection.taps for selection in (*needs.ranges, *needs.traces))
    return fit_profile(
        subject, training, needs, batch=batch_for(subject, training, taps), progress=progress
    )


def batch_for(subject: Model, images: Images, taps: dict[str, Tap]) -> int:
    """Rows at a time: 256 (up to 2,048 small images on a GPU), or fewer where many activations are
    kept; a multiple of 16.
    """
    most = 256
    if not steady(subject.device):
        most = max(256, min(2048, 2**26 // images.x[:1].numel()))
    if all(hasattr(tap, "width") for tap in taps.values()):
        kept = sum(getattr(tap, "width", 0) for tap in taps.values())
    else:  # another's tap: nobody knows what it keeps
        with torch.no_grad():
            seen = subject(from_bytes(images.x[:1]).to(subject.device), taps).activations
        kept = sum(value.shape[1] if value.ndim > 1 else 1 for value in seen.values())
    return max(16, min(most, KEPT // max(1, kept)) // 16 * 16)
