"""What a run's ingredients are once data and model have met."""

import json

import pytest
import torch
from played_device import PlayedDevice
from torch import nn

import hardcase as hc
from hardcase.config import assign, parse
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.judges import held_out
from hardcase.judges.held_out import features_of
from hardcase.judges.judge import JudgeRequest
from hardcase.models import fetching
from hardcase.runs.plan import plan_of
from hardcase.testing.toys import toy_images, toy_subject


def renamed_subject(names):
    """The toy network with its outputs in another order, under these names."""
    toy = toy_subject()
    old = toy_images(4).classes
    order = torch.tensor([old.index(name) for name in names])

    class Reordered(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = toy.net

        def forward(self, x):
            return self.net(x)[:, order]

    return hc.Subject(Reordered(), classes=names, name="renamed")


def test_labels_follow_the_names_of_the_models_outputs_as_the_doctor_shows():
    images = toy_images(8)
    names = tuple(reversed(images.classes))
    context = Context.of(renamed_subject(names), images, "pgd")
    assert context.seeds.classes == names
    said = [names[label] for label in context.seeds.y.tolist()]
    assert said == [images.classes[label] for label in images.y.tolist()]
    found = hc.search(renamed_subject(names), images, method="pgd", seed=1)
    assert len(found) == len(hc.search(toy_subject(), images, method="pgd", seed=1))
    context._stored["test"] = images
    last = len(images.classes) - 1
    assert context.class_map.outputs == tuple(range(last, -1, -1))


def test_data_whose_classes_the_model_does_not_know_is_refused():
    with pytest.raises(HardcaseError, match="none of the model's"):
        Context.of(hc.Subject(nn.Identity(), classes=("moth", "0", "bee")), toy_images(4), "pgd")


@pytest.fixture
def run(tmp_path):
    return hc.run(toy_subject(), toy_images(8), method="pgd", out=tmp_path / "run", judge=False)


def edited(run, **entries):
    """The run with other entries in run.json."""
    path = run.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    return hc.Run(run.folder)


@pytest.mark.parametrize(
    "entries",
    [
        {"model": "zoo:efficientnet-lite0"},
        {"witnesses": {"models": ["zoo:efficientnet-lite1"], "margin": 2.0}},
        {"lineages": {"model": "", "peers": ["efficientnet-lite"], "witnesses": []}},
    ],
)
def test_a_judge_of_the_searchs_lineage_is_refused_before_anything_is_loaded(run, entries):
    images = {"test": toy_images(8), "train": toy_images(24)}
    request = JudgeRequest(features=["zoo:efficientnet-lite2"], images=images.__getitem__)
    with pytest.raises(HardcaseError, match="one model family, efficientnet-lite"):
        held_out.default_judge(edited(run, **entries), request)


def test_photographs_are_judged_by_a_network_that_took_no_part(run, monkeypatch):
    photographs = {"shape": [3, 224, 224], "model": "zoo:efficientnet-lite0"}
    here = ["resnet50-imagenet", "efficientnet-lite0", "efficientnet-lite1"]
    monkeypatch.setattr(held_out, "fetched_classifiers", lambda: here)
    assert features_of(run) == ()
    assert features_of(edited(run, **photographs)) == ("zoo:resnet50-imagenet",)
    assert features_of(run, ["timm:resnet18"]) == ("timm:resnet18",)
    monkeypatch.setattr(held_out, "fetched_classifiers", lambda: here[1:])
    with pytest.raises(HardcaseError, match="no network is on this machine") as error:
        features_of(edited(run, **photographs))
    assert "hardcase fetch model" in error.value.fix


def test_a_network_under_another_name_does_not_judge_itself(run, monkeypatch):
    here = ["resnet50-imagenet", "efficientnet-lite1"]
    monkeypatch.setattr(held_out, "fetched_classifiers", lambda: here)
    monkeypatch.setattr(fetching, "fetched_classifiers", lambda: here)
    monkeypatch.setattr(fetching, "_weights", lambda place: place.name.split("-")[1])
    about = {"shape": [3, 224, 224], "model": "hf:mine", "hashes": {"parameters": {"model": "resnet50"}}}  # fmt: skip
    assert features_of(edited(run, **about)) == ("zoo:efficientnet-lite1",)
    about["hashes"]["parameters"]["model"] = "another"
    both = ("zoo:resnet50-imagenet", "zoo:efficientnet-lite1")  # one of each model family
    assert features_of(edited(run, **about)) == both
    seen = {"models": ["zoo:efficientnet-lite0"], "margin": 2.0}
    assert features_of(edited(run, **about, witnesses=seen)) == (both[0],)


def test_grey_levels_may_be_written_as_a_quotient():
    values = assign({}, ["method.epsilon=8/255", "data=a/255"])
    assert values == {"method": {"epsilon": 8 / 255}, "data": "a/255"}


def test_shards_follow_the_device_and_the_method():
    def shard(method):
        return plan_of(Context.of(toy_subject(), toy_images(4), method, train=toy_images(40))).shard

    assert [shard(method) for method in ("pgd", "fgsm", "adapt")] == [32, 256, 4096]
    with PlayedDevice():
        assert shard("pgd") == 16_384
        assert shard("adapt") == 4096, "with guides the same everywhere"


def test_the_copy_to_compare_with_has_the_arithmetic_that_was_asked_for():
    for copy, name in (("int8", "toy@int8"), ("float16", "toy@float16")):
        how = {"options": {"copy": copy}, "train": toy_images(16)}
        context = Context.of(toy_subject(), toy_images(8), "tensorfuzz", **how)
        assert [peer.name for peer in context.peers] == [name]


def test_photographs_are_asked_of_one_witness_unless_all_are_wanted(monkeypatch, caplog):
    caplog.set_level("WARNING")
    values = {"model": "zoo:efficientnet-lite0", "data": "folder:photos", "method": "natural"}
    both = (toy_subject(), toy_subject())
    monkeypatch.setattr(Context, "shape", (3, 224, 224))
    monkeypatch.setattr(Context, "sample", toy_images(4))
    monkeypatch.setattr("hardcase.models.witnesses.pretrained_witnesses", lambda *given: both)
    assert Context(parse(values), subject=toy_subject()).witnesses == both[:1]
    assert "one witness of 2" in caplog.text
    every = parse({**values, "witnesses": ["default"]})
    assert Context(every, subject=toy_subject()).witnesses == both


def test_sizes_of_claims_are_as_the_data_says_whatever_a_hub_states():
    """A hub's network is not asked for its size: it would ask for the data's classes in turn."""
    wanted = {"model": "hf:nobody/none", "data": "folder:photos", "task": "boxes"}
    config = parse({**wanted, "method": {"name": "natural"}, "offline": True})
    assert Context(config).data == "folder:photos"
