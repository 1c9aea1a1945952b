"""Train a digit classifier with Lightning and log its risk after every other validation."""

from pathlib import Path

import lightning.pytorch as pl
import torch
from digits import network, pixels
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hardcase_teams.lightning import Robustness


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


def loader(split: str, count: int) -> DataLoader:
    images = pixels(count, split)
    return DataLoader(TensorDataset(images.x.float() / 255, images.y), batch_size=64)


def main(folder: str | Path = "logs", epochs: int = 6) -> list[float]:
    robustness = Robustness("scanner", every=2, best=Path(folder) / "best.ckpt", count=40)  # the line
    logger = pl.loggers.CSVLogger(folder)
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", logger=logger, callbacks=[robustness], enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Digits(), loader("train", 640), loader("test", 64))
    rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("risk")
    return [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]


if __name__ == "__main__":
    for risk in main():
        print(f"risk {risk:.3f}")
