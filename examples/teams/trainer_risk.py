"""Train a tiny vision transformer with Hugging Face's Trainer; its best checkpoint has the least risk."""

from pathlib import Path

import torch
from digits import pixels
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from hardcase_teams.huggingface import RobustnessCallback


class Digits(Dataset):
    def __init__(self, split: str, count: int) -> None:
        self.images = pixels(count, split)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images.x[index].float() / 255, "labels": self.images.y[index]}


def main(folder: str | Path = "trained", epochs: int = 3) -> Trainer:
    torch.manual_seed(0)
    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    net = ViTForImageClassification(ViTConfig(image_size=28, patch_size=7, num_channels=1, num_labels=10, **tiny))
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="risk",
        greater_is_better=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(net, arguments, train_dataset=Digits("train", 320), eval_dataset=Digits("test", 64))
    RobustnessCallback("scanner", count=24, draws=8).attach(trainer)  # the line
    trainer.train()
    return trainer


if __name__ == "__main__":
    for row in main().state.log_history:
        if "eval_risk" in row:
            print(f"epoch {row['epoch']:.0f}: risk {row['eval_risk']:.3f}")
