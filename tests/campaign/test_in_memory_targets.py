"""A targeted search cannot start in its target: seeds of that class leave the denominator, in every method."""

import pytest

import hardcase as hc
from hardcase.campaign.in_memory import search
from hardcase.methods import cw, fgsm, pgd, sinvad
from hardcase.spaces.latent import Latent
from hardcase.testing.toys import ToyAutoencoder, toy_images, toy_subject

TARGET, COUNT = 2, 12
METHODS = {
    "pgd": lambda: pgd(TARGET),
    "fgsm": lambda: fgsm(TARGET),
    "cw": lambda: cw(TARGET, steps=10, rounds=2),
    "sinvad": lambda: sinvad(Latent(ToyAutoencoder()), target=TARGET),
}


@pytest.mark.parametrize("name", METHODS)
def test_seeds_of_the_target_are_neither_searched_nor_counted(name, tmp_path):
    images = toy_images(COUNT)
    there = int((images.y == TARGET).sum())
    assert there > 0
    run = hc.run(toy_subject(), images, method=METHODS[name](), out=tmp_path / "run", judge=False)
    counts = run.record
    assert counts["skipped"]["target"] == there
    assert counts["funnel"]["usable"] == COUNT, "the subject gets them all right"
    assert counts["funnel"]["attempted"] <= COUNT - there
    of_target = [row for row in run.seeds.to_pylist() if row["label"] == TARGET]
    assert {row["status"] for row in of_target} == {"skipped: target"}
    assert sum(row["looked"] for row in of_target) == 0


def test_in_memory_they_are_not_attempted_either():
    images = toy_images(COUNT)
    found = search(toy_subject(), pgd(TARGET), images)
    assert found.attempted.tolist() == (images.y != TARGET).tolist()
    kept = hc.search(toy_subject(), images, method="pgd", target=TARGET)
    assert TARGET not in kept.expected.tolist()
    only = images.take((images.y == TARGET).nonzero().squeeze(1))
    with pytest.raises(hc.Problem, match="another class than the target"):
        hc.search(toy_subject(), only, method="pgd", target=TARGET)
