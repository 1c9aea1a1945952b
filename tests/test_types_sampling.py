from __future__ import annotations

import pytest
import torch

from hardcase.errors import Problem
from hardcase.types import Images


@pytest.fixture
def images() -> Images:
    """Classes 0, 1, 2 with 20, 10 and 3 images, sorted by class; each image carries its own number."""
    y = torch.tensor([0] * 20 + [1] * 10 + [2] * 3)
    x = torch.arange(33, dtype=torch.uint8)[:, None, None, None].expand(33, 1, 2, 2).contiguous()
    return Images(x, y, tuple(f"set/{i:05d}" for i in range(33)), ("a", "b", "c"))


def test_rows_stay_together(images: Images) -> None:
    sample = images.sample(count=12, seed=5)
    numbers = [int(name[-5:]) for name in sample.id]
    assert sample.x[:, 0, 0, 0].tolist() == numbers
    assert sample.y.tolist() == images.y[numbers].tolist()
    assert len(set(numbers)) == 12


@pytest.mark.parametrize(
    ("per_class", "counts"), [(2, [2, 2, 2]), (5, [5, 5, 3]), (100, [20, 10, 3])]
)
def test_per_class(images: Images, per_class: int, counts: list[int]) -> None:
    assert images.sample(per_class=per_class, seed=1).y.bincount().tolist() == counts


@pytest.mark.parametrize(
    ("count", "counts"),
    [(3, [1, 1, 1]), (9, [3, 3, 3]), (13, [5, 5, 3]), (23, [10, 10, 3]), (99, [20, 10, 3])],
)
def test_classes_take_turns(images: Images, count: int, counts: list[int]) -> None:
    assert images.sample(count=count, seed=1).y.bincount(minlength=3).tolist() == counts


def test_every_prefix_is_balanced_and_the_rest_falls_to_any_class(images: Images) -> None:
    firsts = {int(images.sample(count=1, seed=seed).y[0]) for seed in range(30)}
    assert firsts == {0, 1, 2}
    counts = images.sample(count=9, seed=2).y.reshape(3, 3).sort(1).values
    assert (counts == torch.arange(3)).all()


def test_a_smaller_sample_begins_a_larger_one(images: Images) -> None:
    assert images.sample(count=20, seed=4).id[:7] == images.sample(count=7, seed=4).id
    assert images.sample(per_class=3, seed=4).id == images.sample(count=9, seed=4).id


def test_the_order_of_the_rows_does_not_matter(images: Images) -> None:
    shuffled = images.take(torch.randperm(33, generator=torch.Generator().manual_seed(3)))
    assert shuffled.id != images.id
    assert shuffled.sample(count=10, seed=7).id == images.sample(count=10, seed=7).id


def test_only_the_seed_decides(images: Images) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = images.sample(count=10, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert images.sample(count=10, seed=7).id == first.id
    assert images.sample(count=10, seed=8).id != first.id


def test_first(images: Images) -> None:
    assert images.first(4).id == images.id[:4]
    assert len(images.first(1000)) == 33


@pytest.mark.parametrize("bad", [{}, {"count": 3, "per_class": 1}, {"count": 0}, {"per_class": -1}])
def test_impossible_samples(images: Images, bad: dict[str, int]) -> None:
    with pytest.raises(Problem, match=r"sample takes either|at least 1 image"):
        images.sample(**bad)
    with pytest.raises(Problem, match="count is 0"):
        images.first(0)
