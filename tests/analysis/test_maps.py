"""Maps by the names of features: their cells, the search that fills them, and the map of a run."""

import pytest
import torch

import hardcase as hc
from hardcase.analysis.maps import STATES, Features, grid_from, grid_of, map_of_run, mapping, record
from hardcase.errors import HardcaseError
from hardcase.guides.archive import Archive
from hardcase.report import report
from hardcase.runs.results import Run
from hardcase.searches.genetic import Illumination
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, Images
from tiny import noise_method as method


def digits(count):
    """Slanted strokes on a black ground."""
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for i in range(count):
        for row in range(6, 22):
            left = 8 + i % 3 + (row * (i % 5)) // 10
            x[i, 0, row, left : left + 2 + i % 4] = 200
    y = torch.arange(count) % 2
    return Images(x, y, tuple(map(str, range(count))), ("a", "b"), name="strokes")


MAPPED = {"method": "pgd", "options": {"epsilon": 0.5}, "judge": False}


def test_axes_have_names_words_and_numbers_of_cells():
    grid = grid_of("brightness, tilt:4", digits(40))
    assert [(axis.name, axis.cells) for axis in grid.axes] == [("brightness", 10), ("slant", 4)]
    assert len(grid) == 40
    assert grid_from(record(grid)) == grid
    shown = from_bytes(digits(40).x)
    assert torch.equal(grid(shown), grid.index(Features(("brightness", "slant"), "figure")(shown)))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("brightness", "two or three"),
        ("brightness,brightness", "twice"),
        ("brightness,colour", "colour"),
        ("brightness,contrast:1", "2 to 40"),
        ("brightness,contrast:x", "2 to 40"),
        ("brightness,tilt", "feature of a photograph"),
    ],
)
def test_a_map_that_cannot_be_is_told(text, word):
    with pytest.raises(HardcaseError, match=word):
        grid_of(text, toy_images(20))


def test_a_method_becomes_a_search_that_fills_cells():
    grid = grid_of("brightness,contrast", toy_images(20))
    filled = mapping(method(), grid, margin=2.0)
    assert isinstance(filled.search, Illumination)
    (guide,) = filled.guides
    assert isinstance(guide, Archive)
    assert filled.until == "budget"
    assert filled.budget.queries == 800, "half of them for the method's own search"
    assert filled.search.first == method().search
    assert filled.search.queries == 400
    assert filled.search.ends
    with pytest.raises(HardcaseError, match="memory of its own"):
        mapping(filled, grid)


def at_most(read, count):
    """`read`, which may be asked for no more rows at a time."""

    def checked(self, rows=None):
        assert rows is not None
        assert len(rows) <= count
        return read(self, rows)

    return checked


def test_a_run_keeps_a_finding_per_seed_and_cell_and_its_map_agrees(tmp_path):
    asked = {**MAPPED, "map": "brightness:6,contrast:6", "budget": Budget(queries=150)}
    run = hc.run(toy_subject(), toy_images(6), out=tmp_path / "run", **asked)
    assert run.record["map"]["axes"][0]["name"] == "brightness"
    found = map_of_run(run)
    assert sum(row["visits"] for row in found["cells"]) == 6 * 150
    with pytest.MonkeyPatch.context() as few:
        few.setattr("hardcase.analysis.maps.TOGETHER", 2)
        for name in ("images", "seed_images"):
            few.setattr(Run, name, at_most(getattr(Run, name), 2))
        assert map_of_run(run) == found
    cells = [row for row in found["cells"] if row["example"]]
    assert len(cells) == found["counts"]["fails"] > 0
    assert sum(found["counts"].values()) == 36
    assert sum(row["failing_seeds"] for row in cells) == len(run.findings)
    assert {row["state"] for row in found["cells"]} <= set(STATES)
    by_id = {row["id"]: row for row in run.findings.to_pylist()}
    for row in cells:
        assert by_id[row["example"]]["original"] == row["original"]
    page = report(run)
    assert "Map of failures" in page.read_text(encoding="utf-8")
    again = hc.resume(tmp_path / "run", toy_subject(), toy_images(6), **asked)
    assert again.record["complete"]
    plain = hc.run(toy_subject(), toy_images(4), out=tmp_path / "plain", **MAPPED)
    assert map_of_run(plain) is None


def test_shards_rounds_and_workers_change_no_byte_of_a_map(tmp_path):
    parts = {}
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        asked = {**MAPPED, "map": "brightness:5,contrast:5", "budget": Budget(queries=20)}
        execution = hc.Execution(shard=2, rounds=2, workers=workers)
        hc.run(toy_subject(), toy_images(8), out=folder, execution=execution, **asked)
        files = sorted([*folder.glob("findings/*"), *folder.glob("state/deltas*")])
        parts[workers] = {path.name: path.read_bytes() for path in files}
    assert len(parts[1]) == 8
    assert parts[1] == parts[2]
