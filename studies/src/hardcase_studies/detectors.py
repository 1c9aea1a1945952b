"""Photographs and a detector as a black box: are claims lost that networks of other lineages keep?

``hardcase reproduce detectors --data "yolo:DIR?resize=320&split=all"`` takes one claim an image: the largest object that subject
and witness both find at its place. `natural-blackbox` may ask `queries` times about each; the witness is asked about every
candidate, the scorer only about what was found. The second table orders detectors of one family by accuracy and by risk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.campaign.claims import CLAIM_KINDS, Claims, asking, image_of
from hardcase.campaign.in_memory import search_campaign
from hardcase.campaign.record import Campaign
from hardcase.claims.annotations import AnnotatedImages, load_annotations
from hardcase.claims.load import claim_seeds, load_claim_model
from hardcase.claims.subjects import ClaimModel, Detections, average_precision, strongest
from hardcase.conditions.box import condition_box
from hardcase.conditions.declared import profile
from hardcase.conditions.risk import measure_risk
from hardcase.errors import HardcaseError
from hardcase.methods.appearance_search import natural_blackbox
from hardcase.models.load import Loading
from hardcase.objectives import with_witnesses
from hardcase.searches.black_box import Evolution
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Findings, Images, Method, Space
from hardcase_studies.bench import Bench, share

FAMILY = tuple(f"zoo:efficientdet-lite{number}?threshold=0.3" for number in range(3))
WITNESS = "zoo:ssd-mobilenet?threshold=0.3"
SCORER = "zoo:deeplabv3?task=masks&threshold=0.2"
"""It keeps a claim where a fifth of the pixels of the moved box are of the class."""
SMALLEST = 32**2
"""Area in pixels from which on an object is claimed."""
QUERIES = 100
GOAL = 0.6
AT_ONCE = 16
"""Images that a network is given in one call outside of searches."""


def run(bench: Bench) -> Outcome:
    """``--data yolo:DIR`` or another form with boxes; ``--set count=N queries=Q ordered=N draws=D profile=NAME subjects=[…] witness=… scorer=…``."""
    known = load_annotations(str(bench.options.get("images", bench.data)), "test", "boxes")
    family = [_network(bench, known, spec) for spec in bench.names("subjects", FAMILY)]
    witness = _network(bench, known, str(bench.options.get("witness", WITNESS)))
    scorer = _network(bench, known, str(bench.options.get("scorer", SCORER)))
    objects = large_objects(known)
    usable = torch.stack([made(one, objects) for one in (family[0], witness)])
    seeds = largest_of_each(objects, usable.all(0))
    if not len(seeds):
        raise HardcaseError("subject and witness find no object of these images together.")
    claimed, both = (_images(objects, rows) for rows in (usable[0], usable.all(0)))
    bench.say(f"{family[0].name} makes claims about {claimed} images, {both} with the witness")
    wrong = absent_names(seeds, known)
    count = min(bench.size("count", len(seeds), len(seeds)), len(seeds))
    queries = bench.size("queries", QUERIES, QUERIES)
    searches = {"unchanged images": None, **_searches(seeds, queries)}
    found = {name: list[Sequence[float]]() for name in searches}
    for row in range(count):
        bench.say(f"image {row + 1} of {count}")
        one, absent = (each[row : row + 1] for each in (torch.arange(len(seeds)), wrong))
        alone = seeds.take(one)
        for name, method in searches.items():
            ask = partial(_measured, family[0], witness, scorer, method, alone, absent, bench.seed)
            cell = bench.cell(f"{name}, {seeds.id[row]}", ask, but=("count", "draws", "ordered"))
            found[name].append(cell)
    tables = {name: torch.tensor(lines) for name, lines in found.items()}
    notes = [
        f"{len(known)} images; {family[0].name} makes a claim in {claimed}, with {witness.name} in {both}; attempted: the first {count}",
        f"one claim an image: the largest object that both find ({SMALLEST} pixels or more, overlap of half); {queries} queries at most",
        f"scorer: {scorer.name}, a fifth of the moved box's pixels; of images whose class it knows; thresholds of scores: {family[0].threshold:g}, {witness.threshold:g}",
        "random draws: the same space and spreads, the centre stays at the image; ended at the first witnessed one",
        "wrong name: a class that is in another image and not in this one, claimed at the same place",
        "brackets: 95 %, Wilson's, over images",
    ]
    rows: list[list[Cell]] = [[name, *_rates(table)] for name, table in tables.items()]
    kept = float(tables["natural-blackbox"][:, 1].mean())
    outcome = "reached" if kept >= GOAL else "missed"
    goals: list[list[Cell]] = [
        ["lost with the witness keeping", round(kept, 3), f">= {GOAL}", outcome]
    ]
    return Outcome(
        "detectors",
        [
            Table("Claims", ["images", *_COLUMNS], rows, notes),
            Table("Goals", ["figure", "measured", "goal", "outcome"], goals),
            _ordered(bench, known, family),
        ],
    )


def _network(bench: Bench, known: AnnotatedImages, spec: str) -> ClaimModel:
    return load_claim_model(
        spec,
        Loading(device=bench.device),
        task="boxes",
        classes=known.images.classes,
        annotated=lambda split: known,
    )


# Which claims.


def large_objects(known: AnnotatedImages) -> Images:
    """A seed for each object that is large enough, with its claim."""
    seeds = claim_seeds(known.images, known.annotations, "boxes")
    return seeds.take((_areas(seeds) >= SMALLEST).nonzero().flatten())


def _areas(seeds: Images) -> Float[Tensor, " n"]:
    box = seeds.context["claim_box"]
    area: Tensor = (box[:, 2:] - box[:, :2]).prod(1)
    return area


def largest_of_each(seeds: Images, usable: Bool[Tensor, " n"] | None = None) -> Images:
    """Of each image the largest usable object, in the order of the images."""
    rows = torch.arange(len(seeds)) if usable is None else usable.nonzero().flatten()
    area = _areas(seeds)
    best = dict[str, int]()
    for row in rows.tolist():
        image = image_of(seeds.id[row])
        if image not in best or area[row] > area[best[image]]:
            best[image] = row
    return seeds.take(torch.tensor(list(best.values()), dtype=torch.int64))


def _images(seeds: Images, rows: Bool[Tensor, " n"]) -> int:
    """How many images some seeds are of."""
    return len({image_of(seeds.id[row]) for row in rows.nonzero().flatten().tolist()})


def made(model: ClaimModel, seeds: Images) -> Bool[Tensor, " n"]:
    """Which claims a network makes about the images as they are."""
    claims = Claims.of(seeds)
    assert claims is not None
    return keeps(model, seeds.x, claims)


@torch.inference_mode()
def keeps(model: ClaimModel, x: UInt8[Tensor, "m c h w"], claims: Claims) -> Bool[Tensor, " m"]:
    """Which claims a network makes about images; a segmenter is asked about the pixels of the box."""
    if model.task == "masks":
        claims = covering(claims, (x.shape[2], x.shape[3]))
    said = [torch.zeros(0, dtype=torch.bool)]
    for part in chunks(len(x), AT_ONCE):
        some = claims.take(part)
        said.append(asking(model, some)(from_bytes(x[part])).logits.argmax(1).cpu() == some.label)
    return torch.cat(said)


def covering(claims: Claims, size: tuple[int, int]) -> Claims:
    """Claims that boxes are covered by pixels of their class."""
    down, right = (torch.arange(length) + 0.5 for length in size)
    x0, y0, x1, y1 = (side[:, None] for side in claims.box.unbind(1))
    rows, columns = (down > y0) & (down < y1), (right > x0) & (right < x1)
    mask = (rows[:, :, None] & columns[:, None]).byte()
    return replace(
        claims, kind=torch.full_like(claims.kind, CLAIM_KINDS.index("covers")), mask=mask
    )


def absent_names(seeds: Images, known: AnnotatedImages) -> Int[Tensor, " n"]:
    """For each seed the class of the next image that its own image does not show."""
    shown = dict(zip(known.images.id, (set(one.labels.tolist()) for one in known.annotations)))
    labels = seeds.y.tolist()
    names = []
    for row, name in enumerate(seeds.id):
        others = [*labels[row:], *labels, *range(len(seeds.classes))]
        names.append(next(one for one in others if one not in shown[image_of(name)]))
    return torch.tensor(names, dtype=torch.int64)


# Searches and what others say of what they find.


def _searches(seeds: Images, queries: int) -> dict[str, Method]:
    channels, height, width = seeds.x.shape[1:]
    usual = natural_blackbox((channels, height, width), search="evolution", queries=queries)
    assert isinstance(usual.search, Evolution)
    still = replace(usual.search, step_size=0.0, bisections=0)
    random = replace(usual, search=still, until="first")
    return {"natural-blackbox": usual, "random draws": random}


@dataclass(frozen=True, slots=True)
class Lost:
    """Images and the claims as they are there.

    Args:
        seed: Rows of the seeds.
        x: The images.
        claims: One for each.
    """

    seed: Int[Tensor, " t"]
    x: UInt8[Tensor, "t c h w"]
    claims: Claims


@dataclass(frozen=True, slots=True)
class LostClaims:
    """What a search did to claims."""

    lost: Bool[Tensor, " n"]
    kept: Lost


def lost_claims(
    subject: ClaimModel, witness: ClaimModel, method: Method, seeds: Images, *, seed: int = 0
) -> LostClaims:
    """Search for changes by which the subject loses a claim that the witness still makes."""
    campaign = Campaign(
        subject=subject,
        method=with_witnesses(method, 0.0),
        witnesses=(witness,),
        batch=AT_ONCE,
        margin=0.0,
        seed=seed,
    )
    done = search_campaign(campaign, seeds, shard=4)
    found = done.findings.take(_first_witnessed(done.findings))
    return LostClaims(
        done.failing > 0, Lost(found.seed, found.x, _moved(method.space, found, seeds))
    )


def _first_witnessed(found: Findings) -> Int[Tensor, " s"]:
    first = dict[int, int]()
    for row in found.witnessed.nonzero().flatten().tolist():
        first.setdefault(int(found.seed[row]), row)
    return torch.tensor(list(first.values()), dtype=torch.int64)


def _moved(space: Space, found: Findings, seeds: Images) -> Claims:
    """The claims where the findings' codes have moved them."""
    claims = Claims.of(seeds.take(found.seed))
    assert claims is not None
    places: Callable[[Tensor], Tensor | None] | None = getattr(space, "places", None)
    at = places(found.code) if places is not None and len(found) else None
    return claims if at is None else claims.moved(at)


