"""What the label check and people say: numbers of a record, and where there are none, that."""

import pytest

from hardcase.wording.checks import (
    accepted_between,
    against_people_in_words,
    lost_in_words,
    people_said,
)


@pytest.mark.parametrize(
    ("accepted", "unsure", "numbers"),
    [(10, 6, ("10", "16", "25.0", "40.0")), (10, 0, ("10 of 40", "25.0")), (0, 0, ("0 of 40",))],
)
def test_the_share_of_accepted_lies_between_two_bounds(accepted, unsure, numbers):
    said = accepted_between({"searched": 40, "accepted": accepted, "unsure": unsure})
    assert all(number in said for number in numbers)


def test_what_nobody_judged_has_no_share():
    assert accepted_between({"searched": 40, "accepted": None, "unsure": None}) is None


def test_few_losses_say_little():
    precision = {"hits": 90, "total": 100, "low": 0.82, "high": 0.95, "share": 0.9}
    found = {"method": "natural", "precision": precision, "losses": 3}
    few = against_people_in_words({"judge": {"against_people": found}})
    many = against_people_in_words({"judge": {"against_people": {**found, "losses": 300}}})
    assert "90" in many
    assert few.startswith(many)
    assert "3 of them" in few
    assert "pgd" in against_people_in_words({"method": "pgd"})


def test_people_are_counted_and_weighted():
    rate = {"low": 0.1, "value": 0.2, "high": 0.3, "searched": 50, "rated": 9, "failing": 40}
    said = people_said({"rated": 9, "confirmed": 4, "undecided": 1, "rate": rate})
    assert all(number in said for number in ("20.0", "10.0", "30.0", "50", "9 of 40"))


def test_lost_labels_need_somebody_who_was_asked():
    lost = {"lost": 3, "decided": 10, "shown": 12, "low": 0.05, "high": 0.4}
    assert "3 lost, 7 kept and 2 unsure" in lost_in_words({"lost_labels": lost})
    assert "no judge" in lost_in_words({})
