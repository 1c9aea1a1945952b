"""Parts that recipes share, and those that a user names in place of a method's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hardcase import registry
from hardcase.errors import Problem, guarded
from hardcase.objectives import Margin, TargetMargin
from hardcase.oracles import Disagree, LeavesLabel, Reaches
from hardcase.randomness import Rng
from hardcase.registry import argument_helps, explain, resolve
from hardcase.spaces.pixel import Pixels, Unclipped
from hardcase.types import (
    Budget,
    Evaluator,
    Method,
    Model,
    Objective,
    Oracle,
    Search,
    Seeds,
    Space,
    State,
)

_ROLES: dict[str, tuple[type, str]] = {
    "space": (Space, "A space has name, keeps_code, encode, decode, project and distance."),
    "search": (Search, "A search has init and step."),
    "objective": (Objective, "An objective takes a probe and returns a score for each row."),
}


SHARED = {
    "subject": "The network under test.",
    "profile": "What white-box methods know of networks; a campaign supplies it.",
    "peers": "Networks to compare with.",
    "target": "Targeted search: only this predicted class counts as a failure.",
    "shape": "Channels, height and width of the images; a campaign fills it in.",
    "space": "Where candidates live, e.g. ``hc.spaces.latent(vae)``.",
    "partners": "Codes of training images, as `hc.spaces.partners` collects them.",
    "search": "Another search: its name, or ``file.py:name``.",
    "objective": "Another objective: its name, or ``file.py:name``.",
    "threshold": "Activation above which a neuron counts as covered.",
    "probabilities": "Use softmax probabilities in place of logits.",
    "cover": "Weight of the neurons that are pushed, beside the main objective.",
    "step_size": "Size of one step.",
    "steps": "Gradient steps of one walk.",
    "clip": "Keep every candidate in [0, 1] while it walks.",
    "capacity": "Entries that the corpus of a seed holds at most.",
    "queries": "Query budget per seed.",
    "gradients": "Gradient budget per seed.",
}
"""What arguments of several methods mean; `method` adds them to the docstrings."""
Made = TypeVar("Made", bound=Callable[..., Method])


def method(name: str, *, explained_by: Sequence[type] = (), **facts: Any) -> Callable[[Made], Made]:
    """Register a recipe, and explain the arguments that it shares with others, or hands on to the
    classes `explained_by`.
    """
    helps = dict(SHARED)
    for part in explained_by:
        helps |= argument_helps(part)

    def decorate(make: Made) -> Made:
        explain(make, helps)
        return registry.method(name, **facts)(make)

    return decorate


def failure_oracle(target: int | None = None, peers: Sequence[Model] = ()) -> Oracle:
    """Return what counts as a failure: `target` reached, peers contradicted, or the label left."""
    if target is not None:
        return Reaches(target)
    if peers:
        return Disagree()
    return LeavesLabel()


def targeted_objective(target: int | None, untargeted: Objective) -> Objective:
    """Return the objective of a targeted search, or `untargeted` where there is no target."""
    if target is None:
        return untargeted
    return TargetMargin(target)


def pixel_walk(*, clip: bool) -> dict[str, Any]:
    """Return the space of walks over pixels and what is kept of them; published codes clip not."""
    if clip:
        return {"space": Pixels(), "keep": "best-per-label"}
    return {"space": Unclipped(), "keep": "all"}


def with_parts(
    method: Method,
    *,
    space: str = "",
    search: str = "",
    objective: str = "",
    shape: tuple[int, int, int] | None = None,
) -> Method:
    """Return the method with other parts where they are named."""
    named = {"space": space, "search": search, "objective": objective}
    changes: dict[str, Any] = {
        kind: built(kind, spec, shape) for kind, spec in named.items() if spec
    }
    if search:
        changes["needs"] = resolve("search", search).facts.get("needs", method.needs)
    return replace(method, **changes)


def built(kind: str, spec: str, shape: tuple[int, int, int] | None) -> Any:
    """Return the part that `spec` names, made with its own options and the images' shape."""
    part = resolve(kind, spec)
    if kind == "objective" and part.given == ("probe",):  # a plain function is an objective itself
        return part.make
    unknown = [name for name in part.given if name != "shape"]
    if unknown:
        raise Problem(
            f"{kind} {spec} takes {unknown[0]!r}, which no campaign can give it.",
            "Such a part may ask for `shape`; everything else needs a default.",
        )
    protocol, contract = _ROLES[kind]
    with guarded(f"{kind} {spec}"):
        made = part(**dict.fromkeys(part.given, shape))
    if not isinstance(made, protocol):
        raise Problem(f"{spec} makes a {type(made).__name__}, which is no {kind}.", contract)
    return made


@dataclass(frozen=True, slots=True)
class _NoSearch:
    """Leaves every seed as it is."""

    def init(self, seeds: Seeds, rng: Rng) -> State:
        return {}

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        evaluate.retire(evaluate.live.nonzero().squeeze(1))
        return state


def no_search() -> Method:
    """Return the method of a run that only measures how often the model fails."""
    return Method(
        name="none",
        space=Pixels(),
        search=_NoSearch(),
        objective=Margin(),
        oracle=LeavesLabel(),
        needs="label",
        budget=Budget(queries=1),
    )
