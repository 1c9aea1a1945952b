"""The network under test: a frozen copy with its normalisation inside, taps on its layers,
and a check of its answers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import Problem, choice
from hardcase.graphs import replayed
from hardcase.tensors import digest, digest_tensors, digest_values, pad_rows, tile_rows, tiles
from hardcase.types import Answer, Offer, Tap
from hardcase.usercode import Endless, guarded, interrupts, reraise, within

CHANNELS = ("rgb", "bgr", "grey", "colour", "last")
"""What a network may want of images: blue first, their luma, grey ones three times, channels last.
"""
OUTPUTS = ("logits", "probabilities", "sigmoid")
LUMA = (0.299, 0.587, 0.114)
LOOPING = 900.0
"""Seconds after which a call of a network is taken for one that never ends."""


class Subject(nn.Module):
    """Any `torch.nn.Module` that maps normalised images to logits, as a frozen copy in evaluation
    mode.

    `mean` and `std` are per channel and applied here, so that everything outside works on images in
    [0, 1]. `outputs="probabilities"` says that the network ends in a softmax; its logarithm then
    stands for the logits, and for ``sigmoid`` its inverse.

    Args:
        net: The network; it is copied.
        mean: Mean per channel of the training data, in units of [0, 1].
        std: Standard deviation per channel; a mean of 1 and a std of -1 exchange light and dark.
        classes: Names of its outputs, where they are not those of the data.
        name: Name in run folders and reports.
        outputs: ``logits``, ``probabilities`` or ``sigmoid``.
        device: Where it runs; by default where its weights are.
        channels: ``rgb``; ``bgr`` for a network that wants blue first, ``grey`` for one that takes
            the luma of colours, ``colour`` for one that takes grey images three times, ``last`` for
            N x H x W x C. `mean` and `std` are in the order of the network.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        >>> subject = hc.Subject(net, mean=(0.5,), std=(0.25,), classes=("a", "b", "c"))
        >>> subject(torch.rand(2, 1, 8, 8)).logits.shape
        torch.Size([2, 3])
    """

    offers: Offer = "gradients"
    sizing = ""
    """How images are prepared for it, as the words after ``folder:PATH?``; empty: not known."""
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        classes: Sequence[str] = (),
        name: str = "model",
        outputs: str = "logits",
        device: torch.device | str | None = None,
        channels: str = "rgb",
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or 0 in std:
            raise Problem(
                f"mean has {len(mean)} values and std has {list(std)}; they need equal lengths and"
                " no std may be 0."
            )
        for what, said, known in (("outputs", outputs, OUTPUTS), ("channels", channels, CHANNELS)):
            if said not in known:
                raise choice(f"value of {what}", said, known)
        _computable(net, name)
        self.net = _frozen(net, name)
        self.name = name
        self.outputs = outputs
        self.channels = channels
        self.class_names = tuple(classes)
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1))
        self.to(device if device is not None else _device_of(net))
        self.train(False)
        self._writes_over = False  # whether a layer was seen to write over the output of another
        order = [] if channels == "rgb" else [channels]
        self.hash = digest([digest_tensors(self.state_dict()), repr(self.net), outputs, *order])

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self.net.parameters())
        about = f"{weights:,} weights, returns {self.outputs}, on {self.device}"
        return f"Subject({self.name!r}: {type(self.net).__name__} of {about})"

    @cached_property
    def weights(self) -> str:
        """A digest of its parameters alone: the same for one network under two names."""
        return digest_values(self.net.parameters())

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def train(self, mode: bool = True) -> Subject:
        """A subject stays in evaluation mode, whatever surrounds it."""
        return super().train(False)

    def forward(self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None) -> Answer:
        parts = [self._tile(x[part], taps or {}) for part in tiles(len(x), x.device)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _tile(self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap]) -> Answer:
        """The answer to the rows of one call, padded to whole tiles."""
        batch = pad_rows(x, tile_rows(x.device))
        images = (arranged(batch, self.channels) - self.mean) / self.std
        images = images.permute(0, 2, 3, 1) if self.channels == "last" else images
        before = interrupts()
        with self._tapped(taps) as seen:
            try:
                with within(LOOPING, Endless):
                    if taps or not images.is_cuda:
                        logits = self.net(images)
                    else:
                        logits = replayed(self.net, self.net, images)
            except Endless as late:
                raise Problem(
                    f"model {self.name} does not answer: {late}.",
                    f"Calls without a subject.timeout are broken off after {LOOPING:g} s.",
                    fix="--set subject.timeout=SECONDS, which finds out the inputs to blame",
                ) from late
            except BaseException as error:  # the user's code may raise anything, sys.exit included
                reraise(error, f"model {self.name}", before=before)
        if any(kept.changed for kept in seen.values()):
            self._writes_over = True
            return self._tile(x, taps)
        if not isinstance(logits, Tensor):
            raise Problem(
                f"the model returns a {type(logits).__name__}; it must be one tensor (images,"
                " classes)."
            )
        if logits.ndim != 2 or len(logits) < len(x):
            shape = tuple(logits.shape)
            raise Problem(
                f"the model returns shape {shape} for {len(batch)} images; it must be (images,"
                " classes)."
            )
        if logits.is_complex() or logits.is_meta:
            kind = "no values (meta tensors)" if logits.is_meta else "complex numbers"
            raise Problem(
                f"model {self.name} returns {kind}; it must return real logits (images, classes).",
                fix=(
                    "logits.real or logits.abs() at the end of forward"
                    if logits.is_complex()
                    else ""
                ),
            )
        logits = as_logits(logits[: len(x)], self.outputs)
        return Answer(logits.float(), {name: kept.value[: len(x)] for name, kept in seen.items()})

    def layers(self) -> dict[str, nn.Module]:
        """The layers that can be tapped, by name: every module without children."""
        return {
            name: module
            for name, module in self.net.named_modules()
            if name and not list(module.children())
        }

    @contextmanager
    def _tapped(self, taps: Mapping[str, Tap]) -> Iterator[dict[str, _Kept]]:
        modules = dict(self.net.named_modules())
        seen = dict[str, _Kept]()
        missing = [name for name in taps if name.split("#")[0] not in modules]
        if missing:
            raise Problem(
                f"the model has no layer {missing[0]!r}.",
                f"layers: {', '.join(self.layers())}",
                fix="hardcase layers --model ...",
            )
        copied = self._writes_over
        handles = [
            _tap(modules[name], name, tap, seen, copied)
            for name, tap in taps.items()
            if "#" not in name
        ]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()
        silent = [name for name in taps if name not in seen]
        if silent:
            raise Problem(
                f"layer {silent[0]!r} did not run when the model was called, so it cannot be"
                " tapped."
            )


def arranged(x: Float[Tensor, "m c h w"], channels: str) -> Float[Tensor, "m d h w"]:
    """Images with the channels that a network takes, one of `CHANNELS`.

    Example:
        >>> arranged(torch.zeros(2, 3, 8, 8), "grey").shape
        torch.Size([2, 1, 8, 8])
    """
    if channels == "bgr":
        return x.flip(1)
    if channels == "grey" and x.shape[1] == len(LUMA):
        return (x * x.new_tensor(LUMA).reshape(-1, 1, 1)).sum(1, keepdim=True)
    return x.expand(-1, len(LUMA), -1, -1) if channels == "colour" else x


def as_logits(scores: Float[Tensor, "m k"], outputs: str) -> Float[Tensor, "m k"]:
    """What a network returned, as logits; `outputs` is one of `OUTPUTS`.

    Example:
        >>> as_logits(torch.tensor([[0.5, 0.5]]), "sigmoid").tolist()
        [[0.0, 0.0]]
    """
    if outputs == "probabilities":
        return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
    if outputs == "sigmoid":
        return scores.float().logit(eps=torch.finfo(torch.float32).eps)
    return scores


def _joined(parts: Sequence[Answer]) -> Answer:
    """The answers of several calls, one after the other."""
    seen = {
        name: torch.cat([part.activations[name] for part in parts]) for name in parts[0].activations
    }
    return Answer(torch.cat([part.logits for part in parts]), seen)


class _Kept:
    """What a tap kept. It may be the layer's own memory, and a later layer may write over that;
    torch counts such writes.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self._counted = not value.is_inference()
        self._version = value._version if self._counted else 0

    @property
    def changed(self) -> bool:
        return self._counted and self.value._version != self._version


