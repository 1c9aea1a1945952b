"""Names of classes, values that say in one line what they are, and samples of images."""

import pickle

import pytest
import torch

from hardcase.campaign.record import Campaign
from hardcase.errors import HardcaseError
from hardcase.methods.pgd import pgd
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, ClassNames, Findings, Images

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
        (findings(3), "Findings(3 of 1 images: 3 label)"),
        (findings(0), "Findings(0 of 0 images: none)"),
        (Budget(queries=10, time="5m"), "Budget(queries=10, time='5m')"),
        (Budget(), "Budget()"),
        (toy_subject(), "Subject('toy': Quarters of 272 weights, returns logits, on cpu)"),
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


@pytest.fixture
def images():
    """Classes 0, 1, 2 with 20, 10 and 3 images, sorted by class; each image carries its own number."""
    y = torch.tensor([0] * 20 + [1] * 10 + [2] * 3)
    x = torch.arange(33, dtype=torch.uint8)[:, None, None, None].expand(33, 1, 2, 2).contiguous()
    return Images(x, y, tuple(f"set/{i:05d}" for i in range(33)), ("a", "b", "c"))


def test_rows_stay_together_and_the_first_come_first(images):
    sample = images.sample(count=12, seed=5)
    numbers = [int(name[-5:]) for name in sample.id]
    assert sample.x[:, 0, 0, 0].tolist() == numbers
    assert sample.y.tolist() == images.y[numbers].tolist()
    assert len(set(numbers)) == 12
    assert images.first(4).id == images.id[:4]
    assert len(images.first(1000)) == 33


def test_classes_take_turns(images):
    """As many of each class as asked for, or as many as there are."""

    def counts(**size):
        return images.sample(**size, seed=1).y.bincount(minlength=3).tolist()

    each = {2: [2, 2, 2], 5: [5, 5, 3], 100: [20, 10, 3]}
    assert {number: counts(per_class=number) for number in each} == each
    all_of_them = {3: [1, 1, 1], 9: [3, 3, 3], 13: [5, 5, 3], 23: [10, 10, 3], 99: [20, 10, 3]}
    assert {number: counts(count=number) for number in all_of_them} == all_of_them


def test_every_prefix_is_balanced_and_the_rest_falls_to_any_class(images):
    firsts = {int(images.sample(count=1, seed=seed).y[0]) for seed in range(30)}
    assert firsts == {0, 1, 2}
    counts = images.sample(count=9, seed=2).y.reshape(3, 3).sort(1).values
    assert (counts == torch.arange(3)).all()


def test_a_smaller_sample_begins_a_larger_one_in_any_order(images):
    assert images.sample(count=20, seed=4).id[:7] == images.sample(count=7, seed=4).id
    assert images.sample(per_class=3, seed=4).id == images.sample(count=9, seed=4).id
    shuffled = images.take(torch.randperm(33, generator=torch.Generator().manual_seed(3)))
    assert shuffled.id != images.id
    assert shuffled.sample(count=10, seed=7).id == images.sample(count=10, seed=7).id


def test_only_the_seed_decides(images):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = images.sample(count=10, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert images.sample(count=10, seed=7).id == first.id
    assert images.sample(count=10, seed=8).id != first.id


@pytest.mark.parametrize("bad", [{}, {"count": 3, "per_class": 1}, {"count": 0}, {"per_class": -1}])
def test_impossible_samples(images, bad):
    with pytest.raises(HardcaseError, match=r"sample takes either|at least 1 image"):
        images.sample(**bad)
    with pytest.raises(HardcaseError, match="count is 0"):
        images.first(0)
