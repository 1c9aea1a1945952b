"""What is thrown at every parser: bytes of whole files with damage in them, documents with something else in one place.

The law: a value, or a `HardcaseError`. Any other exception fails the test. The examples are the same on every run.
"""

import copy
import json
import os

from hypothesis import HealthCheck, settings, strategies as st

from hardcase.errors import HardcaseError


def often(count):
    """So many examples in ``make torture``, a third of them else; the same ones each time."""
    if os.environ.get("HARDCASE_TORTURE") != "long":
        count = max(10, count // 3)
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    how = {"derandomize": True, "database": None, "deadline": None}
    return settings(**how, max_examples=count, suppress_health_check=quiet)


def lawful(work, *others):
    """What `work` gives, or None where it ended in a `HardcaseError` (or one of `others`) that says something."""
    try:
        return work()
    except (HardcaseError, *others) as error:
        if not str(error):
            raise AssertionError("an error without words") from error
        return None


SET = [b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"9", b'"', b"-1"]


@st.composite
def spoilt(draw, whole):
    """`whole` with bytes changed, cut off, cut out, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        what = draw(st.sampled_from(["flip", "set", "cut", "out", "double", "in"]))
        if what == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif what == "set":
            some = draw(st.sampled_from(SET))
            data[place : place + len(some)] = some
        elif what == "cut":
            del data[place:]
        elif what == "out":
            del data[place : place + draw(st.integers(1, 40))]
        elif what == "double":
            data[place:place] = data[place : place + draw(st.integers(1, 40))]
        else:
            data[place:place] = draw(st.binary(min_size=1, max_size=12))
    return bytes(data)


def damaged(*wholes):
    """Damage to one of `wholes`, or bytes that never were a file."""
    return st.one_of(*(spoilt(whole) for whole in wholes), st.binary(max_size=60))


WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\0", "\ud800", "..", "/", "~nobody", "__import__('os')", "{{7*7}}", "nan", "1e999", "label", "auto"]),
)  # fmt: skip
INTEGERS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, -1, 2**31, 2**63, 10**400])
PLAIN = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), WORDS)


def nested(plain, words, leaves):
    """Lists and dictionaries of such values."""

    def inside(inner):
        return st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)

    return st.recursive(plain, inside, max_leaves=leaves)


VALUES = nested(PLAIN, WORDS, 6)


@st.composite
def twisted(draw, document, values=VALUES):
    """A document of JSON's kind with one or two of its places holding something else, lost, or doubled."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        holder = changed
        while isinstance(holder, dict | list) and holder:
            places = sorted(holder, key=repr) if isinstance(holder, dict) else range(len(holder))
            key = draw(st.sampled_from(places))
            if isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
                holder = holder[key]
                continue
            if draw(st.integers(0, 3)):
                holder[key] = draw(values)
            else:
                del holder[key]
            break
        else:
            return draw(values)
    return changed


def header_of(tensors):
    """The JSON at the beginning of a file of safetensors."""
    return json.loads(tensors[8 : 8 + int.from_bytes(tensors[:8], "little")])


def headed(header, tensors):
    """The file with another header."""
    text = json.dumps(header).encode()
    rest = tensors[8 + int.from_bytes(tensors[:8], "little") :]
    return len(text).to_bytes(8, "little") + text + rest


DEEP = 3000
"""Levels of nesting at which recursive readers give up."""
