"""Names, options and conventions; and that listing them needs no torch."""

import subprocess
import sys

import pytest
from worlds import World

from hardcase.criteria.catalogue import CRITERIA, Spec, listing, names, parse, parse_list, resolve
from hardcase.criteria.conventions import CONVENTIONS
from hardcase.criteria.entry import LAWS
from hardcase.errors import Problem


def test_options_are_typed_by_their_defaults():
    assert parse("kmnc:k=1_000,mode=unit") == Spec("kmnc", {"k": 1000, "mode": "unit"})
    assert parse("nc:threshold=0.5").options == {"threshold": 0.5}
    assert parse("tknp:ordered=yes").options == {"ordered": True}
    assert str(parse("tknp:ordered=yes,k=2")) == "tknp:ordered=true,k=2"


def test_a_list_of_criteria_with_options():
    specs = parse_list("nc, kmnc:k=3,mode=unit,nbc:widen=0.5,snac")
    assert [str(spec) for spec in specs] == ["nc", "kmnc:k=3,mode=unit", "nbc:widen=0.5", "snac"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kmncc", "no criterion 'kmncc'(.|\n)*known: nc, kmnc(.|\n)*try: kmnc"),
        ("kmnc:q=3", "no option of criterion 'kmnc' 'q'(.|\n)*layers, mode, k"),
        ("kmnc:k=many", "not a value of the right kind"),
        ("kmnc:cuts=open", "no value of kmnc:cuts 'open'(.|\n)*right-open, left-open, closed"),
        ("kmnc:k", "has no value"),
        ("tknp:ordered=perhaps", "right kind"),
    ],
)
def test_mistakes_list_the_choices(text, message):
    with pytest.raises(Problem, match=message):
        parse(text)


def test_no_criterion_at_all():
    with pytest.raises(Problem, match="no criterion was named"):
        parse_list(" , ")


@pytest.mark.parametrize(
    "text",
    ["kmnc:k=0", "tknc:k=0", "tknp:k=-1", "lsc:n=0", "dsc:lower=3,upper=1", "dsc:lower=often"],
)
def test_values_that_make_no_sense(text):
    with pytest.raises(Problem):
        World().make(text)()


def test_every_entry_is_complete():
    for row in listing():
        assert row["summary"]
        assert row["definition"]
        assert row["paper"]
        assert row["needs"]
        assert set(row["laws"]) <= set(LAWS)
    assert len(CRITERIA) == len({entry.where for entry in CRITERIA.values()})


def test_names_stay_different():
    assert names([parse("nc"), parse("nc:threshold=1"), parse("nc")]) == [
        "nc#1",
        "nc:threshold=1.0",
        "nc#2",
    ]


def test_given_options_beat_the_convention_and_that_beats_the_default():
    assert resolve(parse("nc"), "adapt")["threshold"] == 0.5
    assert resolve(parse("nc:threshold=0.1"), "adapt")["threshold"] == 0.1
    assert resolve(parse("nc"))["threshold"] == 0.0


def test_a_convention_refuses_what_it_does_not_define():
    with pytest.raises(Problem, match=r"deepxplore(.|\n)*it defines: nc"):
        resolve(parse("kmnc"), "deepxplore")
    with pytest.raises(Problem, match=r"no convention 'deepexplore'(.|\n)*try: deepxplore"):
        resolve(parse("nc"), "deepexplore")


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_can_be_built(name):
    world = World()
    for criterion in CONVENTIONS[name].criteria:
        unknown = set(CONVENTIONS[name].criteria[criterion]) - set(CRITERIA[criterion].options)
        assert not unknown, unknown
        measure = world.make(criterion, convention=name)()
        measure.update(world.looks(measure)[0])
        assert measure.convention["name"] == name


def test_conventions_change_the_number():
    world = World()

    def value(spec, convention):
        measure = world.make(spec, convention=convention)()
        for probe in world.looks(measure):
            measure.update(probe)
        return measure.value()

    assert (
        len(
            {
                value("nc:threshold=0.5", name)
                for name in ("deepxplore", "adapt", "deepgauge", "neural-coverage")
            }
        )
        == 4
    )
    assert len({value("kmnc:k=8", name) for name in ("default", "deepgauge", "dnn-tip")}) == 3
    assert value("nbc", "coverage-guided") < value("nbc", "default")


def test_listing_needs_no_torch():
    code = "import sys; from hardcase.criteria.catalogue import listing; assert len(listing()) >= 20; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
