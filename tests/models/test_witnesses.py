"""Default witnesses: which images they learn from, what is recorded of their independence."""

import pytest
import torch

from hardcase.config import parse
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.models import witnesses
from hardcase.models.subject import Subject
from hardcase.models.witnesses import default_witnesses, even_half, witness_record
from hardcase.tensors import fingerprints
from hardcase.testing.toys import Quarters, toy_images, toy_subject, toy_world
from tiny import bars


@pytest.fixture
def quick(monkeypatch, tmp_path):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    whole = witnesses.trained_classifier

    def short(*given, **options):
        return whole(*given, **{**options, "epochs": 30})

    monkeypatch.setattr(witnesses, "trained_classifier", short)


def test_half_of_the_images_by_content_whatever_their_order():
    images = bars(200)
    part = even_half(images)
    assert 60 < len(part) < 140
    assert bool((fingerprints(part.x) % 2 == 0).all())
    turned = even_half(images.take(torch.arange(200).flip(0)))
    assert set(turned.id) == set(part.id)


def test_three_networks_of_other_weights_are_trained_once(quick):
    train, test = bars(200), bars(30, seed=1, split="test")
    first = default_witnesses(train, test)
    assert [one.name for one in first] == ["witness:1", "witness:2", "witness:3"]
    assert len({one.hash for one in first}) == 3
    again = default_witnesses(train, test)
    assert [one.hash for one in again] == [one.hash for one in first]


def test_much_colour_is_read_by_deeper_witnesses_and_photographs_by_none(monkeypatch):
    """A LeNet reads half of CIFAR-10: what it keeps says little."""
    grey, colour = bars(4), bars(4, size=8, channels=3)
    assert {witnesses.network_for(images) for images in (grey, colour)} == {"lenet5"}
    monkeypatch.setattr(witnesses, "MANY", 4)
    assert witnesses.network_for(grey) == "lenet5"
    assert witnesses.network_for(colour) == "vgg16-small"
    images = bars(4, size=96, channels=3)
    with pytest.raises(HardcaseError, match="no default witnesses for images of 96 pixels"):
        default_witnesses(images, images)


def test_the_subject_under_another_name_is_no_witness(monkeypatch, caplog):
    caplog.set_level("WARNING")
    here = ["resnet50-imagenet", "efficientnet-lite0", "efficientnet-lite1"]
    monkeypatch.setattr(witnesses, "fetched_classifiers", lambda: here)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    mine = Subject(net, name="hf:mine")
    own = {mine.weights: "zoo:efficientnet-lite0"}
    monkeypatch.setattr(witnesses, "known_as", lambda name, weights: own.get(weights, name))
    load = lambda name: Subject(torch.nn.Flatten(), name=name)  # noqa: E731
    found = witnesses.pretrained_witnesses(mine, 1000, load)
    assert [one.name for one in found] == ["zoo:efficientnet-lite1"]
    assert "hf:mine is zoo:efficientnet-lite0 under another name" in caplog.text
    record = witness_record(mine, found, 2.0, None)
    assert record["independence"]["lineage"]["model"] == "efficientnet-lite"


def test_natural_has_default_witnesses_and_other_methods_have_none(quick):
    train, test = bars(600, classes=4), bars(32, seed=1, split="test", classes=4)
    subject = Subject(Quarters(), classes=test.classes, name="toy")

    def context(method, **values):
        made = Context.of(subject, test, method, train=train, **values)
        made.loaded["test"] = test
        return made

    assert len(context("natural").witnesses) == 3
    assert context("pgd").witnesses == ()
    for none in ("none", ()):
        assert context("natural", witnesses=none).witnesses == ()
    assert len(context("pgd", witnesses="default").witnesses) == 3
    peer = toy_world().peer
    assert context("pgd", witnesses=[peer]).witnesses == (peer,)
    assert context("pgd", campaign={"margin": 3.5}).campaign.margin == 3.5


def test_where_nobody_can_witness_the_run_says_so(caplog):
    caplog.set_level("WARNING")  # commands of other tests may have silenced the log
    images, lost = toy_images(8), {"data": "npz:/no/such/file.npz"}
    assert Context.of(toy_subject(), images, "natural", **lost).witnesses == ()
    assert "this run has no witness" in caplog.text
    asked = Context.of(toy_subject(), images, "pgd", **lost, witnesses="default")
    with pytest.raises(HardcaseError, match="npz"):
        asked.campaign  # noqa: B018


def test_a_witness_of_a_subject_that_gives_labels_gives_scores():
    values = {"model": "zoo:lenet5", "data": "mnist5k", "method": "natural-blackbox"}
    values |= {"witnesses": ["zoo:lenet1"], "model": {"name": "zoo:lenet5", "label_only": True}}
    asked = []

    class Spy(Context):
        def model(self, spec, *, label_only=None):
            asked.append((spec, label_only))
            return toy_subject()

    assert len(Spy(parse(values)).witnesses) == 1
    assert ("zoo:lenet1", False) in asked


def test_independence_has_four_parts_and_lineages_are_recorded():
    train, subject, own = bars(200), toy_subject(), [toy_world().peer]
    assert witness_record(subject, [], 2.0, train) is None
    record = witness_record(subject, own, 2.0, train)
    assert set(record["independence"]) == {"networks", "lineage", "training_images", "trained_on"}
    assert record["independence"]["training_images"] == "not known"
    renamed = Subject(own[0].net, name="witness:1")
    record = witness_record(subject, [renamed], 2.0, train)
    known = record["independence"]["training_images"]
    assert known["images"] == len(even_half(train))
    names = ("torchvision:resnet18", "zoo:lenet5", "witness:1", "witness:vgg16-small 1", "net.py:x")
    models = [Subject(Quarters(), name=name) for name in names]
    record = witness_record(toy_subject(), models, 2.0, None)
    trained = "lenet5, trained here"
    found = record["independence"]["lineage"]["witnesses"]
    assert found == ["resnet18", trained, trained, "vgg16-small, trained here", "not known"]
