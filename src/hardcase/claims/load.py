"""What a run of claims starts from: names and objects become networks that answer claims,
annotated images become seeds, one for each image and claim about it, and sheets of pictures with
boxes and masks in the colour of their class, for people to look at.
"""

from __future__ import annotations

import colorsys
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from hardcase.cache import named_path
from hardcase.campaign.claims import CLAIM_KINDS, Claims, image_of
from hardcase.claims.annotations import NONE, AnnotatedImages
from hardcase.claims.answers import (
    AskedNetwork,
    answering,
    stated_classes,
)
from hardcase.claims.subjects import TASKS, THRESHOLD, Annotation, ClaimModel, Flattened, Task
from hardcase.errors import NO_SEEDS, HardcaseError, choice
from hardcase.models.adapters import fit_state, own_names, read_state
from hardcase.models.fetching import is_fetched
from hardcase.models.health import answers
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
from hardcase.types import WAYS, Images, Model

__all__ = [
    *(
        "network_from_user",
        "claim_model",
        "load_claim_model",
        "spec_options",
        "usual_claim_witnesses",
    ),
    *("claim_record", "claim_seeds", "draw_annotation", "draw_annotations"),
    *("labelled_annotations", "task_of_seeds", "usual_task", "with_absent"),
]

_log = logging.getLogger(__name__)

OPTIONS = ("threshold", "task")
"""What may stand behind the ``?`` of a network's name, beside what its own form takes."""


def spec_options(spec: str) -> tuple[str, dict[str, str]]:
    """A network's name without the options that say how its answers are read, and these."""
    name, _, query = spec.partition("?")
    pairs = parse_qsl(query)
    choices = {key: value for key, value in pairs if key in OPTIONS}
    rest = "&".join(f"{key}={value}" for key, value in pairs if key not in OPTIONS)
    return "?".join(filter(None, [name, rest])), choices


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
    task_name: Task = next(one for one in TASKS if one == wanted)
    if not len(how.test) and (task_name == "tags" or name.startswith(("http:", "https:"))):
        how = replace(how, test=annotated("test").images.first(SOME))
    network = network_from_user(name, task_name, how, outputs=outputs, classes=classes)
    if network is not None:
        stated = getattr(network, "class_names", ())
        return ClaimModel(network, task_name, classes, outputs=outputs or stated, threshold=cut)
    if task_name == "classes":
        return claim_model(
            load_model(name, how), task_name, classes, outputs=outputs, threshold=cut
        )
    weights, _, code = name.rpartition("@")
    form, _, rest = code.partition(":")
    row = parts("model", rest).get(rest.partition("?")[0]) if form == "zoo" else None
    if row is not None and "task" in row.facts:
        _refuse_other_task(code, row.facts["task"], task_name)
        net: Any = None
        if weights:  # of a repair
            images = annotated("test").images
            net = row(images.shape[0], len(images.classes))
            fit_state(net, read_state(named_path(weights), trust=how.trust_pickle), weights)
        else:
            net = _trained(rest, how, annotated)
    elif form in HUBS:
        hub = from_hub(code, how, weights=weights, task=task_name)
        net = hub.net
        outputs = outputs or hub.classes
        if not how.normalised:
            how = replace(how, mean=hub.mean, std=hub.std)
    else:
        net = opened_network(name, how)
    return claim_model(net, task_name, classes, outputs=outputs, threshold=cut, name=spec, how=how)


def _refuse_other_task(name: str, stated: str, wanted: Task) -> None:
    if stated != wanted:
        raise HardcaseError(
            f"{name} answers {stated}, and {wanted} are asked for.", fix=f"--task {stated}"
        )


