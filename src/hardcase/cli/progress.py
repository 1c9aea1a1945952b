"""A run while it goes on: the live screen and plain lines."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from time import monotonic
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hardcase.campaign.record import Counts
from hardcase.cli.options import clock, note, plural, show_above, shown, silence
from hardcase.report.words import budget
from hardcase.runs.progress import STOPPABLE, Progress, Stoppable
from hardcase.training.cards import TrainingProgress as Training
from hardcase.types import ClassNames
from hardcase.wording.search import kinds_in_words

SEARCHING = ("searching", "stopping", "stopped", "done")
"""Names of the phases of a search in which images are counted."""
OFTEN = 0.25
"""Seconds between two looks at the counts of the shard being searched."""


PACE_SECONDS = 5.0
"""Seconds of a search after which its speed says how long it takes at most."""
PACED = 5
"""Steps of a training after which the time left is printed."""
KEPT = 0.9
"""Share of the subject's accuracy that must be left on what a generator gives back."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, as numbers to be shown. `most`: seconds that are left if every seed
    spends its budget; an estimate before a shard is done."""

    phase: str
    elapsed: float
    seeds: int
    usable: int
    done: int
    running: int
    failing: int
    queries: int
    gradients: int
    speed: float
    left: float | None
    since_new: float | None
    confusions: tuple[tuple[str, int], ...]
    others: str
    most: float | None

    @property
    def waiting(self) -> int:
        return self.usable - self.done - self.running

    @property
    def skipped(self) -> int:
        return self.seeds - self.usable


@dataclass(frozen=True, slots=True)
class MeasuredSoFar:
    """How far a measurement is: `first` images of it were stored before it went on at `began`."""

    done: int
    of: int
    failing: int
    first: int
    began: float

    def left(self) -> float | None:
        """Seconds that the other images take at the pace so far; None: unknown yet."""
        fresh = self.done - self.first
        if not fresh:
            return None
        return (self.of - self.done) * (monotonic() - self.began) / fresh


class Front(Stoppable):
    """Collects progress; subclasses show it."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = list[str]()
        self.training: Training | None = None
        self.trained = dict[str, float]()
        self.paced = (monotonic(), 0)
        self.started = self.began = monotonic()
        self.usable = 0
        self.at_once = 0
        self.base = self.total = Progress()
        self.current = (0, 0, 0)
        self.looked = 0.0
        self.news: float | None = None
        self.measured: MeasuredSoFar | None = None

    def prepare(self, what: str) -> None:
        self.phase = f"preparing: {what}"
        self.training = None

    def enter(self, phase: str, record: dict[str, Any]) -> None:
        super().enter(phase, record)
        self.training = None
        if phase == "measure":
            self.began = monotonic()
            self.say_folder()

    def advance(self, done: int, total: int, failing: int) -> None:
        first = done if self.measured is None else self.measured.first
        self.measured = MeasuredSoFar(done, total, failing, first, self.began)

    def train(self, progress: Training) -> None:
        self.phase = "training"
        if self.training is None or self.training.what != progress.what:
            self.paced = (monotonic(), progress.step)
        self.training = progress
        if progress.step == progress.steps:
            self.trained[progress.what] = monotonic() - self.paced[0]
        if progress.warning:
            self.log(f"{progress.what}: {progress.warning}")

    def share(self) -> float:
        """The share of the search that is done, or of the training before it."""
        now = self.training
        if self.phase == "measuring" and self.measured is not None:
            return self.measured.done / max(self.measured.of, 1)
        if self.usable:
            return min(self.total.seeds / self.usable, 1.0)
        if now is None or now.what in self.trained:
            return 0.0
        return now.step / now.steps

    def left(self) -> float | None:
        """Seconds that the training which is going on still takes; None: unknown."""
        now = self.training
        if self.phase == "measuring" and self.measured is not None:
            return self.measured.left()
        if now is None or now.step - self.paced[1] < PACED:
            return None
        began, first = self.paced
        return (now.steps - now.step) * (monotonic() - began) / (now.step - first)

    def log(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, record: dict[str, Any], usable: int, at_once: int = 0) -> None:
        super().begin(record, usable)
        self.usable = usable
        self.at_once = at_once
        self.began = monotonic()
        self.say_folder()
        for text in doubts(record.get("generator") or {}):
            self.log(text)

    def say_folder(self) -> None:
        """Say once where the run goes."""
        if self.folder is not None:
            self.log(f"the run goes to {shown(self.folder)}")
            self.folder = None

    def on_step(self, counts: Counts) -> None:
        if monotonic() - self.looked < OFTEN:
            return
        self.looked = monotonic()
        failing = int((counts.failing > 0).sum())
        if failing > self.current[2]:
            self.news = self.looked
        self.current = (int(counts.queries.sum()), int(counts.gradients.sum()), failing)

    def shard(self, progress: Progress) -> None:
        first = self.total.shards == 0
        if not first and progress.failing > self.total.failing + self.current[2]:
            self.news = monotonic()
        self.base = progress if first else self.base
        self.total = progress
        self.current = (0, 0, 0)

    def standing(self) -> Standing:
        now = monotonic()
        total = self.total
        spent = max(now - self.began, 1e-9)
        fresh = total.seeds - self.base.seeds
        queries, gradients, failing = self.current
        searching = self.phase == "searching"
        ahead = self.usable - total.seeds
        stopping = self.stops and self.phase in STOPPABLE
        phase = "stopping after this shard" if stopping else self.phase
        budget = (self.record.get("budget") or {}).get("queries")
        unspent = self.usable * (budget or 0) - total.queries - queries
        speed = (total.queries + queries - self.base.queries) / spent
        paced = spent > PACE_SECONDS
        return Standing(
            phase=phase,
            elapsed=now - self.started,
            seeds=int(self.record.get("images", 0)),
            usable=self.usable,
            done=total.seeds,
            running=min(ahead, self.at_once) if searching else 0,
            failing=total.failing + failing,
            queries=total.queries + queries,
            gradients=total.gradients + gradients,
            speed=speed,
            left=ahead * spent / fresh if fresh and searching else None,
            since_new=None if self.news is None else now - self.news,
            confusions=self._confusions(),
            others=kinds_in_words(total.kinds) if set(total.kinds) - {"label"} else "",
            most=unspent / speed if budget and searching and speed and paced else None,
        )

    def _confusions(self, most: int = 4) -> tuple[tuple[str, int], ...]:
        names = ClassNames(self.record.get("classes", []))
        counted = Counter(self.total.confusions).most_common(most)
        return tuple(
            (f"{names[expected]}→{names[predicted]}", times)
            for (expected, predicted), times in counted
        )

    def open(self) -> None:
        """Begin to show."""

    def close(self) -> None:
        """Show for the last time."""

    def __enter__(self) -> Front:
        super().__enter__()
        silence.held = True
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.phase = "stopped" if any(error) or self.stops else "done"
        self.current = (0, 0, 0)
        self.close()
        silence.held = False
        super().__exit__(*error)


