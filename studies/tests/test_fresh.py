"""A stored result is marked when its code puts out something else, and only then."""

import json
from pathlib import Path

from hardcase_studies.fresh import Digests, digest_of, study_of

ROWS = [
    {"table": "T", "row": "a", "column": "found", "value": "3 of 4"},
    {"table": "T", "row": "a", "column": "ms per image", "value": "1.5"},
    {"table": "T", "row": "seconds in all", "column": "value", "value": "9"},
]


def test_a_digest_is_of_numbers_and_not_of_the_clock_or_the_order():
    slower = [{**row, "value": "7"} if row is not ROWS[0] else row for row in ROWS]
    assert digest_of(slower[::-1]) == digest_of(ROWS)
    other = [{**ROWS[0], "value": "4 of 4"}, *ROWS[1:]]
    assert digest_of(other) != digest_of(ROWS)


def test_a_result_is_marked_from_the_change_of_what_its_code_puts_out_to_its_next_run(tmp_path):
    digests = Digests.of(tmp_path)
    digests.computed("study", "1111", ["old"])
    assert not digests.is_stale("study", "old")
    digests.computed("study", "2222", ["old", "new"])
    assert digests.is_stale("study", "old")
    assert not digests.is_stale("study", "new"), "stored by the code of today"
    digests.write()
    again = Digests.of(tmp_path)
    assert again.is_stale("study", "old")
    again.stored("study", "old")
    assert not again.is_stale("study", "old")
    assert not again.is_stale("another", "never digested")


def test_the_file_of_digests_names_stored_results_and_studies():
    from hardcase_studies import STUDIES

    results = Path(__file__).parents[2] / "results"
    digests = Digests.of(results)
    assert set(digests.now) <= set(STUDIES)
    assert set(digests.then) <= {path.stem for path in results.glob("*.json")}
    stored = {path.stem: json.loads(path.read_text("utf-8")) for path in results.glob("*.json")}
    unmarked = {
        name
        for name, record in stored.items()
        if study_of(record["command"]) in digests.now and name not in digests.then
    }
    assert not unmarked, "a change of what their code puts out would go unnoticed"
    record = json.loads((results / "maxplore.json").read_text("utf-8"))
    assert study_of(record["command"]) == "maxplore"
    assert study_of("hardcase reproduce faults --full") == "features-rq1", "its name of today"
    assert study_of("python -m benchmarks memory") == ""
