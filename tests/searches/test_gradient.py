"""Searches along a gradient: what a walk must reach whatever the size of its steps."""

from dataclasses import replace

from hardcase.methods.pgd import cw
from hardcase.testing.methods import search
from hardcase.testing.toys import toy_images


def distances(step_size, shrinking=None):
    method = cw(steps=25, rounds=4, step_size=step_size)
    if shrinking is not None:
        method = replace(method, search=replace(method.search, shrinking=shrinking))
    found = search(method, images=toy_images(16)).findings
    assert len(found) == 16
    return found.distance


def test_a_step_that_is_too_large_costs_cw_no_distance():
    fitting = distances(0.01).mean()
    assert distances(0.5).mean() < 1.05 * fitting
    assert distances(0.5, shrinking=1e6).mean() > 1.15 * fitting  # so steps that never shrink do
