"""What a rater waits for: answers of fifty simulated raters at once, one server process, SQLite on disk.

No people take part. Raters answer after a pause of about a second, as the fastest of people would,
and then without any pause, which is the most the server can do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from hardcase_study.exchange import read_npz

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "study"))

COMMAND = "python -m benchmarks study"
RATERS, ITEMS = 50, 20


def figures() -> Iterator[Figure]:
    for pause, words in ((1.0, "a second between answers"), (0.0, "no pause between answers")):
        times = np.array(answered(pause))
        for share in (50, 95):
            yield Figure(
                name=f"study: p{share} of an answer, {RATERS} raters at once, {words}",
                value=1000 * float(np.percentile(times, share)),
                unit="ms",
                against=f"{len(times)} answers over HTTP, on disk when acknowledged",
                command=COMMAND,
            )


def answered(pause: float) -> list[float]:
    """Seconds that each answer took, from sending to being told that it is stored."""
    from killing_study import Rater, Server, free_port

    with tempfile.TemporaryDirectory() as folder:
        server = Server(made(Path(folder)), free_port())
        server.start()
        raters = [Rater(server.port, seed, pause=pause) for seed in range(RATERS)]
        for one in raters:
            one.start()
        for one in raters:
            one.join()
        server.kill()
        wrong = [one.error for one in raters if one.error is not None]
        if wrong:
            raise wrong[0]
        return [seconds for one in raters for seconds in one.times]


def made(folder: Path) -> Path:
    """A study of noise with a list for every rater; what is shown does not matter here."""
    from dataclasses import replace

    from hardcase_study import bundle

    rng = np.random.default_rng(0)
    np.savez(
        folder / "noise.npz",
        images=rng.integers(0, 255, (ITEMS, 28, 28), dtype=np.uint8),
        expected=rng.integers(0, 10, ITEMS),
        predicted=np.full(ITEMS, 9),
        generator=np.array(["noise"] * ITEMS),
        rater1=rng.integers(0, 10, ITEMS),
    )
    whole = read_npz(folder / "noise.npz", folder / "rated")
    lists = [list(whole.items)] * (2 * RATERS)
    settings = {**whole.settings, "raters": RATERS}
    items = [replace(item) for item in whole.items.values()]
    pixels = {name: whole.image(name).read_bytes() for name in whole.stimuli}
    fresh = bundle.write(
        folder / "study", settings, items, list(whole.stimuli.values()), pixels, lists
    )
    return fresh.folder
