"""Names of classes, and values that say in one line what they are."""

import pickle

import pytest
import torch

from hardcase.campaign.record import Campaign
from hardcase.methods.pgd import pgd
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, ClassNames, Findings

NAMES = ClassNames(["cat", "dog", "3"])


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "cat"), (2, "3"), (3, "class 3"), (999, "class 999"), (-1, "lost"), (-9, "class -9")],
)
def test_any_output_has_a_name(number, name):
    assert NAMES[number] == name
    assert NAMES[torch.tensor(number)] == name


def test_otherwise_they_are_the_names_of_the_data():
    assert len(NAMES) == 3
    assert list(NAMES) == ["cat", "dog", "3"]
    assert NAMES == ("cat", "dog", "3")
    assert NAMES[:2] == ("cat", "dog")
    assert NAMES.index("dog") == 1
    assert NAMES.pair(0, 17) == "cat → class 17"
    again = pickle.loads(pickle.dumps(NAMES))
    assert again[7] == "class 7"


def findings(count):
    whole = torch.zeros(count, dtype=torch.int64)
    real = torch.zeros(count)
    return Findings(
        seed=whole, x=torch.zeros(count, 1, 2, 2, dtype=torch.uint8), kind=whole, expected=whole, predicted=whole,
        peer_predicted=whole.reshape(count, 0) if not count else whole[:, None][:, :0], confidence=real, score=real,
        distance=real, queries=whole, code=torch.zeros(count, 0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (toy_images(8), "Images('toy', test: 8 of 1 x 8 x 8, 4 classes)"),
        (findings(3), "Findings(3 of 1 seeds: 3 label)"),
        (findings(0), "Findings(0 of 0 seeds: none)"),
        (Budget(queries=10, time="5m"), "Budget(queries=10, time='5m')"),
        (Budget(), "Budget()"),
        (
            toy_subject(),
            "Subject('toy': Quarters of 272 weights, returns logits, on cpu)",
        ),
        (
            Campaign(subject=toy_subject(), method=pgd(), peers=(toy_subject(),), seed=3),
            "Campaign('pgd' on 'toy', peers=['toy'], seed=3)",
        ),
    ],
)
def test_a_value_says_in_one_line_what_it_is(value, said):
    assert repr(value) == said


def test_a_method_names_its_parts():
    said = repr(pgd())
    assert said.startswith("Method('pgd', space=")
    assert all(f"{role}=" in said for role in ("search", "objective", "oracle"))
    assert "\n" not in said
