"""Better than what: models and stored runs that were declared as baselines, never a network that
happens to lie in the cache.
"""

from dataclasses import replace

import pytest
import torch

import hardcase as hc
from hardcase.analysis.references import beside_runs, common_samples
from hardcase.errors import HardcaseError
from hardcase.runs.phases import measured_rows
from hardcase.testing.toys import toy_images, toy_subject

DECLARED = {"exposure": "±2 stops", "rotation": "±40 deg"}


def measured(tmp_path, name, **how):
    given = {"method": "none", "conditions": DECLARED, "judge": False, **how}
    steep = given.pop("steep", 20.0)
    images = given.pop("images", toy_images(40))
    return hc.run(toy_subject(steep), images, out=tmp_path / name, **given)


def worse():
    """The toy with noise on its weights."""
    other = toy_subject(20.0)
    rng = torch.Generator().manual_seed(3)
    other.net.mean.weight.data += 0.1 * torch.randn(4, 64, generator=rng)
    return other


def test_a_stored_run_is_a_baseline_without_asking_its_model_again(tmp_path):
    old = measured(tmp_path, "old", steep=5.0)
    model = measured(tmp_path, "model", baseline=[toy_subject(5.0)])
    run = measured(tmp_path, "run", baseline=[str(old.folder)])
    (one,), (asked,) = (each.record["risk"]["baselines"] for each in (run, model))
    assert one["name"] == "toy in old"
    assert {**one, "name": ""} == {**asked, "name": ""}
    assert old.record["risk"]["baselines"] == []
    some = measured(tmp_path, "some", baseline=[str(old.folder)], images=toy_images(24))
    assert some.record["risk"]["baselines"][0]["images"] == 24, "common images are paired"


IMAGES = toy_images(40)
DARKER = replace(IMAGES, x=(IMAGES.x // 2))
RENAMED = replace(IMAGES, id=tuple(f"other {name}" for name in IMAGES.id))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"conditions": {"exposure": "±1 stops"}}, ("exposure", "rotation")),
        ({"seed": 3}, ("seed: 0, there 3",)),
        ({"conditions": "none"}, ("exposure",)),
        ({"images": DARKER}, ("another image",)),
        ({"images": RENAMED}, ("no image in common",)),
    ],
)
def test_a_run_that_was_measured_otherwise_is_no_baseline(tmp_path, other, told):
    old = measured(tmp_path, "old", **other)
    with pytest.raises(HardcaseError) as caught:
        measured(tmp_path, "run", baseline=[str(old.folder)])
    assert all(part in str(caught.value) for part in told), str(caught.value)


def test_a_run_that_was_not_measured_is_no_baseline(tmp_path):
    run = measured(tmp_path, "run")
    other = measured(tmp_path, "other")
    del other.record["risk"]
    with pytest.raises(HardcaseError, match="was not measured"):
        common_samples(run, measured_rows(run.store), other)
    assert beside_runs(run, measured_rows(run.store), []) == []


def test_models_are_measured_on_the_same_samples_in_the_order_in_which_they_are_named(tmp_path):
    run = measured(tmp_path, "run", baseline=[worse(), toy_subject(20.0)])
    first, same = run.record["risk"]["baselines"]
    assert (first["images"], same["difference"]["value"]) == (40, 0)
    found = first["difference"]
    assert found["low"] <= found["value"] <= found["high"]
    assert first["value"] == pytest.approx(run.record["risk"]["value"] - found["value"])
    assert found["value"] < 0
    rows = measured_rows(run.store)
    assert rows.baseline_failed.shape == (2, 40, 4)
    assert (rows.baseline_failed[1] == rows.failed).all()