def _tap(
    module: nn.Module, name: str, tap: Tap, seen: dict[str, _Kept], copied: bool
) -> torch.utils.hooks.RemovableHandle:
    """Keep what `tap` makes of the module's output, or of a copy;
    a module that runs again is kept as ``name#2``, ``name#3``.
    """
    calls = 0

    def hook(_module: nn.Module, _args: object, output: Tensor) -> None:
        nonlocal calls
        calls += 1
        output = output.clone() if copied or output.is_inference() else output
        seen[name if calls == 1 else f"{name}#{calls}"] = _Kept(tap(output))

    return module.register_forward_hook(hook)


def _computable(net: nn.Module, name: str) -> None:
    """Refuse a network whose weights have shapes but no values."""
    named = (*net.named_parameters(), *net.named_buffers())
    empty = [weight for weight, value in named if value.is_meta]
    if empty:
        raise Problem(
            f"model {name} lives on the meta device: its weights have shapes but no values.",
            f"{len(empty)} of {len(named)} tensors, the first of them {empty[0]}",
            fix="a factory that makes the network on the CPU and loads its weights",
        )


def _frozen(net: nn.Module, name: str) -> nn.Module:
    """A copy in evaluation mode; what cannot be copied (open handles,
    compiled code) cannot be frozen.
    """
    why = "hardcase tests a frozen copy, so that yours stays untouched."
    with guarded(f"copying model {name}", why=why):
        return copy.deepcopy(net).eval().requires_grad_(False)


def _device_of(net: nn.Module) -> torch.device:
    return next((p.device for p in net.parameters()), torch.device("cpu"))
