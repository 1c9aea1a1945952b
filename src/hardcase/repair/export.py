"""The worst draws of images as class folders, for those who train with another program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hardcase.cache import make_folder
from hardcase.conditions import Conditions, condition_box
from hardcase.errors import Problem
from hardcase.randomness import keys_of
from hardcase.repair.hardest import render_draws, worst_rows
from hardcase.runs.files import checked_json
from hardcase.suite.export import class_folders, refuse_occupied, table_text, whole_folder
from hardcase.tensors import chunks, encode_all, from_bytes, to_bytes
from hardcase.types import ClassNames, Images, Model

__all__ = ["export_hardest"]

NUMBERS = 2**24
"""Numbers of the images that are rendered at once, at most, unless one image needs more."""


def export_hardest(
    model: Model,
    images: Images,
    conditions: Conditions,
    out: Path,
    *,
    draws: int = 4,
    seed: int = 0,
) -> Path:
    """Write the draw of declared conditions that a model likes least, for each image.

    The folder holds a folder for each class, ``metadata.csv`` with what was done to each image,
    and ``card.json``. Draws follow from the seed and the names of the images.
    """
    if model.offers == "label":
        raise Problem(
            f"model {model.name} tells labels alone: no draw is harder than another.",
            fix="a model that offers scores",
        )
    refuse_occupied(out)
    folders = class_folders(images.classes)
    card = {
        "schema": 1,
        "kind": "hardest",
        "model": {"name": model.name, "hash": model.hash},
        "data": {"name": images.name, "split": images.split, "hash": images.hash},
        "conditions": conditions.to_record(),
        "draws": draws,
        "seed": seed,
        "images": len(images),
    }

    def fill(folder: Path) -> None:
        for name in folders:
            make_folder(folder / name)
        rows = list[dict[str, Any]]()
        for row, data in _worst_draws(model, images, conditions, draws, seed):
            row["file_name"] = f"{folders[row['expected']]}/{len(rows):06d}.png"
            (folder / row["file_name"]).write_bytes(data)
            rows.append(row)
        text = table_text(rows, ClassNames(images.classes))
        (folder / "metadata.csv").write_text(text, encoding="utf-8", newline="")
        (folder / "card.json").write_bytes(checked_json(card))

    return whole_folder(out, fill)


@torch.no_grad()
def _worst_draws(
    model: Model, images: Images, conditions: Conditions, draws: int, seed: int
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What is known of the worst draw of each image, and the draw as a PNG."""
    box = condition_box(conditions, images.shape)
    batch = max(1, NUMBERS // (draws * images.x[:1].numel()))
    for part in chunks(len(images), min(batch, 128)):
        x = from_bytes(images.x[part].to(model.device))
        y = images.y[part].to(model.device)
        found = render_draws(box, x, keys_of(images.id[part]), draws, seed=seed)
        rows = torch.arange(len(x), device=x.device)
        best = worst_rows(lambda x: model(x).logits, found.x, y)
        hard = found.x[rows, best]
        logits = model(hard).logits
        sure = logits.softmax(1).amax(1).tolist()
        words = box.words(found.z[rows, best])
        said = zip(images.id[part], y.tolist(), logits.argmax(1).tolist(), sure, words, strict=True)
        for facts, data in zip(said, encode_all(to_bytes(hard).cpu()), strict=True):
            names = ("id", "expected", "predicted", "confidence", "changed")
            yield dict(zip(names, facts, strict=True)), data
