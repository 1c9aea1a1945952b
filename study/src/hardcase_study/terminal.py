"""``hardcase judge RUN --ask N``: a person at the terminal looks at failures of judged runs.

Images are drawn in half blocks where the terminal has colours, and are PNG files beside the run
otherwise. Nothing that is shown tells the seed's class, the model's answer or the judge's verdict.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.color import Color, ColorSystem
from rich.console import Console

from hardcase.cache import write_atomically
from hardcase.cli.options import note, shown
from hardcase.errors import HardcaseError
from hardcase.judges.answers import NONE, UNSURE, AnswerFile, PersonAnswer
from hardcase_study.asking import Choice, Draw, RatingSession, SessionStatus, most_in_doubt
from hardcase_study.entering import enter_people, questions_about

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8
    from torch import Tensor

    from hardcase.runs.results import Run

COLUMNS = 56
"""Width of an image on the terminal; 28 pixels are drawn twice as large."""
SHARP = 64
"""A larger image loses details in half blocks, so its file is named as well."""
CHECK_EVERY = 8
"""Of so many questions one is about a real image whose class is known."""
ALL_CLASSES = 12
OFFERED = 6
"""All classes are offered up to so many; beyond, the two in question among others."""
STOP = "q"


def ask(
    runs: Sequence[Run],
    *,
    budget: int,
    limit: float | None = None,
    seed: int = 0,
    choose: Choice = "random",
) -> None:
    """Ask whoever sits at the terminal about judged runs; the answers are kept with the runs, whose
    next judgement enters them into the verdicts.

    Args:
        runs: Judged runs.
        budget: Questions at most, about all runs together.
        limit: The share of confirmed failures that is to be decided.
        seed: Of the drawing.
        choose: How questions are chosen: at random, or by doubt.
    """
    if budget < 1:
        raise HardcaseError(f"--ask {budget} asks nothing.", fix="--ask 20")
    sessions = [_session(run, budget, limit, seed, choose) for run in runs]
    for one in sessions:
        note(_opening(one.questions.status(), len(one.rows), budget))
    try:
        for _ in range(budget):
            place = most_in_doubt([one.questions for one in sessions])
            if place is None:
                break
            note(_progress(sessions[place].ask_next()))
    except (EOFError, KeyboardInterrupt):
        note("stopped; the answers so far are kept")
    finally:
        for one in sessions:
            one.clear()
    for one in sessions:
        if one.questions.answers:
            entry = enter_people(one.run, one.questions)
            note(_ending(one.questions.status(), entry["asked"]["left_out"]))


def _session(
    run: Run, budget: int, limit: float | None, seed: int, choose: Choice
) -> _TerminalSession:
    """Make the questions about a run ready."""
    questions, rows = questions_about(run, budget=budget, limit=limit, seed=seed, choose=choose)
    checks = _checks(run, budget, seed)
    return _TerminalSession(run, questions, rows, checks, AnswerFile(run.folder), seed)


@dataclass
class _TerminalSession:
    """Questions about one run, where images are shown and answers are typed."""

    run: Run
    questions: RatingSession
    rows: Sequence[int]
    checks: Mapping[int, int]
    answers: AnswerFile
    seed: int
    shown: int = 0

    def ask_next(self) -> SessionStatus:
        """Draw a question, store it, ask it, store the answer."""
        draw = self.questions.draw()
        assert draw is not None
        if draw.number in self.checks:
            self._ask_check(self.checks[draw.number])
        row = self.rows[draw.row]
        name = self.questions.population.ids[draw.row]
        self.answers.ask(name, asdict(draw))
        expected, predicted = (
            int(self.run.findings[column][row].as_py()) for column in ("expected", "predicted")
        )
        word, seconds = self.ask(self.run.images([row])[0], expected, predicted)
        label = self.run.classes[expected]
        self._store(name, word, label, seconds, draw)
        self.questions.answer(draw.number, word == label)
        return self.questions.status()

    def _store(self, image: str, word: str, label: str, seconds: float, draw: Draw | None) -> None:
        """Store an answer; without `draw` it is a check."""
        chance, rule = None, "a check: a real image"
        if draw is not None:
            chance, rule = draw.probability, draw.rule
        self.answers.add(
            PersonAnswer(
                image,
                word,
                label,
                self.answers.rater,
                round(seconds, 3),
                chance,
                rule,
                self.answers.session,
                draw is None,
            )
        )

    @property
    def folder(self) -> Path:
        """Files of images that are asked about, while they are."""
        return self.run.folder / "asking"

    def _ask_check(self, row: int) -> None:
        """Show a real image; nothing tells that it is one."""
        name, label = (self.run.seeds[column][row].as_py() for column in ("id", "label"))
        self.answers.ask(name, {"check": True})
        word, seconds = self.ask(self.run.seed_images([row])[0], label, -1)
        self._store(name, word, self.run.classes[label], seconds, None)

    def ask(
        self, image: UInt8[Tensor, "c h w"], expected: int, predicted: int
    ) -> tuple[str, float]:
        """Show an image and return the class that was named, and after how many seconds."""
        import numpy as np

        self.shown += 1
        rng = np.random.default_rng((self.seed, self.shown))
        keys = choices(self._offered(expected, predicted, rng))
        self._show(image)
        start = time.monotonic()
        listed = "  ".join(word if key == word else f"{key} {word}" for key, word in keys.items())
        while True:
            sys.stderr.write(f"What does it show?  {listed}  {STOP} stop: ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line or line.strip().lower() == STOP:
                raise EOFError
            word = keys.get(line.strip().lower())
            if word is not None:
                return word, time.monotonic() - start
            note(f"{line.strip()[:20]!r} is none of the answers")

    def _offered(self, expected: int, predicted: int, rng: np.random.Generator) -> list[str]:
        """All classes, or the two in question among others, in their order."""
        classes = self.run.classes
        count = len(classes)
        if count <= ALL_CLASSES:
            return list(classes)
        asked = {expected, predicted} & set(range(count))
        others = [i for i in rng.permutation(count).tolist() if i not in asked]
        return [classes[i] for i in sorted([*asked, *others[: OFFERED - len(asked)]])]

    def _show(self, image: UInt8[Tensor, "c h w"]) -> None:
        from hardcase import tensors

        colours = colours_of(Console(file=sys.stderr))
        if colours is not None:
            sys.stderr.write("\n" + half_blocks(image.permute(1, 2, 0).numpy(), colours) + "\n")
        if colours is not None and max(image.shape[1:]) <= SHARP:
            return
        times = max(1, 280 // max(image.shape[1:]))
        large = image.repeat_interleave(times, 1).repeat_interleave(times, 2)
        name = f"{self.shown}.png"  # the same for a check
        path = write_atomically(self.folder / name, tensors.encode(large), flush=False)
        note(f"image  {shown(path)}")
        if sys.stderr.isatty() and colours is None:
            typer.launch(str(path))

    def clear(self) -> None:
        """Remove the files of images."""
        shutil.rmtree(self.folder, ignore_errors=True)


def choices(names: list[str]) -> dict[str, str]:
    """A key for each answer: the class itself where that is one letter of its own, else a number.

    >>> list(choices(["7", "9"])), list(choices(["cat", "dog"]))
    (['7', '9', 'n', 'u'], ['1', '2', 'n', 'u'])
    """
    short = [name.lower() for name in names]
    alone = all(len(name) == 1 and name not in "nuq" for name in short)
    keys = short if alone and len({*short}) == len(short) else map(str, range(1, len(names) + 1))
    return {**dict(zip(keys, names)), "n": NONE, "u": UNSURE}


def colours_of(screen: Console) -> ColorSystem | None:
    """The colours that a terminal shows; None: too few for an image.

    >>> colours_of(Console(color_system="256")).name, colours_of(Console(color_system="standard"))
    ('EIGHT_BIT', None)
    """
    enough = {"truecolor": ColorSystem.TRUECOLOR, "256": ColorSystem.EIGHT_BIT}
    return None if screen.no_color else enough.get(str(screen.color_system))


def half_blocks(image: UInt8[np.ndarray, "h w c"], colours: ColorSystem) -> str:
    """An image as lines of ▀, whose two colours are two pixels one above the other.

    >>> import numpy as np
    >>> half_blocks(np.zeros((2, 1, 1), dtype=np.uint8), ColorSystem.TRUECOLOR).count("▀")
    1568
    """
    import numpy as np

    def paint(pixel: Any, *, foreground: bool) -> str:
        nearest = Color.from_rgb(*map(int, pixel)).downgrade(colours)
        return ";".join(nearest.get_ansi_codes(foreground))

    height, width = image.shape[:2]
    rows, columns = (np.arange(COLUMNS) * side // COLUMNS for side in (height, width))
    pixels = np.broadcast_to(image, (height, width, 3))[rows][:, columns]
    lines = []
    for above, below in zip(pixels[::2], pixels[1::2]):
        cells = [
            f"\x1b[{paint(a, foreground=True)};{paint(b, foreground=False)}m▀"
            for a, b in zip(above, below)
        ]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def _checks(run: Run, budget: int, seed: int) -> dict[int, int]:
    """Before which questions which images are shown: clear ones, on which the model was sure."""
    import numpy as np

    rng = np.random.default_rng((seed, 1))
    table = run.seeds.select(["label", "predicted", "confidence"]).to_pylist()
    right = [i for i, row in enumerate(table) if row["label"] == row["predicted"]]
    sure = sorted(right, key=lambda i: -table[i]["confidence"])[: max(len(right) // 2, 1)]
    count = min(max(1, budget // CHECK_EVERY), len(sure))
    places = rng.permutation(budget)[:count].tolist()
    return dict(zip(places, rng.permutation(sure)[:count].tolist()))


def _opening(now: SessionStatus, count: int, budget: int) -> str:
    wanted = "the confirmed rate to ± 5 percentage points"
    if now.limit is not None:
        wanted = f"whether the confirmed rate is within {now.limit:.1%}"
    text = (
        f"{count} failures stand for failing images; up to {budget} are asked about, and some real"
        f" images among them.\nwanted: {wanted}; about {now.more} answers would decide it"
    )
    if now.more > budget:
        text += f"\n{budget} answers will not, but they narrow the interval"
    return text


def _progress(now: SessionStatus) -> str:
    filled = round(20 * now.progress)
    bar = "█" * filled + "░" * (20 - filled)
    value = "?" if now.value is None else f"{100 * now.value:.0f}"
    return (
        f"{bar} after {now.answers}: {value} % of searched images confirmed"
        f" [{100 * now.low:.0f}, {100 * now.high:.0f}]; {_more(now)}"
    )


def _more(now: SessionStatus) -> str:
    if now.decided:
        return f"decided: {now.decision}"
    return f"about {now.more} more would decide"


def _ending(now: SessionStatus, left_out: int) -> str:
    if left_out:
        return (
            f"{left_out} answers are kept but count for nothing: in their session most real images"
            " were named wrongly"
        )
    return (
        f"{_more(now)}. The interval holds whenever one stops.\n"
        "One person's eyes: this shows what that person sees, not how much people differ;"
        " hardcase study new RUN --ask N asks several."
    )
