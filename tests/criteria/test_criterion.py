"""Names, options and conventions of criteria, and criteria of a user's own file."""

import pytest
from worlds import World

from hardcase.catalogue import definition_of
from hardcase.criteria.criterion import (
    CONVENTIONS,
    LAWS,
    Spec,
    conventional,
    names,
    parse,
    parse_list,
    settings,
)
from hardcase.errors import HardcaseError
from hardcase.registry import options_of, parts
from hardcase.suite.coverage import coverage
from hardcase.testing import check_criterion

OWN = """
from hardcase.criteria.criterion import CriterionPlan
from hardcase.criteria.network import select
from hardcase.criteria.neuron import Activated
from hardcase.registry import criterion

@criterion("loud", laws=("ratio", "monotone", "order-free", "idempotent", "mergeable"))
def loud(graph, *, threshold: float = 0.2):
    'Units that are loud for some input.'
    return CriterionPlan(select(graph, "dense", "unit"), lambda _: Activated(selected(graph), threshold))

def selected(graph):
    return select(graph, "dense", "unit")

def plain(graph, *, threshold: float = 0.2):
    return Activated(selected(graph), threshold)

def wrong(graph):
    return 3

def broken(graph):
    raise RuntimeError("no such layer")
"""


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
        ("kmncc", "no criterion 'kmncc'(.|\n)*try: kmnc"),
        ("kmnc:q=3", "no option of criterion 'kmnc' 'q'(.|\n)*layers, mode, k"),
        ("kmnc:k=many", "not a value of the right kind"),
        ("kmnc:cuts=open", "no value of kmnc:cuts 'open'(.|\n)*right-open, left-open, closed"),
        ("kmnc:k", "has no value"),
        ("tknp:ordered=perhaps", "right kind"),
    ],
)
def test_mistakes_list_the_choices(text, message):
    with pytest.raises(HardcaseError, match=message):
        parse(text)


def test_no_criterion_at_all():
    with pytest.raises(HardcaseError, match="no criterion was named"):
        parse_list(" , ")


@pytest.mark.parametrize(
    "text",
    ["kmnc:k=0", "tknc:k=0", "tknp:k=-1", "lsc:n=0", "dsc:lower=3,upper=1", "dsc:lower=often"],
)
def test_values_that_make_no_sense(text):
    with pytest.raises(HardcaseError):
        World().make(text)()


@pytest.mark.parametrize("name", parts("criterion"))
def test_every_row_has_a_definition_known_laws_and_explained_options(name):
    part = parts("criterion")[name]
    assert definition_of(part.make)
    assert set(part.facts["laws"]) <= set(LAWS)
    for option in options_of(part).values():
        assert option.help
        assert not option.choices or option.default in option.choices


@pytest.fixture
def own(tmp_path, fresh_registry):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return str(file)


@pytest.mark.parametrize("name", ["loud", "plain"])
def test_a_criterion_of_a_file_is_measured_like_ours(own, name):
    world = World()
    text = f"{own}:{name}:threshold=0.1"
    assert parse(text) == Spec(f"{own}:{name}", {"threshold": 0.1})
    ours = coverage(world.subject, world.images, "nc:layers=dense,mode=unit,threshold=0.1")
    theirs = coverage(world.subject, world.images, f"snac,{text}", profile=world.training)
    assert theirs[1]["criterion"] == text
    assert theirs[1]["value"] == ours[0]["value"] > 0


def test_a_criterion_of_a_file_keeps_the_laws_it_declares(own):
    world = World()
    make = world.make(f"{own}:loud")
    assert make().laws == set(LAWS) - {"to rounding"}
    check_criterion(make, world.looks(make()), laws=make().laws)


@pytest.mark.parametrize(
    ("name", "message"),
    [("wrong", "returned int; it must"), ("broken", "no such layer"), ("none", "no function")],
)
def test_a_criterion_of_a_file_that_is_none(own, name, message):
    with pytest.raises(HardcaseError, match=message):
        World().make(f"{own}:{name}")()


def test_names_stay_different():
    assert names([parse("nc"), parse("nc:threshold=1"), parse("nc")]) == [
        "nc#1",
        "nc:threshold=1.0",
        "nc#2",
    ]


def test_given_options_beat_the_convention_and_that_beats_the_default():
    assert settings(parse("nc"), "adapt")["threshold"] == 0.5
    assert settings(parse("nc:threshold=0.1"), "adapt")["threshold"] == 0.1
    assert settings(parse("nc"))["threshold"] == 0.0


def test_a_convention_refuses_what_it_does_not_define():
    with pytest.raises(HardcaseError, match=r"deepxplore(.|\n)*it defines: nc"):
        settings(parse("kmnc"), "deepxplore")
    with pytest.raises(HardcaseError, match=r"no convention 'deepexplore'(.|\n)*try: deepxplore"):
        settings(parse("nc"), "deepexplore")


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_can_be_built(name):
    world = World()
    for criterion in conventional(name):
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

    three = ("deepxplore", "adapt", "neural-coverage")
    assert len({value("nc:threshold=0.5", name) for name in three}) == 3
    assert len({value("kmnc:k=8", name) for name in ("default", "deepgauge", "dnn-tip")}) == 3
    assert value("nbc", "coverage-guided") < value("nbc", "default")
