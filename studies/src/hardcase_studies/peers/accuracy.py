"""Fetched networks on photographs: is the accuracy that others publish inside the interval of ours, so that loaders are right?

The published figures are those of timm's table of ImageNet results (``results-imagenet.csv`` of `huggingface/pytorch-image-models`,
Apache-2.0) for the same weights, over 50,000 validation images at the size that is named; ours is over the photographs that are given,
at 224 pixels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.models.fetching import fetched_classifiers
from hardcase.models.load import Loading, load_model
from hardcase.suite.tables import Outcome
from hardcase.tensors import from_bytes
from hardcase_studies.bench import Bench, share, table_of

PUBLISHED: Mapping[str, tuple[float, int]] = {
    "efficientnet-lite0": (0.755, 224),
    "efficientnet-lite1": (0.766, 240),
    "efficientnet-lite2": (0.775, 260),
    "resnet50-imagenet": (0.802, 224),
}
"""Top-1 accuracy on ImageNet's validation set as published, and the size of the images."""


def run(bench: Bench) -> Outcome:
    """``--data 'folder:PATH?labels=prefix&split=all'``; ``--set real=FILE.json`` has ReaL labels; ``networks=A,B`` chooses."""
    if not bench.data.startswith("folder:"):
        raise Problem(
            "accuracy is measured on photographs of ImageNet's classes.",
            fix="--data 'folder:PATH?labels=prefix&split=all'",
        )
    images = load(bench.data, split="test").images()
    real = _real(str(bench.options.get("real", "")))
    here = set(fetched_classifiers())
    rows = []
    for name in bench.names("networks", tuple(PUBLISHED)):
        if name not in here:
            rows.append(
                {
                    "network": name,
                    "accuracy": "not fetched",
                    "published": "",
                    "inside": "",
                    "ReaL": "",
                }
            )
            continue
        bench.say(name)
        model = load_model(f"zoo:{name}", Loading(device=bench.device))
        answers = []
        with torch.no_grad():
            for part in torch.split(images.x, 50):
                answers.append(model(from_bytes(part.to(bench.device))).logits.argmax(1).cpu())
        predicted = torch.cat(answers)
        right = predicted == images.y
        published, size = PUBLISHED.get(name, (float("nan"), 224))
        told = share(right)
        low, high = (float(end.rstrip("%]")) / 100 for end in told.partition("[")[2].split(", "))
        rows.append(
            {
                "network": name,
                "accuracy": told,
                "published": f"{published:.1%} at {size} px",
                "inside": "yes" if low <= published <= high else "no",
                "ReaL": _agreement(predicted, images.id, real),
            }
        )
    notes = [
        f"{len(images)} photographs of 224 px, one crop; inside: the published figure lies in the 95 % interval",
        "a network made for 240 or 260 px is shown 224 px here, which costs it about a point",
    ]
    return Outcome("fetched networks on photographs", [table_of("accuracy", rows, notes)])


def _real(path: str) -> Mapping[str, list[int]]:
    """ReaL labels (Beyer et al., 2020) by the name of the file, as a JSON table of images has them."""
    if not path:
        return {}
    table = json.loads(Path(path).read_text(encoding="utf-8"))
    return {Path(name).stem: list(value.get("real", [])) for name, value in table.items()}


def _agreement(
    predicted: torch.Tensor, names: tuple[str, ...], real: Mapping[str, list[int]]
) -> str:
    known = [
        (int(answer), real[stem])
        for answer, name in zip(predicted, names)
        if (stem := Path(name).stem) in real
    ]
    kept = [answer in labels for answer, labels in known if labels]
    return share(torch.tensor(kept)) if kept else "no labels given"
