import pytest

from hardcase.errors import HardcaseError
from hardcase.spaces.coordinates import Coordinate, CoordinateGroup, alone

TURN = Coordinate("turn", "°", 10.0, plus="turned {} right", minus="turned {} left")
QUALITY = Coordinate("quality", "", -80.0, neutral=100.0, signed=False, plus="quality {}")


def test_amounts_are_written_with_their_units_and_from_their_rest():
    assert TURN.amount(-6.2) == "6°"
    assert Coordinate("light", "stops", 1.0, digits=1).amount(0.72) == "0.7 stops"
    # what rounds to nothing is not said
    assert TURN.words(0.4, {}) == ""
    assert TURN.words(0.6, {}) == "turned 1° right"
    assert TURN.words(-3.0, {}) == "turned 3° left"
    assert QUALITY.words(100.0, {}) == ""
    assert QUALITY.words(60.0, {}) == "quality 60"
    assert (QUALITY.lowest_code, QUALITY.low, QUALITY.high) == (0, 20, 100)


def test_a_group_names_its_other_coordinates():
    length = Coordinate("length", "px", 5.0, plus="{} at {angle}")
    angle = Coordinate("angle", "°", 90.0, counts=False)
    motion = CoordinateGroup(name="motion", coordinates=(length, angle))
    assert motion.words([4.0, 30.0]) == ["4 px at 30°"]
    assert motion.words([0.0, 30.0]) == []
    assert motion.summary([4.0, 30.0]) == {"length": (4.0, "px"), "angle": (30.0, "°")}
    made = alone("turn", "°", 10.0, plus="turned {} right", minus="turned {} left")
    assert made == CoordinateGroup(name="turn", coordinates=(TURN,))


def test_a_field_is_told_by_its_greatest_length_within_the_range():
    point = Coordinate("bend", "%", 5.0, plus="bent by {}")
    field = CoordinateGroup(name="bend", coordinates=(point,) * 4, axes=2)
    assert field.summary([3.0, 0.0, 4.0, 1.0]) == {"bend": (5.0, "%")}
    assert field.summary([3.0, 1.0, 0.0, 1.0])["bend"][0] == pytest.approx(3.0)
    assert field.summary([5.0, 1.0, 5.0, 1.0])["bend"][0] == 5.0
    assert field.words([0.0, 0.1, 0.0, 0.1]) == []


def test_codes_and_physical_values_are_converted_both_ways():
    assert (TURN.low, TURN.high, TURN.value(0.5), TURN.code(-5.0)) == (-10, 10, 5, -0.5)
    assert QUALITY.code(QUALITY.value(0.3)) == pytest.approx(0.3)
    blur = Coordinate("defocus", "px", 4.0, signed=False, side=200)
    assert blur.code(2.0) == blur.code(1.0, "% of the side") == 0.5
    for wrong in (lambda: TURN.code(1.0, "% of the side"), lambda: blur.code(1.0, "°")):
        with pytest.raises(HardcaseError, match="unit of"):
            wrong()
    with pytest.raises(HardcaseError, match="range of 0"):
        Coordinate("shear", "%", 0.0).code(1.0)
