"""A criterion is a rule and a memory: this class is the one that runs and `measure` handle."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, update_wrapper
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from hardcase import registry
from hardcase.criteria.memory import Memory
from hardcase.criteria.network import (
    Layered,
    LayerGraph,
    Mode,
    Selection,
    join_taps,
    select,
    trace_layers,
)
from hardcase.criteria.profile import ActivationBatch, Needs, Profile, fit_profile
from hardcase.criteria.surprise import Likelihood, Mahalanobis, fit_notes
from hardcase.errors import HardcaseError, choice, guarded
from hardcase.randomness import Rng
from hardcase.registry import Option, explain, options_of
from hardcase.tensors import from_bytes, steady
from hardcase.types import Images, Model, Probe, Scores, State, Tap, Targets

Options = Mapping[str, str | int | float | bool]

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

SHARED = {
    "graph": "The layers of the network and their units (`trace_layers`).",
    "layers": "A group of layers (see `select`) or names joined by +.",
    "mode": "One unit per channel (its mean), or every unit.",
    "widen": "Standard deviations by which the bounds move out.",
    "equal": "Where a value on the bound counts.",
    "n": "Number of buckets.",
    "lower": "Lower bound; train: the least leave-one-out surprise of training data.",
    "upper": "Upper bound; train: the greatest leave-one-out surprise of training data.",
}
"""Descriptions of shared arguments; `criterion` adds them to the docstrings."""


def criterion(
    name: str,
    *,
    layers: str = "conv-linear",
    laws: tuple[str, ...] = RATIO,
    needs: str = "activations",
    **facts: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a factory with what most criteria promise and need: a ratio of activations."""

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        if "selection" in inspect.signature(make).parameters:
            make = _selecting(make, layers)
        explain(make, SHARED)
        return registry.criterion(name, laws=laws, needs=needs, **facts)(make)

    return decorate


def _selecting(make: Callable[..., Any], usual: str) -> Callable[..., Any]:
    """`make`, which takes a selection, as a factory that takes a graph, layers and a mode."""

    def factory(
        graph: LayerGraph, *, layers: str = usual, mode: Mode = "channel", **options: Any
    ) -> Any:
        return make(select(graph, layers, mode), **options)

    *shared, _ = inspect.signature(factory).parameters.values()
    _, *parameters = inspect.signature(make).parameters.values()
    update_wrapper(factory, make)
    setattr(factory, "__signature__", inspect.Signature([*shared, *parameters]))  # noqa: B010
    factory.__annotations__ = {**make.__annotations__, "layers": str, "mode": Mode}
    return factory


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """What a criterion says so far.

    Args:
        value: The criterion's value.
        covered: How many are covered, where it is a count or a ratio.
        total: Of how many.
        detail: Further facts worth printing.
    """

    value: float
    covered: int | None = None
    total: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def ratio(covered: int, total: int, **detail: Any) -> CoverageResult:
        """The share that is covered."""
        return CoverageResult(covered / max(total, 1), covered, total, detail)


@runtime_checkable
class Rule(Protocol):
    """The mathematics of a criterion: only `observe` changes the memory, rows are independent."""

    @property
    def selection(self) -> Selection: ...

    def memory(self) -> Any: ...

    def observe(self, batch: ActivationBatch, memory: Any) -> None: ...

    def gain(self, batch: ActivationBatch, memory: Any) -> Scores: ...

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Any) -> dict[str, Tensor]: ...

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Any) -> Scores: ...

    def result(self, memory: Any) -> CoverageResult: ...