_COLUMNS = (
    "lost",
    "lost, witness keeps",
    "of these, scorer keeps",
    "and where it did on the unchanged image",
    "wrong name, witness says it",
    "wrong name, scorer says it",
)


def _measured(
    subject: ClaimModel,
    witness: ClaimModel,
    scorer: ClaimModel,
    method: Method | None,
    seed: Images,
    wrong: Int[Tensor, " 1"],
    number: int,
) -> list[float]:
    """Of one image: lost, lost with the witness keeping; of what was found (without a method the image itself) whether the
    scorer keeps it, whether it also makes the claim about the unchanged image, and whether witness and scorer say a wrong name.
    NaN where there is nothing to say.
    """
    claims = Claims.of(seed)
    assert claims is not None
    lost, found = False, Lost(torch.zeros(1, dtype=torch.int64), seed.x, claims)
    if method is not None:
        done = lost_claims(subject, witness, method, seed, seed=number)
        lost, found = bool(done.lost.any()), done.kept
    numbers = [float(lost), float(method is not None and len(found.seed) > 0)]
    if not len(found.seed):
        return [*numbers, *[torch.nan] * 4]
    other = replace(found.claims, label=wrong)
    kept, misnamed, before = torch.nan, torch.nan, torch.nan
    if _knows(scorer, claims.label):
        kept = float(keeps(scorer, found.x, found.claims))
        before = kept if bool(made(scorer, seed)) else torch.nan
    if _knows(scorer, wrong):
        misnamed = float(keeps(scorer, found.x, other))
    return [*numbers, kept, before, float(keeps(witness, found.x, other)), misnamed]


