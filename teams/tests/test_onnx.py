"""ONNX files: the same answers as the network, every layout, and what cannot be loaded is told."""

import pickle

import pytest
import torch
from serving import answers_as_the_network, pictures, write_onnx

from hardcase.errors import HardcaseError
from hardcase.models.health import check
from hardcase.testing.toys import Quarters, toy_images, toy_subject
from hardcase_teams.arrays import PixelLayout
from hardcase_teams.onnx import Onnx


@pytest.mark.parametrize(
    "how", [{}, {"batch": 8}, {"layout": "nhwc"}, {"layout": "flat"}, {"external": True}], ids=str
)
def test_the_same_answers_as_the_network_itself(tmp_path, how):
    subject = Onnx(write_onnx(tmp_path / "toy.onnx", **how), 4)
    assert answers_as_the_network(subject)
    assert (subject.offers, subject.device.type) == ("scores", "cpu")


def test_a_file_is_healthy_and_does_not_depend_on_the_batch(model):
    health = check(Onnx(model, 4), toy_images(64))
    assert health.accuracy > 0.9
    assert health.bitwise


def test_normalisation_and_probabilities(tmp_path):
    path = write_onnx(tmp_path / "toy.onnx", softmax=True)
    x = pictures()
    subject = Onnx(path, 4, outputs="probabilities")
    torch.testing.assert_close(
        subject(x).logits.softmax(1), toy_subject()(x).logits.softmax(1), rtol=1e-4, atol=1e-5
    )
    shifted = Onnx(path, 4, pixels=PixelLayout(mean=(0.5,), std=(0.25,)), outputs="probabilities")
    by_hand = ((x - 0.5) / 0.25).flatten(1) @ Quarters().mean.weight.T * 20
    torch.testing.assert_close(
        shifted(x).logits.softmax(1), by_hand.softmax(1), rtol=1e-4, atol=1e-5
    )
    assert shifted.hash != subject.hash


def test_labels_alone(tmp_path):
    subject = Onnx(write_onnx(tmp_path / "toy.onnx", labels=True), 4)
    assert subject.offers == "label"
    assert answers_as_the_network(subject, labels=True)


def test_the_hash_covers_the_weights_beside_it(tmp_path):
    path = write_onnx(tmp_path / "toy.onnx", external=True)
    before = Onnx(path, 4).hash
    beside = tmp_path / "toy.onnx.data"
    data = bytearray(beside.read_bytes())
    data[100] ^= 1
    beside.write_bytes(bytes(data))
    assert Onnx(path, 4).hash != before


def test_it_travels_with_its_files(tmp_path):
    subject = Onnx(write_onnx(tmp_path / "toy.onnx", external=True), 4)
    content, answers = pickle.dumps(subject), subject(pictures()).logits
    for path in tmp_path.iterdir():
        path.unlink()
    again = pickle.loads(content)
    assert torch.equal(again(pictures()).logits, answers)
    assert again.hash == subject.hash


def test_what_cannot_be_loaded_is_told(tmp_path):
    with pytest.raises(HardcaseError, match="there is no file"):
        Onnx(tmp_path / "none.onnx", 4)
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    with pytest.raises(HardcaseError, match="cannot be loaded as ONNX"):
        Onnx(tmp_path / "noise.onnx", 4)
    lonely = write_onnx(tmp_path / "lonely.onnx", external=True)
    (tmp_path / "lonely.onnx.data").unlink()
    with pytest.raises(HardcaseError, match=r"model\.onnx\.data\) must lie beside it"):
        Onnx(lonely, 4)


def test_images_of_another_size_and_layers_are_refused(model):
    with pytest.raises(HardcaseError, match="takes inputs of 1 x 8 x 8; the images are 3 x 5 x 5"):
        Onnx(model, 4)(torch.rand(2, 3, 5, 5))
    with pytest.raises(HardcaseError, match="shows no layers"):
        Onnx(model, 4)(pictures(1), {"conv": lambda x: x + 0})