class Measure:
    """Implements `types.Criterion`: a guide that is also a measure.

    Args:
        name: Name in a campaign.
        rule: The mathematics.
        laws: The laws that it obeys.
        convention: How ambiguities were settled, for reports.
        profiled: Whether it compares with training data.
        memory: What it remembers so far.
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
        self.memory: Any = rule.memory() if memory is None else memory

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.rule.selection.taps

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        """For each row something that is not covered yet, drawn evenly."""
        targets = self.rule.choose(rows, rng, self.memory)
        return {f"{self.name}/{key}": value.to(rows.device) for key, value in targets.items()}

    def gain(self, probe: Probe) -> Scores:
        with torch.no_grad():
            return self.rule.gain(ActivationBatch.of(probe), self.memory).to(probe.logits)

    def update(self, probe: Probe) -> None:
        self.observe(ActivationBatch.of(probe))

    def observe(self, batch: ActivationBatch) -> None:
        with torch.no_grad():
            self.rule.observe(batch, self.memory)

    def pull(self, probe: Probe) -> Scores:
        """How near each row is to what `choose` aimed it at: differentiable, higher is nearer."""
        prefix = f"{self.name}/"
        keys = [key for key in probe.targets if key.startswith(prefix)]
        targets = {key.removeprefix(prefix): probe.targets[key] for key in keys}
        try:
            return self.rule.pull(ActivationBatch.of(probe), targets, self.memory)
        except KeyError as error:
            raise HardcaseError(
                f"criterion {self.name!r} is followed, but no target was chosen for it.",
                fix="the criterion among the guides",
            ) from error

    def fork(self) -> Measure:
        return Measure(
            self.name,
            self.rule,
            laws=self.laws,
            convention=self.convention,
            profiled=self.profiled,
            memory=self.memory.fork(),
        )

    def delta(self) -> State:
        state: State = self.memory.delta()
        return state

    def merge(self, deltas: Sequence[State]) -> None:
        self.memory.merge(deltas)

    def result(self) -> CoverageResult:
        return self.rule.result(self.memory)

    def value(self) -> float:
        return self.result().value


# Names become criteria: the one place where a spec, a network's layers and a profile meet.

CONVENTIONS: Mapping[str, str] = {
    # channel means of every convolution and dense layer before activation; corners open
    "default": "",
    # channels of all layers after activation, pooling and softmax counted; each layer scaled within
    # an input, then averaged
    "deepxplore": "nc:layers=activated-softmax,scale=input,order=scale-mean,threshold=0",
    # channels of all layers after activation but the softmax; averaged, then scaled within an input
    "adapt": "nc:layers=activated,scale=input,order=mean-scale,epsilon=1e-6,threshold=0.5,"
    "tknc:layers=activated,k=3",
    # every unit after activation; the highest value is a corner
    "deepgauge": "kmnc:mode=unit,layers=activated,top=corner,constant=never,"
    "nbc:mode=unit,layers=activated,equal=above,snac:mode=unit,layers=activated,equal=above,"
    "tknc:mode=unit,layers=activated,k=2,tknp:mode=unit,layers=activated,k=2",
    # every unit as given; raw thresholds; values on a bound are corners; constant units stay in the
    # denominator
    "dnn-tip": "nc:mode=unit,threshold=0,kmnc:mode=unit,top=corner,constant=never,"
    "nbc:mode=unit,equal=both,snac:mode=unit,equal=above,tknc:mode=unit,"
    "lsa:per=all,most=300,dsa,mdsa:per=all,squared=true,"
    "lsc:per=all,most=300,lower=0,upper=2000,dsc:lower=0,upper=2,"
    "mdsc:per=all,squared=true,lower=0,upper=2000",
    # channel means of convolutions and dense layers; sections left-open, so the lowest value is
    # dropped; ordered patterns
    "neural-coverage": "nc:scale=input,order=mean-scale,threshold=0.5,kmnc:cuts=left-open,"
    "nbc,snac,tknc,tknp:ordered=true,nlc",
    # channels of all layers after activation, pooling and softmax counted; closed sections; a unit
    # counts for NBC when both corners were seen
    "coverage-guided": "nc:layers=activated-softmax,scale=input,order=scale-mean,threshold=0,"
    "kmnc:layers=activated-softmax,cuts=closed,constant=all,"
    "nbc:layers=activated-softmax,count=both,snac:layers=activated-softmax",
}
"""Conventions of published tools, so that published numbers can be compared: lists of criteria as
``--criteria`` takes them. An option that a convention does not name keeps our default, a criterion
that it does not name is refused. The facts are those of the tools' code.
"""


@dataclass(frozen=True, slots=True)
class Spec:
    """A criterion by name, and its explicit options.

    Args:
        name: The criterion's name.
        options: The explicit options.
    """

    name: str
    options: Options = field(default_factory=dict)

    def __str__(self) -> str:
        texts = {key: str(value) for key, value in self.options.items()}
        texts |= {key: str(v).lower() for key, v in self.options.items() if isinstance(v, bool)}
        options = ",".join(f"{key}={text}" for key, text in texts.items())
        return f"{self.name}:{options}".removesuffix(":")


def parse(text: str | Spec) -> Spec:
    """The criterion that `text` names, its options typed by their defaults.

    Args:
        text: ``name`` or ``name:option=value,option=value``; the name may be ``file.py:factory``.
            A `Spec` is returned unchanged.

    Raises:
        HardcaseError: For an unknown name, option or value; it lists the choices.

    Example:
        >>> from hardcase.criteria.criterion import parse
        >>> parse("kmnc:k=1_000,mode=unit").options
        {'k': 1000, 'mode': 'unit'}
    """
    if isinstance(text, Spec):
        return text
    name, rest = _divided(text.strip())
    declared = options_of(registry.resolve("criterion", name))
    options = dict[str, str | int | float | bool]()
    for piece in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            raise HardcaseError(
                f"option {piece!r} of criterion {name!r} has no value.", fix=f"{name}:{piece}=..."
            )
        if key not in declared:
            raise choice(f"option of criterion {name!r}", key, list(declared))
        options[key] = _value(f"{name}:{key}", declared[key], value)
    return Spec(name, options)


def parse_list(text: str) -> list[Spec]:
    """The criteria of a list: a piece with ``=`` but no name belongs to the criterion before it."""
    texts = list[str]()
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if texts and "=" in piece.split(":")[0]:
            texts[-1] += f",{piece}" if _divided(texts[-1])[1] else f":{piece}"
        else:
            texts.append(piece)
    if not texts:
        raise HardcaseError(
            "no criterion was named.", f"known: {', '.join(registry.parts('criterion'))}"
        )
    return [parse(text) for text in texts]


def names(specs: Sequence[Spec]) -> list[str]:
    """A name for each, different even if two ask for the same."""
    texts = [str(spec) for spec in specs]
    return [
        text + f"#{texts[: i + 1].count(text)}" * (texts.count(text) > 1)
        for i, text in enumerate(texts)
    ]


def settings(spec: Spec, convention: str = "default") -> dict[str, Any]:
    """All options of a criterion: explicit ones, then the convention's, then the defaults."""
    implied = conventional(convention).get(spec.name)
    if implied is None and convention != "default":
        raise HardcaseError(
            f"convention {convention!r} says nothing about {spec.name!r}.",
            f"it defines: {', '.join(conventional(convention))}",
            fix="--convention default",
        )
    declared = options_of(registry.resolve("criterion", spec.name))
    return {
        key: spec.options.get(key, (implied or {}).get(key, option.default))
        for key, option in declared.items()
    }


