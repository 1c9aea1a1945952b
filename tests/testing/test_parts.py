"""The laws of a space see what they are for."""

import pytest

from hardcase.spaces.pixel import Pixels
from hardcase.testing import check_space


class Flat:
    """A space whose code is no image."""

    name = "flat"
    keeps_code = True

    def encode(self, x, y, rng):
        return x.flatten(1), {}

    def decode(self, z, origin):
        return z.reshape(origin.x.shape)

    def project(self, z, origin):
        return z.clamp(0, 1)

    def distance(self, z, origin):
        return (z - origin.z).norm(dim=1)


def test_codes_that_are_no_images_are_kept_and_every_part_is_there(monkeypatch):
    check_space(Flat())
    check_space(Pixels())
    monkeypatch.setattr(Flat, "keeps_code", False)
    with pytest.raises(AssertionError, match="keeps_code"):
        check_space(Flat())
    monkeypatch.delattr(Flat, "name")
    with pytest.raises((AssertionError, TypeError)):  # run-time type checks may be quicker
        check_space(Flat())


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("distance", lambda self, z, origin: (z - origin.z).norm()),
        ("project", lambda self, z, origin: z.clamp_(0, 1)),
        ("encode", lambda self, x, y, rng: x.flatten(1)),
        ("decode", lambda self, z, origin: (z + z.mean(0)).reshape(origin.x.shape)),
    ],
)
def test_usual_mistakes_of_a_space_are_seen(monkeypatch, method, wrong):
    monkeypatch.setattr(Flat, method, wrong)
    with pytest.raises(AssertionError):
        check_space(Flat())


def test_a_class_is_no_space():
    with pytest.raises((AssertionError, TypeError)):
        check_space(Flat)
