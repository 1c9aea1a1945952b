"""The study of repairs: controls that are what they say, goals by intervals over trainings, cells that are kept."""

import numpy as np
import pytest
import torch

from hardcase.conditions import Conditions, condition_box
from hardcase.config import assign
from hardcase.tensors import from_bytes
from hardcase_studies import repair
from hardcase_studies.bench import Bench
from tiny import bars, trained_bars


def test_augmix_mixes_images_with_changes_of_themselves():
    x = from_bytes(bars(24).x)
    keys = torch.arange(24)
    y = bars(24).y
    made = repair.augmix(torch.nn.Identity(), x, y, keys)
    assert made.shape == (24, 1, 1, 12, 12)
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert torch.equal(made, repair.augmix(torch.nn.Identity(), x, y, keys))
    assert torch.equal(made[5:9], repair.augmix(torch.nn.Identity(), x[5:9], y[5:9], keys[5:9])), (
        "rows are alone"
    )
    assert not torch.equal(made, repair.augmix(torch.nn.Identity(), x, y, keys + 24))
    change = (made[:, 0] - x).abs().mean()
    assert 0.005 < float(change) < 0.2


def test_findings_of_the_control_fail_and_keep_their_labels():
    subject = trained_bars()
    box = condition_box(Conditions({"shift": "±20 %", "exposure": "±2 stops"}), (1, 12, 12))
    found = repair._findings(subject, bars(60), box, seed=0)
    assert bool((subject(from_bytes(found.x)).logits.argmax(1) != found.y).all())
    named = dict(zip(bars(60).id, bars(60).y.tolist()))
    assert [named[name] for name in found.id] == found.y.tolist()


@pytest.mark.parametrize(
    ("values", "sign", "goal", "word"),
    [
        ([0.8, 0.82, 0.78, 0.81], ">=", 65, "reached"),
        ([0.5, 0.52, 0.48, 0.51], ">=", 65, "missed"),
        ([0.5, 0.9, 0.3, 0.8], ">=", 65, "open"),
        ([-0.05, -0.06, -0.04], "<", 0, "reached"),
        ([0.001, 0.0012, 0.0011], "<=", 0.2, "reached"),
        ([0.8, 0.9], ">=", 65, "open"),
    ],
)
def test_a_goal_is_reached_by_its_interval(values, sign, goal, word):
    assert repair._goal("figure", np.array(values), sign, goal)[-1] == word


def test_trainings_are_kept_and_shared_between_processes(tmp_path, monkeypatch):
    made = []

    def training(bench, number):
        made.append(number)
        rng = np.random.default_rng(number)
        size = len(repair.ARMS) * len(repair.FIGURES)
        return [0.02 + 0.001 * float(one) for one in rng.random(size)]

    monkeypatch.setattr(repair, "_training", training)

    def bench(*settings):
        return Bench(out=tmp_path, repeats=4, options=assign({}, settings))

    repair.run(bench("part=0:2"))
    repair.run(bench("part=1:2"))
    assert sorted(made) == [0, 1, 2, 3]
    outcome = repair.run(bench())
    assert len(made) == 4, "the command without parts reads what the others made"
    goals, arms, beside = outcome.tables
    assert [row[0] for row in arms.rows] == list(repair.ARMS)
    assert {row[-1] for row in goals.rows} <= {"reached", "missed", "open"}
    assert len(beside.rows) == 30
    assert "4 trainings" in goals.notes[0]
