"""MAITE's protocols, there and back; with `maite` itself where it is installed."""

import doctest
import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hardcase as hc
from claims.toys import CLASSES, Windows, scenes
from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.load import claim_model
from hardcase.claims.subjects import overlap
from hardcase.errors import HardcaseError
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_teams.maite import (
    WEAKEST,
    FromMaite,
    MaiteDataset,
    MaiteDetectionDataset,
    MaiteDetectionModel,
    MaiteDetector,
    MaiteModel,
    annotations_from_maite,
    images_from_maite,
)


def test_the_example_in_the_docstring_runs():
    module = sys.modules[FromMaite.__module__]
    assert not doctest.testmod(module).failed


def test_a_data_set_comes_back_as_it_was():
    images = toy_images(7)
    again = images_from_maite(MaiteDataset(images))
    assert torch.equal(again.x, images.x)
    assert torch.equal(again.y, images.y)
    assert (again.id, again.classes, again.name) == (images.id, images.classes, images.name)


def test_a_model_answers_the_same_through_the_protocol():
    images, subject = toy_images(5), toy_subject()
    again = FromMaite(MaiteModel(subject, images.classes))
    x = images.x.float() / 255
    assert torch.equal(again(x).logits, subject(x).logits.detach())
    assert again.offers == "scores"


def test_probabilities_stand_for_logits():
    class Sure:
        def __init__(self):
            self.metadata = {"id": "sure"}

        def __call__(self, batch):
            return [np.array([0.9, 0.1, 0.0]) for _ in batch]

    logits = FromMaite(Sure(), outputs="probabilities")(torch.zeros(2, 1, 4, 4)).logits
    assert logits.isfinite().all()
    assert torch.allclose(logits.softmax(1)[0, 0], torch.tensor(0.9))
    with pytest.raises(HardcaseError, match="outputs"):
        FromMaite(Sure(), outputs="words")


def test_images_out_of_range_are_refused():
    class Wide(MaiteDataset):
        def __getitem__(self, index):
            image, target, metadata = super().__getitem__(index)
            return 255 * image, target, metadata

    with pytest.raises(HardcaseError, match="not from 0 to 1"):
        images_from_maite(Wide(toy_images(3)))
    with pytest.raises(HardcaseError, match="differ in size, or there are none"):
        images_from_maite(MaiteDataset(replace(toy_images(3), x=torch.zeros(0, 1, 8, 8).byte(), y=torch.zeros(0).long(), id=())))  # fmt: skip


def detection():
    """A detector and images with boxes, both in MAITE's form."""
    annotated = AnnotatedImages(*scenes(6))
    model = MaiteDetectionModel(claim_model(Windows(), "boxes", CLASSES))
    return model, MaiteDetectionDataset(annotated), annotated


def places(target):
    """What an image shows and where, in any order."""
    return sorted((int(k), *map(float, box)) for k, box in zip(target.labels, target.boxes))


def test_images_with_boxes_come_back_as_they_were():
    _, dataset, annotated = detection()
    again = annotations_from_maite(dataset)
    assert torch.equal(again.images.x, annotated.images.x)
    assert (again.images.id, again.images.name) == (annotated.images.id, annotated.images.name)
    assert again.images.classes == CLASSES
    for one, two in zip(again.annotations, annotated.annotations, strict=True):
        assert places(one) == places(two)


def test_classes_without_a_name_are_numbers_and_targets_need_boxes():
    _, dataset, _ = detection()
    dataset.metadata = {"id": "bare", "index2label": {1: "bright"}}
    assert annotations_from_maite(dataset).images.classes == ("0", "bright")
    with pytest.raises(HardcaseError, match="no boxes"):
        annotations_from_maite(MaiteDataset(toy_images(3)))
    with pytest.raises(HardcaseError, match="tags"):
        MaiteDetectionModel(claim_model(Windows(), "tags", CLASSES))


def test_a_detector_tells_one_box_for_each_object():
    model, dataset, _ = detection()
    images, targets, _ = zip(*(dataset[i] for i in range(len(dataset))))
    for said, known in zip(model(images), targets, strict=True):
        assert set(places(known)) <= set(places(said))
        assert ((said.scores >= WEAKEST) & (said.scores <= 1)).all()
        boxes, labels = torch.from_numpy(said.boxes), torch.from_numpy(said.labels)
        same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
        assert not ((overlap(boxes, boxes) > 0.5) & same).any()
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_a_run_of_their_detector_on_their_images(tmp_path):
    """A detector that can only be asked, on boxes, by what is stored of the run."""
    model, dataset, annotated = detection()
    given = {"method": "none", "conditions": "handheld", "judge": False, "task": "boxes"}
    their = annotations_from_maite(dataset)
    run = hc.run(MaiteDetector(model), their, out=tmp_path / "run", **given)
    objects = sum(len(one.labels) for one in annotated.annotations)
    assert run.record["claims"]["task"] == "boxes"
    assert run.record["claims"]["images"] == len(dataset)
    assert run.record["risk"]["images"] == objects


def test_maite_itself_asks_a_detector():
    maite = pytest.importorskip("maite.tasks", reason="needs pip install maite")
    protocols = pytest.importorskip("maite.protocols.object_detection", reason="likewise")
    model, dataset, _ = detection()
    predictions, _ = maite.predict(model=model, dataset=dataset, batch_size=4)
    said = [one for batch in predictions for one in batch]
    assert len(said) == len(dataset)
    assert all(len(one.boxes) == len(one.labels) == len(one.scores) for one in said)
    assert isinstance(model, protocols.Model)
    assert isinstance(dataset, protocols.Dataset)
    assert isinstance(said[0], protocols.ObjectDetectionTarget.__origin__)


def test_maite_itself_predicts_and_evaluates():
    maite = pytest.importorskip("maite.tasks", reason="needs pip install maite")
    images = toy_images(6)
    predictions, _ = maite.predict(
        model=MaiteModel(toy_subject(), images.classes), dataset=MaiteDataset(images), batch_size=3
    )
    labels = [int(np.argmax(one)) for batch in predictions for one in batch]
    assert labels == images.y.tolist()


def test_the_entry_points_are_what_they_say(monkeypatch, tmp_path):
    pytest.importorskip("pyright", reason="MAITE's checker needs pyright; make teams installs it")
    beside = str(Path(sys.executable).parent)  # where MAITE looks when it is imported
    monkeypatch.setenv("PATH", f"{beside}{os.pathsep}{os.environ['PATH']}")
    project = pytest.importorskip("maite._internals.testing.project", reason="hardcase[maite]")
    monkeypatch.syspath_prepend(str(stated_points(tmp_path)))
    found = project.statically_verify_exposed_component_entrypoints(package_name="hardcase")
    classes = (MaiteDataset, MaiteModel, MaiteDetectionDataset, MaiteDetectionModel)
    assert found == {f"hardcase_{one.__name__}": True for one in classes}


def stated_points(folder):
    """What an installation of this pyproject.toml says of itself, whatever is installed here."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    about = folder / "hardcase-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hardcase\nVersion: 0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return folder
