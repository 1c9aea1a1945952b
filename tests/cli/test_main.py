"""The frame of the command line: quick, torch-free, and every failure with its code and its form."""

import os
import re
import subprocess
import sys
from typing import Annotated

import pytest
import typer

from hardcase import __version__
from hardcase.cli import main as frame
from hardcase.cli.inspect import KINDS
from hardcase.cli.main import VERBS, main, spread
from hardcase.errors import HardcaseError

CHECK = """
import sys, time
from hardcase.cli.main import main
code = max(main(words.split()) for words in {lines!r})
heavy = sorted({{'torch', 'numpy', 'pyarrow', 'sklearn', 'jaxtyping'}} & set(sys.modules))
busy = time.process_time() > 0.8
sys.stderr.write(f'{{code}} {{heavy}} {{"slow" if busy else "quick"}}')
"""


@pytest.mark.parametrize("lines", [["--help"], [f"list {kind}" for kind in KINDS]])
def test_help_and_list_import_nothing_heavy_and_answer_at_once(lines):
    """0.4 s of a quiet processor are promised; twice that is allowed for a busy one."""
    command = [sys.executable, "-c", CHECK.format(lines=lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "0 [] quick"
    assert "sinvad" in done.stdout or "Usage" in done.stdout


def test_the_first_screen_names_every_verb_and_run_shows_few_flags(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(verb.name.split()[0] in said for verb in VERBS)
    assert len(said.splitlines()) <= 45
    assert sum(not verb.group for verb in VERBS) <= 14
    shown = []
    for words in (["run", "--help"], ["run", "--help-all"]):
        assert main(words) == 0
        shown.append(set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)))
    assert len(shown[0]) <= 18
    assert {"--cluster", "--target", "--trust-pickle", "--format"} <= shown[1] - shown[0]


@pytest.mark.parametrize("error", [ImportError("cannot allocate memory"), MemoryError()])
def test_what_cannot_be_loaded_is_one_line_and_what_to_do(monkeypatch, capsys, error):
    fail_with(monkeypatch, error)
    assert main(["demo"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "memory" in lines[0]


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_explains_itself(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hardcase {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lst"], "list"),
        (["run", "--modle", "x"], "--model"),
        (["run", "--images", "many"], "--images"),
        (["export"], "RUN"),
        (["run", "--progress", "loud"], "loud"),
    ],
)
def test_wrong_usage_is_code_2_in_the_agreed_form(words, said, capsys):
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert said in output.err
    assert "try: hardcase" in output.err
    assert not output.out


def fail_with(monkeypatch, error):
    def verb() -> None:
        raise error

    monkeypatch.setattr(frame, "_function", lambda row: verb)


def test_a_problem_has_its_form_and_its_code_and_an_interrupt_is_130(monkeypatch, capsys):
    fail_with(monkeypatch, HardcaseError("it broke.", "It matters.", fix="mend it", code=5))
    assert main(["demo"]) == 5
    assert capsys.readouterr().err == "error: it broke.\n  It matters.\n  try: mend it\n"
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["demo"]) == 130


def test_an_internal_error_is_one_line_and_a_file(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    fail_with(monkeypatch, ValueError("first line\nsecond line"))
    assert main(["demo"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: internal error: ValueError: first line\n")
    assert "Traceback" not in said
    (kept,) = (tmp_path / "tracebacks").iterdir()
    assert str(kept) in said
    assert "second line" in kept.read_text()
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "file"))
    fail_with(monkeypatch, ValueError())
    assert main(["demo"]) == 3
    assert "ValueError: no message" in capsys.readouterr().err


def test_verbose_prints_the_traceback(monkeypatch, capsys):
    def verb(verbose: Annotated[bool, typer.Option("-v")] = False) -> None:
        raise ValueError("deep")

    monkeypatch.setattr(frame, "_function", lambda row: verb)
    assert main(["demo", "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_error():
    """``hardcase list methods | head``: nothing is said, and the code is that of a closed pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hardcase", "run", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("run --set a=1 b.c=2 --seed 3", "run --set a=1 --set b.c=2 --seed 3"),
        ("run --set a=1 --set b=2 c=3", "run --set a=1 --set b=2 --set c=3"),
        ("run --set a=1 config.toml b=2", "run --set a=1 config.toml b=2"),
        ("run --set nonsense b=2", "run --set nonsense --set b=2"),
        ("run x=1", "run x=1"),
        ("run --set", "run --set"),
    ],
)
def test_settings_are_spread(given, expected):
    assert spread(given.split()) == expected.split()
