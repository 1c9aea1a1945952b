"""Names and objects become networks that answer claims."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import torch
from torch import nn

from hardcase.cache import named_path
from hardcase.claims.answers import (
    AskedNetwork,
    answering,
    stated_classes,
)
from hardcase.claims.subjects import TASKS, THRESHOLD, ClaimModel, Flattened, Task
from hardcase.errors import Problem, choice
from hardcase.models.adapters import fit_state, own_names, read_state
from hardcase.models.fetching import is_fetched
from hardcase.models.load import (
    HUBS,
    SOME,
    Loading,
    from_hub,
    lineage_of,
    load_model,
    loader,
    model_of,
    opened_network,
)
from hardcase.models.pretrained import PRETRAINED
from hardcase.models.subject import Subject, prepared
from hardcase.registry import parts
from hardcase.tensors import from_bytes
from hardcase.types import Images, Model

if TYPE_CHECKING:
    from hardcase.claims.annotations import AnnotatedImages

__all__ = [
    "asked_network",
    "claim_model",
    "load_claim_model",
    "spec_options",
    "usual_claim_witnesses",
]

_log = logging.getLogger(__name__)

OPTIONS = ("threshold", "task")
"""What may stand behind the ``?`` of a network's name, beside what its own form takes."""


def spec_options(spec: str) -> tuple[str, dict[str, str]]:
    """A network's name without the options that say how its answers are read, and these."""
    name, _, query = spec.partition("?")
    pairs = parse_qsl(query)
    own = {key: value for key, value in pairs if key in OPTIONS}
    rest = "&".join(f"{key}={value}" for key, value in pairs if key not in OPTIONS)
    return "?".join(filter(None, [name, rest])), own


def load_claim_model(
    spec: str,
    how: Loading,
    *,
    task: Task,
    classes: Sequence[str],
    outputs: Sequence[str] = (),
    threshold: float = THRESHOLD,
    annotated: Callable[[str], AnnotatedImages],
) -> ClaimModel:
    """The network that `spec` names, as one that answers claims."""
    name, options = spec_options(spec)
    cut = _number(options.get("threshold"), threshold)
    wanted = options.get("task", task)
    if wanted not in TASKS:
        raise choice("task", wanted, TASKS)
    own: Task = next(one for one in TASKS if one == wanted)
    if not len(how.test) and (own == "tags" or name.startswith(("http:", "https:"))):
        how = replace(how, test=annotated("test").images.first(SOME))
    asked = asked_network(name, own, how, outputs=outputs, classes=classes)
    if asked is not None:
        stated = getattr(asked, "class_names", ())
        return ClaimModel(asked, own, classes, outputs=outputs or stated, threshold=cut)
    if own == "classes":
        return claim_model(load_model(name, how), own, classes, outputs=outputs, threshold=cut)
    weights, _, code = name.rpartition("@")
    form, _, rest = code.partition(":")
    row = parts("model").get(rest.partition("?")[0]) if form == "zoo" else None
    if row is not None and "task" in row.facts:
        _refuse_other_task(code, row.facts["task"], own)
        net: Any = None
        if weights:  # of a repair
            images = annotated("test").images
            net = row(images.shape[0], len(images.classes))
            fit_state(net, read_state(named_path(weights), trust=how.trust_pickle), weights)
        else:
            net = _trained(rest, how, annotated)
    elif form in HUBS:
        hub = from_hub(code, how, weights=weights, task=own)
        net = hub.net
        outputs = outputs or hub.classes
        if not how.normalised:
            how = replace(how, mean=hub.mean, std=hub.std)
    else:
        net = opened_network(name, how)
    return claim_model(net, own, classes, outputs=outputs, threshold=cut, name=spec, how=how)


def _refuse_other_task(name: str, stated: str, wanted: Task) -> None:
    if stated != wanted:
        raise Problem(
            f"{name} answers {stated}, and {wanted} are asked for.", fix=f"--task {stated}"
        )


