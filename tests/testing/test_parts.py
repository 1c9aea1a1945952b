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
