"""Poor surroundings: a terminal without our signs, little memory, nobody's home. One line each."""

import errno
import os
import resource
import subprocess
import sys

import pytest

from hardcase.cli import main


def hardcase(*words, **options):
    command = [sys.executable, "-m", "hardcase", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("words", [("list", "methods"), ("list", "criteria"), ("--help",)])
def test_an_ascii_terminal_gets_other_signs(words):
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = hardcase(*words, env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize("gigabytes", [0.25, 0.5, 1.0, 2.0])
def test_little_memory_is_said_in_a_sentence(gigabytes):
    most = int(gigabytes * 2**30)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    done = hardcase("doctor", "--model", "zoo:lenet5", "--data", "mnist5k", preexec_fn=limit)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{most / 1e9:.2g} GB" in done.stderr  # said before a library is loaded
    assert hardcase("list", "methods", preexec_fn=limit).returncode == 0


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_memory_that_runs_out_under_way_is_no_internal_error(error, monkeypatch, capsys):
    def fails(words):
        raise error

    monkeypatch.setattr(main, "build", fails)
    assert main.main(["doctor"]) == 2
    assert "memory is short" in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_nobody_without_a_home_gets_a_sentence(tmp_path):
    os.chmod(tmp_path, 0o777)
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME", "HARDCASE_CACHE")}  # fmt: skip

    def become_nobody():
        os.setgid(54321)
        os.setuid(54321)

    try:
        done = hardcase("list", "methods", env=bare, cwd=tmp_path, preexec_fn=become_nobody)
    except PermissionError:
        pytest.skip("nobody cannot run this installation")
    if "No module named" in done.stderr:
        pytest.skip("nobody cannot read this installation")
    assert done.returncode == 0, done.stderr
    words = ("run", "--model", "zoo:lenet5", "--data", "mnist5k", "--method", "pgd", "--out", "out")
    done = hardcase(*words, env=bare, cwd=tmp_path, preexec_fn=become_nobody)
    assert done.returncode == 2, done.stderr
    assert "HARDCASE_CACHE=DIR" in done.stderr
    assert "Traceback" not in done.stderr
