"""Find, fix, prove: train a network on with the search inside the loop, and prove what it did."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from hardcase.cache import make_folder, write_atomically
from hardcase.campaign.claims import Claims, image_of
from hardcase.claims.load import claim_model, task_of_seeds
from hardcase.claims.subjects import ClaimModel
from hardcase.conditions import ConditionBox, Conditions, condition_box
from hardcase.conditions.declared import usual_profile
from hardcase.data.files import Bytes, ImageSet, LabelledSet, Stream
from hardcase.data.sources import images_of, is_lazy, large, load, stream_of
from hardcase.errors import HardcaseError
from hardcase.models.health import answers
from hardcase.models.load import Loading, load_model, model_of
from hardcase.models.names import aligned
from hardcase.models.subject import Subject
from hardcase.repair.claims import train_on_claims
from hardcase.repair.examples import repaired_examples
from hardcase.repair.folder import PAGE, RECORD, repair_page, repairable, write_weights
from hardcase.repair.hardest import conditions_of
from hardcase.repair.loop import STATE, RepairRecipe, Trained, train_on
from hardcase.repair.measures import ProofSize, proof_size
from hardcase.repair.proof import Proof, ProofRow, Verdict, measure_before, prove
from hardcase.runs.files import checked_json, locked
from hardcase.runs.folder import refuse_used
from hardcase.runs.results import Run, finding_claims
from hardcase.splits import sample_of
from hardcase.tensors import fingerprints, usable_device
from hardcase.types import Images, Model

__all__ = [
    "RepairResult",
    "held_apart",
    "joined_images",
    "repair",
    "split_validation",
    "stored_failures",
    "with_network",
]

_log = logging.getLogger(__name__)

MOST_VALIDATION = 2000
"""Validation images, at most: more would choose no better."""
FEWEST = 20
"""Training images, at least."""
SHARD = 256
"""Images that are compared at a time."""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """A repaired network and the proof of it.

    Args:
        folder: Where weights, card, ``repair.json`` and the page are.
        subject: The network after.
        model: What ``--model`` calls it.
        proof: Every figure before and after.
        record: What ``repair.json`` says.
    """

    folder: Path
    subject: Subject
    model: str
    proof: Proof
    record: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """What it came to: repaired, not repaired, regressed elsewhere, or inconclusive."""
        return self.proof.verdict


def repair(
    subject: Any,
    data: Any,
    *,
    out: str | Path,
    test: Any = None,
    conditions: str | Mapping[str, Any] | Conditions | None = None,
    recipe: RepairRecipe | None = None,
    proof: str | ProofSize = "usual",
    margin: float | None = None,
    outside: Mapping[str, Any] | None = None,
    added: Images | None = None,
    device: str = "auto",
    log: Callable[[str], None] | None = None,
) -> RepairResult:
    """Train a network on under declared conditions, write its weights, and prove the repair.

    Args:
        subject: The network, a `torch.nn.Module` or `hc.Subject`, or a name as ``--model`` takes
            it.
        data: Training images in any form that `hc.run` takes, or a name as ``--data`` takes it.
        out: A new folder, or that of an interrupted repair, which continues.
        test: Images to prove it on; by default the test split of named data.
        conditions: A profile, a file, a table of ranges, `hc.Conditions`; None: the usual profile
            of such images.
        recipe: How it is trained; `RepairRecipe()` by default.
        proof: ``quick``, ``usual``, ``full``, with numbers that differ
            (``usual:images=200,attack.restarts=10``), or a `ProofSize`.
        margin: The largest allowed loss in any figure; None: what this number of images can show.
        outside: Images of other data with the same classes, by name.
        added: Images that are added to the training images, such as findings.
        device: Where it computes, if the network is named.
        log: Called with lines on the progress; logged by default.

    Returns:
        The repaired network with its proof.

    Raises:
        HardcaseError: If the network cannot learn or be written, or no images are left for a
            proof.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> done = hc.repair(
        ...     toy_subject(),
        ...     toy_images(60, seed=1),
        ...     test=toy_images(40, seed=2),
        ...     conditions={"shift": "±5 %"},
        ...     recipe=hc.RepairRecipe(epochs=1, rate=1e-3),
        ...     proof="quick",
        ...     out=tempfile.mkdtemp(),
        ... )
        >>> done.verdict in ("repaired", "not repaired", "regressed elsewhere", "inconclusive")
        True
    """
    recipe = recipe or RepairRecipe()
    train, unseen = _images(data, test)
    sampled = sample_of(unseen)
    if Claims.of(sampled) is not None:
        model: Model = claim_model(subject, task_of_seeds(sampled), unseen.classes)
    elif isinstance(subject, str):
        learns = subject.startswith("zoo:")  # from all of them
        outside_images, seen_before = (
            labelled.images() if learns else sample_of(labelled) for labelled in (train, unseen)
        )
        how = Loading(
            train=outside_images, test=seen_before, device=usable_device(device), seed=recipe.seed
        )
        model = load_model(subject, how)
    else:
        model = model_of(subject, sampled)
    names = tuple(getattr(model, "class_names", ()))
    if names:
        train, unseen = aligned(train, names), aligned(unseen, names)
    others = dict[str, Images]()
    for name, source in (outside or {}).items():
        outside_images = load(source, split="all") if isinstance(source, str) else images_of(source)
        others[name] = aligned(outside_images, names) if names else outside_images
    return repair_network(
        model,
        train,
        unseen,
        Path(out),
        conditions=conditions,
        recipe=recipe,
        proof=proof,
        margin=margin,
        outside=others,
        added=added,
        log=log or _log.info,
    )


def _images(data: Any, test: Any) -> tuple[ImageSet, ImageSet]:
    """Both splits; of many files nothing is decoded yet."""
    if isinstance(data, str):
        unseen = _split(data, "test") if test is None else _given(test)
        return _split(data, "train"), unseen
    if test is None:
        raise HardcaseError(
            "there are training images but none to prove a repair on.",
            "A proof needs images that took no part in the training.",
            fix="hc.repair(net, train, test=test, ...)",
        )
    return _given(data), _given(test)


def _split(data: str, split: str) -> ImageSet:
    return (large(data, split) or load(data, split=split)).held()


def _given(data: Any) -> ImageSet:
    if isinstance(data, Images | Stream):
        return data
    if isinstance(data, str) or not is_lazy(data):
        return images_of(data)
    return stream_of(data).held()


def repair_network(
    model: Model,
    train: ImageSet,
    test: ImageSet,
    folder: Path,
    *,
    conditions: str | Mapping[str, Any] | Conditions | None,
    recipe: RepairRecipe,
    proof: str | ProofSize,
    margin: float | None,
    outside: Mapping[str, Images],
    added: Images | None = None,
    carried: Images | None = None,
    about: Mapping[str, Any] | None = None,
    log: Callable[[str], None],
) -> RepairResult:
    """As `repair`, of ingredients that are objects."""
    began = monotonic()
    size = proof_size(proof)
    if margin is not None and not 0 <= margin < 1:
        raise HardcaseError(f"a margin of {margin} is no share.", fix="--margin 0.01")
    subject = repairable(model.model if isinstance(model, ClaimModel) else model)
    unseen = held_apart(train, test)
    _check_classes(model, train, unseen)
    learn, valid = split_validation(train, recipe)
    if conditions is None:
        conditions = usual_profile(train.shape)
        log(f"conditions: {conditions}, the usual ones of such images")
    declared = conditions_of(conditions)
    box = condition_box(declared, train.shape)
    _open(folder)
    with locked(folder):
        how: dict[str, Any] = {"seed": recipe.seed, "outside": outside}
        before = measure_before(model, unseen, box, size, margin=margin, log=log, **how)
        trained = _trained(model, subject, learn, valid, box, recipe, added, folder, log)
        facts = {
            "data": {"train": train.name, "hash": train.hash, "images": len(learn)},
            "conditions": declared.to_record(),
            "recipe": asdict(recipe),
            "training": trained.to_json(),
        }
        name, weights = write_weights(folder, subject, trained.net, facts)
        after = with_network(subject, trained, name)
        # asked as the one before is
        repaired = model.around(after) if isinstance(model, ClaimModel) else after
        shown = prove(before, (model, repaired), box, size, log=log, **how)
        if carried is not None and len(carried):
            shown = replace(shown, rows=(*shown.rows, _carried_row(model, repaired, carried)))
        record = {
            "schema": 2,
            "verdict": shown.verdict,
            "model": name,
            "weights": weights,
            "parents": {"model": subject.name, "hash": subject.hash, "weights": subject.weights},
            **facts,
            "conditions_digest": box.digest(),
            "proof_images": before.images.hash,
            "margin": margin,
            "proof": shown.to_json(),
            "seconds": monotonic() - began,
            **(about or {}),
        }
        examples = repaired_examples(model, repaired, valid, box, seed=recipe.seed)
        write_atomically(folder / PAGE, repair_page(record, examples).encode())
        write_atomically(folder / RECORD, checked_json(record))
        (folder / STATE).unlink(missing_ok=True)
    return RepairResult(folder, after, name, shown, record)


def _trained(
    model: Model,
    subject: Subject,
    learn: ImageSet,
    valid: Images,
    box: ConditionBox,
    recipe: RepairRecipe,
    added: Images | None,
    folder: Path,
    log: Callable[[str], None],
) -> Trained:
    """The network trained on, or as far as the folder says that it was."""
    if isinstance(model, ClaimModel):
        return train_on_claims(model, learn.images(), valid, box, recipe, log=log)
    images = learn if added is None else joined_images(learn, added)
    return train_on(subject, images, valid, box, recipe, kept=folder, log=log)


def _open(folder: Path) -> None:
    """A new folder, or that of an interrupted repair."""
    if (folder / RECORD).exists():
        raise HardcaseError(f"{folder} holds a repair already.", fix="another --out folder")
    if not (folder / STATE).exists():
        refuse_used(folder)
    make_folder(folder)


def held_apart(train: ImageSet, test: ImageSet) -> ImageSet:
    """Return the test images that are no training images."""
    if len(train) < FEWEST:
        raise HardcaseError(
            f"{train.name} has {len(train)} training images; a repair needs {FEWEST} or more.",
            fix="data with a training split: folders train and test, or both splits of a data set",
        )
    if train.shape != test.shape:
        raise HardcaseError(
            f"training images are {train.shape}, those of the proof {test.shape}.",
            fix="folder:PATH?resize=224 for both",
        )
    contents = set(_contents(train))
    rows = [i for i, content in enumerate(_contents(test)) if content not in contents]
    if len(rows) < len(test):
        _log.warning("%d test images are training images; left out", len(test) - len(rows))
    if not rows:
        raise HardcaseError(
            "no image is left to prove a repair on: all are training images or images of the run.",
            "A run of 100 test images or more reserves half of them for that.",
            fix="more test images in a split of their own, or hardcase run ... --method none",
        )
    return test.take(torch.tensor(rows))


def _contents(images: ImageSet) -> list[int]:
    """A hash of the content of every image; only a shard is in memory at a time."""
    return [content for part in images.shards(SHARD) for content in fingerprints(part.x).tolist()]


def _check_classes(subject: Model, train: ImageSet, test: ImageSet) -> None:
    outputs = answers(subject, test.first(1).images()).shape[1]
    highest = max(int(train.y.max()), int(test.y.max()))
    if highest >= outputs:
        raise HardcaseError(
            f"model {subject.name} has {outputs} outputs; the labels go to {highest}, for"
            f" {len(train.classes)} classes.",
            fix="a network with an output for each class of the data",
        )


def split_validation(train: ImageSet, recipe: RepairRecipe) -> tuple[ImageSet, Images]:
    """Images to learn from, and the validation part."""
    count = min(max(round(recipe.validation * len(train)), 10), MOST_VALIDATION)
    valid = train.sample(count=count, seed=recipe.seed)
    units = list(train.id)
    chosen = set(valid.id)
    if isinstance(train, Images) and Claims.of(train) is not None:
        # claims about one image belong together
        units = list(map(image_of, units))
        chosen = set(map(image_of, chosen))
        own = [i for i, name in enumerate(units) if name in chosen]
        valid = train.take(torch.tensor(own))
    rows = [i for i, name in enumerate(units) if name not in chosen]
    return train.take(torch.tensor(rows)), valid.images()


def with_network(subject: Subject, trained: Trained, name: str) -> Subject:
    return Subject(
        trained.net,
        mean=subject.mean.flatten().tolist(),
        std=subject.std.flatten().tolist(),
        classes=subject.class_names,
        name=name,
        outputs=subject.outputs,
        device=subject.device,
        channels=subject.channels,
    )


def joined_images(one: LabelledSet, second: Images) -> LabelledSet:
    """Return the union of two sets of images, those of the second renamed."""
    added = tuple(f"added/{name}" for name in second.id)
    y = torch.cat([one.y, second.y])
    if isinstance(one, Images):
        return replace(one, x=torch.cat([one.x, second.x]), y=y, id=(*one.id, *added), context={})
    first = one
    end = int(one.rows.max()) + 1  # rows of the second follow those of the first's source

    def read(row: int) -> Bytes:
        if row < end:
            return first.read(row)
        image: Bytes = second.x[row - end].permute(1, 2, 0).squeeze(2).numpy()
        return image

    def name(row: int) -> str:
        return first.names(row) if row < end else added[row - end]

    rows = torch.cat([one.rows, end + torch.arange(len(second))])
    return replace(one, read=read, rows=rows, y=y, names=name, _seen={})


def stored_failures(run: Run, like: ImageSet) -> Images:
    """Return the label failures of a run under their seeds' labels.

    Of a run with witnesses only those whose label every witness keeps.
    """
    wanted = ["id", "kind", "expected", "witnessed"]
    witnessed = bool(run.record.get("witnesses"))
    rows = [
        (i, row)
        for i, row in enumerate(run.findings.select(wanted).to_pylist())
        if row["kind"] == "label" and (row["witnessed"] or not witnessed)
    ]
    if not rows:
        raise HardcaseError(
            f"{run.folder} holds no label failures to learn from or to measure with."
        )
    x = run.images([i for i, _ in rows])
    if x.shape[1:] != like.shape:
        raise HardcaseError(
            f"{run.folder} holds images of shape {tuple(x.shape[1:])}, the training data"
            f" {like.shape}."
        )
    y = torch.tensor([row["expected"] for _, row in rows])
    names = tuple(str(row["id"]) for _, row in rows)
    claims = finding_claims(run)
    context = {} if claims is None else claims.take(torch.tensor([i for i, _ in rows])).context()
    return Images(x, y, names, like.classes, run.folder.name, like.split, context)


def _carried_row(before: Model, after: Model, images: Images) -> ProofRow:
    """How many stored failures each network misreads; both read the very same images."""
    wrong, left = (
        float((answers(network, images).argmax(1) != images.y).double().mean())
        for network in (before, after)
    )
    change = left - wrong
    return ProofRow("stored", "findings of the run", wrong, left, change, change, len(images), 1.0)
