"""The Lightning callback: batches are made harder before their step."""

import runpy
from pathlib import Path

import pytest
import torch

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is an extra: hardcase[lightning]")

from hardcase.errors import Problem  # noqa: E402
from hardcase.lightning import HardestCallback  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "repair" / "lightning_loop.py"


def test_the_example_trains_on_harder_images():
    losses = runpy.run_path(str(EXAMPLE))["main"](epochs=3)
    assert sum(losses[-4:]) / 4 < sum(losses[:4]) / 4 - 0.3


def test_part_of_the_batch_is_replaced_and_the_count_is_kept():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    callback = HardestCallback({"shift": "±20 %"}, draws=2)
    callback.on_train_start(None, net)
    x = torch.rand(8, 1, 12, 12)
    batch = [x.clone(), torch.zeros(8, dtype=torch.int64)]
    callback.on_train_batch_start(None, net, batch, 0)
    assert not torch.equal(batch[0][:4], x[:4])
    assert torch.equal(batch[0][4:], x[4:])
    assert callback.state_dict() == {"seen": 8}
    again = HardestCallback({"shift": "±20 %"}, draws=2)
    again.load_state_dict(callback.state_dict())
    again.on_train_start(None, net)
    assert again.hard.seen == 8
    with pytest.raises(Problem, match="images, labels"):
        callback.on_train_batch_start(None, net, {"x": x}, 0)
