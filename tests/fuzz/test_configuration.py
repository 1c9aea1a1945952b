"""Configuration from outside: TOML files, settings on the command line, the words that name things."""

import math
import tomllib

import pytest
from garbage import DEEP, VALUES, WORDS, damaged, lawful, nested, often, twisted
from hypothesis import example, given, strategies as st

from hardcase import config
from hardcase.campaign.record import parse_keep, seconds
from hardcase.criteria.criterion import parse as parse_criterion
from hardcase.errors import HardcaseError

WHOLE = {
    "data": "mnist5k", "method": {"name": "pgd", "epsilon": 0.1}, "peers": ["zoo:lenet1"],
    "model": {"name": "zoo:lenet5", "mean": [0.1], "std": [0.3], "outputs": "auto", "rate": 2.5}, "budget": {"queries": 10, "time": "10m"},
    "campaign": {"shard": 32, "round": 8}, "images": 10, "batch_size": "auto", "target": 3, "keep": "best", "offline": True,
}  # fmt: skip
TOML = config.parse(WHOLE).to_toml().encode()


@often(150)
@given(damaged(TOML, b'a = 1\n[method]\nname = "pgd"\nx = [1, {y = 1979-05-27T07:32:00Z}]\n'))
@example(b"a = " + b"[" * DEEP)
@example(b"a = " + b"9" * 5000)
@example(b"a." * DEEP + b"b = 1")
@example(b"\xff\xfe")
def test_a_file_of_any_bytes(tmp_path, data):
    path = tmp_path / "c.toml"
    path.write_bytes(data)
    values = lawful(lambda: config.read(path))
    if values is not None:
        lawful(lambda: config.parse(values))


def test_a_file_that_is_a_folder(tmp_path):
    with pytest.raises(HardcaseError, match="cannot be read"):
        config.read(tmp_path)


@often(100)
@given(twisted(WHOLE))
def test_any_values_are_checked(values):
    lawful(lambda: config.parse(values if isinstance(values, dict) else {"model": values}))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT)
NAMES = TEXT.filter(lambda name: name not in ("name", "options"))


@often(150)
@given(st.dictionaries(NAMES, nested(PLAIN, TEXT, 5), max_size=3))
def test_what_is_accepted_is_written_and_read_back(options):
    made = lawful(lambda: config.parse({**WHOLE, "method": {**options, "name": "pgd"}}))
    assert made is None or config.parse(tomllib.loads(made.to_toml())) == made


KEYS = st.sampled_from(["seeds", "method.x", "model.mean", "a.b.c", "method", ".", "model..mean"])
SAID = st.one_of(WORDS, st.text(max_size=12), VALUES.map(repr))
SETTINGS = st.text(max_size=30) | st.tuples(KEYS, SAID).map("=".join)


@often(150)
@given(st.lists(SETTINGS, max_size=3))
@example(["a" + ".a" * DEEP + "=1"])
@example(["a=" + "[" * DEEP])
@example(["a=" + "1," * 200])
@example(["a=" + "9" * 5000])
@example(["seeds=__import__('os').system('touch broken')"])
@example(["seeds=1\nmodel=2"])
def test_any_settings(texts):
    given = {"data": "mnist5k", "method": "pgd"}
    values = lawful(lambda: config.assign(given, texts))
    if values is not None:
        lawful(lambda: config.parse(values))


def test_a_setting_holds_only_its_own_value():
    """A line break in a value does not smuggle in another key, nor lose what follows."""
    assert config.assign({}, ["name=1\nother=2"]) == {"name": "1\nother=2"}


DURATIONS = st.text(max_size=20) | st.from_regex(r"[0-9.e+-]{1,6}[smhd ]{0,2}", fullmatch=True)


@often(100)
@given(st.one_of(DURATIONS, st.floats(), st.none()))
@example("9" * 400 + "h")
@example("٣m")
def test_any_duration(text):
    given_seconds = lawful(lambda: seconds(text))
    assert given_seconds is None or (given_seconds > 0 and not math.isnan(given_seconds))


NAMED = st.sampled_from(["kmnc", "nc", "dsa", ""])
CRITERIA = st.builds("{}:{}={}".format, NAMED, WORDS, VALUES.map(repr))


@pytest.mark.parametrize("parse", [parse_keep, parse_criterion])
@often(100)
@given(st.text(max_size=20) | st.integers(-5, 5).map(str) | CRITERIA)
@example("²")
@example("٣")
@example("9" * 5000)
@example("kmnc:k=" + "9" * 5000)
def test_any_words_of_an_option(parse, text):
    lawful(lambda: parse(text))
