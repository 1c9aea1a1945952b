"""What mixtures look like: originals, partners and results at every share."""

from __future__ import annotations

import torch

from hardcase.experiments.argus_measured import measured
from hardcase.experiments.argus_world import Painter, paint
from hardcase.experiments.bench import Bench
from hardcase.generators import quality
from hardcase.methods.argus import argus_adaptive
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.searches.boundary import nearest
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images, Seeds


@torch.no_grad()
def draw(bench: Bench, name: str, subject: Subject, own: Painter, images: Images) -> str:
    """``mixes-NAME.png``: originals, partners, then the mixture at 0, 0.1 ... 0.5, then what the adaptive form found."""
    x, y = from_bytes(images.x.to(subject.device)), images.y.to(subject.device)
    z = own.space.encode(x, y, stream(0, device=x.device))[0]
    near = nearest(own.codes, Seeds(z, x, y, y), 1)[:, :, 0]  # n k
    goal = (y + 1 + torch.arange(len(y), device=y.device) % 3) % near.shape[1]
    goal = torch.where(goal == y, (goal + 1) % near.shape[1], goal)
    partner = near[torch.arange(len(y), device=y.device), goal][:, None]
    rows = [images.x] + [
        to_bytes(paint(own, x, y, partner, share)) for share in (1.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    found = measured(
        subject, argus_adaptive(space=own.space, partners=own.codes), [images]
    ).findings
    best = torch.full_like(images.x, quality.PAPER)
    for seed, label, picture in zip(found.seed.tolist(), found.predicted.tolist(), found.x):
        if label == int(goal[seed]):
            best[seed] = picture
    path = f"mixes-{name}.png"
    quality.write(bench.out / path, [*rows, best])
    return path
