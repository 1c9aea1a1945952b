"""ARGUS: interpolation through a campaign against bare encode-once, mix, decode and classify; and 300,000 images in seconds.

The device is ``HARDCASE_DEVICE`` (cpu).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.figures import Figure, seconds
from hardcase import data, generators
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, parse_keep
from hardcase.methods.generative import argus
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.spaces.latent import Grid, Library, collect
from hardcase.tensors import from_bytes, to_grid
from hardcase.types import Images

COMMAND = "python -m benchmarks argus"
PARTNERS, ORIGINALS, WHOLE = 3_000, 10, 300_000


def figures() -> Iterator[Figure]:
    device = os.environ.get("HARDCASE_DEVICE", "cpu")
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    subject = Subject(
        zoo.trained_classifier("lenet5", train, test, device=device)[0],
        name="lenet5",
        device=device,
    )
    space = Grid(generators.trained_generator("vqvae", train, test, device=device)[0])
    codes = collect(train, space.vqvae.encode, device=torch.device(device))
    images = test.sample(count=ORIGINALS, seed=0)
    shares, times = [], []
    for _ in range(3):
        whole = seconds(lambda: _campaign(subject, space, codes, images))
        alone = seconds(lambda: _bare(subject, space, codes, images))
        shares.append(alone / whole)
        times.append(whole)
    each = statistics.median(times) / (ORIGINALS * PARTNERS)
    kind = "" if device == "cpu" else f"-{device}"
    yield Figure(
        name=f"argus-throughput{kind}", value=statistics.median(shares), unit="of the bare speed",
        against="encode once, mix, decode, classify, without a campaign", command=COMMAND,
    )  # fmt: skip
    yield Figure(
        name=f"argus-300000{kind}", value=each * WHOLE, unit="s",
        against=f"300,000 images of LeNet-5, scaled from {ORIGINALS * PARTNERS:,}", command=COMMAND,
    )  # fmt: skip


def _campaign(subject: Subject, space: Grid, codes: Library, images: Images) -> None:
    method = argus(space=space, partners=codes, mix=0.3, queries=PARTNERS)
    campaign = Campaign(subject=subject, method=method, keep=parse_keep(method.keep), batch=640)
    run_shard(campaign, images, limits(method.budget, len(images)))


@torch.no_grad()
def _bare(subject: Subject, space: Grid, codes: Library, images: Images) -> list[Tensor]:
    z = space.vqvae.encode(from_bytes(images.x.to(subject.device)))
    wrong = []
    for start in range(0, PARTNERS, 64):
        partner = torch.stack([codes.by_class[int(y)][start : start + 64] for y in images.y]).to(
            subject.device
        )
        code = 0.7 * z[:, None] + 0.3 * codes.take(partner)
        x = to_grid(space.vqvae.decode(code.flatten(0, 1)))
        wrong.append(subject(x).logits.argmax(1).cpu())
    return wrong
