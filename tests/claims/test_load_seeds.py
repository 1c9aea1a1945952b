"""A detector, a tagger and a segmenter whose answers are known, through run, report and replay."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import hardcase as hc
from claims.toys import CLASSES, Pixels, Tags, Windows, scenes
from hardcase.campaign.claims import CLAIM_KINDS, Claims, image_of
from hardcase.claims import load as claims_as_seeds
from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.load import (
    claim_model,
    claim_seeds,
    draw_annotation,
    task_of_seeds,
    with_absent,
)
from hardcase.claims.subjects import Annotation, ClaimModel
from hardcase.cli.inspect import _annotations
from hardcase.conditions import condition_box, measure_risk
from hardcase.config import task_of
from hardcase.errors import HardcaseError
from hardcase.models.health import answers
from hardcase.models.subject import Subject
from hardcase.report import report
from hardcase.runs.results import Run, finding_claims, seed_claims
from hardcase.statistics import bounded_mean_interval
from hardcase.suite.gate import GateLimits, gate, outcome
from hardcase.suite.replay import replay
from hardcase.tensors import from_bytes
from hardcase.types import WAYS, Images

LIGHT = {"exposure": "±0.6 stops", "shift": "±4 %"}
WITNESS = {"boxes": Windows(shift=0.12), "tags": Tags(shift=0.12), "masks": Pixels(1.0)}
NETS = {"boxes": Windows(), "tags": Tags(), "masks": Pixels()}


@pytest.fixture(scope="module")
def data():
    images, known = scenes(10)
    return AnnotatedImages(images, known)


def seeds_of(data, task):
    return claim_seeds(data.images, data.annotations, task)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """One run of the detector, with a witness that sees brighter."""
    how = {"task": "boxes", "method": "natural", "options": {"space": "camera*light"}}
    how |= {"witnesses": hc.Witnesses(models=[WITNESS["boxes"]], margin=1.0), "conditions": LIGHT}
    out = tmp_path_factory.mktemp("claims") / "run"
    return hc.run(NETS["boxes"], data, **how, budget=hc.Budget(gradients=15), out=out)


def test_every_object_is_a_seed_of_its_own(data):
    boxes = seeds_of(data, "boxes")
    objects = [len(one.labels) for one in data.annotations]
    assert len(boxes) == sum(objects)
    assert len(set(boxes.id)) == len(boxes)
    assert {image_of(name) for name in boxes.id} == set(data.images.id)
    claims = Claims.of(boxes)
    assert {CLAIM_KINDS[kind] for kind in claims.kind.tolist()} == {"at"}
    tags = seeds_of(data, "tags")
    assert len(tags) == sum(len(set(one.labels.tolist())) for one in data.annotations)
    masks = seeds_of(data, "masks")
    assert Claims.of(masks).mask.flatten(1).sum(1).min() >= 64
    assert len({one.hash for one in (boxes, tags, masks)}) == 3  # claims are part of the data


@pytest.mark.parametrize("task", ["boxes", "tags", "masks"])
def test_known_objects_are_claimed_and_others_are_not(data, task):
    seeds = seeds_of(data, task)
    model = claim_model(NETS[task], task, CLASSES)
    assert (answers(model, seeds).argmax(1) == seeds.y).all()
    flipped = claim_seeds(data.images, [*map(turned, data.annotations)], task)
    # part of a bright object may look dim, but nothing dim looks bright
    none = [i for i, name in enumerate(flipped.id) if objects_of(data, name) == 1 and flipped.y[i]]
    assert none
    assert (answers(model, flipped).argmax(1)[none] != 1).all()


def turned(one):
    return Annotation(1 - one.labels, one.boxes, 1 - one.mask.clamp_max(2))


def objects_of(data, name):
    return len(set(data.annotations[data.images.id.index(image_of(name))].labels.tolist()))


def test_absent_classes_are_claimed_not_to_be_there(data):
    model = claim_model(NETS["tags"], "tags", CLASSES)
    both = with_absent(seeds_of(data, "tags"), data.images, data.annotations, model)
    added = both.take(torch.arange(len(seeds_of(data, "tags")), len(both)))
    alone = [one for one in data.annotations if len(set(one.labels.tolist())) == 1]
    assert len(added) == len(alone)
    assert all("#not-" in name for name in added.id)
    bright = added.y == 1  # part of a bright object may look dim
    assert bright.any()
    assert (answers(model, added).argmax(1) == added.y)[bright].all()
    lit = added.x.clamp_min(230)  # everything is bright now
    fooled = answers(model, hc.Images(lit, added.y, added.id, CLASSES, context=added.context))
    assert (fooled.argmax(1)[bright] == len(CLASSES) + WAYS.index("false alarm")).all()


def test_a_run_finds_lost_claims_that_a_witness_keeps(run):
    assert run.record["complete"]
    known = run.record["claims"]
    assert (known["task"], known["images"], known["kinds"]) == ("boxes", 10, {"at": 15})
    assert run.record["accuracy"]["value"] == 1.0
    table = run.findings.to_pylist()
    assert table
    assert all(row["predicted"] != row["expected"] for row in table)
    assert {row["predicted"] for row in table} <= {-2, -1, 0, 1}
    assert any(row["witnessed"] for row in table)
    assert "claims about 10 images" in run.summary()


def test_stored_findings_fail_where_the_claim_has_moved_to(run):
    claims = finding_claims(run)
    model = claim_model(NETS["boxes"], "boxes", CLASSES)
    logits = model.about(from_bytes(run.images()), claims=claims).logits
    assert (logits.argmax(1) != claims.label).all()
    seeds = seed_claims(run)
    started = model.about(from_bytes(run.seed_images()), claims=seeds).logits
    assert (started.argmax(1) == seeds.label).all()
    rows = [run.seed_rows[name] for name in run.findings["original"].to_pylist()]
    assert (claims.box - seeds.box[rows]).any()


def test_replay_asks_about_the_moved_claims(run):
    same = replay(run, claim_model(NETS["boxes"], "boxes", CLASSES))
    assert same.after.all()
    assert not same.seeds_after.any()
    rows = same.rows()
    assert [row["now"] for row in rows] == [row["predicted"] for row in rows]
    other = replay(run, claim_model(WITNESS["boxes"], "boxes", CLASSES))
    witnessed = torch.tensor(run.findings["witnessed"].to_pylist())
    assert not other.after[witnessed].any()


def test_limits_of_risk_are_held_against_images_not_claims(run):
    checks = gate(run, GateLimits(risk=1.0))
    assert outcome(checks) == "pass"
    risk = run.record["risk"]
    assert risk["images"] == 15
    seeds = claim_seeds(*scenes(10), "boxes")
    box = condition_box(hc.Conditions.load(LIGHT), (1, 24, 24))
    model = claim_model(NETS["boxes"], "boxes", CLASSES)
    table = measure_risk(model, seeds, box)
    assert table.value == pytest.approx(risk["value"])
    low, high = table.images_like_these
    plain = bounded_mean_interval(table.shares)
    assert high - low > plain.high - plain.low  # ten images say less than fifteen claims


def test_the_report_draws_boxes_and_tells_supports(run, tmp_path):
    page = report(run, out=tmp_path / "report")
    said = json.loads((tmp_path / "report" / "report.json").read_text())["runs"][0]
    assert said["claims"]["task"] == "boxes"
    assert sum(said["claims"]["ways"].values()) == len(set(run.findings["original"].to_pylist()))
    assert len(said["claims"]["sizes"]) == 3
    shown = said["pairs"][0]["support"]
    assert shown["seed"] > 0 > shown["finding"]
    assert "Claims that were lost" in page.read_text()


def test_a_damaged_file_of_claims_is_named_and_written_anew(data, tmp_path):
    given = {"task": "boxes", "method": "natural", "witnesses": [], "conditions": "none",
             "options": {"space": "light"}, "budget": hc.Budget(gradients=3)}  # fmt: skip
    hc.run(NETS["boxes"], data, out=tmp_path / "run", **given)
    path = tmp_path / "run" / "claims.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"at ", b"at 9", 1))
    with pytest.raises(HardcaseError, match=r"claims\.json"):
        seed_claims(Run(tmp_path / "run"))
    hc.resume(tmp_path / "run", NETS["boxes"], data, **given)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("task", ["boxes", "tags", "masks"])
def test_black_boxes_and_shards_of_any_size_find_the_same(data, task):
    how = {"task": task, "method": "natural-blackbox", "witnesses": [WITNESS[task]]}
    how |= {"options": {"space": "camera*light", "queries": 40}}
    sizes = [hc.api.Execution(shard=shard) for shard in (4, 32)]
    found = [hc.search(NETS[task], data, **how, execution=size) for size in sizes]
    found = [one.take(one.seed.argsort(stable=True)) for one in found]
    assert len(found[0])
    assert torch.equal(found[0].x, found[1].x)
    assert torch.equal(found[0].predicted, found[1].predicted)


def test_tasks_follow_from_names_and_images(data):
    assert task_of("auto", "coco:labels.json", "net.py:make") == "boxes"
    assert task_of("auto", "canvas5k", "zoo:digit-tagger") == "tags"
    assert task_of("auto", "canvas5k", "new.safetensors@zoo:digit-tagger?threshold=0.4") == "tags"
    assert task_of("auto", "mnist5k", "zoo:lenet5") == "classes"
    assert task_of("masks", "coco:labels.json") == "masks"
    assert task_of_seeds(seeds_of(data, "masks")) == "masks"
    assert task_of_seeds(data.images) == "classes"
    assert claims_as_seeds.usual_task(data.annotations) == "boxes"


def test_classes_of_a_network_are_found_by_their_names(data):
    net = Tags()
    swapped = Subject(torch.nn.Sequential(net, Reversed()), name="swapped")
    model = ClaimModel(swapped, "tags", CLASSES, outputs=("cat", "bright", "dim"))
    seeds = seeds_of(data, "tags")
    assert (answers(model, seeds).argmax(1) == seeds.y).all()
    lacking = ClaimModel(swapped, "tags", CLASSES, outputs=("cat", "bright", "dog"))
    made = answers(lacking, seeds).argmax(1) == seeds.y
    assert torch.equal(made, seeds.y == 1)
    with pytest.raises(HardcaseError, match="none of the data"):
        ClaimModel(swapped, "tags", CLASSES, outputs=("cat", "dog", "cow"))


class Reversed(torch.nn.Module):
    def forward(self, x):
        return torch.cat([torch.full_like(x[:, :1], -9.0), x.flip(1)], 1)


NO_MASK = torch.zeros(0, 0, dtype=torch.int16)


def test_a_box_is_drawn_where_it_is():
    image = torch.zeros(1, 40, 80, dtype=torch.uint8)
    known = Annotation(torch.tensor([1]), torch.tensor([[20.0, 10, 60, 30]]), NO_MASK)
    drawn = np.asarray(draw_annotation(image, known, ("a", "b"), side=160))
    assert drawn.shape == (80, 160, 3)
    ours = (drawn == claims_as_seeds.colour_of(1)).all(2)
    down, across = np.nonzero(ours)
    assert (across.min(), across.max(), down.min(), down.max()) == (40, 120, 20, 60)


def test_a_mask_tints_its_pixels_only():
    image = torch.full((3, 20, 20), 100, dtype=torch.uint8)
    mask = torch.full((20, 20), 255, dtype=torch.int16)
    mask[10:] = 0
    known = Annotation(torch.zeros(0).long(), torch.zeros(0, 4), mask)
    drawn = np.asarray(draw_annotation(image, known, ("a",), side=20))
    assert (drawn[:10] == 100).all()
    assert (drawn[10:] != 100).any(2).all()


def test_doctor_draws_and_says_what_is_odd(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    x = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    images = Images(x, torch.zeros(2).long(), ("a", "b"), ("cat",))
    tags = Annotation(torch.tensor([0]), torch.zeros(0, 4), NO_MASK)
    lines = list(_annotations(AnnotatedImages(images, (tags, tags), ("one is odd.",))))
    assert [line.state for line in lines] == ["warning", "ok"]
    with Image.open(tmp_path / "doctor" / "annotations.png") as drawn:
        assert drawn.size == (2 * 244, 244)
