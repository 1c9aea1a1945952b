"""Every stored result has a command that makes it again, and every study a small form, or says why not."""

import json
from pathlib import Path

import pytest

from benchmarks import settle
from hardcase.config import assign
from hardcase_studies import STUDIES

RESULTS = Path(__file__).parents[2] / "results"
STORED = {
    path.stem: json.loads(path.read_text("utf-8"))["command"] for path in RESULTS.glob("*.json")
}


def test_every_stored_result_is_in_the_list():
    jobs = settle.stored_jobs()
    assert {job.name for job in jobs} == set(STORED)
    for job in jobs:
        assert job.words or job.study in STUDIES, job.name


@pytest.mark.parametrize("name", sorted(STORED))
def test_a_job_repeats_the_stored_command(name):
    job = settle.job_of(name, STORED[name])
    if job.words:
        return
    said = STORED[name].split()
    assert job.data in said
    assert ("--full" in said) == ("--full" in job.flags)
    assert STORED[name].count("--set") == len(job.sets)
    assert ("--repeats" in said) == any(flag.startswith("--repeats=") for flag in job.flags)


def test_every_study_has_a_small_form_or_says_what_it_needs():
    studies = {job.study for job in (*settle.stored_jobs(), *settle.table_jobs()) if job.study}
    assert studies <= set(settle.SMALL) | set(settle.NOT_SMALL)
    assert not set(settle.SMALL) & set(settle.NOT_SMALL)
    assert set(settle.SMALL) | set(settle.NOT_SMALL) <= set(STUDIES)
    for study, sets in settle.SMALL.items():
        assert assign({}, sets), study


def test_a_job_in_parts_waits_for_all_of_them():
    whole = settle.Job(
        name="sinvad-rq3-x", study="sinvad-rq3", data="mnist", flags=("--repeats=6",)
    )
    *parts, last = settle.split(whole)
    assert len(parts) == 18
    assert set(last.after) == {part.label for part in parts}
    words = last.command(Path("work"), Path("keep"), small=True, device="cuda")
    assert "--repeats=6" not in words
    assert words[words.index("--data") + 1] == "mnist5k"
    assert "--keep" in words
    assert "--keep" not in parts[0].command(Path("w"), Path("k"), small=False, device="cuda")


def test_one_command_runs_the_small_form_of_every_study(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["settle", "--small", "--list", "--keep", "nowhere"])
    assert settle.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(settle.SMALL)
    for line, study in zip(said, settle.SMALL, strict=True):
        assert f"reproduce {study} --data mnist5k --device cpu" in line
        assert not any(flag in line for flag in settle.LARGE)
