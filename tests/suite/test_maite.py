"""MAITE's protocols, there and back; with `maite` itself where it is installed."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hardcase.errors import Problem
from hardcase.suite.maite import FromMaite, MaiteDataset, MaiteModel, images_from_maite
from hardcase.testing.toys import toy_images, toy_subject


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
    with pytest.raises(Problem, match="outputs"):
        FromMaite(Sure(), outputs="words")


def test_images_out_of_range_are_refused():
    class Wide(MaiteDataset):
        def __getitem__(self, index):
            image, target, metadata = super().__getitem__(index)
            return 255 * image, target, metadata

    with pytest.raises(Problem, match="not from 0 to 1"):
        images_from_maite(Wide(toy_images(3)))
    with pytest.raises(Problem, match="differ in size, or there are none"):
        images_from_maite(MaiteDataset(replace(toy_images(3), x=torch.zeros(0, 1, 8, 8).byte(), y=torch.zeros(0).long(), id=())))  # fmt: skip


def test_maite_itself_predicts_and_evaluates():
    maite = pytest.importorskip("maite.tasks", reason="needs pip install maite")
    images = toy_images(6)
    predictions, _ = maite.predict(
        model=MaiteModel(toy_subject(), images.classes), dataset=MaiteDataset(images), batch_size=3
    )
    labels = [int(np.argmax(one)) for batch in predictions for one in batch]
    assert labels == images.y.tolist()


def test_the_entry_points_are_what_they_say(monkeypatch):
    pytest.importorskip("pyright", reason="MAITE's checker needs pyright; make teams installs it")
    beside = str(Path(sys.executable).parent)  # where MAITE looks when it is imported
    monkeypatch.setenv("PATH", f"{beside}{os.pathsep}{os.environ['PATH']}")
    project = pytest.importorskip("maite._internals.testing.project", reason="hardcase[maite]")
    found = project.statically_verify_exposed_component_entrypoints(package_name="hardcase")
    assert found == {"hardcase_MaiteDataset": True, "hardcase_MaiteModel": True}
