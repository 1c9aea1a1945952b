"""The GitHub action's steps, run as GitHub runs them: bash -e, inputs in the environment, a `gh` that only writes down."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_distribution import NET, PHOTOS

ROOT = Path(__file__).parents[2]
GIVEN = {"MODEL": "net.py:make", "DATA": "folder:photos?split=all", "JUDGE": "false", "NUMBER": "17", "UNDECIDED": "fail"}  # fmt: skip


@pytest.fixture
def steps():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which comes with datasets")
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "inputs reach the shell as variables only"
    return {step["name"]: step for step in action["runs"]["steps"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    tmp_path = tmp_path_factory.mktemp("action")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "hardcase").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hardcase "$@"\n')
    (tools / "gh").write_text('#!/bin/sh\necho "$@" > "$RUNNER_TEMP/said.txt"\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for tool in ("hardcase", "gh", "python"):
        (tools / tool).chmod(0o755)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "temp").mkdir()
    subprocess.run([sys.executable, "-c", PHOTOS], cwd=tmp_path, check=True)
    return tmp_path


def run(place, step, **inputs):
    given = {
        **os.environ,
        **GIVEN,
        "ARGUMENTS": "--method pgd --seeds 24 --device cpu --set method.epsilon=0.3",
        "PATH": f"{place / 'tools'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "HARDCASE_CACHE": str(place / "cache"),
        "RUNNER_TEMP": str(place / "temp"),
        "GITHUB_OUTPUT": str(place / "output"),
        "GITHUB_STEP_SUMMARY": str(place / "summary"),
        "GITHUB_REPOSITORY": "a/b",
        **inputs,
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=place, env=given, capture_output=True, text=True,
    )  # fmt: skip


def test_the_steps_run_gate_comment_and_end(steps, place):
    done = run(place, steps["run"])
    assert done.returncode == 0, done.stderr
    gated = run(place, steps["gate"], GATE="--max-confirmed-rate 0.05")
    assert gated.returncode == 0, gated.stderr
    assert "outcome=error" in (place / "output").read_text(), "nobody judged these findings"
    comment = (place / "temp/comment.md").read_text()
    assert "24 attempted" in comment
    assert "no judge has seen" in comment
    assert (place / "summary").read_text() == comment
    assert (place / "temp/hardcase/report/index.html").is_file()
    assert run(place, steps["comment"]).returncode == 0
    said = (place / "temp/said.txt").read_text()
    assert "pr comment 17" in said
    assert "--body-file" in said


@pytest.mark.parametrize(
    ("outcome", "undecided", "code"),
    [
        ("pass", "fail", 0),
        ("fail", "pass", 1),
        ("error", "pass", 1),
        ("", "pass", 1),
        ("cannot tell", "fail", 1),
        ("cannot tell", "pass", 0),
    ],
)
def test_the_job_ends_as_the_gate_did(steps, place, outcome, undecided, code):
    assert run(place, steps["end"], OUTCOME=outcome, UNDECIDED=undecided).returncode == code
