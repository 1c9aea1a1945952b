"""Profiles: one pass, any batch, saved and loaded, never for another model."""

import pytest
import torch
from worlds import World, small_net

from hardcase.criteria.criterion import requirements
from hardcase.criteria.network import select
from hardcase.criteria.profile import Profile, fit_profile
from hardcase.errors import HardcaseError
from hardcase.tensors import from_bytes

SPECS = ("kmnc", "nbc:mode=unit", "dsa", "lscd")


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def profile(world):
    return world.profile(*SPECS)


def test_ranges_are_those_of_all_training_images(world, profile):
    for mode in ("channel", "unit"):
        selection = select(world.graph, "conv-linear", mode)
        values = torch.cat(
            selection.read(world.subject(from_bytes(world.training.x), selection.taps).activations),
            1,
        )
        known = profile.range(selection)
        assert torch.equal(known.low, values.amin(0))
        assert torch.equal(known.high, values.amax(0))
        torch.testing.assert_close(known.mean, values.double().mean(0).float())
        torch.testing.assert_close(known.variance, values.double().var(0, unbiased=False).float())


def test_traces_come_with_classes_labels_and_distances(world, profile):
    traces = profile.trace(select(world.graph, "last-hidden", "channel"))
    answer = world.subject(from_bytes(world.training.x))
    assert torch.equal(traces.predicted, answer.logits.argmax(1))
    assert torch.equal(traces.label, world.training.y)
    apart = torch.cdist(traces.values, traces.values, compute_mode="donot_use_mm_for_euclid_dist")
    same = traces.predicted[:, None] == traces.predicted
    torch.testing.assert_close(traces.other, apart.masked_fill(same, torch.inf).amin(1))
    torch.testing.assert_close(
        traces.own, apart.masked_fill(~same | torch.eye(len(same)).bool(), torch.inf).amin(1)
    )


def test_the_batch_does_not_matter(world, profile):
    needs = requirements(SPECS, world.graph)
    for batch in (7, 60):
        again = fit_profile(world.subject, world.training, needs, batch=batch)
        for key, known in profile.ranges.items():
            for name in ("low", "high"):
                assert torch.equal(getattr(again.ranges[key], name), getattr(known, name))
            torch.testing.assert_close(again.ranges[key].variance, known.variance)
        for key, traces in profile.traces.items():
            assert torch.equal(again.traces[key].values, traces.values)


def test_saved_and_loaded(world, profile, tmp_path):
    path = profile.save(tmp_path / "sub" / "profile.safetensors")
    again = Profile.load(path, model=world.subject.hash)
    assert (again.model, again.data, again.name, again.count) == (
        profile.model,
        profile.data,
        "bars/train",
        60,
    )
    assert set(again.ranges) == set(profile.ranges)
    for key, traces in profile.traces.items():
        for name, value in traces.tensors().items():
            assert torch.equal(value, getattr(again.traces[key], name))
    assert [p.name for p in path.parent.iterdir()] == ["profile.safetensors"]


def test_another_model_is_refused(world, profile, tmp_path):
    path = profile.save(tmp_path / "profile.safetensors")
    other = World(small_net(1))
    with pytest.raises(HardcaseError, match="another model"):
        Profile.load(path, model=other.subject.hash)


def test_a_file_that_is_no_profile(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    (tmp_path / "y.safetensors").write_bytes(b"not a tensor file")
    for name in ("x", "y", "missing"):
        with pytest.raises(HardcaseError, match="is not a profile"):
            Profile.load(tmp_path / f"{name}.safetensors", model="")


def test_no_training_images(world):
    with pytest.raises(HardcaseError, match="no images"):
        fit_profile(
            world.subject, world.training.take(torch.arange(0)), requirements(SPECS, world.graph)
        )
