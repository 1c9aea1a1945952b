"""Several settings may follow one ``--set``."""

import pytest

from hardcase.cli.main import spread


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("run --set a=1 b.c=2 --seed 3", "run --set a=1 --set b.c=2 --seed 3"),
        ("run --set a=1 --set b=2 c=3", "run --set a=1 --set b=2 --set c=3"),
        ("run --set a=1 config.toml b=2", "run --set a=1 config.toml b=2"),
        ("run --set nonsense b=2", "run --set nonsense --set b=2"),
        ("run x=1", "run x=1"),
        ("run --set", "run --set"),
    ],
)
def test_settings_are_spread(given, expected):
    assert spread(given.split()) == expected.split()
