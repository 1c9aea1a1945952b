"""`coverage`: an image set, several criteria, one pass."""

import json

import pytest
import torch
from worlds import World

import hardcase as hc
from hardcase import registry
from hardcase.criteria import criterion
from hardcase.criteria.criterion import profile_for
from hardcase.errors import HardcaseError
from hardcase.report import report
from hardcase.runs.results import Run
from hardcase.suite.coverage import coverage, reach
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Answer
from tiny import bars

CRITERIA = registry.parts("criterion")


@pytest.fixture(scope="module")
def world():
    return World()


def values(records):
    names = ("value", "covered", "total", "detail")
    return {record["criterion"]: [record.get(name) for name in names] for record in records}


def test_records(world):
    records = coverage(world.subject, world.images, ",".join(CRITERIA), profile=world.training)
    assert [record["criterion"] for record in records] == list(CRITERIA)
    for record in records:
        assert {"value", "covered", "total", "convention", "profile", "seconds"} <= set(record)
        assert record["convention"]["layers"]
        assert record["convention"]["units"] > 0
        assert record["seconds"] > 0
        needed = "profile" in CRITERIA[record["criterion"]].facts["needs"]
        assert (record["profile"] is not None) == needed
        if record["total"] and record["criterion"] != "layer-snac":
            assert record["value"] == record["covered"] / record["total"]
    json.dumps(records)


def test_the_batch_changes_nothing(world):
    specs = [*CRITERIA, "kmnc:k=10,mode=unit", "nbc:mode=unit"]
    profile = profile_for(world.subject, world.training, specs)
    once = values(coverage(world.subject, world.images, specs, profile=profile, batch=40))
    for batch in (1, 7, 16):
        again = values(coverage(world.subject, world.images, specs, profile=profile, batch=batch))
        for name, value in once.items():
            if "to rounding" in CRITERIA[name.split(":")[0]].facts["laws"]:
                assert again[name][0] == pytest.approx(value[0], rel=1e-9)
            else:
                assert again[name] == value


def test_one_pass_however_many_criteria(world, monkeypatch):
    calls = []

    class Counting(type(world.subject)):
        def forward(self, x, taps=None):
            calls.append(len(x))
            return super().forward(x, taps)

    subject = Counting(world.subject.net)
    profile = profile_for(subject, world.training, "nc,kmnc,nbc,tknp,dsa,ssc")
    calls.clear()
    coverage(subject, world.images, "nc,kmnc,nbc,tknp,dsa,ssc", profile=profile, batch=20)
    assert [n for n in calls if n > 1 and n not in (16, 32)] == [20, 20]


def test_the_subject_is_left_as_it_was(world):
    before = (world.subject.hash, torch.get_rng_state().tolist())
    coverage(world.subject, world.images, "nc,kmnc", profile=world.training)
    assert (world.subject.hash, torch.get_rng_state().tolist()) == before
    assert not any(module._forward_hooks for module in world.subject.modules())


def test_seeds_and_tests(world):
    noise = torch.randint(-40, 40, world.images.x.shape, generator=torch.Generator().manual_seed(0))
    x = (world.images.x.int() + noise).clamp(0, 255).to(torch.uint8)
    tests = type(world.images)(x, world.images.y, world.images.id, world.images.classes)
    (record,) = coverage(world.subject, tests, "ssc:pairs=seed-test", seeds=world.images)
    assert record["detail"]["inputs"] == 80
    assert record["detail"]["qualified input pairs"] > 0
    few = world.images.take(torch.arange(39))
    with pytest.raises(HardcaseError, match="40 images came with 39 originals"):
        coverage(world.subject, tests, "ssc:pairs=seed-test", seeds=few)


def test_a_saved_profile_serves_and_a_foreign_one_does_not(world):
    profile = profile_for(world.subject, world.training, "kmnc")
    fresh = coverage(world.subject, world.images, "kmnc", profile=world.training)
    assert values(coverage(world.subject, world.images, "kmnc", profile=profile)) == values(fresh)
    other = World(training=bars(10)).subject
    other.hash = "another"
    with pytest.raises(HardcaseError, match="another model"):
        coverage(other, world.images, "kmnc", profile=profile)


def test_the_same_criterion_twice(world):
    records = coverage(world.subject, world.images, ["nc", "nc:threshold=0.5", "nc"])
    assert records[0]["value"] == records[2]["value"] != records[1]["value"]


def test_mistakes(world):
    with pytest.raises(HardcaseError, match="needs a profile"):
        coverage(world.subject, world.images, "kmnc")
    with pytest.raises(HardcaseError, match="no images to measure"):
        coverage(world.subject, world.images.take(torch.arange(0)), "nc")

    class Remote:
        name, offers, hash, device = "onnx:net.onnx", "scores", "", torch.device("cpu")

        def __call__(self, x, taps=None):
            return Answer(torch.zeros(len(x), 3))

    with pytest.raises(HardcaseError, match=r"onnx:net.onnx offers scores"):
        coverage(Remote(), world.images, "nc")


def test_progress_reaches_the_end_and_few_activations_take_large_batches(world, monkeypatch):
    seen = []
    coverage(world.subject, world.images, "nc", batch=16, progress=lambda *told: seen.append(told))
    assert seen == [(16, 40), (32, 40), (40, 40)]
    assert criterion.batch_for(world.subject, world.images, {}) == 512
    monkeypatch.setattr(criterion, "KEPT", 40 * 600)
    taps = world.make("nc:mode=unit")().taps
    assert criterion.batch_for(world.subject, world.images, taps) == 32


REACHED = "nc:threshold=0.5,kmnc:k=20,tknc:k=1"


def test_a_run_keeps_and_shows_what_its_seeds_and_its_tests_reach(tmp_path):
    images, subject = toy_images(12), toy_subject()
    training = toy_images(40, seed=1)
    run = hc.run(subject, images, method="pgd", out=tmp_path / "run")
    assert "Coverage before and after" not in report(run).read_text()
    run = reach(run, subject, REACHED, training=training)
    rows = {row["criterion"].split(":")[0]: row for row in run.record["coverage"]}
    found = run.images()
    both = toy_images(12 + len(found))
    both.x[:] = torch.cat([images.x, found])
    shown = (hc.coverage(subject, one, REACHED, profile=training) for one in (images, both))
    for (name, row), before, after in zip(rows.items(), *shown, strict=True):
        assert (row["before"], row["after"]) == (before["value"], after["value"]), name
    assert rows["kmnc"]["after"] > rows["kmnc"]["before"] > 0
    page = report(Run(tmp_path / "run")).read_text()
    assert "kmnc:k=20" in page
    assert "Coverage before and after" in page


def test_a_mean_over_some_of_the_images_says_so(world, monkeypatch):
    """Surprise by likelihood has no value for classes of another rank; no mean hides that."""
    from hardcase.criteria.surprise import Likelihood

    whole = Likelihood.__call__

    def partly(self, values, label):
        found = whole(self, values, label)
        return found.where(label != 2, torch.nan)

    every = coverage(world.subject, world.images, "lsa", profile=world.training)[0]
    assert "note" not in every
    monkeypatch.setattr(Likelihood, "__call__", partly)
    some = coverage(world.subject, world.images, "lsa", profile=world.training)[0]
    missing = some["detail"]["without surprise"]
    assert missing > 0
    assert f"{missing} of {len(world.images)} images" in some["note"]
