import pytest
import torch

from hardcase.campaign.record import limits, overlay, seconds, within
from hardcase.errors import Problem
from hardcase.types import Budget


def test_a_total_is_divided_and_its_remainder_goes_to_the_first_seeds():
    assert limits(Budget(total_queries=23), 5).queries.tolist() == [5, 5, 5, 4, 4]


def test_the_smaller_of_both_limits_holds():
    assert limits(Budget(queries=4, total_queries=23), 5).queries.tolist() == [4, 4, 4, 4, 4]


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(Problem, match="0 queries"):
        limits(Budget(queries=0), 3)


def test_the_users_limit_replaces_the_methods_limit_of_the_same_sort_only():
    default = Budget(queries=100, gradients=40)
    assert overlay(Budget(total_queries=7), default) == Budget(total_queries=7, gradients=40)
    assert overlay(Budget(time="1m"), default) == Budget(queries=100, gradients=40, time="1m")


def test_rows_are_admitted_in_order_until_their_seed_has_nothing_left():
    rows = torch.tensor([0, 1, 0, 0, 1])
    assert within(rows, torch.tensor([2, 1])).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), (1.5, 1.5), (None, None)],
)
def test_durations(text, value):
    assert seconds(text) == value


def test_a_duration_that_is_none_is_refused():
    with pytest.raises(Problem, match="soon"):
        seconds("soon")
