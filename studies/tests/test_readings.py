"""Blind readings held against a judge, on bars: shares by method, noise, planted losses."""

import numpy as np
import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase_studies import readings
from tiny import bars, stored_run


@pytest.fixture
def read(tmp_path):
    """Thirty bars as they are and sixty that are dimmed; of every third another class was read, of every fifth nothing was asked."""
    images = bars(90, seed=5)
    x = images.x.numpy()
    changed = np.arange(90) >= 30
    dimmed = np.where(changed[:, None, None, None], x // 2, x)
    y = images.y.numpy().astype(np.int64)
    digit = np.where(np.arange(90) % 3 == 0, (y + 1) % 3, y)
    digit[np.arange(90) % 5 == 4] = -2
    return {
        "images": dimmed, "originals": x, "expected": y, "digit": digit,
        "method": np.where(changed, "dimmer", readings.UNMODIFIED),
        "noise": np.full(90, -1), "chosen": np.array("all of them"),
    }  # fmt: skip


@pytest.mark.usefixtures("quick_judge")
def test_what_was_read_is_counted_by_method_and_the_outcome_is_named_after_the_file(
    bench, read, tmp_path, written
):
    np.savez(tmp_path / "latent.npz", **read)
    small = bench(readings=str(tmp_path / "latent.npz"))
    outcome = readings.run(small)
    assert outcome.name == "blind-readings-latent"
    (table,) = outcome.tables
    counts = {row[0]: row[1] for row in table.rows}
    assert counts["dimmer, judge 0"] == counts[f"{readings.ALL}, judge 1"] == 48
    assert counts[f"{readings.UNMODIFIED}, judge 0"] == 24
    kept = int(((read["digit"] == read["expected"]) & (read["method"] == "dimmer")).sum())
    assert table.rows[0][2].startswith(f"{kept} of 48")
    assert "all of them" in written(outcome, small)


@pytest.mark.usefixtures("quick_judge")
def test_noise_that_was_read_is_ranked_and_how_sure_the_reader_was_is_told(bench, read, tmp_path):
    loud = np.arange(90) % 2 > 0
    plain = read["originals"] // 2
    noisy = plain + (40 * loud[:, None, None, None]).astype(np.uint8)
    read |= {"images": noisy, "originals": plain, "noise": 2 * loud, "sure": ~loud}
    np.savez(tmp_path / "readings.npz", **read)
    outcome = readings.run(bench(readings=str(tmp_path / "readings.npz")))
    verdicts, noise = outcome.tables
    assert outcome.name == "blind-readings"
    assert noise.rows[0][2].startswith("1.000")
    assert "reader unsure, judge 1" in [row[0] for row in verdicts.rows]


def test_a_file_that_lacks_an_array_is_said(bench, tmp_path):
    with pytest.raises(HardcaseError, match="readings=FILE"):
        readings.run(bench())
    np.savez(tmp_path / "short.npz", images=np.zeros(1))
    with pytest.raises(HardcaseError, match="originals"):
        readings.run(bench(readings=str(tmp_path / "short.npz")))


@pytest.mark.usefixtures("quick_judge")
def test_controls_are_planted_as_often_as_asked(bench, read, tmp_path):
    np.savez(tmp_path / "latent.npz", **read)
    images = bars(40, seed=6)
    about = {
        "method": "made", "model": "nobody", "data": "bars", "split": "test", "classes": ["0", "1", "2"], "complete": True,
        "shape": [1, 12, 12], "seed": 0, "budget": {}, "totals": {"queries": 40}, "elapsed": 1.0,
        "hashes": {"model": "s", "peers": [], "generator": None, "guides": {}, "data": "d"},
    }  # fmt: skip
    stored_run(tmp_path / "run", images.x, images.y, torch.arange(40), images.x // 2, record=about)
    given = {"readings": str(tmp_path / "latent.npz"), "runs": str(tmp_path / "run"), "sets": 2}
    table = readings.run(bench(**given)).tables[-1]
    assert len(table.rows) == 2
    assert table.rows[0][-1].endswith(" of 24")
    assert "2 set(s)" in table.notes[0]
