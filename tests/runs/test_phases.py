"""Phases of a run: what is measured in the time there is, and how the status of each is kept."""

from dataclasses import replace

import pytest

import hardcase as hc
from hardcase.errors import HardcaseError, Refused
from hardcase.runs import phases
from hardcase.runs.folder import Store
from hardcase.runs.identity import Identity
from hardcase.runs.measured import Measurement
from hardcase.runs.phases import PHASES, MeasurePlan, phase, settle, settled_queries, status_of
from hardcase.testing.toys import toy_images, toy_subject

PLAN = MeasurePlan(
    measurement=Measurement(model=toy_subject(), box=None),
    images=toy_images(400),
    source=lambda: None,
    most=None,
    queries=None,
    shard=32,
    config="",
    about={},
    identity=Identity({}),
)


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({}, 0.1, (400, "all")),
        ({}, 10.0, (192, "time")),
        ({}, 1000.0, (32, "time")),
        ({"shard": 8}, 1000.0, (24, "time")),
        ({"most": 50}, 1000.0, (50, "chosen")),
        ({"most": 5000}, 1000.0, (400, "chosen")),
        ({"queries": 100}, 0.1, (100, "queries")),
        ({"queries": 5}, 0.1, (20, "queries")),
        ({"queries": 5000}, 1000.0, (400, "all")),
    ],
)
def test_how_many_images_are_measured(changes, seconds, expected):
    assert settle(replace(PLAN, **changes), seconds) == expected


def test_only_servers_are_asked_about_few_images(monkeypatch):
    own = PLAN.measurement
    assert settled_queries(own, None, chosen=None) is None
    monkeypatch.setattr(phases, "is_server", lambda model: True)
    assert settled_queries(own, None, chosen=None) == phases.SERVER_QUERIES
    assert settled_queries(own, 100, chosen=None) == 50
    assert settled_queries(own, 100, chosen=7) is None


@pytest.fixture
def store(tmp_path):
    record = {"phases": {name: phase("not begun") for name in PHASES}, "schema": 1}
    return Store.create(tmp_path / "run", record, "")


def test_a_run_is_complete_when_every_phase_is_over(store):
    for name, status in zip(PHASES, ("done", "skipped", "done")):
        assert not store.record().get("complete")
        phases.set_phase(store, name, phase(status))
    assert store.record()["complete"]
    assert store.record()["finished"]
    phases.set_phase(store, "check", phase("running"))
    assert not store.record()["complete"]
    assert store.record()["finished"] is None


def test_a_failed_phase_says_why_and_keeps_what_it_rests_on(store):
    identity = Identity({"model": "a"}).to_json()
    phases.set_phase(store, "search", phase("running", identity=identity))
    with pytest.raises(ValueError, match="odd"), phases.failing_is_stored(store, "search"):
        raise ValueError("odd")
    said = store.record()["phases"]["search"]
    assert (said["status"], said["why"]) == ("failed", "ValueError: odd")
    assert said["identity"] == identity


def test_what_is_refused_leaves_the_phase_as_it_was(store):
    before = store.record()
    with pytest.raises(Refused), phases.failing_is_stored(store, "search"):
        raise Refused("another model")
    assert store.record() == before


def test_a_measurement_is_made_once(tmp_path):
    given = {"method": "none", "judge": False}
    run = hc.run(toy_subject(), toy_images(12), out=tmp_path / "run", **given)
    assert [status_of(run.record, name) for name in PHASES] == ["done", "skipped", "skipped"]
    parts = [path.read_bytes() for path in run.store.measured_parts()]
    hc.resume(run.folder, toy_subject(), toy_images(12), **given)
    assert [path.read_bytes() for path in run.store.measured_parts()] == parts
    with pytest.raises(HardcaseError, match="model"):
        hc.resume(run.folder, toy_subject(5.0), toy_images(12), **given)
    assert hc.Run(run.folder).record["complete"]
