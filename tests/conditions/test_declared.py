"""Declarations: what is read, and what is refused with the line that is wrong."""

import pytest

import hardcase as hc
from hardcase.conditions import declared
from hardcase.conditions.declared import DECLARABLE, PROFILES, Conditions, parse_range
from hardcase.errors import HardcaseError


@pytest.mark.parametrize(
    ("key", "text", "low", "high"),
    [
        ("rotation", "±8 deg", -8, 8),
        ("Rotation", "+-8°", -8, 8),
        ("turn", "-5..8 degrees", -5, 8),
        ("exposure", "±1 stop", -1, 1),
        ("jpeg", "60..100", 60, 100),
        ("blur", "0..2 %", 0, 2),
        ("resolution", "1..2 times", 1, 2),
        ("gamma", "0.8..1.2", 0.8, 1.2),
        ("rotation", "normal(0, 3) deg", -9, 9),
        ("noise", "normal(4, 2) levels", 0, 10),
    ],
)
def test_a_range_is_read_in_its_unit(key, text, low, high):
    found = parse_range(key, text)
    assert (found.low, found.high) == (low, high)
    assert DECLARABLE[found.name].neutral >= low


@pytest.mark.parametrize("name", DECLARABLE)
def test_what_is_written_is_read_again(name):
    row = DECLARABLE[name]
    wide = declared.DeclaredRange(name, row.least, row.most)
    again = parse_range(name, str(wide))
    assert (again.low, again.high) == (row.least, row.most)


@pytest.mark.parametrize(
    ("key", "text", "fragment"),
    [
        ("rotatoin", "±8 deg", "try: rotation"),
        ("rotation", "±8", "no unit"),
        ("rotation", "±8 stops", "unit 'stops'"),
        ("rotation", 8, "no unit"),
        ("rotation", "8..-8 deg", "turned round"),
        ("rotation", "2..8 deg", "leaves out 0"),
        ("jpeg", "20..60", "leaves out 100"),
        ("rotation", "±900 deg", "past what is possible"),
        ("rotation", "±0 deg", "no change"),
        ("rotation", "eight deg", "no range"),
        ("rotation", "normal(nan, 1) deg", "not a number"),
        ("rotation", "normal(0, 0) deg", "standard deviation"),
        ("rotation", {"rnage": "±8 deg"}, "keys range, why and people"),
    ],
)
def test_a_line_that_is_wrong_is_named(key, text, fragment):
    with pytest.raises(HardcaseError) as caught:
        parse_range(key, text)
    assert fragment in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_says_why_and_what_is_known_of_people(name):
    found = Conditions.load(name)
    assert found.name == name
    assert found.about
    assert all(one.why and one.people for one in found.ranges.values())


def test_a_profile_is_where_an_own_declaration_may_start(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text('[conditions]\nprofile = "scanner"\nrotation = "±3 deg"\njpeg = "60..100"\n')
    found = Conditions.load(str(file))
    assert found.ranges["rotation"].high == 3
    assert found.ranges["jpeg"].low == 60
    assert found.ranges["bend"] == Conditions.load("scanner").ranges["bend"]


def test_further_measurements_are_switches_and_no_part_of_what_is_declared():
    found = Conditions.load({"profile": "scanner", "worst": True})
    assert found.worst
    assert not found.rare
    assert found.without("bend").worst
    assert found.to_record() == Conditions.load("scanner").to_record()
    with pytest.raises(HardcaseError, match="neither true nor false"):
        Conditions.load({"profile": "scanner", "rare": "yes"})
    found = hc.Conditions({"rotation": "normal(1, 2) deg", "jpeg": "60..100", "shift": "±4 %"})
    again = Conditions.load(found.to_record())
    assert dict(again.ranges) == dict(found.ranges)


def test_a_table_declares_the_span_of_its_columns(tmp_path):
    file = tmp_path / "field.csv"
    file.write_text("rotation,blur\n1,0.5\n-3,1.5\n")
    found = Conditions({}, table=str(file))
    assert (found.ranges["rotation"].low, found.ranges["rotation"].high) == (-3, 1)
    assert (found.ranges["defocus"].low, found.ranges["defocus"].high) == (0, 1.5)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("rotation\n1\n", "1 rows"),
        ("rotation\n1\nnan\n", "line 3"),
        ("rotation,blur\n1,2\n1\n", "line 3, blur"),
        ("rotation\n1\n2,3\n", "line 3 has more columns"),
        ("rotaton\n1\n2\n", "try: rotation"),
        ("rotation\n1\n999\n", "line 3"),
        ("rotation\n1\n9\n", "line 3: rotation is 9, outside what is declared"),
        ("", "0 rows"),
        ("rotation\n", "0 rows"),
        ("rotation,\n1,2\n3,4\n", "line 1: a column has no name"),
        ("blur,defocus\n1,2\n1,2\n", "line 1 has 'defocus' twice"),
        ("rotation,blur\n1,\n2,1\n", "line 2, blur"),
    ],
)
def test_a_table_that_is_wrong_names_the_line(tmp_path, text, fragment):
    file = tmp_path / "field.csv"
    file.write_text(text)
    beside = {"rotation": "±8 deg"} if "9" in text else {}
    with pytest.raises(HardcaseError, match=fragment):
        Conditions(beside, table=str(file))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('rotatoin = "±8 deg"', "line 3: there is no condition 'rotatoin'"),
        ('rotation = "±8"', "line 3: conditions.rotation"),
        ('corruption.fog = "0..9"', "line 3: conditions.corruption.fog"),
        ('"corruption.fog" = "1..3"', "line 3: conditions.corruption.fog"),
        ('corruption.foggy = "0..3"', "line 3: there is no condition 'corruption.foggy'"),
        ('corruption = "0..3"', "line 3: conditions.corruption"),
        ("table = 5", "line 3: conditions.table"),
        ('sampler = "ours"', "line 3: conditions.sampler"),
        ("rare = 1", "line 3: conditions.rare"),
    ],
)
def test_a_wrong_line_of_a_file_is_told_by_its_number(tmp_path, line, told):
    file = tmp_path / "ours.toml"
    file.write_text(f'[conditions]\nshift = "±5 %"\n{line}\n')
    with pytest.raises(HardcaseError) as caught:
        Conditions.load(str(file))
    assert f"{file}, {told}" in str(caught.value)


def test_nothing_declared_and_unknown_names_are_refused(tmp_path):
    with pytest.raises(HardcaseError, match="declare nothing"):
        Conditions({})
    with pytest.raises(HardcaseError, match="twice"):
        Conditions({"blur": "0..1 %", "defocus": "0..2 %"})
    with pytest.raises(HardcaseError, match="try: scanner"):
        Conditions.load("scaner")
    with pytest.raises(HardcaseError, match="cannot be read"):
        Conditions.load(str(tmp_path / "none.toml"))


def test_small_grey_images_are_figures_on_paper():
    assert declared.usual_profile((1, 28, 28)) == "scanner"
    assert declared.usual_profile((3, 224, 224)) == "handheld"
