"""Fetched networks on photographs: is the accuracy that others publish inside the interval of ours, so that loaders are right?

Published figures are over the 50,000 validation images, ours over the photographs that are given, at 224 pixels. Of EfficientNet-Lite
they are those of TensorFlow's weights in timm's tables (``tf_efficientnet_lite0.in1k`` in ``results-imagenet.csv`` and
``results-imagenet-real.csv`` of `huggingface/pytorch-image-models`, Apache-2.0), of ResNet-50 those of Keras Applications, of MobileNetV2
torchvision's. Photographs that were chosen for having a good label are easier than the validation set; ReaL's labels even that out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.fetching import fetched_classifiers
from hardcase.models.load import Loading, load_model
from hardcase.suite.tables import Outcome
from hardcase.tensors import from_bytes
from hardcase.types import Images
from hardcase_studies.bench import Bench, share, table_of

PUBLISHED: Mapping[str, tuple[float, int]] = {
    "efficientnet-lite0": (0.7483, 224),
    "efficientnet-lite1": (0.7664, 240),
    "efficientnet-lite2": (0.7746, 260),
    "resnet50-imagenet": (0.749, 224),
    "mobilenetv2-imagenet": (0.7188, 224),
}
"""Top-1 accuracy on ImageNet's validation set as published, and the size of the images."""
PUBLISHED_REAL: Mapping[str, float] = {
    "efficientnet-lite0": 0.81948,
    "efficientnet-lite1": 0.83338,
    "efficientnet-lite2": 0.84085,
}
"""The same by ReaL's labels, where the table has these weights."""


def run(bench: Bench) -> Outcome:
    """``--data 'folder:PATH?labels=prefix&split=all'``; ``--set real=FILE.json`` has ReaL labels; ``networks=A,B`` chooses."""
    if not bench.data.startswith("folder:"):
        raise HardcaseError(
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
                    "published ReaL": "",
                    "inside by ReaL": "",
                }
            )
            continue
        bench.say(name)
        answers = bench.cell(name, partial(_answers, name, images, bench.device), but=("networks",))
        predicted = torch.tensor(answers, dtype=torch.int64)
        right = predicted == images.y
        published, size = PUBLISHED.get(name, (float("nan"), 224))
        accuracy = share(right)
        agreement = _agreement(predicted, images.id, real)
        by_real = PUBLISHED_REAL.get(name)
        rows.append(
            {
                "network": name,
                "accuracy": accuracy,
                "published": f"{published:.1%} at {size} px",
                "inside": _inside(accuracy, published),
                "ReaL": agreement,
                "published ReaL": "" if by_real is None else f"{by_real:.1%}",
                "inside by ReaL": _inside(agreement, by_real),
            }
        )
    notes = [
        f"{len(images)} photographs of 224 px, one crop; inside: the published figure lies in the 95 % interval",
        "a network made for 240 or 260 px is shown 224 px here, which costs it about a point",
    ]
    return Outcome("fetched networks on photographs", [table_of("accuracy", rows, notes)])


def _inside(told: str, published: float | None) -> str:
    """Whether a published figure lies in the interval of a share in words."""
    if published is None or "[" not in told:
        return ""
    low, high = (float(end.rstrip("%]")) / 100 for end in told.partition("[")[2].split(", "))
    return "yes" if low <= published <= high else "no"


@torch.no_grad()
def _answers(name: str, images: Images, device: str) -> list[float]:
    """The class that a fetched network reads in each photograph."""
    model = load_model(f"zoo:{name}", Loading(device=device))
    parts = torch.split(images.x, 50)
    logits = [model(from_bytes(part.to(device))).logits.cpu() for part in parts]
    return torch.cat(logits).argmax(1).tolist()


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
