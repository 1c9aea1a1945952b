"""A toy network as an ONNX file and behind an address, and runs of it whose risk was measured."""

import pytest
from serving import serving, write_onnx

import hardcase as hc
from hardcase.testing.toys import toy_images, toy_subject


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_onnx(tmp_path_factory.mktemp("model") / "toy.onnx")


@pytest.fixture
def server(model):
    with serving(model) as running:
        yield running


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """Two runs of one network under other conditions, without a search."""
    place = tmp_path_factory.mktemp("measured")
    given = {"method": "none", "judge": False}
    wide = {"name": "desk", "shift": "±30 %", "exposure": "±4 stops"}
    return [
        hc.run(toy_subject(), toy_images(48), out=place / str(i), conditions=conditions, **given)
        for i, conditions in enumerate([wide, {**wide, "shift": "±10 %"}])
    ]
