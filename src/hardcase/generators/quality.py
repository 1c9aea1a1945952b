"""How well a generator gives back what it is shown: does a classifier still see the label, how alike are the images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hardcase.randomness import stream
from hardcase.tensors import chunks, digest, digest_tensors, from_bytes, to_bytes
from hardcase.training.goals import predict
from hardcase.types import Images


def measure(
    net: nn.Module,
    images: Images,
    judge: Callable[[Tensor], Tensor] | None,
    *,
    device: torch.device | str = "cpu",
) -> Mapping[str, Any]:
    """Entries of a card, measured on 8-bit reconstructions of `images`; those of a judge are null without one."""
    painted = reconstructions(net, images, device=device)
    seen, given = from_bytes(images.x), from_bytes(painted.x)
    entries: dict[str, Any] = {
        "ssim": float(similarity(given, seen).mean()),
        "mse": float((given - seen).square().mean()),
        "measured_images": len(images),
        "judge_accuracy": None,
        "reconstruction_accuracy": None,
        "reconstruction_agreement": None,
    }
    if judge is not None:
        before, after = (predict(judge, part, device=device) for part in (images, painted))
        entries["judge_accuracy"] = _share(before == images.y)
        entries["reconstruction_accuracy"] = _share(after == images.y)
        entries["reconstruction_agreement"] = _share(after == before)
    return entries


@torch.no_grad()
def measure_samples(
    net: nn.Module,
    images: Images,
    judge: Callable[[Tensor], Tensor] | None,
    *,
    device: torch.device | str = "cpu",
    per_class: int = 100,
) -> Mapping[str, Any]:
    """Entries of a conditional generator's card: is a sample taken for its class, and do samples of a class differ?

    `diversity` is the mean standard deviation of pixels within a class, over that of the real images.
    """
    k = len(images.classes)
    label = torch.arange(k, device=device).repeat(per_class)
    noise = stream(0, "samples", device=torch.device(device))
    made = torch.cat([to_bytes(net.sample(label[rows], noise)[1]).cpu() for rows in chunks(len(label), 250)])  # type: ignore[operator]  # a family's own method
    real = torch.stack(
        [from_bytes(images.x[images.y == c]).std(0).mean() for c in range(k) if int((images.y == c).sum()) > 1]
    )
    spread = from_bytes(made).reshape(per_class, k, -1).std(0).mean()
    painted = Images(made, label.cpu(), tuple(map(str, range(len(label)))), images.classes)
    entries: dict[str, Any] = {
        "diversity": float(spread / real.mean()),
        "measured_images": len(label),
        "sample_accuracy": None,
    }
    if judge is not None:
        entries["sample_accuracy"] = _share(predict(judge, painted, device=device) == painted.y)
    return entries


@torch.no_grad()
def yardstick(images: Images, judge: Callable[[Tensor], Tensor] | None, *, device: torch.device | str = "cpu") -> str:
    """A hash of what `measure` measures with; a judge is known by what it says of a few images."""
    sample = from_bytes(images.x[:64].to(device))
    return images.hash if judge is None else digest([images.hash, digest_tensors({"logits": judge(sample)})])


@torch.no_grad()
def reconstructions(net: nn.Module, images: Images, *, device: torch.device | str = "cpu") -> Images:
    """`images` encoded, decoded and stored again as 8-bit images."""
    parts = (net(from_bytes(images.x[rows].to(device)), images.y[rows].to(device)) for rows in chunks(len(images), 256))
    return replace(images, x=torch.cat([to_bytes(part).cpu() for part in parts]))


def similarity(a: Float[Tensor, "n c h w"], b: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
    """SSIM of each pair of images."""
    from torchmetrics.functional.image import structural_similarity_index_measure as ssim

    parts = [ssim(a[rows], b[rows], data_range=1.0, reduction="none") for rows in chunks(len(a), 256)]
    return torch.cat([part.reshape(-1) for part in parts])


def _share(rows: Bool[Tensor, " n"]) -> float:
    return int(rows.sum()) / len(rows)