@cache
def conventional(convention: str) -> dict[str, Options]:
    """The options that a convention implies, by criterion."""
    if convention not in CONVENTIONS:
        raise choice("convention", convention, list(CONVENTIONS))
    if convention == "default":
        return {}
    return {spec.name: spec.options for spec in parse_list(CONVENTIONS[convention])}


def _divided(text: str) -> tuple[str, str]:
    """The name and the options of a spec; the name of a part of a file also has a colon."""
    supplied = re.match(r"(.*\.py:\w+)(?::(.*))?$", text)
    if supplied:
        return supplied[1], supplied[2] or ""
    name, _, rest = text.partition(":")
    return name, rest


def _value(place: str, option: Option, text: str) -> str | int | float | bool:
    """An option's value, of the type of its default."""
    if option.choices and text not in option.choices:
        raise choice(f"value of {place}", text, list(option.choices))
    kind = type(option.default)
    try:
        value: str | int | float | bool = TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        raise HardcaseError(
            f"{place}={text} is not a value of the right kind ({kind.__name__}).",
            fix=f"{place.rpartition(':')[2]}={option.default}",
        ) from error
    return value


@dataclass(frozen=True)
class CriterionPlan:
    """A criterion for a network, before training data: the result of its factory.

    Args:
        selection: The units that it counts.
        make: Builds its rule from a profile of training data (None where it needs none).
        ranges: Selections whose ranges over training data it needs.
        traces: Selections whose training traces it needs.
        distances: Selections whose traces it compares with one another.
    """

    selection: Selection
    make: Callable[[Profile | None], Rule]
    ranges: tuple[Selection, ...] = ()
    traces: tuple[Selection, ...] = ()
    distances: tuple[Selection, ...] = ()


def plan(spec: Spec | str, graph: LayerGraph, *, convention: str = "default") -> CriterionPlan:
    """The plan of a criterion: its factory called with the network's layers and its options."""
    spec = parse(spec)
    supplied = ".py:" in spec.name
    with guarded(f"criterion {spec}") if supplied else nullcontext():
        part = registry.resolve("criterion", spec.name)(graph, **settings(spec, convention))
    if isinstance(part, CriterionPlan):
        return part
    if isinstance(part, Rule):
        return CriterionPlan(part.selection, lambda _: part)
    raise HardcaseError(
        f"criterion {spec.name} returned {type(part).__name__}; it must return a Rule or a Plan."
    )


def requirements(
    specs: Iterable[Spec | str], graph: LayerGraph, *, convention: str = "default"
) -> Needs:
    """What a profile must hold for these criteria.

    Args:
        specs: Criteria as ``--criteria`` names them.
        graph: The network's layers, see `trace_layers`.
        convention: How published ambiguities are settled, see ``hardcase list criteria``.
    """
    plans = [plan(spec, graph, convention=convention) for spec in specs]
    ranges, traces, distances = (
        dict.fromkeys(s for p in plans for s in getattr(p, what)) for what in Needs.__slots__
    )
    return Needs(tuple(ranges), tuple(traces), tuple(distances))