def _rates(table: Float[Tensor, "n c"]) -> list[Cell]:
    """Shares of images, each of those about which there is something to say."""
    return [share(column[column.isfinite()]) for column in table.unbind(1)]


def _knows(model: ClaimModel, label: Int[Tensor, " 1"]) -> bool:
    """Whether a network has a word for a class."""
    return not model.columns or model.columns[int(label)] >= 0


# Detectors of one family.


def _ordered(bench: Bench, known: AnnotatedImages, family: Sequence[ClaimModel]) -> Table:
    """Accuracy on the unchanged images beside risk, about the largest object of each image."""
    known = known.take(torch.arange(min(len(known), bench.size("ordered", len(known), len(known)))))
    seeds = largest_of_each(large_objects(known))
    conditions = str(bench.options.get("profile", "handheld"))
    box = condition_box(profile(conditions), tuple(seeds.x.shape[1:]))
    draws = bench.size("draws", 4, 16)

    def measured(model: ClaimModel) -> list[float]:
        bench.say(f"{model.name}: accuracy, and risk of {draws} draws an image")
        risk = measure_risk(model, seeds, box, samples=draws, seed=bench.seed, rows=AT_ONCE)
        stated = risk.to_json()
        figures = (stated, stated["gap"])
        bounds = [(one["value"], one["low"], one["high"]) for one in figures]
        return [mean_precision(model, known), *bounds[0], *bounds[1], *(~risk.clean).tolist()]

    rows: list[list[Cell]] = []
    for model in family:
        precision, *numbers = bench.cell(
            f"order, {model.name}", partial(measured, model), but=("count",)
        )
        texts = ["{:.3f} [{:.3f}, {:.3f}]".format(*numbers[at : at + 3]) for at in (0, 3)]
        rows.append([model.name, share(torch.tensor(numbers[6:])), round(precision, 3), *texts])
    notes = [
        f"the first {len(known)} images; risk: the share of {draws} draws of {conditions} by which the largest object is not claimed, for {len(seeds)} images with one, claimed unchanged or not",
        "excess: risk minus the share of claims that are not made of the unchanged image",
    ]
    return Table("Order", ["detector", "claims made", "AP50", "risk", "excess"], rows, notes)


@torch.inference_mode()
def mean_precision(model: ClaimModel, known: AnnotatedImages) -> float:
    """Average precision at an overlap of one half, over classes that are there."""
    classes = len(known.images.classes)
    parts = list[Detections]()
    for part in chunks(len(known), AT_ONCE):
        x = from_bytes(known.images.x[part])
        said = model.read(model.model(x).logits, x)
        assert isinstance(said, Detections)
        parts.append(said)
    logits = torch.cat([one.logits[..., :classes] for one in parts])
    found = Detections(torch.cat([one.boxes for one in parts]), logits)
    return float(average_precision(strongest(found), known.annotations, classes).nanmean())
