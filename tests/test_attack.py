"""`hc.attack`: tensors in, tensors out, as attack libraries have it."""

import pytest
import torch

import hardcase as hc
from hardcase.testing.toys import toy_images, toy_subject

IMAGES = toy_images(12)
X = IMAGES.x / 255


@pytest.mark.parametrize("method", ["pgd", "fgsm", "cw"])
def test_what_is_returned_fails_and_lies_on_the_grid(method):
    net = toy_subject().net
    found = hc.attack(net, X, IMAGES.y, method=method)
    assert found.images.shape == X.shape
    assert torch.equal((found.images * 255).round() / 255, found.images)
    assert found.success.any()
    assert torch.equal(net(found.images).argmax(1) != IMAGES.y, found.success)
    assert torch.equal(found.distances, (found.images - X).flatten(1).norm(dim=1))
    assert found.rounding == 0


def test_what_is_not_found_or_misread_as_it_is_stays_as_it_is():
    net = toy_subject().net
    wrong = (net(X).argmax(1) + 1) % 10
    found = hc.attack(net, X, wrong, method="fgsm", epsilon=1 / 255)
    assert found.success.all()
    assert torch.equal(found.images, X)
    assert not found.distances.any()


def test_images_between_two_grey_levels_are_rounded_and_that_is_told():
    found = hc.attack(toy_subject().net, X + 0.2 / 255, IMAGES.y)
    assert found.rounding == pytest.approx(0.2 / 255, rel=0.01)


def test_the_radius_holds_and_the_seed_decides():
    one, two, other = (
        hc.attack(toy_subject(), X, IMAGES.y, epsilon=20 / 255, seed=seed).images
        for seed in (1, 1, 2)
    )
    assert ((one - X).abs() <= 20 / 255 + 1e-6).all()
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_the_network_is_asked_itself_and_left_as_it_was():
    net = toy_subject().net.train()
    calls = []
    net.register_forward_hook(lambda module, x, out: calls.append((len(x[0]), module.training)))
    hc.attack(net, X, IMAGES.y, method="fgsm")
    assert calls
    assert not any(training for _, training in calls)
    assert net.training


def test_a_method_that_needs_more_says_how_to_call_it():
    with pytest.raises(hc.HardcaseError, match=r"sinvad.*needs"):
        hc.attack(toy_subject().net, X, IMAGES.y, method="sinvad")
