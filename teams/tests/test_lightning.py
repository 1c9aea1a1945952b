"""Lightning's callbacks: the failure rate after validation, harder batches before their step."""

import runpy
from pathlib import Path

import pytest
import torch

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is an extra: hardcase[lightning]")

from hardcase.errors import HardcaseError  # noqa: E402
from hardcase_teams.entry_points import lightning_callbacks  # noqa: E402
from hardcase_teams.lightning import Robustness, WorstOfKCallback  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "repair" / "lightning_loop.py"


def test_the_example_trains_on_harder_images():
    losses = runpy.run_path(str(EXAMPLE))["main"](epochs=3)
    assert sum(losses[-4:]) / 4 < sum(losses[:4]) / 4 - 0.3


def test_part_of_the_batch_is_replaced_and_the_count_is_kept():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    callback = WorstOfKCallback({"shift": "±20 %"}, draws=2)
    callback.on_train_start(None, net)
    x = torch.rand(8, 1, 12, 12)
    batch = [x.clone(), torch.zeros(8, dtype=torch.int64)]
    callback.on_train_batch_start(None, net, batch, 0)
    assert not torch.equal(batch[0][:4], x[:4])
    assert torch.equal(batch[0][4:], x[4:])
    assert callback.state_dict() == {"seen": 8}
    again = WorstOfKCallback({"shift": "±20 %"}, draws=2)
    again.load_state_dict(callback.state_dict())
    again.on_train_start(None, net)
    assert again.hard.seen == 8
    with pytest.raises(HardcaseError, match="images, labels"):
        callback.on_train_batch_start(None, net, {"x": x}, 0)


class Small(pl.LightningModule):
    """Whose learning can be switched off."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fitted(tmp_path, *callbacks, epochs=4):
    torch.manual_seed(0)
    x, y = torch.rand(24, 1, 8, 8), torch.arange(24) % 3
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = pl.Trainer(max_epochs=epochs, logger=logger, callbacks=list(callbacks), **quiet)
    net = Small()
    trainer.fit(net, loader, loader)
    return trainer, net


def test_the_risk_is_logged_the_best_is_kept_and_learning_does_not_change(tmp_path):
    checkpoint = pl.callbacks.ModelCheckpoint(tmp_path / "kept", monitor="risk", save_top_k=4)
    risk = Robustness({"shift": "±20 %"}, every=2, best=tmp_path / "best.ckpt", count=12, draws=4)
    trainer, net = fitted(tmp_path, risk, checkpoint)
    _, plain = fitted(tmp_path / "plain")
    assert all(map(torch.equal, net.parameters(), plain.parameters()))
    rows = Path(trainer.logger.log_dir, "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("risk")
    logged = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]
    assert len(logged) == 2
    assert min(logged) == pytest.approx(risk.risk.best)
    measured = [float(value) for value in checkpoint.best_k_models.values() if value < float("inf")]
    assert sorted(measured) == pytest.approx(sorted(logged))
    assert float(checkpoint.best_model_score) == pytest.approx(min(logged))
    stored = torch.load(tmp_path / "best.ckpt", weights_only=False)
    again = Robustness({"shift": "±20 %"}, every=2)
    again.load_state_dict(next(v for k, v in stored["callbacks"].items() if "Robustness" in k))
    assert again.risk.best == risk.risk.best


def test_the_factory_attaches_nothing_unless_it_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("HARDCASE_LIGHTNING", raising=False)
    assert lightning_callbacks() == []
    monkeypatch.setenv("HARDCASE_LIGHTNING", "scanner")
    monkeypatch.setenv("HARDCASE_LIGHTNING_EVERY", "1")
    trainer, _ = fitted(tmp_path, epochs=1)
    assert [one.risk.every for one in trainer.callbacks if isinstance(one, Robustness)] == [1]
    assert 0 <= float(trainer.callback_metrics["risk"]) <= 1


def test_the_example_measures_every_other_epoch(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES / "teams"))
    found = runpy.run_path(str(EXAMPLES / "teams" / "lightning_risk.py"))["main"](
        tmp_path, epochs=4
    )
    assert len(found) == 2
    assert all(0 <= value <= 1 for value in found)
