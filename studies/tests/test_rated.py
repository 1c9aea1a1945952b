"""The judge against people, on bars: halves, words of raters, and tables that state their counts."""

import numpy as np
import pytest

from hardcase.errors import HardcaseError
from hardcase_studies import rated


@pytest.mark.usefixtures("quick_judge")
def test_digits_are_counted_for_all_and_for_both_halves(bench, people, written):
    small = bench(people=str(people))
    outcome = rated.digits(small)
    area, verdicts, others, agreement, flips, margins = outcome.tables
    assert [row[0] for row in area.rows] == ["all", "even half", "odd half"]
    assert area.rows[0][2] == area.rows[1][2] + area.rows[2][2]
    assert agreement.rows[0][1] == pytest.approx(0.9, abs=0.05)
    assert [row[0] for row in margins.rows] == [f"{high:.2f}" for high in rated.MARGINS]
    for table in (verdicts, others, flips, margins):
        assert " of " in table.rows[0][1]
    assert "parity, not truth" in written(outcome, small)


def test_without_ratings_it_says_what_is_missing(bench):
    with pytest.raises(HardcaseError, match="people=FILE"):
        rated.digits(bench())


def test_words_of_raters_become_classes():
    given = {
        "id": np.array(["dlf_0_e963_p415", "dlf_1_e963_p861", "dx_2_light_e963_p1"]),
        "expected": np.array(["pizza, pizza pie"] * 3),
        "rater1": np.array(["Pizza", rated.NOTHING, "Bakery"]),
        "rater2": np.array(["Pizza pie", "Another object", "Pizza"]),
    }
    made = rated._numbered(given)
    assert made["expected"].tolist() == [963] * 3
    assert made["predicted"].tolist() == [415, 861, 1]
    assert made["rater1"].tolist() == [963, -1, 962]
    assert made["rater2"].tolist() == [963, 962, 963]
    with pytest.raises(HardcaseError, match="ids"):
        rated._numbered({**given, "id": np.array(["a", "b", "c"])})