def build_criteria(
    spec: Spec | str,
    graph: LayerGraph,
    profile: Profile | None = None,
    *,
    convention: str = "default",
    name: str = "",
) -> Measure:
    """The criterion, ready to be updated.

    Args:
        spec: A criterion as ``--criteria`` names it.
        graph: The network's layers, see `trace_layers`.
        profile: What training data did to the network, for criteria that compare with it.
        convention: How published ambiguities are settled, see ``hardcase list criteria``.
        name: Name in a run; by default the text of `spec`.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> graph = hc.criteria.trace_layers(subject, from_bytes(toy_images(1).x))
        >>> hc.criteria.build_criteria("nc:threshold=0.5", graph).value()
        0.0
    """
    spec = parse(spec)
    planned = plan(spec, graph, convention=convention)
    if profile is None and (planned.ranges or planned.traces):
        raise HardcaseError(
            f"criterion {str(spec)!r} needs a profile of training data.",
            "It compares with what training data did to the network.",
            fix="profile=... (training images, or a saved profile)",
        )
    rule = planned.make(profile)
    declared = registry.resolve("criterion", spec.name).facts.get("laws", ())
    printed = {
        "name": convention,
        **settings(spec, convention),
        "layers": list(planned.selection.names),
        "mode": planned.selection.mode,
        "units": planned.selection.units,
        **_found(rule),
    }
    return Measure(
        name or str(spec),
        rule,
        laws=frozenset(declared),
        convention=printed,
        profiled=bool(planned.ranges or planned.traces),
    )


def _found(rule: Rule) -> dict[str, Any]:
    """Notes that need training data: bounds, singular classes, and small samples."""
    figures = {name: getattr(rule, name) for name in ("lower", "upper") if hasattr(rule, name)}
    model = getattr(rule, "model", None)
    if isinstance(model, Likelihood | Mahalanobis):
        figures |= fit_notes(model)
    return figures


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
    """An `Objective`: how near each row is to what its targets ask for, times `weight`."""

    criterion: Measure
    weight: float = 1.0

    def __call__(self, probe: Probe) -> Scores:
        live = probe.guides.get(self.criterion.name)
        if not isinstance(live, Measure):
            live = self.criterion
        return self.weight * live.pull(probe)


def toward(criterion: Measure, *, weight: float = 1.0) -> Toward:
    """The objective that raises what `criterion` has not covered yet.

    Args:
        criterion: A criterion that guides the same search.
        weight: Weight of the pull.
    """
    return Toward(criterion, weight)


# What these criteria need to know of a network and its training data.

KEPT = 2**26
"""Activations (numbers) that a batch may keep."""


def specs_of(criteria: str | Sequence[str | Spec]) -> list[Spec]:
    if isinstance(criteria, str):
        return parse_list(criteria)
    return [parse(criterion) for criterion in criteria]


def layer_graph(subject: Model, images: Images) -> LayerGraph:
    if not isinstance(subject, Layered):
        raise HardcaseError(
            f"coverage needs the activations of layers; {subject.name} offers {subject.offers}.",
            fix="a torch model",
        )
    return trace_layers(subject, from_bytes(images.x[:1]).to(getattr(subject, "device", "cpu")))


def profile_for(
    subject: Model,
    training: Images,
    criteria: str | Sequence[str | Spec],
    *,
    convention: str = "default",
    graph: LayerGraph | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Return a profile with what these criteria need of training data; empty if it is nothing."""
    graph = graph or layer_graph(subject, training)
    needs = requirements(specs_of(criteria), graph, convention=convention)
    if needs == Needs():
        return Profile(subject.hash, training.hash, f"{training.name}/{training.split}", 0)
    taps = join_taps(selection.taps for selection in (*needs.ranges, *needs.traces))
    return fit_profile(
        subject, training, needs, batch=batch_for(subject, training, taps), progress=progress
    )


def batch_for(subject: Model, images: Images, taps: dict[str, Tap]) -> int:
    """Rows at a time: 512, more on a GPU, fewer where many activations are stored.

    The memory of criteria is walked once a call.
    """
    most = 512
    if not steady(subject.device):
        most = max(256, min(4096, 2**26 // images.x[:1].numel()))
    if all(hasattr(tap, "width") for tap in taps.values()):
        width = sum(getattr(tap, "width", 0) for tap in taps.values())
    else:  # another's tap: nobody knows what it keeps
        with torch.no_grad():
            activations = subject(from_bytes(images.x[:1]).to(subject.device), taps).activations
        width = sum(value.shape[1] if value.ndim > 1 else 1 for value in activations.values())
    return max(16, min(most, KEPT // max(1, width)) // 16 * 16)
