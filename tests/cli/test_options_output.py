"""Numbers as people read them."""

import pytest

from hardcase.cli.options import cell, clock, facts, grid, shown
from hardcase.environment import duration


@pytest.mark.parametrize(
    ("write", "value", "said"),
    [
        *((duration, *pair) for pair in [(0, "0.0 s"), (9.94, "9.9 s"), (59, "59 s")]),
        *((duration, *pair) for pair in [(200, "3 min 20 s"), (7500, "2 h 5 min")]),
        *((clock, *pair) for pair in [(0.9, "0:00:00"), (83, "0:01:23"), (3723, "1:02:03")]),
        *((cell, *pair) for pair in [(None, "–"), (12345, "12,345"), (0.123456, "0.1235")]),
        *((cell, *pair) for pair in [(True, "True"), ("a", "a")]),
        (facts, {"a": 1, "long": "x"}, "a     1\nlong  x"),
        (shown, "a b", "'a b'"),
    ],
)
def test_values_as_people_read_them(write, value, said):
    assert write(value) == said


def test_numbers_lean_right_and_brackets_are_text():
    from rich.console import Console

    screen = Console(width=60, markup=False)
    with screen.capture() as got:
        screen.print(grid("title", ["[name]", "count"], [["[a]", 5], ["b", 12345]]))
    lines = [line.rstrip() for line in got.get().splitlines()]
    assert any("[name]" in line for line in lines)
    assert next(line for line in lines if "[a]" in line).endswith(" 5")
    assert next(line for line in lines if "12,345" in line).endswith("12,345")