def doubts(card: Mapping[str, Any]) -> list[str]:
    """Whether a generator loses the label, which a user should know before a search."""
    before = card.get("judge_accuracy")
    after = card.get("reconstruction_accuracy")
    if not before or after is None or after >= KEPT * before:
        return []
    shares = f"{100 * after:.0f} % of the images it gives back, against {100 * before:.0f} % before"
    return [
        f"the generator loses the label: the model is right on {shares}; failures may show its"
        " flaws, not the model's"
    ]


def front(progress: str) -> Front:
    """The front end that ``--progress`` names; `auto` is live on a terminal and plain lines
    elsewhere."""
    live = progress == "live" or (progress == "auto" and sys.stderr.isatty())
    return Screen() if live else Lines()


TICK = 0.25
"""Seconds between two looks of the plain lines at where a run stands."""
SILENCE = 3.0
"""Seconds of silence after which a line reports the present step and its progress; the next such
line comes after twice as long, and so on, ..."""
EVERY = 30.0
"""... but no later than after so many seconds."""


class Lines(Front):
    """A line when something begins or ends, and lines in between that become rarer."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.silence = (monotonic(), SILENCE)
        self.thread = threading.Thread(target=self._tick, daemon=True)
        self.warned = False

    def write(self, text: str) -> None:
        """Print a line about something new; after it a silence may last `SILENCE`."""
        self.silence = (monotonic(), SILENCE)
        note(text)

    def log(self, text: str) -> None:
        super().log(text)
        self.write(f"note: {text}")

    def prepare(self, what: str) -> None:
        super().prepare(what)
        self.write(what)

    def enter(self, phase: str, record: dict[str, Any]) -> None:
        super().enter(phase, record)
        if phase != "search":  # which says from how many images, when it begins
            self.write(BEGINNINGS[phase])

    def train(self, progress: Training) -> None:
        if self.training is None or progress.what != self.training.what:
            begun = f"training {progress.what}: {progress.steps:,} steps"
            self.write(begun if progress.epochs else f"{progress.what}: {progress.steps:,} images")
        super().train(progress)
        if progress.step == progress.steps:
            done = "trained" if progress.epochs else "made"
            self.write(f"{done} {progress.what} in {clock(self.trained[progress.what])}")

    def begin(self, record: dict[str, Any], usable: int, at_once: int = 0) -> None:
        super().begin(record, usable, at_once)
        where = f"{record['method']} on {record['model']}, {record['data']}"
        self.write(f"searching with {where}: {usable} right of {record['images']} images")

    def open(self) -> None:
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        if self.usable:
            note(line(self.standing()))

    def _tick(self) -> None:
        while not self.over.wait(TICK):
            if self.stops and not self.warned:
                self.warned = True
                self.write("stopping after this shard, which is saved; Ctrl-C again stops at once")
            since, patience = self.silence
            if monotonic() - since >= patience:
                self.silence = (monotonic(), min(2 * patience, EVERY))
                note(self.progress_line())

    def progress_line(self) -> str:
        """The present step, its progress and the time left, if there is an estimate."""
        if self.training is not None and self.phase == "training":
            return training_line(self.training, self.left())
        if self.phase == "measuring" and self.measured is not None:
            return measured_line(self.measured, monotonic() - self.started)
        return line(self.standing())


BEGINNINGS = {
    "measure": "measuring; the first images say how long it takes",
    "check": "checking the label of each failure",
}
"""The line at the beginning of a phase."""


def measured_line(now: MeasuredSoFar, elapsed: float) -> str:
    """The progress of a measurement, in a line."""
    line = f"{clock(elapsed)} measuring: {now.done:,} of {now.of:,} images"
    left = now.left()
    if left is None:
        return line
    return f"{line}, {plural(now.failing, 'failing sample')}; about {clock(left)} left"


def line(now: Standing) -> str:
    """The progress of a run, in a line."""
    if not now.usable or not now.phase.startswith(SEARCHING):
        return f"{clock(now.elapsed)} {now.phase}"
    counts = f"{now.done:,} of {now.usable:,} images done, {now.failing:,} with a failure so far"
    if now.others:
        counts += f", {now.others}"
    parts = [counts, f"{now.queries:,} queries, {now.speed:,.0f} per second"]
    if now.left:
        parts.append(f"about {clock(now.left)} left")
    elif now.most:
        parts.append(f"at most {clock(now.most)} left")
    return f"{clock(now.elapsed)} {now.phase}: {'; '.join(parts)}"


def training_line(now: Training, left: float | None = None) -> str:
    if not now.epochs:  # what is made without epochs counts images
        return f"{now.what}: {now.step} of {now.steps} images"
    if now.step >= now.steps:
        return f"trained {now.what}; what comes next is made ready"
    rest = "" if left is None else f", about {clock(left)} left"
    return f"training {now.what}: epoch {now.epoch} of {now.epochs}{rest}"


NOTES = 5
"""Notes that fit the screen; the latest are shown."""


class Screen(Front):
    """The front end for a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or Console(file=sys.stderr, markup=False, highlight=False)
        self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)

    def open(self) -> None:
        self.restore = _without_caret()
        self.live.start()
        show_above(self.console.print)

    def close(self) -> None:
        show_above(None)
        self.live.stop()
        self.restore()

    def render(self) -> RenderableType:
        now = self.standing()
        title, body = "hardcase", self._preparing(now)
        if self.record:
            title = "{method} on {model}, {data}".format(**self.record)
        if now.usable and now.phase.startswith(SEARCHING):
            body = self._searching(now)
        notes = [Text(f"note  {text}", style="yellow") for text in self.notes[-NOTES:]]
        return Panel(
            Group(body, *notes),
            title=Text(title),
            subtitle=Text(self._hint(now)),
            title_align="left",
            subtitle_align="left",
            border_style="dim",
        )

    def _hint(self, now: Standing) -> str:
        if now.phase in ("searching", "measuring"):
            return "Ctrl-C: finish this shard, save and report; twice: stop at once"
        if now.phase.startswith("stopping"):
            return "Ctrl-C again: stop at once, this shard is redone on resume"
        return "Ctrl-C: stop; networks that are ready are kept" if self.training else ""

    def _preparing(self, now: Standing) -> RenderableType:
        table = self._whole(now)
        if self.training is not None and self.training.what not in self.trained:
            table.add_row("now", training_line(self.training))
        elif now.phase == "measuring" and self.measured is not None:
            done = self.measured
            table.add_row("images", f"{done.done:,} of {done.of:,} measured")
            table.add_row("failing", plural(done.failing, "sample"))
        elif ": " in now.phase:
            table.add_row("now", now.phase.partition(": ")[2])
        ready = [f"{what} ({clock(spent)})" for what, spent in self.trained.items()]
        if ready:
            table.add_row("ready", ", ".join(ready))
        return table

    def _whole(self, now: Standing) -> Table:
        """The single bar, of the present step."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        left = now.left if now.phase.startswith(SEARCHING) else self.left()
        rest = f" · about {clock(left)} left" if left and self.phase != "stopped" else ""
        word = now.phase.split()[0].removesuffix(":")
        table.add_row(word, f"{clock(now.elapsed)}{rest}")
        table.add_row("", ProgressBar(1.0, self.share(), width=40))
        return table

    def _searching(self, now: Standing) -> RenderableType:
        table = self._whole(now)
        table.add_row("budget", budget(self.record["budget"]) or "none")
        words = ("done", "running", "waiting", "skipped")
        table.add_row("images", " · ".join(f"{getattr(now, word):,} {word}" for word in words))
        tried = now.done + now.running
        table.add_row("failing", f"{now.failing:,} of {tried:,} images · accepted: not judged")
        if now.others:
            table.add_row("kept", now.others)
        last = "none yet" if now.since_new is None else f"{clock(now.since_new)} ago"
        table.add_row("last new", last)
        graded = f" · {now.gradients:,} gradients" if now.gradients else ""
        table.add_row("queries", f"{now.queries:,} · {now.speed:,.0f} per second{graded}")
        often = "   ".join(f"{pair} ×{times}" for pair, times in now.confusions)
        table.add_row("most often", often or "nothing yet")
        return table


def _without_caret() -> Callable[[], None]:
    """Ask the terminal not to write ^C into the screen; returns what undoes it."""
    if find_spec("termios") is None or sys.stdin is None or not sys.stdin.isatty():
        return lambda: None
    import termios

    before = termios.tcgetattr(sys.stdin)
    changed = [*before[:3], before[3] & ~termios.ECHOCTL, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    return lambda: termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
