"""Code that users supply may exit, interrupt, or compute nothing: the error names it, and nothing succeeds by accident."""

import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError, Raised, Unanswered, count_interrupt, file_member, guarded
from hardcase.models.load import from_file
from hardcase.models.subject import Subject
from hardcase.testing.toys import Quarters

MODELS = '''
import sys
import torch
from torch import nn
from hardcase.testing.toys import Quarters

class Odd(Quarters):
    """Well behaved until its 20th forward."""
    calls = 0
    def forward(self, x):
        Odd.calls += 1
        return super().forward(x) if Odd.calls < 20 else self.odd(super().forward(x))

class Exits(Odd):
    def odd(self, y): sys.exit(0)

class Interrupts(Odd):
    def odd(self, y): raise KeyboardInterrupt

class Complex(Quarters):
    def forward(self, x): return torch.complex(super().forward(x), super().forward(x))

def good(): return Quarters()
def exits(): return Exits()
def interrupts(): return Interrupts()
def imaginary(): return Complex()
def meta(): return Quarters().to("meta")
def factory_exits(): sys.exit(0)
def factory_interrupts(): raise KeyboardInterrupt
'''


@pytest.fixture
def folder(user):
    (user / "odd.py").write_text(MODELS)


@pytest.fixture
def handled():
    """As in a command: somebody counts the Ctrl-C that are typed."""
    before = signal.signal(signal.SIGINT, lambda number, frame: count_interrupt())
    yield
    signal.signal(signal.SIGINT, before)


RUN = "run --data npz:toy.npz --method pgd --images 40 --out out -q --set campaign.shard=4 --model"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("exits", "model odd.py:exits called sys.exit(0)"),
        ("interrupts", "model odd.py:interrupts raised KeyboardInterrupt"),
        ("imaginary", "model odd.py:imaginary returns complex numbers"),
        ("meta", "model odd.py:meta lives on the meta device"),
        ("factory_exits", "odd.py:factory_exits called sys.exit(0)"),
        ("factory_interrupts", "odd.py:factory_interrupts raised KeyboardInterrupt"),
    ],
)
def test_a_run_ends_with_an_error_that_names_the_model(folder, command, model, said):
    code, told = command(f"{RUN} odd.py:{model}")
    assert (code, said in told) == (2, True), told


def test_other_verbs_too(folder, command):
    assert command(f"{RUN} odd.py:good")[0] == 0
    for model in ("factory_exits", "factory_interrupts", "imaginary"):
        code, told = command(f"replay out --model odd.py:{model}")
        assert (code, f"odd.py:{model}" in told) == (2, True), told


def test_an_exit_nobody_guarded_is_no_success(tmp_path, monkeypatch, capsys):
    from hardcase.cli import main as command

    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    monkeypatch.setattr(command, "build", lambda words: lambda **given: sys.exit(0))
    assert command.main(["status", "x"]) == 3
    assert "SystemExit" in capsys.readouterr().err


def _typed():
    count_interrupt()
    raise KeyboardInterrupt


def test_the_users_own_interrupt_stays_one(handled):
    with pytest.raises(KeyboardInterrupt), guarded("model"):
        _typed()
    with pytest.raises(Raised, match="model raised KeyboardInterrupt"), guarded("model"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError(), Unanswered("late"), HardcaseError("told")]
)
def test_what_others_handle_passes_unchanged(error):
    with pytest.raises(type(error)) as caught, guarded("model"):
        raise error
    assert caught.value is error


def test_forward_reports_the_cause():
    class Broken(Quarters):
        def forward(self, x):
            raise ValueError("no such size\nmore")

    with pytest.raises(Raised, match=r"model mine raised ValueError: no such size(\n|$)") as caught:
        Subject(Broken(), name="mine")(torch.rand(2, 1, 8, 8))
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_supplied_generator_is_guarded():
    from hardcase.generators.adapters import UserGenerator

    class Generator(nn.Module):
        latent = 3
        layers = ()

        def forward(self, z, y):
            sys.exit(1)

    with pytest.raises(HardcaseError, match=r"generator Generator called sys.exit\(1\)"):
        UserGenerator(Generator())


def test_a_file_that_exits_when_imported_is_named(folder):
    Path("leave.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(HardcaseError, match=r"leave\.py cannot be imported: SystemExit"):
        from_file(Path("leave.py"), "make")


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from lying_beside import VALUE
@dataclass(frozen=True, slots=True)
class Own:
    size: int | None = VALUE
"""


def test_a_file_imports_what_lies_beside_it_and_keeps_its_annotations(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lying_beside.py").write_text("VALUE = 3\n")
    (tmp_path / "own.py").write_text(OWN)
    assert file_member(tmp_path / "own.py", "Own")().size == 3
