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
import torch

from benchmarks.figures import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "study" / "tests"))

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
    from hardcase.tensors import encode_all
    from hardcase_study import bundle
    from hardcase_study.assignment import Sizes
    from hardcase_study.forms import Item, Stimulus
    from hardcase_study.power import precision

    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 255, (ITEMS, 1, 28, 28), dtype=np.uint8))
    classes = tuple(map(str, range(10)))
    stimuli = [Stimulus(f"image{i}", "test", str(i), i % 10, 9) for i in range(ITEMS)]
    items = [Item(f"item{i}", "label", (f"image{i}",), labels=classes) for i in range(ITEMS)]
    settings = {
        "id": "noise",
        "design": "label",
        "title": "",
        "thing": "",
        "language": "en",
        "classes": classes,
        "raters": RATERS,
        "per_rater": ITEMS,
        "checks": 0,
        "repeats": 0,
        "votes": RATERS,
        "stop": False,
        "seed": 0,
        "runs": {},
        "main_items": ITEMS,
        "spare_lists": 0,
        "power": precision(Sizes(raters=RATERS, per_rater=ITEMS, checks=0), ITEMS),
    }
    images = {one.id: data for one, data in zip(stimuli, encode_all(pixels))}
    lists = [[item.id for item in items]] * (2 * RATERS)
    fresh = bundle.write(folder / "study", settings, items, stimuli, images, lists)
    return fresh.folder
