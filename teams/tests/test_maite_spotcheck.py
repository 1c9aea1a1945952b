"""MAITE's own run-time check (`maite.spotcheck`) on every adapter: what goes in and comes out has the types of the protocols.

Releases before 0.10 have no spotcheck; there the protocols are asked whether an adapter has their members. `make teams` runs
this file with the newest release and with the last before 0.10, which CheckMAITE wants.
"""

import numpy as np
import pytest
import torch

from claims.toys import CLASSES, Windows, scenes
from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.load import claim_model
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_teams.maite import (
    FromMaite,
    MaiteDataset,
    MaiteDetectionDataset,
    MaiteDetectionModel,
    MaiteModel,
    images_from_maite,
)

protocols = pytest.importorskip("maite.protocols.image_classification", reason="pip install maite")
objects = pytest.importorskip("maite.protocols.object_detection", reason="pip install maite")
ENDS = (0, 255)
"""The darkest and the brightest image."""


def adapters():
    """Each adapter with the protocol that it follows."""
    images = toy_images(4)
    for end in ENDS:
        images.x[end // 255] = end
    yield "model", MaiteModel(toy_subject(), images.classes), protocols.Model
    yield "data set", MaiteDataset(images), protocols.Dataset
    yield "detector", MaiteDetectionModel(claim_model(Windows(), "boxes", CLASSES)), objects.Model
    boxes = MaiteDetectionDataset(AnnotatedImages(*scenes(6)))
    yield "data set of boxes", boxes, objects.Dataset


ADAPTERS = {name: (made, protocol) for name, made, protocol in adapters()}


def used(name, made):
    """What the protocol promises, taken from both ends of the range."""
    if "data set" in name:
        return [made[row] for row in (0, 1, len(made) - 1)]
    shape = (
        toy_images(1).x.shape[1:]
        if name == "model"
        else ADAPTERS["data set of boxes"][0][0][0].shape
    )
    batches = [np.full(shape, end / 255, dtype=np.float32) for end in ENDS]
    return made(batches)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_has_the_members_of_its_protocol(name):
    made, protocol = ADAPTERS[name]
    assert isinstance(made, protocol)
    assert len(used(name, made)) >= 2


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_stands_the_check_of_maite(name):
    spotcheck = pytest.importorskip("maite.spotcheck", reason="maite>=0.10 has spotcheck")
    made, protocol = ADAPTERS[name]
    assert used(name, spotcheck.spotcheck_component(protocol)(made))


def test_what_is_no_array_fails_the_check_of_maite():
    spotcheck = pytest.importorskip("maite.spotcheck", reason="maite>=0.10 has spotcheck")

    class Wrong(MaiteModel):
        def __call__(self, input_batch, /):
            return "no arrays"

    made = spotcheck.spotcheck_component(protocols.Model)(Wrong(toy_subject(), ("a", "b")))
    with pytest.raises(spotcheck.SpotcheckError):
        used("model", made)


def test_theirs_come_back_as_ours_at_both_ends():
    made, _ = ADAPTERS["data set"]
    images = images_from_maite(made)
    assert (int(images.x.min()), int(images.x.max())) == ENDS
    model = FromMaite(ADAPTERS["model"][0])
    assert torch.isfinite(model(images.x.float() / 255).logits).all()
