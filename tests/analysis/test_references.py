"""Better than what: networks of the same data that are at hand, or those that are named."""

from dataclasses import replace

import pytest
import torch

import hardcase as hc
from hardcase.analysis.references import named_references, usual_references
from hardcase.errors import Problem
from hardcase.models.zoo import cached_classifiers, trained_classifier
from hardcase.testing.toys import toy_images, toy_subject


def square(count, seed):
    """Images of two classes, darker and brighter, large enough for a LeNet."""
    noise = torch.randint(0, 90, (count, 1, 28, 28), generator=torch.Generator().manual_seed(seed))
    y = torch.arange(count) % 2
    x = (noise + 120 * y[:, None, None, None]).to(torch.uint8)
    names = tuple(f"{seed}-{i}" for i in range(count))
    return hc.Images(x, y, names, ("dark", "bright"), "squares")


@pytest.fixture
def splits(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    return {"train": square(64, 1), "test": square(32, 2)}


def test_networks_that_were_trained_on_all_images_are_references(splits):
    shape = (1, 28, 28)
    given = (shape, 2, splits.__getitem__, lambda name: pytest.fail("nothing is loaded by name"))
    assert usual_references(toy_subject(), *given) == []
    trained_classifier("lenet1", splits["train"], splits["test"])
    assert cached_classifiers(splits["train"], splits["test"]) == ["lenet1"]
    (found,) = usual_references(toy_subject(), *given)
    assert found.model.name == "zoo:lenet1"
    assert found.training == "trained on all 64 training images"
    assert usual_references(found.model, *given) == [], "nobody is a reference for itself"
    trained_classifier("lenet5", splits["train"], splits["test"], augment="none")
    assert len(usual_references(toy_subject(), *given)) == 1, "of its own recipe alone"


def test_images_without_a_training_split_have_none():
    def refuse(split):
        raise Problem("there is no such split.")

    assert usual_references(toy_subject(), (1, 4, 4), 4, refuse, refuse) == []


def test_the_version_before_comes_first():
    loaded = {name: toy_subject() for name in ("old", "other")}
    found = named_references("old", ["other"], loaded.__getitem__)
    assert [one.model for one in found] == [loaded["old"], loaded["other"]]
    assert found[0].training == "the version before"


def measured(tmp_path, name, **how):
    declared = {"exposure": "±2 stops", "rotation": "±40 deg"}
    given = {"method": "none", "conditions": declared, "judge": False, **how}
    steep = given.pop("steep", 20.0)
    images = given.pop("images", toy_images(40))
    return hc.run(toy_subject(steep), images, out=tmp_path / name, **given)


def test_a_stored_run_is_a_reference_without_asking_its_model_again(tmp_path):
    old = measured(tmp_path, "old", steep=5.0)
    model = measured(tmp_path, "model", references=[toy_subject(5.0)])
    run = measured(tmp_path, "run", references=[str(old.folder)])
    (one,), (asked,) = (each.record["risk"]["references"] for each in (run, model))
    same = ("accuracy", "risk", "difference", "low", "high", "seeds")
    assert {key: one[key] for key in same} == {key: asked[key] for key in same}
    assert one["name"] == "toy in old"
    assert run.record["risk"]["needed"] == model.record["risk"]["needed"]
    some = measured(tmp_path, "some", references=[str(old.folder)], seeds=24)
    assert some.record["risk"]["references"][0]["seeds"] == 24, "common seeds are paired"


IMAGES = toy_images(40)
DARKER = replace(IMAGES, x=(IMAGES.x // 2))
RENAMED = replace(IMAGES, id=tuple(f"other {name}" for name in IMAGES.id))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"conditions": {"exposure": "±1 stops"}}, ("exposure", "rotation")),
        ({"seed": 3}, ("seed: 0, there 3",)),
        ({"conditions": "none"}, ("no risk",)),
        ({"images": DARKER}, ("another image",)),
        ({"images": RENAMED}, ("no seed in common",)),
    ],
)
def test_a_run_that_was_measured_otherwise_is_refused_before_the_search(tmp_path, other, told):
    old = measured(tmp_path, "old", **other)
    with pytest.raises(Problem) as caught:
        measured(tmp_path, "run", references=[str(old.folder)])
    assert all(part in str(caught.value) for part in told), str(caught.value)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_run_stands_beside_the_models_that_it_is_given(tmp_path):
    other = toy_subject(20.0)
    rng = torch.Generator().manual_seed(3)
    other.net.mean.weight.data += 0.1 * torch.randn(4, 64, generator=rng)
    run = measured(tmp_path, "run", references=[other])
    (one,) = run.record["risk"]["references"]
    assert one["seeds"] == 40
    assert one["low"] <= one["difference"] <= one["high"]
    assert one["risk"] == pytest.approx(run.record["risk"]["value"] - one["difference"])
    assert one["difference"] < 0
