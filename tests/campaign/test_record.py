import pytest
import torch

from hardcase.campaign.record import parse_keep
from hardcase.errors import Problem
from hardcase.tensors import ordinal

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


def test_unknown_rules_are_refused():
    for rule in ("most", "0", "-1"):
        with pytest.raises(Problem, match="keep is"):
            parse_keep(rule)


def test_ordinal_counts_earlier_equals():
    assert ordinal(torch.tensor([4, 1, 4, 4, 1])).tolist() == [0, 0, 1, 2, 1]
