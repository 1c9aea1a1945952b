"""What users write and install: declarations, tables, samplers, plug-ins, files that never end."""

import os
import subprocess
import sys
import time

import pytest

from hardcase.errors import HardcaseError, Unanswered, cancelled_by, within
from hardcase.plain import parse_toml, read_text
from hardcase.registry import names
from tiny import install

RUN = "run --data npz:toy.npz --method none --images 12 --seed 1 --progress none -q --model model.py:make"

DECLARATIONS = {
    "twice, by another name": (
        'rotation = "±30 deg"\nrotate = "±0.1 deg"',
        ", line 3: conditions.rotate",
    ),
    "a corruption twice": (
        'corruption.fog = "0..3"\n"corruption.fog" = "0..2"',
        "declares 'corruption.fog' twice",
    ),
    "an absurd centre": ('rotation = "normal(500, 1) deg"', ", line 2: conditions.rotation"),
    "an absurd width": ('rotation = "normal(0, 1e6) deg"', ", line 2: conditions.rotation"),
    "nested without end": ("a=" + 5000 * "[", "nested too deeply"),
    "nested deeply": ("a=" + 60 * "[" + 60 * "]", "nested too deeply"),
    "a range and a table of ranges": (
        'rotation = "±8 deg"\n[conditions.ranges]\nrotate = "±3 deg"',
        "declares 'rotation' twice",
    ),
    "ranges that are none": ("ranges = 3", "is no table"),
    "no sampler": ('rotation = "±8 deg"\nsampler = ""', "conditions.sampler is empty"),
    "a name without end": (f'name = "{100_000 * "n"}"\nrotation = "±8 deg"', "is no name"),
    "a name that clears the screen": (
        'name = "a\\u001b[2J"\nrotation = "±8 deg"',
        "is no name",
    ),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_says_each_thing_once_and_within_what_is_possible(user, command, name):
    text, words = DECLARATIONS[name]
    (user / "c.toml").write_text(f"[conditions]\n{text}\n")
    code, told = command(f"{RUN} --conditions c.toml --out out")
    assert (code, words in told) == (2, True), told
    assert not (user / "out").exists()


TABLES = {
    "a column twice": ("rotation,rotation\n1,2\n2,3\n", "line 1 has 'rotation' twice"),
    "a column twice by another name": ("rotation,turn\n1,2\n2,3\n", "line 1 has 'rotation' twice"),
    "outside": ("rotation\n1\n31\n", "line 3"),
    "no number": ("rotation\n1\nnan\n", "line 3"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused_with_its_line(user, command, name):
    text, words = TABLES[name]
    (user / "t.csv").write_text(text)
    (user / "c.toml").write_text('[conditions]\nrotation = "±30 deg"\ntable = "t.csv"\n')
    code, told = command(f"{RUN} --conditions c.toml --out out")
    assert (code, words in told) == (2, True), told


def test_a_condition_comes_from_a_table_or_a_sampler(user, command):
    (user / "t.csv").write_text("rotation\n1\n2\n")
    (user / "s.py").write_text("def draw(u): return {'rotation': 0 * u[:, 0]}\n")
    both = 'rotation = "±8 deg"\ntable = "t.csv"\nsampler = "s.py:draw"\n'
    (user / "c.toml").write_text(f"[conditions]\n{both}")
    code, told = command(f"{RUN} --conditions c.toml --out out")
    assert (code, "s.py:draw gives 'rotation', which the table" in told) == (2, True), told


SAMPLERS = {
    "raises": "raise ValueError('no')",
    "exits": "import sys; sys.exit(0)",
    "leaves": "import os; os._exit(0)",
    "nothing": "return None",
    "words": "return 'rotation'",
    "a list": "return [u[:, 0]]",
    "no numbers": "return {'rotation': u[:, 0] * float('nan')}",
    "too few": "return {'rotation': u[:3, 0]}",
    "an extra column": "return {'rotation': u[:, 0], 'shift': u[:, 0]}",
    "far outside": "return {'rotation': u[:, 0] * 1000}",
    "complex": "return {'rotation': u[:, 0] + 1j}",
    "random": "import random; return {'rotation': u[:, 0] * random.random()}",
    "by the number of rows": "return {'rotation': u[:, 0] * len(u) / 1000}",
    "by the mean of all rows": "return {'rotation': 0 * u[:, 0] + u.mean()}",
    "sorted": "u.sort(0); return {'rotation': u[:, 0]}",
    "endless": "while True: pass",
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_is_none_ends_the_run_before_it_begins(user, command, name, monkeypatch):
    monkeypatch.setattr("hardcase.conditions.box.PATIENCE", 1.0)
    (user / "s.py").write_text(f"def draw(u):\n    {SAMPLERS[name]}\n")
    (user / "c.toml").write_text('[conditions]\nrotation = "±30 deg"\nsampler = "s.py:draw"\n')
    code, told = command(f"{RUN} --conditions c.toml --out out")
    assert (code, "s.py:draw" in told) == (2, True), told
    assert not (user / "out").exists()


def test_an_own_declaration_may_have_the_form_of_the_packaged_ones(user):
    from hardcase.conditions.declared import Conditions

    file = user / "line.toml"
    file.write_text(
        'about = "A camera over a belt."\n\n[ranges]\n'
        'rotation = { range = "±3 deg", why = "a part laid askew" }\nblur = "0..2 %"\n'
    )
    found = Conditions.load(str(file))
    assert found.about == "A camera over a belt."
    assert found.ranges["rotation"].why == "a part laid askew"
    assert set(found.ranges) == {"rotation", "defocus"}
    file.write_text('name = "belt"\n[ranges]\nrotation = "±3 deg"\nturn = "±1 deg"\n')
    with pytest.raises(HardcaseError, match=r"line.toml, line 4: conditions.turn"):
        Conditions.load(str(file))


@pytest.mark.parametrize("kind", ["pipe", "zero", "folder", "large"])
def test_only_plain_files_of_a_bounded_size_are_read(user, command, kind):
    place = user / "c.toml"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "zero":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    else:
        with place.open("wb") as file:
            file.truncate(2**33)
    began = time.monotonic()
    code, told = command(f"{RUN} --conditions c.toml --out out")
    assert (code, "c.toml cannot be read" in told) == (2, True), told
    assert time.monotonic() - began < 10


def test_a_link_to_a_plain_file_is_read(tmp_path):
    (tmp_path / "real.toml").write_text("a = 1")
    (tmp_path / "link.toml").symlink_to("real.toml")
    assert parse_toml(read_text(tmp_path / "link.toml")) == {"a": 1}


BROKEN = "[hardcase.data]\nbroken = lost:made\n[hardcase.verbs]\nlose = lost:made\n"


@pytest.mark.parametrize("source", ["raise ImportError('no')", "raise SystemExit(0)", "1 / 0"])
def test_a_broken_plug_in_concerns_only_who_names_it(user, command, monkeypatch, source):
    install(user, monkeypatch, "lost", source, BROKEN)
    assert command(f"{RUN} --conditions none --out out")[0] == 0
    assert "broken" in names("data")
    code, told = command(RUN.replace("npz:toy.npz", "broken"))
    assert (code, "entry point lost:made" in told) == (2, True), told
    code, told = command("lose")
    assert (code, "lost:made" in told) == (2, True), told


def test_native_code_is_asked_to_end_when_its_time_is_over():
    asked = []

    def native():
        """A call that hears no signal until it is asked to end."""
        late = None
        last = time.monotonic() + 4
        while not asked and time.monotonic() < last:
            try:
                time.sleep(0.05)
            except Unanswered as error:
                late = error
        raise late

    with pytest.raises(Unanswered), within(0.2), cancelled_by(lambda: asked.append(1)):
        native()
    assert asked


HOLDS = """
import collections, itertools, sys
from hardcase import errors
errors.LOST = errors.GRACE = 0.2
errors.end_lost_calls(True)
with errors.within(0.2):
    collections.deque(itertools.repeat(0), maxlen=0)  # holds the interpreter's lock for ever
"""


def test_code_that_holds_the_interpreters_lock_ends_the_command_with_its_line(tmp_path):
    (tmp_path / "holds.py").write_text(HOLDS)
    done = subprocess.run(
        [sys.executable, "holds.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "holds.py" in done.stderr) == (1, True)
    assert ", line 7 in <module>" in done.stderr