def network_from_user(
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
        raise HardcaseError(f"threshold={text} is no number.", fix="?threshold=0.5") from None


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
    class_names = tuple(outputs) or tuple(getattr(thing, "class_names", ())) or own_names(thing)
    model: Model = thing
    if task == "classes":
        if example is not None:
            model = model_of(thing, example)
    elif not isinstance(thing, Subject | AskedNetwork):
        stated = class_names or (() if stated_classes(thing) else tuple(classes))
        model = _subject(thing, task, name, how, stated)
    return ClaimModel(model, task, classes, outputs=class_names, threshold=threshold)


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
    model_name = spec_options(model)[0].removeprefix("zoo:").partition("?")[0]
    rows = {name: row for name, row in parts("model").items() if row.facts.get("task") == task}
    others = []
    if model_name in rows and "training" in rows[model_name].facts:
        others = [name for name in rows if name != model_name and "training" in rows[name].facts]
    elif model_name in rows:  # one that was fetched
        fetched = [name for name in rows if name in PRETRAINED and is_fetched(name)]
        others = [name for name in fetched if lineage_of(name) != lineage_of(model_name)]
    if not others:
        _log.warning("this run has no witness: name a network of the task by --witness")
        return ()
    return tuple(load(f"zoo:{name}") for name in others[:1])


# Annotated images become seeds.

NOTHING = (0.0, 0.0, 0.0, 0.0)
"""The box of a claim that names no place."""
SIDE = 240
"""Longest side of an image in a sheet, in pixels."""
ACROSS = 4
VEIL = 0.45
"""How much of a mask's colour covers what is below it."""
LINE = 16
"""Height of a line of text."""


def labelled_annotations(images: Images) -> tuple[Annotation, ...]:
    """What is known of images with one class each: that it is there."""
    nothing = torch.zeros(0, 4), torch.zeros(0, 0, dtype=torch.int16)
    return tuple(Annotation(images.y[row : row + 1], *nothing) for row in range(len(images)))


def task_of_seeds(seeds: Images) -> Task:
    """The task of networks that images with claims are about; ``classes`` without claims."""
    claims = Claims.of(seeds)
    if claims is None:
        return "classes"
    kinds = {CLAIM_KINDS[kind] for kind in claims.kind.tolist()}
    if "covers" in kinds:
        return "masks"
    return "boxes" if "at" in kinds else "tags"


def usual_task(annotations: Sequence[Annotation]) -> Task:
    """The task of networks for annotated images: boxes where there are any, else masks or tags."""
    if any(len(annotation.boxes) for annotation in annotations):
        return "boxes"
    return "masks" if any(annotation.mask.numel() for annotation in annotations) else "tags"


def claim_record(seeds: Images, task: Task, model: Model) -> dict[str, Any]:
    """What run.json says of the claims of a run."""
    kinds = Counter(CLAIM_KINDS[kind] for kind in seeds.context["claim_kind"].tolist())
    return {
        "task": task,
        "kinds": dict(kinds),
        "images": len({image_of(name) for name in seeds.id}),
        "threshold": getattr(model, "threshold", None),
    }


class _Claim(NamedTuple):
    """What is claimed of one image."""

    kind: str
    label: int
    box: Sequence[float] = NOTHING
    mask: UInt8[Tensor, "h w"] | None = None


def claim_seeds(images: Images, annotations: Sequence[Annotation], task: Task) -> Images:
    """The originals of annotated images: the image again for each claim, and the claims in its
    context.

    Objects with boxes are claimed to be at their place, pixels to be of their class, and what has
    neither to be there. Names are ``IMAGE#CLASS``, from the second object on ``IMAGE#CLASS-2``.
    """
    claimed = [_claims(annotation, task, len(images.classes)) for annotation in annotations]
    if not any(claimed):
        raise HardcaseError(
            f"{images.name} says of no image what is in it.",
            fix="data with tags, boxes or masks of the task",
            code=NO_SEEDS,
        )
    return _seeds(images, claimed)


def _claims(objects: Annotation, task: Task, classes: int) -> list[_Claim]:
    labels = objects.labels.tolist()
    if task == "masks" and objects.mask.numel():
        present = _shown(objects, classes)
        return [_Claim("covers", label, mask=(objects.mask == label).byte()) for label in present]
    if task == "boxes" and len(objects.boxes) == len(labels):
        return [_Claim("at", *pair) for pair in zip(labels, objects.boxes.tolist())]
    return [_Claim("has", label) for label in sorted(set(labels))]


def _shown(annotation: Annotation, classes: int) -> list[int]:
    """The classes of an image's pixels."""
    return [label for label in range(classes) if bool((annotation.mask == label).any())]


def _seeds(images: Images, claimed: Sequence[Sequence[_Claim]]) -> Images:
    rows = torch.tensor([row for row, claims in enumerate(claimed) for _ in claims])
    every = [claim for claims in claimed for claim in claims]
    originals = images.take(rows.long())
    names = list[str]()
    times = Counter[str]()
    for name, claim in zip(originals.id, every):
        word = re.sub(r"[^\w.-]+", "-", images.classes[claim.label])
        name = f"{name}#{'not-' * (claim.kind == 'has-not')}{word}"
        times[name] += 1
        names.append(f"{name}-{times[name]}" if times[name] > 1 else name)
    height, width = images.shape[1:]
    size = (height, width) if any(claim.mask is not None for claim in every) else (0, 0)
    blank = torch.zeros(size, dtype=torch.uint8)
    claims = Claims(
        torch.tensor([CLAIM_KINDS.index(claim.kind) for claim in every]),
        torch.tensor([claim.label for claim in every]),
        torch.tensor([list(claim.box) for claim in every], dtype=torch.float32),
        torch.stack([blank if claim.mask is None else claim.mask for claim in every]),
        torch.ones(len(every), dtype=torch.bool),
    )
    context = {**originals.context, **claims.context()}
    return Images(
        originals.x, claims.label, tuple(names), images.classes, images.name, images.split, context
    )


def with_absent(
    seeds: Images, images: Images, annotations: Sequence[Annotation], model: Model
) -> Images:
    """The same seeds, and of each image the claim that the class is absent that the model is
    nearest to saying of all that are.
    """
    odds = answers(model, images)[:, : -len(WAYS)].clone()
    for row, annotation in enumerate(annotations):
        odds[row, [*annotation.labels.tolist(), *_shown(annotation, odds.shape[1])]] = -torch.inf
    nearest = odds.max(1)
    claimed = [
        [_Claim("has-not", label)] if score > -torch.inf else []
        for label, score in zip(nearest.indices.tolist(), nearest.values.tolist())
    ]
    return joined(seeds, _seeds(images, claimed)) if any(claimed) else seeds


def joined(first: Images, second: Images) -> Images:
    """Seeds of both; those without a mask get an empty one where the others have one."""
    x = torch.cat([first.x, second.x])
    context = dict[str, Tensor]()
    for name in first.context.keys() | second.context.keys():
        column = first.context.get(name, second.context.get(name))
        assert column is not None
        shape = column.shape[1:]
        parts = [
            each.context.get(name, column.new_zeros(len(each), *shape)) for each in (first, second)
        ]
        context[name] = torch.cat(parts)
    return Images(
        x,
        torch.cat([first.y, second.y]),
        first.id + second.id,
        first.classes,
        first.name,
        first.split,
        context,
    )


def colour_of(label: int) -> tuple[int, int, int]:
    """A colour for a class; neighbours in number are far apart."""
    parts = colorsys.hsv_to_rgb(label * 0.618034 % 1.0, 0.8, 1.0)
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def draw_annotation(
    image: UInt8[Tensor, "c h w"],
    annotation: Annotation,
    classes: Sequence[str],
    *,
    side: int = SIDE,
) -> Image.Image:
    """One image with its boxes, its mask, or the names of what it holds."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()
    if annotation.mask.numel():
        mask = annotation.mask.cpu().numpy()
        colours = np.array([colour_of(label) for label in range(NONE + 1)])
        mixed = (1 - VEIL) * pixels + VEIL * colours[mask]
        pixels = np.where((mask != NONE)[..., None], mixed, pixels).astype(np.uint8)
    share = side / max(pixels.shape[:2])
    size = round(pixels.shape[1] * share), round(pixels.shape[0] * share)
    picture = Image.fromarray(np.ascontiguousarray(pixels)).resize(size)
    pen = ImageDraw.Draw(picture)
    for box, label in zip(annotation.boxes.tolist(), annotation.labels.tolist()):
        place = [value * share for value in box]
        pen.rectangle(place, outline=colour_of(label), width=2)
        _write(pen, (place[0] + 2, place[1] + 1), classes[label], label)
    if not len(annotation.boxes):
        for row, label in enumerate(annotation.labels.tolist()):
            _write(pen, (3, 3 + LINE * row), classes[label], label)
    return picture


def _write(pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str, label: int) -> None:
    font = ImageFont.load_default(size=12)
    pen.rectangle(pen.textbbox(place, text, font=font), fill=(0, 0, 0))
    pen.text(place, text, fill=colour_of(label), font=font)


def draw_annotations(annotated: AnnotatedImages, count: int = 12) -> Image.Image:
    """Images, evenly spread over the set, with what is known of them, on one sheet."""
    count = min(count, len(annotated))
    rows = torch.linspace(0, len(annotated) - 1, count).round().long()
    chosen = annotated.take(rows)
    drawn = [
        draw_annotation(image, boxes_of, chosen.images.classes)
        for image, boxes_of in zip(chosen.images.x, chosen.annotations)
    ]
    wide, high = (max(annotation.size[axis] for annotation in drawn) + 4 for axis in (0, 1))
    across = min(ACROSS, len(drawn))
    sheet = Image.new("RGB", (wide * across, high * math.ceil(len(drawn) / across)), "white")
    for number, annotation in enumerate(drawn):
        sheet.paste(annotation, (wide * (number % across) + 2, high * (number // across) + 2))
    return sheet
