"""Numbers in words: nothing is rounded into a claim, no rate without its denominator."""

import pytest

from hardcase.report import words


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.5, "50.0 %"), (0.99999, "99.9 %"), (0.00001, "0.1 %"), (1 - 1e-16, "100 %"), (None, "–")],
)  # fmt: skip
def test_a_share_is_0_or_100_only_if_it_is(value, said):
    assert words.percent(value).replace("\u00a0", " ") == said


def test_a_rate_says_what_it_is_a_rate_of():
    said = words.share(words.rate(87, 96)).replace("\u00a0", " ")
    assert said == "87 of 96 (90.6 %, 82.9 % to 95.6 %)"
    assert words.share(words.rate(0, 0)) == "0 of 0"
    assert words.share(words.rate(None, 96)) == "not judged"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, ""),
        ({"queries": 2000, "time": None}, "2,000 queries per image"),
        ({"queries": 1, "gradients": 40}, "1 query per image and 40 gradients per image"),
        (
            {"total_queries": 5, "findings": 1, "time": "10m"},
            "5 queries in total, 1 finding and 10 min 0 s",
        ),
        ({"time": 5400.0}, "1 h 30 min"),
    ],
)
def test_budgets(limits, said):
    assert words.budget(limits).replace("\u00a0", " ") == said


def test_numbers_times_and_moments():
    assert [words.number(v) for v in (1234567, 3.14159, 0.01234, 0.0, float("nan"), None)] == [
        "1,234,567", "3.14", "0.0123", "0.00", "–", "–",
    ]  # fmt: skip
    assert [words.duration(v).replace("\u00a0", " ") for v in (0.44, 12.3, 59.7, 200, 7500)] == [
        "0.4 s", "12 s", "1 min 0 s", "3 min 20 s", "2 h 5 min",
    ]  # fmt: skip
    assert words.moment("2026-03-01T10:01:13+02:00") == "1 March 2026, 08:01 UTC"
    assert words.moment("yesterday") == "yesterday"
    assert words.plural(1, "test") == "1 test"
    assert words.plural(2000, "test") == "2,000 tests"


def test_a_card_becomes_lines():
    card = {"label_kept": {"auroc": 0.884, "images": 432}, "name": "six", "calibrated": True}
    card["notes"] = None
    assert words.lines(card) == [
        ("label kept · auroc", "0.884"), ("label kept · images", "432"), ("name", "six"), ("calibrated", "yes"),
    ]  # fmt: skip
