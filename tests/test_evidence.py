"""Requirements: read, compared with runs at the far end of the interval, and written."""

import json
import sys
from pathlib import Path

import pytest

from hardcase.errors import Problem
from hardcase.evidence import (
    Requirement,
    check_requirement,
    read_requirements,
    write_requirements,
)

sys.path.insert(0, str(Path(__file__).parent / "suite"))
from aftermath import verdict, write_run

LEVELS = [10, 60, 100, 120, 200] + [30] * 40
FOUND = {0: [140, 180], 1: [150], 2: [220]}
VERDICTS = [
    verdict(group="dark-light-1"),
    verdict(kept=False),
    verdict(group="dark-light-1"),
    verdict(group="dark-light-2"),
]
ACCURACY = {"accuracy": {"value": 0.9, "images": 500}}
CASES = {
    "shown": [
        Requirement(id="R1", text="few", metric="confirmed_rate", most=0.25),
        Requirement(id="R3", text="accurate", metric="accuracy", least=0.85),
        Requirement(id="R5", text="groups", metric="distinct", most=2),
    ],
    "not shown": [
        Requirement(id="R2", text="tight", metric="confirmed_rate", most=0.07),
        Requirement(id="R4", text="very accurate", metric="accuracy", least=0.89),
        Requirement(id="R6", text="not measured", metric="witnessed_rate", most=0.5),
        Requirement(id="R8", text="be kind"),
    ],
    "not applicable": [Requirement(id="R7", text="radar", not_applicable="there is no radar")],
}


def test_limits_are_compared_with_the_far_end_of_the_interval(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found=FOUND, verdicts=VERDICTS, **ACCURACY)
    for status, requirements in CASES.items():
        for one in requirements:
            assert check_requirement(one, {"run": run}).status == status, one.id
    bare = write_run(tmp_path / "bare", levels=LEVELS, found=FOUND)
    limit = CASES["shown"][0]
    both = check_requirement(limit, {"run": run, "bare": bare})
    assert both.status == "not shown", "one run without a judge is enough"
    assert check_requirement(limit, {}).status == "not shown"


def test_checks_are_written_for_people_and_programs(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found=FOUND, verdicts=VERDICTS)
    odd = Requirement(id="a|b", text="few\n<b>", metric="confirmed_rate", most=0.25)
    page = write_requirements([check_requirement(odd, {"x|y": run})], tmp_path)
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {5}
    (row,) = json.loads((tmp_path / "requirements.json").read_text())
    assert row["status"] == "shown"
    assert row["values"][0]["value"] == pytest.approx(3 / 44)


def test_requirements_are_read_and_wrong_ones_are_refused(tmp_path):
    file = tmp_path / "req.toml"
    file.write_text(
        '[[requirement]]\nid = "R1"\ntext = "few"\nmetric = "confirmed_rate"\nmost = 0.05\n'
    )
    assert read_requirements(file) == [
        Requirement(id="R1", text="few", metric="confirmed_rate", most=0.05)
    ]
    for text, message in (
        ("[[requirement]]\nid = 1", "no id or no text"),
        ("x = 1", "states no requirement"),
        ("x = ", "cannot be read"),
        ('[[requirement]]\nid = "a"\ntext = "b"\nmax = 1', "most"),
        ('[[requirement]]\nid = "a"\ntext = "b"\nmetric = "confirmed"', "confirmed_rate"),
        ('[[requirement]]\nid = "a"\ntext = "b"\nmetric = "accuracy"', "no limit"),
    ):
        file.write_text(text)
        with pytest.raises(Problem, match=message):
            read_requirements(file)
