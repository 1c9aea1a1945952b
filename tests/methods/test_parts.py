"""Parts that a user names in place of a method's own, from a file or by name."""

import pytest

import hardcase as hc
from hardcase.errors import HardcaseError
from hardcase.testing.toys import Counting, toy_images, toy_subject

FILE = """
from hardcase.objectives import Margin
from hardcase.searches.gradient import GradientAscent
from hardcase.spaces.pixel import Linf, Pixels

def space(shape):
    return Pixels(Linf(0.2))

def score(probe):
    return Margin()(probe)

def walk(step_size=0.05):
    return GradientAscent(step_size=step_size)

def number():
    return 3
"""


@pytest.fixture
def own(tmp_path, fresh_registry):
    file = tmp_path / "own.py"
    file.write_text(FILE)
    return lambda name: f"{file}:{name}"


def found(method, subject=None, **options):
    how = {"options": options, "train": toy_images(40, seed=1), "witnesses": ()}
    return hc.search(subject or toy_subject(), toy_images(4), method=method, **how)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pgd", {}),
        ("natural", {"space": "warp*light"}),
        ("deephunter", {"criterion": "kmnc:k=20", "queries": 60}),
    ],
)
@pytest.mark.parametrize("role", ["space", "objective"])
def test_a_method_takes_parts_of_a_file(own, method, options, role):
    name = {"space": "space", "objective": "score"}[role]
    assert len(found(method, **{**options, role: own(name)})) > 0


def test_a_search_of_a_file_and_one_by_name_and_what_is_none(own):
    assert len(found("pgd", search=own("walk"))) > 0
    box = Counting(toy_subject(), offers="scores")
    assert len(found("pgd", box, search="evolution")) > 0
    with pytest.raises(HardcaseError, match="needs gradients"):
        found("pgd", box)
    with pytest.raises(HardcaseError, match="no search"):
        found("pgd", search=own("number"))
    with pytest.raises(HardcaseError, match="'target'"):
        found("pgd", objective="target-margin")
