"""The worst of four draws in a Lightning training: one callback more than before."""

import lightning.pytorch as pl
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import hardcase as hc
from hardcase_teams.lightning import WorstOfKCallback


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 5, 2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(1152, 10),
        )
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 3e-3)


def main(epochs: int = 2) -> list[float]:
    train = hc.data.load("mnist5k", split="train").first(512)
    data = TensorDataset(train.x.float() / 255, train.y)
    net = Digits()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[WorstOfKCallback("scanner", draws=4)],  # the line
    )
    trainer.fit(net, DataLoader(data, batch_size=64, shuffle=True))
    return net.losses


if __name__ == "__main__":
    print(f"loss {main()[-1]:.3f}")
