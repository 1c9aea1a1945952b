import sqlite3
import threading

import pytest

from hardcase.errors import HardcaseError
from hardcase_study.answers import Answers, Given, rater_id


@pytest.fixture
def store(tmp_path):
    return Answers(tmp_path)


def given(value="3", item="i", **more):
    return Given("r", item, 1, {"label": value}, **more)


def test_what_is_stored_is_on_disk_when_the_call_returns(store, tmp_path):
    assert store.save(given(seconds=2.5, hidden=1.0, lost=2), "k1") == "stored"
    other = sqlite3.connect(tmp_path / "answers.sqlite")
    assert other.execute("SELECT value, seconds FROM answer").fetchall() == [
        ('{"label": "3"}', 2.5)
    ]
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._connection().execute("PRAGMA synchronous").fetchone() == (2,)
    (row,) = store.all()
    assert (row.hidden, row.lost, row.revision) == (1.0, 2, 0)


def test_the_same_answer_sent_twice_is_stored_once(store):
    assert [store.save(given(), "k") for _ in range(3)] == ["stored", "known", "known"]
    assert len(store.all()) == 1


def test_another_window_does_not_overwrite_but_going_back_does_and_is_logged(store, tmp_path):
    store.save(given("3"), "k1")
    assert store.save(given("5"), "k2") == "kept"
    assert store.all()[0].value == {"label": "3"}
    assert store.save(given("5"), "k3", revise=True) == "stored"
    assert store.save(given("5"), "k3", revise=True) == "known"
    (row,) = store.all()
    assert (row.value, row.revision) == ({"label": "5"}, 1)
    log = sqlite3.connect(tmp_path / "answers.sqlite").execute("SELECT number, value FROM revision")
    assert log.fetchall() == [(0, '{"label": "3"}'), (1, '{"label": "5"}')]


def test_lists_are_given_out_once_however_many_come_at_once(store):
    found = []

    def enter(i):
        found.append(store.enter(f"rater{i}", kind="person", language="en"))

    threads = [threading.Thread(target=enter, args=(i,)) for i in range(24)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one.slot for one in found) == list(range(24))


def test_the_first_item_at_a_place_stays(store):
    assert store.show("r", 1, "a") == "a"
    assert store.show("r", 1, "b") == "a"
    assert store.show("r", 2, "b") == "b"
    assert store.shown("r") == ["a", "b"]
    with pytest.raises(HardcaseError):
        store.show("r", 3, "a")  # never the same item twice


def test_a_lost_connection_is_made_anew(store):
    store.save(given(item="a"), "k1")
    store._connection().close()
    assert store.save(given(item="b"), "k2") == "stored"
    assert {one.item for one in store.all()} == {"a", "b"}


def test_the_link_is_not_in_the_database(store, tmp_path):
    token = "a-secret-link"
    store.enter(rater_id(token), kind="person", language="en")
    store.close()
    for path in tmp_path.iterdir():
        assert token.encode() not in path.read_bytes()
    assert store.enter(rater_id(token), kind="person", language="en").slot == 0


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(HardcaseError, match="is no folder"):
        Answers(tmp_path / "nowhere")
