"""A codebook for vector quantisation: nearest code, straight-through, learned by moving averages or by gradient.

A. van den Oord, O. Vinyals, K. Kavukcuoglu, "Neural discrete representation learning", NeurIPS 2017. Codes start from
encoder outputs and a code that nobody uses starts again from one: with random codes a VQ-VAE on digits collapses to black.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Codebook(nn.Module):
    """`size` codes of `width` numbers. `learned="ema"` follows the codes' users; `"gradient"` leaves that to the loss."""

    codes: Tensor
    count: Tensor
    total: Tensor
    started: Tensor

    def __init__(self, size: int, width: int, *, learned: str = "ema", decay: float = 0.99) -> None:
        super().__init__()
        self.learned, self.decay = learned, decay
        codes = torch.randn(size, width)
        if learned == "gradient":
            self.codes = nn.Parameter(codes)
        else:
            self.register_buffer("codes", codes)
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", codes.detach().clone())
        self.register_buffer("started", torch.zeros(1, dtype=torch.bool))

    def nearest(self, z: Float[Tensor, "m d h w"]) -> Int[Tensor, "m h w"]:
        """The code nearest to each position."""
        flat = z.movedim(1, -1).reshape(-1, z.shape[1])
        score = flat @ self.codes.T - self.codes.square().sum(1) / 2
        return score.argmax(1).reshape(len(z), *z.shape[2:])

    def embed(self, index: Int[Tensor, "m h w"]) -> Float[Tensor, "m d h w"]:
        return self.codes[index].movedim(-1, 1)

    def quantise(self, z: Float[Tensor, "m d h w"]) -> Float[Tensor, "m d h w"]:
        """The nearest codes; gradients pass to `z` unchanged, also in evaluation."""
        return z + (self.embed(self.nearest(z)) - z).detach()

    @torch.no_grad()
    def learn(self, z: Float[Tensor, "m d h w"], rng: torch.Generator) -> None:
        """One step of the moving averages; codes start from `z` and unused ones start again from it."""
        flat = z.detach().movedim(1, -1).reshape(-1, z.shape[1])
        if not bool(self.started):
            self._place(torch.arange(len(self.codes), device=z.device), flat, rng)
            self.started.fill_(True)
        index = self.nearest(z).reshape(-1)
        used = index.bincount(minlength=len(self.codes)).to(flat.dtype)
        self.count.mul_(self.decay).add_(used, alpha=1 - self.decay)
        self.total.mul_(self.decay).index_add_(0, index, flat, alpha=1 - self.decay)
        if self.learned == "ema":
            self.codes.copy_(self.total / self.count.clamp_min(1e-5)[:, None])
        self._place((self.count < 0.01).nonzero().squeeze(1), flat, rng)

    def usage(self) -> float:
        """The share of codes in use."""
        return float((self.count >= 0.01).float().mean())

    def _place(self, which: Int[Tensor, " r"], flat: Float[Tensor, "s d"], rng: torch.Generator) -> None:
        if not len(which):
            return
        drawn = flat[torch.randint(len(flat), (len(which),), generator=rng, device=rng.device).to(flat.device)]
        self.codes.data[which] = drawn
        self.total[which] = drawn
        self.count[which] = 1.0
