import pytest
import torch

from hardcase.campaign.record import limits, overlay, parse_keep, seconds, within
from hardcase.errors import HardcaseError
from hardcase.tensors import ordinal
from hardcase.types import Budget

SEED = torch.tensor([0, 0, 1, 0, 1, 0])
KIND = torch.tensor([0, 0, 0, 0, 0, 2])
LABEL = torch.tensor([1, 2, 1, 2, 1, 0])
DISTANCE = torch.tensor([3.0, 2.0, 5.0, 1.0, 5.0, 0.5])


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("first", [0, 2, 5]),
        ("best", [2, 3, 5]),
        ("best-per-label", [0, 2, 3, 5]),
        ("2", [1, 2, 3, 4, 5]),
        ("all", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_what_is_kept_of_each_seed_and_kind(rule, kept):
    assert parse_keep(rule).rows(SEED, KIND, LABEL, DISTANCE).tolist() == kept


@pytest.mark.parametrize("rule", ["most", "0", "-1"])
def test_unknown_rules_are_refused(rule):
    with pytest.raises(HardcaseError, match="keep is"):
        parse_keep(rule)


def test_ordinal_counts_earlier_equals():
    assert ordinal(torch.tensor([4, 1, 4, 4, 1])).tolist() == [0, 0, 1, 2, 1]


def test_a_total_is_divided_and_the_smaller_of_both_limits_holds():
    assert limits(Budget(total_queries=23), 5).queries.tolist() == [5, 5, 5, 4, 4]
    assert limits(Budget(queries=4, total_queries=23), 5).queries.tolist() == [4, 4, 4, 4, 4]
    with pytest.raises(HardcaseError, match="0 queries"):
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
    with pytest.raises(HardcaseError, match="soon"):
        seconds("soon")
