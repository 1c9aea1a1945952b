"""Chance and what is beyond it: known laws."""

import numpy as np
import pytest

from hardcase.conditions.fitting.coordinates import FIGURES
from hardcase.conditions.fitting.embedding import class_mix
from hardcase.conditions.fitting.evidence import gains, width


def test_the_width_is_the_root_mean_square_of_the_change():
    assert width(FIGURES["rotation"], 0.0, 0.6) == pytest.approx(0.6, rel=0.01)
    assert width(FIGURES["rotation"], 0.8, 0.6) == pytest.approx(1.0, rel=0.01)
    assert width(FIGURES["rotation"], 0.0, 0.5, even=True) == pytest.approx(0.5, rel=0.01)
    half = width(FIGURES["noise"], 0.0, 1.0)  # half of the images stay as they are
    assert half == pytest.approx(0.5**0.5, rel=0.01)


def test_chance_gains_what_its_length_along_a_move_is():
    differences = np.random.default_rng(0).standard_normal((4000, 6))
    none = np.zeros((6, 0))
    one = gains(differences, none, [np.eye(6)[0]])
    assert one.mean() == pytest.approx(0.5, abs=0.05), "forwards alone"
    basis = np.eye(6)[:, :1]
    assert gains(differences, basis, [np.eye(6)[0]]).max() == 0, "it is fitted along"
    assert (gains(differences, none, list(np.eye(6)[:3])) >= one).all()


def test_a_mix_of_classes_is_found_and_stays_what_it_was_where_nothing_tells():
    rng = np.random.default_rng(1)
    classes = rng.standard_normal((4, 50))
    wanted = np.array([0.5, 0.3, 0.2, 0.0])
    usual = np.full(4, 0.25)
    assert class_mix(wanted @ classes, classes, usual) == pytest.approx(wanted, abs=0.02)
    alike = np.tile(classes[:1], (4, 1)) + 1e-9 * rng.standard_normal((4, 50))
    assert class_mix(alike[0], alike, usual) == pytest.approx(usual, abs=0.02)
    assert class_mix(classes[0], classes[:1], np.ones(1)) == pytest.approx([1.0])
