"""SINVAD's recipes on the toy world: budgets that hold, every class reached, one class reached, what is refused."""

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.methods.sinvad import DRAWS, sinvad, sinvad_code
from hardcase.registry import resolve
from hardcase.spaces.latent import Latent, partners
from hardcase.tensors import from_bytes
from hardcase.testing.methods import search
from hardcase.testing.toys import ToyAutoencoder, toy_images

SPACE = Latent(ToyAutoencoder())


@pytest.fixture(scope="module")
def codes():
    return partners(SPACE, toy_images(60, seed=3), device="cpu")


def test_the_budget_is_never_the_limit(codes):
    for options in ({}, {"every": True}, {"target": 2}, {"cuts": (0.1,), "halvings": 3}):
        method = sinvad(space=SPACE, partners=codes, **options)
        spent = search(method, images=toy_images(8)).counts.queries
        assert int(spent.max()) < method.budget.queries, options


def test_every_class_is_reached_from_every_seed(codes):
    found = search(sinvad(space=SPACE, partners=codes, every=True), images=toy_images(8)).findings
    pairs = set(zip(found.seed.tolist(), found.predicted.tolist()))
    labels = enumerate(toy_images(8).y.tolist())
    assert pairs == {(seed, c) for seed, label in labels for c in range(4) if c != label}


def test_a_target_is_reached_and_nothing_else(codes):
    ours = sinvad(space=SPACE, partners=codes, target=2)
    for method in (ours, sinvad_code(space=SPACE, target=2, spread=1.5, generations=10)):
        found = search(method, images=toy_images(8)).findings
        assert set(found.predicted.tolist()) == {2}
        assert 2 not in found.expected.tolist()


def test_ours_is_nearer_than_the_published_search(codes):
    published = sinvad_code(space=SPACE, spread=1.5, generations=40)
    ours = search(sinvad(space=SPACE, partners=codes), images=toy_images(8)).findings
    theirs = search(published, images=toy_images(8)).findings
    assert len(ours) == 8
    assert float(ours.distance.mean()) < float(theirs.distance.mean())


def test_the_published_constants_of_the_text_and_of_the_code():
    plain, targeted = sinvad_code(space=SPACE).search, sinvad_code(space=SPACE, target=1).search
    assert (plain.population, plain.elite, plain.spread, plain.generations) == (50, 20, 0.7, 500)
    assert (plain.mutation, plain.decay, plain.smallest, plain.reset) == (0.1, 0.7, 1e-3, 0.5)
    assert (targeted.spread, targeted.generations) == (1.0, 100)
    text = resolve("method", "sinvad@paper")(space=SPACE)
    assert (text.search.elite, text.search.spread, text.search.mutate) == (10, 1.0, "equal")
    assert (text.search.scaled, text.search.smallest) == (False, 0.0)
    short = resolve("method", "sinvad@paper")(space=SPACE, generations=5)
    found = search(short, images=toy_images(8)).findings
    start = from_bytes(toy_images(8).x[found.seed])
    moved = SPACE.vae.encode(from_bytes(found.x))[0] - SPACE.vae.encode(start)[0]
    assert torch.allclose(found.distance, moved.abs().sum(1), rtol=1e-4), "Eq. 1 is re-encoded"
    assert torch.allclose(found.score, -found.distance, rtol=1e-4)


def test_without_partners_steps_are_drawn_and_every_class_is_refused(codes):
    assert sinvad(space=SPACE).search.classes == DRAWS
    with pytest.raises(HardcaseError, match="needs partners"):
        sinvad(space=SPACE, every=True)
    with pytest.raises(HardcaseError, match="no target"):
        sinvad(space=SPACE, partners=codes, every=True, target=1)
