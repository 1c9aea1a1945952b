"""Numbers as they are written: one digit, two below a tenth, the sign where it is a difference."""

import pytest

from hardcase.wording.numbers import difference, percent, points, rate, span


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (0.0004, "0.04 %"), (0.001, "0.1 %"), (0.0243, "2.4 %"), (1.0, "100.0 %")],
)
def test_shares(share, text):
    assert percent(share) == text


def test_rates_and_differences_have_their_interval():
    found = {"value": 0.024, "low": 0.0004, "high": 0.033}
    assert rate(found) == "2.4 % (0.04 to 3.3)"
    assert span(0.017, 0.033) == "1.7 to 3.3"
    assert points(0.0135) == "+1.4 pp"
    assert (
        difference({"value": -0.0135, "low": -0.0219, "high": 0.0056}) == "-1.4 pp (-2.2 to +0.6)"
    )
