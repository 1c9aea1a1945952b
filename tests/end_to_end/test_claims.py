"""A COCO folder and a detector of known answers through the verbs; the demos of detectors."""

import json
from pathlib import Path

import pytest
from PIL import Image

import claims.toys
from claims.toys import CLASSES, scenes

FACTORIES = """

def make(): return Windows()
def witness(): return Windows(shift=0.12)
"""
DATA = "coco:labels.json?images=photos"
RUN = ("run", "--model", "net.py:make", "--data", DATA, "--images", 8, "--gradients", 20)
WHERE = ("--conditions", "light.toml", "--out", "out")


@pytest.fixture
def coco(world):
    """Forty scenes as PNG with COCO's JSON, and the detector in a file."""
    source = Path(claims.toys.__file__).read_text()
    Path("net.py").write_text(source + FACTORIES)
    Path("light.toml").write_text('exposure = "-0.6..0 stops"\n')
    Path("photos").mkdir()
    images, known = scenes(40, seed=5)
    listed, boxes = [], []
    for row, one in enumerate(known):
        name = f"{row:03d}.png"
        Image.fromarray(images.x[row, 0].numpy()).save(Path("photos") / name)
        listed.append({"id": row, "file_name": name, "width": 24, "height": 24})
        for label, (left, top, right, bottom) in zip(one.labels.tolist(), one.boxes.tolist()):
            box = {"id": len(boxes), "image_id": row, "category_id": label + 1}
            boxes.append({**box, "bbox": [left, top, right - left, bottom - top]})
    names = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    told = {"images": listed, "annotations": boxes, "categories": names}
    Path("labels.json").write_text(json.dumps(told))
    return world


def test_a_coco_folder_goes_through_all_verbs(coco):
    done = coco(*RUN, *WHERE, "--witness net.py:witness --set campaign.margin=1")
    assert done.code == 0, done.err
    record = coco.record()
    assert record["claims"]["task"] == "boxes"
    assert record["complete"]
    assert record["risk"]["images"] >= 8
    assert record["search_results"]["witnessed"] > 0, record["search_results"]
    assert json.loads(Path("out/claims.json").read_text())["claims"]
    assert coco("report", "out").code == 0
    assert coco("gate", "out", "--max-risk", "1", "--set", "limits.usable=2").code in (0, 2)
    said = coco("replay", "out", "--model", "net.py:witness", "--format", "json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["fixed"]["hits"] >= record["search_results"]["witnessed"]
    again = coco("replay", "out", "--model", "net.py:make", "--format", "json")
    assert json.loads(again.out)["fixed"]["hits"] == 0
    assert coco("study", "new", "out", "--out", "study").code == 0
    assert coco("resume", "out").code == 0
    assert coco("judge", "out").code != 0


@pytest.mark.long
def test_the_detector_of_a_run_is_repaired(coco):
    assert coco(*RUN, *WHERE, "--witness none").code == 0
    repaired = coco("repair out --epochs 1 --rate 0.01 --batch 8 --proof quick --out fixed")
    assert repaired.code in (0, 1, 4), repaired.err
    assert Path("fixed/weights.safetensors").is_file()
    after = "fixed/weights.safetensors@net.py:make"
    assert coco("replay", "out", "--model", after).code == 0


def test_absent_classes_and_folders_of_photographs(coco):
    Path("named").mkdir()
    for label in CLASSES:
        Path("named", label).mkdir()
    images, known = scenes(24, seed=6)
    for row, one in list(enumerate(known))[::2]:  # one object each
        folder = Path("named") / CLASSES[int(one.labels[0])]
        Image.fromarray(images.x[row, 0].numpy()).save(folder / f"{row}.png")
    words = "run --model net.py:make --data folder:named?split=all --task boxes --claims absent"
    done = coco(words, *WHERE, "--method none --witness none")
    assert done.code == 0, done.err
    kinds = coco.record()["claims"]["kinds"]
    assert kinds["has"] == 12
    assert kinds["has-not"] > 0


@pytest.mark.long
@pytest.mark.parametrize("task", ["detection", "tags"])
def test_the_demos_find_claims_that_a_witness_keeps(world, task):
    done = world("demo", "--task", task, "--images", 12, "--out", "demo", "--format", "json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["accuracy"]["value"] > 0.9
    assert record["search_results"]["witnessed"] >= 0.8 * record["search_results"]["searched"]


def test_a_small_random_detector_of_hugging_face(world):
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    import torch

    torch.manual_seed(0)
    names = dict(enumerate(("tree", "house", "road")))
    config = transformers.YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=[32, 32], patch_size=8, num_detection_tokens=6, num_channels=3,
        id2label=names, label2id={name: number for number, name in names.items()},
    )  # fmt: skip
    transformers.YolosForObjectDetection(config).eval().save_pretrained("tiny")
    for row, name in enumerate(names.values()):
        Path("photos", name).mkdir(parents=True)
        for each in range(4):
            x = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8)
            Image.fromarray(x.numpy()).save(Path("photos", name, f"{row}{each}.png"))
    words = "--model hf:tiny?threshold=0.05 --data folder:photos?split=all --task boxes"
    doctor = world("doctor", words, "--format json")
    assert doctor.code in (0, 2), doctor.err
    assert "boxes" in doctor.out
    small = "--method natural --gradients 4 --images 6 --witness none --allow-low-accuracy"
    done = world("run", words, small, "--out out")
    assert done.code == 0, done.err
    record = world.record()
    assert record["claims"]["kinds"]["has"] == 6
    assert record["complete"]
