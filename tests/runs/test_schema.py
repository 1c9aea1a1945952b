"""run.json of every run that a test makes is as its schema says; `conftest.py` looks at each."""

import json

import pytest

import hardcase as hc
from hardcase.runs.folder import SCHEMA
from hardcase.runs.schema import ALWAYS, FILE, run_schema
from hardcase.testing.toys import toy_images, toy_subject
from json_schema import differences

STORED = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_schema_that_is_shipped_is_that_of_the_model():
    assert run_schema() == STORED, "make catalogue"


def test_it_carries_its_version():
    assert STORED["$id"].rpartition(":")[2] == str(SCHEMA)
    assert STORED["properties"]["schema"] == {"const": SCHEMA}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    out = tmp_path_factory.mktemp("schema") / "run"
    hc.run(toy_subject(), toy_images(24), method="pgd", out=out, judge=False)
    return json.loads((out / "run.json").read_text(encoding="utf-8"))


def test_a_run_is_as_it_says(record):
    assert not list(differences(record, STORED))


@pytest.mark.parametrize("name", ALWAYS)
def test_what_every_run_says_is_required(record, name):
    shorter = {key: value for key, value in record.items() if key != name}
    assert list(differences(shorter, STORED)) == [f"it has no {name}"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"schema": 1}, "schema"),
        ({"images": "60"}, "images"),
        ({"funnel": {}}, "funnel"),
        ({"risk": {"value": 0.5}}, "risk"),
        ({"phases": {"measure": {"status": "half"}}}, "status"),
        ({"shape": [1, 8]}, "shape"),
        ({"classes": []}, "classes"),
    ],
)
def test_what_is_otherwise_is_told(record, change, place):
    assert any(place in one for one in differences({**record, **change}, STORED))
