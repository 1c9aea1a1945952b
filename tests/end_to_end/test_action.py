"""The GitHub action's steps, run as GitHub runs them: bash -e, inputs in the environment, a `gh` that only writes down."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_distribution import NET, PHOTOS

ROOT = Path(__file__).parents[2]
GIVEN = {"MODEL": "net.py:make", "DATA": "folder:photos?split=all", "JUDGE": "false", "NUMBER": "17", "INCONCLUSIVE": "fail"}  # fmt: skip


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
    own = f'exec "{sys.executable}"'
    scripts = {"hardcase": f'{own} -m hardcase "$@"', "python": f'{own} "$@"'}
    for tool, script in {**scripts, "gh": 'echo "$@" > "$RUNNER_TEMP/said.txt"'}.items():
        (tools / tool).write_text(f"#!/bin/sh\n{script}\n")
        (tools / tool).chmod(0o755)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "temp").mkdir()
    subprocess.run([sys.executable, "-c", PHOTOS], cwd=tmp_path, check=True)
    return tmp_path


def run(where, step, place, **inputs):
    """A step in the folder `where`, as the runner of `place` does it."""
    places = {"HARDCASE_CACHE": "cache", "RUNNER_TEMP": "temp"}
    places |= {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    given = {
        **os.environ,
        **GIVEN,
        "PATH": f"{place / 'tools'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        **{name: str(place / where) for name, where in places.items()},
        "GITHUB_REPOSITORY": "a/b",
        **inputs,
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=where, env=given, capture_output=True, text=True,
    )  # fmt: skip


def git(*words, at):
    done = subprocess.run(["git", *words], cwd=at, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository(place):
    """A clone whose base branch has a worse network; photographs are not in git."""
    me = ("-c", "user.name=a", "-c", "user.email=a@b")
    git("init", "-q", "--bare", "-b", "main", "remote.git", at=place)
    git("clone", "-q", "remote.git", "clone", at=place)
    clone = place / "clone"
    git("checkout", "-q", "-b", "main", at=clone)
    for blue in ("1.34 * blue", "1.3 * blue"):
        (clone / "net.py").write_text(NET.replace("[red, blue]", f"[red, {blue}]"))
        git("add", "net.py", at=clone)
        git(*me, "commit", "-qm", blue, at=clone)
    git("push", "-q", "origin", "HEAD~1:refs/heads/main", at=clone)
    shutil.move(place / "photos", clone / "photos")
    return clone


def ran(steps, names, *given, **inputs):
    for name in names.split():
        done = run(given[0], steps[name], given[1], **inputs)
        assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_steps_run_the_base_gate_comment_and_end(steps, place, repository):
    inputs = {
        "ARGUMENTS": "--method none --images 24 --device cpu --conditions handheld",
        "BASE": "auto", "REF": "main", "BRANCH": "hardcase-pictures", "GATE": "",
        "REMOTE": str(place / "remote.git"), "GITHUB_SHA": "abc123", "GITHUB_SERVER_URL": "https://github.com",
    }  # fmt: skip
    ran(steps, "run base", repository, place, **inputs)
    outputs = dict(line.split("=", 1) for line in (place / "output").read_text().splitlines())
    shared = str(place / "temp/hardcase-base")
    assert outputs["run"] == shared, "photographs that git ignores are shared"
    assert outputs["rules"] == str(place / "temp/base-tree")
    # a change that brings its own limits: those of the base branch hold
    (repository / "hardcase.toml").write_text("[limits]\nmargin = 1.0\n")
    given = {"BASE_RUN": shared, "RULES": outputs["rules"]}
    ran(steps, "gate pictures comment", repository, place, **inputs, **given)
    gate = (place / "temp/gate.txt").read_text()
    assert "limit +1.0 pp" in gate
    (repository / "hardcase.toml").unlink()
    outputs = dict(line.split("=", 1) for line in (place / "output").read_text().splitlines())
    comment = (place / "temp/comment.md").read_text()
    assert comment.startswith(f"### hardcase: {outputs['outcome']}")
    assert "the baseline" in comment, "the gate's reason"
    assert "| figure | value | 95 % | baseline |" in comment
    assert (place / "summary").read_text() == comment
    assert (place / "temp/hardcase/report/index.html").is_file()
    said = (place / "temp/said.txt").read_text()
    assert "pr comment 17" in said
    address = "https://github.com/a/b/raw/hardcase-pictures/17/abc123.png"
    pushed = git("ls-tree", "-r", "--name-only", "hardcase-pictures", at=place / "remote.git")
    assert "17/abc123.png" in pushed
    assert f"]({address})" in comment
    assert (place / "temp/card/hardcase.png").is_file()


@pytest.mark.long
def test_without_a_base_and_without_risk_it_says_so(steps, place, repository):
    temp = place / "alone"
    temp.mkdir()
    inputs = {
        "ARGUMENTS": "--method pgd --images 24 --device cpu --set method.epsilon=0.3 --conditions none",
        "BASE": "none", "REF": "", "BASE_RUN": "", "BRANCH": "", "GATE": "--max-accepted-rate 0.05",
        "RULES": str(repository),
        "RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(temp / "output"), "GITHUB_SHA": "abc", "REMOTE": "nowhere",
    }  # fmt: skip
    ran(steps, "run base gate pictures", repository, place, **inputs)
    assert "outcome=error" in (temp / "output").read_text(), "nobody judged these findings"
    comment = (temp / "comment.md").read_text()
    assert "not been checked" in comment
    assert "the risk was not measured" in comment


def test_the_job_ends_as_the_gate_did(steps, place):
    codes = {("pass", "fail"): 0, ("inconclusive", "fail"): 1, ("inconclusive", "pass"): 0}
    codes |= {(bad, "pass"): 1 for bad in ("fail", "error", "")}
    for (outcome, inconclusive), code in codes.items():
        done = run(place, steps["end"], place, OUTCOME=outcome, INCONCLUSIVE=inconclusive)
        assert done.returncode == code, outcome


@pytest.mark.parametrize(
    ("install", "words"),
    [
        ("hardcase[teams]", ["hardcase[teams]"]),
        ("./clone[teams]", ["./clone[teams]"]),
        ("--find-links wheels hardcase[teams]", ["--find-links", "wheels", "hardcase[teams]"]),
    ],
)
def test_pip_is_given_a_package_a_clone_or_a_folder_of_wheels(steps, tmp_path, install, words):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked.txt\n')
    (tools / "python").chmod(0o755)
    given = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = run(tmp_path, steps["install"], tmp_path, INSTALL=install, **given)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked.txt").read_text().splitlines()
    assert asked[:3] == ["-m", "pip", "install"]
    assert asked[-len(words) :] == words


def test_who_wants_no_base_is_not_warned_of_its_absence(steps, tmp_path):
    done = run(tmp_path, steps["base"], tmp_path, BASE="none", REF="main")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout
    lines = (tmp_path / "output").read_text().splitlines()
    assert lines == ["run=", f"rules={tmp_path}"]