def asked_network(
    spec: str,
    task: Task,
    how: Loading,
    *,
    outputs: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> Model | None:
    """The network of a file or a server that can only be asked; None of other kinds of name."""
    name = spec.partition("?")[0]
    form, _, rest = name.partition(":")
    row = PRETRAINED.get(rest) if form == "zoo" else None
    if row is not None and row.is_tflite:
        _refuse_other_task(name, row.outputs, task)
        form = "tflite"
    elif task == "classes":
        return None
    load = loader(form)
    if load is None:
        return None
    network: Model = load(spec, how, task=task, outputs=outputs, classes=classes)
    return network


def _number(text: str | None, usual: float) -> float:
    if text is None:
        return usual
    try:
        return float(text)
    except ValueError:
        raise Problem(f"threshold={text} is no number.", fix="?threshold=0.5") from None


def _trained(name: str, how: Loading, annotated: Callable[[str], AnnotatedImages]) -> nn.Module:
    from hardcase.claims.networks import trained_network

    plain, _, seed = name.partition("?seed=")
    net, _ = trained_network(
        plain,
        annotated("train"),
        annotated("test"),
        seed=int(seed) if seed.isdecimal() else how.seed,
        progress=how.progress,
        device=how.device,
    )
    return net


def claim_model(
    thing: Any,
    task: Task,
    classes: Sequence[str],
    *,
    outputs: Sequence[str] = (),
    threshold: float = THRESHOLD,
    name: str = "",
    how: Loading | None = None,
    example: Images | None = None,
) -> ClaimModel:
    """A network that answers claims, of whatever a user has."""
    if isinstance(thing, ClaimModel):
        return thing
    how = how or Loading()
    known = tuple(outputs) or tuple(getattr(thing, "class_names", ())) or own_names(thing)
    model: Model = thing
    if task == "classes":
        if example is not None:
            model = model_of(thing, example)
    elif not isinstance(thing, Subject | AskedNetwork):
        stated = known or (() if stated_classes(thing) else tuple(classes))
        model = _subject(thing, task, name, how, stated)
    return ClaimModel(model, task, classes, outputs=known, threshold=threshold)


def _subject(
    net: nn.Module, task: Task, name: str, how: Loading, classes: Sequence[str]
) -> Subject:
    title = name or str(getattr(net, "name", "") or type(net).__name__)
    head = dict(parse_qsl(name.partition("?")[2])).get("head", "auto")
    example = None
    if len(how.test):
        mean, std = (torch.tensor(each).reshape(1, -1, 1, 1) for each in (how.mean, how.std))
        example = prepared(from_bytes(how.test.x[:8]), mean, std, how.channels)
    subject = Subject(
        Flattened(answering(net, task, classes=classes, head=head, example=example)),
        mean=how.mean,
        std=how.std,
        name=title,
        device=how.device if name else None,
        channels=how.channels,
    )
    return subject


def usual_claim_witnesses(
    model: str, task: Task, load: Callable[[str], Model]
) -> tuple[Model, ...]:
    """Who must keep a claim where nobody was named: of networks that are trained here, the others
    of the task; of fetched ones, one of another lineage that is on this machine; else nobody, which
    is said.
    """
    own = spec_options(model)[0].removeprefix("zoo:").partition("?")[0]
    rows = {name: row for name, row in parts("model").items() if row.facts.get("task") == task}
    others = []
    if own in rows and "training" in rows[own].facts:
        others = [name for name in rows if name != own and "training" in rows[name].facts]
    elif own in rows:  # one that was fetched
        fetched = [name for name in rows if name in PRETRAINED and is_fetched(name)]
        others = [name for name in fetched if lineage_of(name) != lineage_of(own)]
    if not others:
        _log.warning("this run has no witness: name a network of the task by --witness")
        return ()
    return tuple(load(f"zoo:{name}") for name in others[:1])
