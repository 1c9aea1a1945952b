"""Types the commands of the pages with one kind of model, and prints what came of each, as JSON.

``python cells.py KIND small|whole``: every command is typed in a fork of this one warmed process,
in the order of the pages; then the run is stopped in each phase, by Ctrl-C and by ``kill -9``, and
goes on with ``hardcase resume``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from time import monotonic

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    str(HERE.parent),
    *(str(HERE.parent / n) for n in ("torture", "end_to_end")),
]
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ["BROWSER"] = "true"

import disk  # noqa: E402
from kinds import DATA, KINDS, MODEL, serve  # noqa: E402
from pages import Typed, typed  # noqa: E402

PATIENCE = 600
"""Seconds that one command may take."""
FIRST, NEXT = "runs/first", "runs/next"
PHASES = {"measure": "measured", "search": "findings", "check": "verdicts"}
"""The phases of a run, and the folder that each writes."""
STOPS = {"kill": -signal.SIGKILL, "ctrl-c": 130}
"""How a run is stopped, and how its process ends then."""
DECISION = r"(MEASURED|PASS|FAIL|INCONCLUSIVE)\b"
GATED = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 4}
FIRST_WORD = {
    "doctor": r"ok\b",
    "run": DECISION,
    "resume": DECISION,
    "status": DECISION,
    "gate": r"(PASS|FAIL|INCONCLUSIVE)\b",
    "repair": r"(REPAIRED|NOT REPAIRED|REGRESSED ELSEWHERE|INCONCLUSIVE)\b",
}
"""What the output of a verb begins with."""
CODES = {"gate": {0, 1, 4}, "repair": {0, 1, 4}}
"""How a verb may end; all others end with 0."""
REFUSED = {
    "judge": lambda kind: kind.task != "classes" or kind.data != "mnist5k",
    "repair": lambda kind: kind.offers != "gradients",
    "coverage": lambda kind: kind.offers != "gradients",
}
"""Verbs that say why they cannot be done with a kind of model, and end with 2."""


def words_for(kind, command):
    """The words of a page with this kind's model and data in place of the page's."""
    exchanged = {MODEL: kind.model, DATA: kind.data}
    return [exchanged.get(word, word) for word in command.words]


def fork(work, folder):
    """Do `work` in a fork, in a folder; return how it ended and what it printed."""
    outputs = [folder / ".out", folder / ".err"]
    sys.stdout.flush()
    number = os.fork()
    if number == 0:
        code = 99
        try:
            os.chdir(folder)
            signal.alarm(PATIENCE)
            for handle, path in zip((1, 2), outputs):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), handle)
            sys.stdin = open(os.devnull)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0)
    _, status = os.waitpid(number, 0)
    out, err = (path.read_text(errors="replace") for path in outputs)
    return os.waitstatus_to_exitcode(status), out, err


def command_line(words):
    from hardcase.cli.main import main

    return lambda: main(words)


def block(text, kind):
    """A Python block of a page, with the network and the data set that it takes as given."""

    def work():
        from hardcase.errors import file_member

        net = file_member(Path("net.py"), "make")()
        exec(compile(text, "page", "exec"), {"net": net, "dataset": kind.data})
        return 0

    return work


def stopping(words, phase, how):
    """A command that is stopped when the first part of a phase is about to be in its place."""

    def work():
        stopped = []

        def step(name, path):
            part = path.parent.name == PHASES[phase] and path.name.startswith("part")
            if name == "written" and part and not stopped:
                stopped.append(path)
                os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGINT)

        disk.fault(step)
        return command_line(words)()

    return work


def kept(folder):
    """What must be the same in the end, however a run came about."""
    record = json.loads((folder / "run.json").read_text())
    names = ("risk", "funnel", "totals", "kinds", "hashes")
    parts = {
        f"{place}/{path.name}": path.read_bytes()
        for place in PHASES.values()
        for path in sorted((folder / place).glob("part-*"))
    }
    states = {name: one["status"] for name, one in record["phases"].items()}
    return parts, {name: record.get(name) for name in names}, states


def judged(command, kind, code, out, err):
    """What is wrong with how a command ended, in words; nothing if all is well."""
    said = out.lstrip()
    verb = command.name
    if "unforeseen" in err or "Traceback" in err or "internal error" in err:
        return "an error that nobody foresaw"
    if REFUSED.get(verb, lambda kind: False)(kind):
        if code != 2 or not re.search(r"^error: ", err, re.M):
            return f"it should be refused with 2, and ended with {code}"
        return ""
    if code not in CODES.get(verb, {0}):
        return f"it ended with {code}"
    if not re.match(FIRST_WORD.get(verb, ""), said):
        return f"it began with {said[:60]!r}"
    if verb == "gate" and GATED[said.split()[0]] != code:
        return f"{said.split()[0]} does not go with {code}"
    return ""


class Matrix:
    """The cells of one kind of model."""

    def __init__(self, name, home):
        self.name = name
        self.kind = KINDS[name]
        self.home = home
        self.cells = []
        self.began = monotonic()

    def cell(self, name, code, out, err, wrong):
        tail = f"{out[-1200:]}\n{err[-2500:]}" if wrong else ""
        first = (out.split() or [""])[0]
        print(f"{name}: {code} {first} {wrong} {monotonic() - self.began:.0f} s", file=sys.stderr)
        self.cells.append(
            {
                "cell": f"{self.name}: {name}",
                "code": code,
                "first": first,
                "wrong": wrong,
                "said": tail,
            }
        )

    def undisturbed(self, commands):
        """Every command of the pages, in their order."""
        for command in commands:
            if NEXT in command.words and not (self.home / NEXT).exists():
                if (self.home / FIRST).exists():
                    shutil.copytree(self.home / FIRST, self.home / NEXT)
            work = command_line(words_for(self.kind, command))
            if command.python:
                if self.kind.model != MODEL or self.kind.task != "classes":
                    continue  # the block takes a network and its images
                shutil.rmtree(self.home / FIRST)
                work = block(command.python, self.kind)
            done = fork(work, self.home)
            self.cell(command.name, *done, judged(command, self.kind, *done))

    def stopped(self, run, stops):
        """The run, stopped and resumed, beside one that nobody stopped."""
        words = words_for(self.kind, run)
        whole = self.home / "whole"
        shutil.rmtree(self.home / FIRST, ignore_errors=True)
        code, out, err = fork(command_line(words), self.home)
        if code != 0:
            return self.cell("run again", code, out, err, f"it ended with {code}")
        shutil.copytree(self.home / FIRST, whole)
        expected = kept(whole)
        for phase, how in stops:
            name = f"{how} in {phase}, then resume"
            if expected[2][phase] == "skipped":
                continue  # this kind of model has no such phase
            shutil.rmtree(self.home / FIRST)
            code, out, err = fork(stopping(words, phase, how), self.home)
            if code != STOPS[how]:
                self.cell(name, code, out, err, f"stopped, it ended with {code}")
                continue
            code, out, err = fork(command_line(["resume", FIRST]), self.home)
            wrong = judged(Typed(("resume",)), self.kind, code, out, err)
            if not wrong:
                wrong = difference(kept(self.home / FIRST), expected)
            self.cell(name, code, out, err, wrong)
        return None


def difference(found, expected):
    """In what two runs differ, in words."""
    parts, record, states = found
    others = [name for name in {*parts, *expected[0]} if parts.get(name) != expected[0].get(name)]
    others += [name for name in record if record[name] != expected[1][name]]
    others += [name for name in states if states[name] != expected[2][name]]
    return f"other bytes than undisturbed: {', '.join(sorted(others))}" if others else ""


def warm():
    """Import what the verbs import, so that forks are quick."""
    for name in ("api", "cli.run", "cli.results", "cli.train", "cli.start", "cli.inspect", "repair",
                 "report.page", "suite.gate", "models.witnesses", "runs.phases", "judges.panel"):  # fmt: skip
        import_module(f"hardcase.{name}")
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)


def main(name, size):
    warm()
    kind = KINDS[name]
    os.environ.setdefault("HARDCASE_CACHE", tempfile.mkdtemp(prefix="hardcase-as-typed-cache-"))
    with tempfile.TemporaryDirectory(prefix="hardcase-as-typed-") as place:
        home = Path(place)
        os.chdir(home)
        server = None
        matrix = Matrix(name, home)
        kind.make()
        if kind.labels is not None:
            server, address = serve(kind.labels)
            matrix.kind = type(kind)(**{**vars(kind), "model": address})
        commands = [one for one in typed() if one.name not in ("demo", "init")]
        run = next(one for one in commands if one.name == "run")
        matrix.undisturbed(commands)
        matrix.stopped(run, chosen(name, size))
        if server is not None:
            server.shutdown()
    return matrix.cells


def chosen(name, size):
    """Where a run is stopped: everywhere, or of most kinds once (`small`)."""
    every = [(phase, how) for phase in PHASES for how in STOPS]
    if size == "whole" or name == "own network":
        return every
    return [("search", "kill")]


if __name__ == "__main__":
    told = os.dup(1)
    found = main(*sys.argv[1:])
    os.write(told, json.dumps(found).encode())
