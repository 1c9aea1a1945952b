"""What a campaign throws away: how many images a method made of each seed, and a fair sample of them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.campaign.record import LEAD, ordinal
from hardcase.statistics import mse, ssim
from hardcase.tensors import from_bytes, margin, to_bytes
from hardcase.types import Images, Kind, Oracle, Probe


class Witness:
    """A method's oracle that also remembers: `made` counts each seed's images, and up to `count` of them are kept, all with the
    same chance. Images that a search looks at again are not made again."""

    made: Int[Tensor, " n"]
    x: UInt8[Tensor, "n s c h w"]
    left: Bool[Tensor, "n s"]
    lot: Float[Tensor, "n s"]

    def __init__(self, oracle: Oracle, seeds: Images, *, count: int, rng: torch.Generator) -> None:
        n, device = len(seeds), rng.device
        self.oracle, self.rng = oracle, rng
        self.made = torch.zeros(n, dtype=torch.int64, device=device)
        self.x = torch.zeros(n, count, *seeds.x.shape[1:], dtype=torch.uint8, device=device)
        self.left = torch.zeros(n, count, dtype=torch.bool, device=device)
        self.lot = torch.full((n, count), -1.0, device=device)

    @property
    def kind(self) -> Kind:
        return self.oracle.kind

    @property
    def there(self) -> Bool[Tensor, "n s"]:
        """Which places of the sample are filled."""
        return self.lot >= 0

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        fresh = (~probe.aim["seen"]).nonzero().squeeze(1) if "seen" in probe.aim else None
        rows = probe.origin.id if fresh is None else probe.origin.id[fresh]
        self.made.add_(rows.bincount(minlength=len(self.made)))
        if self.lot.shape[1] and len(rows):
            left = (
                margin(probe.logits.softmax(1), probe.origin.y) >= LEAD
            ) & probe.logits.isfinite().all(1)
            self._draw(rows, *((probe.x, left) if fresh is None else (probe.x[fresh], left[fresh])))
        return self.oracle(probe)

    def likeness(self, seeds: Images) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Mean MSE and SSIM of each seed's sampled images; NaN where nothing was made."""
        seed, place = self.there.nonzero(as_tuple=True)
        x, origin = from_bytes(self.x[seed, place]), from_bytes(seeds.x.to(seed.device)[seed])
        count = self.there.sum(1)

        def means(values: Float[Tensor, " t"]) -> Float[Tensor, " n"]:
            total = torch.zeros(len(count), device=values.device).index_add_(0, seed, values)
            return (total / count).double().cpu()

        return means(mse(x, origin)), means(ssim(x, origin))

    def _draw(
        self, rows: Int[Tensor, " m"], x: Float[Tensor, "m c h w"], left: Bool[Tensor, " m"]
    ) -> None:
        """Every image gets a lot; each seed keeps the highest."""
        n, count = self.lot.shape
        place = ordinal(rows)
        width = int(place.max()) + 1
        lot = torch.full((n, width), -1.0, device=rows.device)
        lot[rows, place] = torch.rand(len(rows), generator=self.rng, device=rows.device)
        number = torch.zeros(n, width, dtype=torch.int64, device=rows.device)
        number[rows, place] = torch.arange(len(rows), device=rows.device)
        self.lot, best = torch.cat([self.lot, lot], 1).topk(count, dim=1)
        seed, slot = ((best >= count) & (self.lot >= 0)).nonzero(as_tuple=True)
        old = best.clamp_max(count - 1)
        pick = torch.arange(n, device=rows.device)[:, None]
        self.x, self.left = self.x[pick, old], self.left[pick, old]
        new = number[seed, best[seed, slot] - count]
        self.x[seed, slot], self.left[seed, slot] = to_bytes(x[new]), left[new]
