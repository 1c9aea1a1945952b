"""Two operators for FiftyOne: find failures of a model on a view, and load a run of hardcase."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageChops

import fiftyone as fo
import fiftyone.operators as foo
import hardcase as hc
from fiftyone.operators import types
from hardcase.analysis.conditions import shown_samples
from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.conditions import PROFILES
from hardcase.data.sources import images_of
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import finding_claims, seed_claims
from hardcase.statistics import verdict_status
from hardcase.tensors import remade

FAILING = "hardcase_failing"
"""Field of a sample: the share of random conditions under which the model fails."""
TAG = "hardcase"


class Failure(NamedTuple):
    """An image that fails, whatever found it."""

    name: str
    seed: str
    expected: str
    predicted: str
    image: bytes
    how: str
    tags: Sequence[str]
    confidence: float | None = None
    row: int | None = None
    """Its place among the findings; None of a draw, of which no code is kept."""


class FindFailures(foo.Operator):
    """Run hardcase on the images of the current view."""

    @property
    def config(self) -> foo.OperatorConfig:
        return foo.OperatorConfig(
            name="find_failures",
            label="hardcase: find failures of a model",
            allow_delegated_execution=True,
        )

    def resolve_input(self, ctx: Any) -> types.Property:
        inputs = types.Object()
        fields = ctx.dataset.get_field_schema(embedded_doc_type=fo.Classification)
        inputs.str(
            "model",
            required=True,
            label="Model",
            description="As hardcase run --model takes it: net.py:make, hf:PATH, onnx:FILE …",
        )
        inputs.enum(
            "label",
            list(fields),
            required=True,
            default=next(iter(fields), None),
            label="Field with the true class",
        )
        inputs.enum("conditions", [*PROFILES], label="Declared conditions", default="handheld")
        inputs.str(
            "method",
            default="none",
            label="Search",
            description="none: random conditions alone; else a name of hardcase list methods",
        )
        inputs.int("seeds", default=100, label="Images")
        inputs.int("size", default=0, label="Side of the images; 0: all have one size already")
        inputs.str("out", required=True, label="Folder of the run")
        return types.Property(inputs, view=types.View(label="Find failures"))

    def execute(self, ctx: Any) -> dict[str, Any]:
        given = ctx.params
        view = ctx.view.exists(given["label"])
        paths, labels, ids = view.values(["filepath", f"{given['label']}.label", "id"])
        classes = ctx.dataset.default_classes or sorted(set(labels))
        sizes = {"resize": given["size"], "crop": given["size"]} if given.get("size") else {}
        images = images_of(paths, labels, classes=classes, name=ctx.dataset.name, **sizes)
        images = replace(images, id=tuple(ids))
        model = hc.models.load_model(given["model"], hc.models.Loading(train=images, test=images))
        run = hc.run(
            model, images, out=given["out"], method=given.get("method") or "none",
            images=min(given.get("seeds") or 100, len(ids)), conditions=given.get("conditions"), judge=False,
        )  # fmt: skip
        shares = seed_shares(run)
        ctx.dataset.add_sample_field(FAILING, fo.FloatField)
        ctx.dataset.set_values(FAILING, shares, key_field="id")
        ctx.dataset.select([name for name, share in shares.items() if share]).tag_samples(TAG)
        ctx.ops.reload_dataset()
        risk = run.record["risk"]
        return {
            "risk": risk["value"],
            "low": risk["low"],
            "high": risk["high"],
            "failing": sum(map(bool, shares.values())),
            "run": str(run.folder),
        }

    def resolve_output(self, ctx: Any) -> types.Property:
        outputs = types.Object()
        for name in ("risk", "low", "high"):
            outputs.float(name)
        outputs.int("failing", label="Images with a failing draw")
        outputs.str("run", label="Folder of the run")
        return types.Property(outputs, view=types.View(label="Failures"))


class LoadRun(foo.Operator):
    """Load a stored run as a data set of groups: seed and finding."""

    @property
    def config(self) -> foo.OperatorConfig:
        return foo.OperatorConfig(name="load_run", label="hardcase: load a run")

    def resolve_input(self, ctx: Any) -> types.Property:
        inputs = types.Object()
        inputs.str("run", required=True, label="Folder of the run")
        inputs.str("media", label="Folder for the images", description="By default beside the run")
        inputs.str("name", label="Name of the data set", description="By default that of the run")
        return types.Property(inputs, view=types.View(label="Load a run"))

    def execute(self, ctx: Any) -> dict[str, Any]:
        folder = Path(ctx.params["run"])
        media = Path(ctx.params.get("media") or folder.with_name(f"{folder.name}-fiftyone"))
        dataset = load_run(hc.Run(folder), media, ctx.params.get("name") or folder.name)
        ctx.ops.open_dataset(dataset.name)
        return {"dataset": dataset.name, "groups": len(dataset)}

    def resolve_output(self, ctx: Any) -> types.Property:
        outputs = types.Object()
        outputs.str("dataset")
        outputs.int("groups", label="Failures")
        return types.Property(outputs, view=types.View(label="Loaded"))


def seed_shares(run: hc.Run) -> dict[str, float]:
    """The share of random conditions under which each seed fails."""
    measured = measured_rows(run.store)
    return dict(zip(measured.id, measured.shares.tolist()))


def failures(run: hc.Run) -> Iterator[Failure]:
    """What the search found, then a random choice of failing conditions."""
    words = run.changes() if len(run) else []
    for place, (finding, change) in enumerate(zip(run, words)):
        row = finding.row
        status = "unjudged" if run.verdicts is None else verdict_status(run.verdicts.get(row["id"]))
        yield Failure(
            row["id"], row["original"], run.classes[row["expected"]], run.classes[row["predicted"]],
            remade(row["image"]["bytes"]), change or row["method"], ("finding", row["kind"], status), row["confidence"], place,
        )  # fmt: skip
    for place, row in enumerate(shown_samples(run)):
        yield Failure(
            f"draw-{place}", row["original"], run.classes[row["label"]], run.classes[row["predicted"]],
            row["image"], row["words"], ("condition",),
        )  # fmt: skip


def load_run(run: hc.Run, media: Path, name: str) -> fo.Dataset:
    """A data set with a group for every failure: its seed, and what the model gets wrong."""
    samples = grouped_samples(run, media)
    dataset = fo.Dataset(name, persistent=True)
    dataset.add_group_field("group", default="finding")
    dataset.add_samples(samples)
    dataset.info = {
        "hardcase": {key: run.record.get(key) for key in ("model", "data", "method", "conditions")}
    }
    dataset.save()
    return dataset


def grouped_samples(run: hc.Run, media: Path) -> list[fo.Sample]:
    """Seed and finding of every failure, in turn; their images are written to a folder."""
    media.mkdir(parents=True, exist_ok=True)
    claims = {"seed": seed_claims(run), "finding": finding_claims(run)}
    samples = []
    for one in failures(run):
        group = fo.Group()
        tame = re.sub(r"[^\w.-]", "_", one.name)[:120]
        [seed] = run.stored_seed_images([run.seed_rows[one.seed]])
        rows = {"seed": run.seed_rows[one.seed], "finding": one.row}
        for slice_, data in (("seed", remade(seed)), ("finding", one.image)):
            path = media / f"{tame}-{slice_}.png"
            path.write_bytes(data)
            sample = fo.Sample(
                filepath=str(path), group=group.element(slice_), tags=[*one.tags], seed=one.seed
            )
            sample["ground_truth"] = fo.Classification(label=one.expected)
            sample["claimed"] = claimed_box(claims[slice_], rows[slice_], path, one.expected)
            samples.append(sample)
        sample["prediction"] = fo.Classification(label=one.predicted, confidence=one.confidence)
        sample["changed"] = one.how
        if sample["claimed"] is None:
            sample["difference"] = changed_box(
                *(media / f"{tame}-{part}.png" for part in ("seed", "finding"))
            )
    return samples


def claimed_box(
    claims: Claims | None, row: int | None, image: Path, label: str
) -> fo.Detections | None:
    """Where an object is claimed to be; None where nothing with a place is, or it is not known."""
    if claims is None or row is None or CLAIM_KINDS[int(claims.kind[row])] != "at":
        return None
    with Image.open(image) as opened:
        return _detections(label, claims.box[row].tolist(), opened.size)


def changed_box(seed: Path, finding: Path) -> fo.Detections:
    """The box of what differs by more than a sixteenth of the scale."""
    with Image.open(seed) as first, Image.open(finding) as second:
        difference = ImageChops.difference(first.convert("L"), second.convert("L"))
        box = difference.point(lambda value: 255 * (value > 16)).getbbox()
    if box is None:
        return fo.Detections()
    return _detections("changed", box, difference.size)


def _detections(label: str, box: Sequence[float], size: tuple[int, int]) -> fo.Detections:
    (left, top, right, bottom), (width, height) = box, size
    inside = [left / width, top / height, (right - left) / width, (bottom - top) / height]
    return fo.Detections(detections=[fo.Detection(label=label, bounding_box=inside)])


def register(plugin: Any) -> None:
    """What FiftyOne calls."""
    plugin.register(FindFailures)
    plugin.register(LoadRun)
