"""One live screen: four updates a second, everything about a run at a glance."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hardcase.cli.lines import training_line
from hardcase.cli.speaking import clock
from hardcase.cli.watching import Front, Standing
from hardcase.report.words import budget

NOTES = 5
"""Notes that fit the screen; the latest are shown."""


class Screen(Front):
    """The front end for a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or Console(file=sys.stderr, markup=False, highlight=False)
        self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)

    def open(self) -> None:
        self.terminal = _without_caret()
        self.live.start()

    def close(self) -> None:
        self.live.stop()
        _restore(self.terminal)

    def render(self) -> RenderableType:
        now = self.standing()
        body = self._searching(now) if self.record else self._preparing()
        notes = [Text(f"note  {text}", style="yellow") for text in self.notes[-NOTES:]]
        return Panel(Group(body, *notes), title=Text(self._title()), subtitle=Text(self._hint(now)), title_align="left",
                     subtitle_align="left", border_style="dim")  # fmt: skip

    def _title(self) -> str:
        return "{method} on {model}, {data}".format(**self.record) if self.record else "hardcase"

    def _hint(self, now: Standing) -> str:
        if now.phase == "searching":
            return "Ctrl-C: finish this shard, save and report; twice: stop at once"
        return "Ctrl-C again: stop at once, this shard is redone on resume" if now.phase.startswith("stopping") else ""

    def _preparing(self) -> RenderableType:
        table = _grid()
        table.add_row(self.phase, clock(self.standing().elapsed))
        for latest in self.training.values():
            table.add_row("", training_line(latest))
            table.add_row("", ProgressBar(latest.steps, latest.step, width=40))
        return table

    def _searching(self, now: Standing) -> RenderableType:
        limits = budget(self.record["budget"])
        left = f" · about {clock(now.left)} left" if now.left else ""
        table = _grid()
        table.add_row(now.phase.split()[0], f"{clock(now.elapsed)}{left} · budget {limits or 'none'}")
        table.add_row("seeds", ProgressBar(max(now.usable, 1), now.done, width=40))
        counts = f"{now.done:,} done · {now.running:,} running · {now.waiting:,} waiting · {now.skipped:,} skipped"
        table.add_row("", counts)
        table.add_row("failing", f"{now.failing:,} of {now.done + now.running:,} seeds · confirmed: not judged")
        table.add_row("last new", "none yet" if now.since_new is None else f"{clock(now.since_new)} ago")
        graded = f" · {now.gradients:,} gradients" if now.gradients else ""
        table.add_row("queries", f"{now.queries:,} · {now.speed:,.0f} a second{graded}")
        often = "   ".join(f"{pair} ×{times}" for pair, times in now.confusions)
        table.add_row("most often", often or "nothing yet")
        return table


def _without_caret() -> list[Any]:
    """Ask the terminal not to write ^C into the screen; returns how it was, or nothing if there is no terminal."""
    if find_spec("termios") is None or sys.stdin is None or not sys.stdin.isatty():
        return []
    import termios

    before = termios.tcgetattr(sys.stdin)
    termios.tcsetattr(sys.stdin, termios.TCSANOW, [*before[:3], before[3] & ~termios.ECHOCTL, *before[4:]])
    return before


def _restore(terminal: list[Any]) -> None:
    if terminal:
        import termios

        termios.tcsetattr(sys.stdin, termios.TCSANOW, terminal)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    return table
