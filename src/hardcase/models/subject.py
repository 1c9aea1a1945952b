"""The network under test: a frozen copy with its normalisation inside, and taps on its layers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import Endless, HardcaseError, choice, guarded, within
from hardcase.models.names import COUNT as IMAGENET_CLASSES, merged, same_outputs
from hardcase.tensors import digest, digest_tensors, digest_values, in_tiles
from hardcase.types import Answer, Offer, Tap

CHANNELS = ("rgb", "bgr", "grey", "colour", "last")
"""What a network may want of images: blue first, their luma, grey ones three times, channels last.
"""
BINARY = ("binary", "binary-sigmoid", "binary-first", "binary-sigmoid-first")
"""A single output for two classes: a logit or a probability, of the second class or of the
first."""
OUTPUTS = ("logits", "probabilities", "sigmoid", *BINARY)
LUMA = (0.299, 0.587, 0.114)
FIRST = 16
"""Images of the first call whose answer is stored."""
LOOPING = 900.0
"""Seconds after which a call of a network counts as endless."""

_log = logging.getLogger(__name__)


class Subject(nn.Module):
    """Any `torch.nn.Module` that maps normalised images to logits, as a frozen copy.

    It is always in evaluation mode. A network that cannot be copied (it holds a lock, a socket, an
    open file) is called itself, in this process only: each call leaves its mode as it was, and
    raises if its weights are not those of the beginning.
    Normalisation is applied here, so that everything outside works on images in [0, 1].

    Args:
        net: The network; it is copied.
        mean: Mean per channel of the training data, in units of [0, 1].
        std: Standard deviation per channel; a mean of 1 and a std of -1 exchange light and dark.
        classes: Names of its outputs, where they are not those of the data.
        name: Name in run folders and reports.
        outputs: ``logits``; ``probabilities`` of a softmax or ``sigmoid``, which are inverted;
            ``binary`` for a single logit of the second of two classes, ``binary-sigmoid`` for
            a single probability, with ``-first`` of the first class.
        device: Where it runs; by default where its weights are.
        channels: ``rgb``; ``bgr`` for a network that wants blue first, ``grey`` for a network that
            takes the luma of colours, ``colour`` for a network that takes grey images three times,
            ``last`` for N x H x W x C. `mean` and `std` are in the order of the network.

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
    """The preparation of its images, as the words after ``folder:PATH?``; empty: unknown."""
    card: Mapping[str, Any] = MappingProxyType({})
    """The record of its training, if hardcase trained it."""
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
            raise HardcaseError(
                f"mean has {len(mean)} values and std has {list(std)}; they need equal lengths and"
                " no std may be 0."
            )
        if outputs not in OUTPUTS:
            raise choice("value of outputs", outputs, OUTPUTS)
        if channels not in CHANNELS:
            raise choice("value of channels", channels, CHANNELS)
        _computable(net, name)
        self.uncopied = ""  # why the network is the original, not a copy
        self.frozen = frozenset(n for n, each in net.named_parameters() if not each.requires_grad)
        try:
            self.net = copy.deepcopy(net).requires_grad_(False)
        except HardcaseError:
            raise
        except Exception as error:  # locks, threads, sockets, files and loggers refuse differently
            self.uncopied = (str(error).splitlines() or [type(error).__name__])[0]
            self.net = net
            _log.warning(
                "model %s cannot be copied (%s): the original is asked, its weights and mode are"
                " checked at every call; workers need it as file.py:name",
                *(name, self.uncopied),
            )
        self.name = name
        self.outputs = outputs
        self.channels = channels
        self.class_names = tuple(classes)
        self._same: tuple[tuple[int, ...], ...] = ()
        if len(self.class_names) == IMAGENET_CLASSES:
            self._same = same_outputs(self.class_names)
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1))
        self._plain = channels == "rgb" and not any(mean) and set(std) == {1.0}
        self.to(device or device_of(net))
        self.train(False)
        if self.uncopied:
            self._beginning = digest_tensors(self.net.state_dict())
        self._first: tuple[Tensor, Tensor] | None = None  # images it was asked first, its answer
        self._writes_over = False  # whether a layer was seen to write over the output of another
        order = [] if channels == "rgb" else [channels]
        self.hash = digest([digest_tensors(self.state_dict()), repr(self.net), outputs, *order])

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self.net.parameters())
        about = f"{weights:,} weights, returns {self.outputs}, on {self.device}"
        return f"Subject({self.name!r}: {type(self.net).__name__} of {about})"

    @cached_property
    def weights(self) -> str:
        """A digest of its parameters alone: the same for a network under two names."""
        return digest_values(self.net.parameters())

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def train(self, mode: bool = True) -> Subject:
        """A subject stays in evaluation mode, whatever surrounds it."""
        if self.uncopied:  # the user's network, whose own mode stays
            self.training = False
            return self
        return super().train(False)

    def __getstate__(self) -> dict[str, Any]:
        if self.uncopied:
            raise HardcaseError(
                f"model {self.name} cannot be copied or sent to another process: {self.uncopied}.",
                "It is tested itself, in one process.",
                fix="--model file.py:name, which every worker loads for itself, or workers=1",
            )
        return self.__dict__

    def forward(self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None) -> Answer:
        with in_evaluation_mode(self.net) if self.uncopied else nullcontext():
            parts = [self._tile(batch, count, taps or {}) for batch, count in in_tiles(x)]
        if self.uncopied and digest_tensors(self.net.state_dict()) != self._beginning:
            raise HardcaseError(
                f"the weights of model {self.name} have changed since its test began.",
                f"It cannot be copied ({self.uncopied}), so it was tested itself.",
                fix="no training and no writing to weights or buffers while it is tested",
            )
        if len(parts) == 1:
            return parts[0]
        activations = {
            name: torch.cat([part.activations[name] for part in parts])
            for name in parts[0].activations
        }
        return Answer(torch.cat([part.logits for part in parts]), activations)

    def _tile(self, batch: Float[Tensor, "m c h w"], rows: int, taps: Mapping[str, Tap]) -> Answer:
        """The answer to the first rows of a call, which is padded to complete tiles."""
        images = batch
        if not self._plain:
            images = prepared(batch, self.mean, self.std, self.channels)
        with self._tapped(taps) if taps else nullcontext(dict[str, _Kept]()) as tapped:
            try:
                with guarded(f"model {self.name}"), within(LOOPING, Endless):
                    if taps or not images.is_cuda:
                        logits = self.net(images)
                    else:
                        from hardcase.graphs import replayed

                        logits = replayed(self.net, self.net, images)
            except Endless as late:
                raise HardcaseError(
                    f"model {self.name} does not answer: {late}.",
                    f"Calls without a model.timeout are broken off after {LOOPING:g} s.",
                    fix="--set model.timeout=SECONDS, which finds out the inputs to blame",
                ) from late
        if any(tap_value.changed for tap_value in tapped.values()):  # from now on copies are kept
            self._writes_over = True
            return self._tile(batch, rows, taps)
        logits = as_logits(_checked(logits, len(batch), self.name)[:rows], self.outputs)
        if self._same:
            logits = merged(logits, self._same)
        if self._first is not None and logits.shape[1] != self._first[1].shape[1]:
            raise HardcaseError(
                f"model {self.name} returns {logits.shape[1]} outputs, and"
                f" {self._first[1].shape[1]} at first.",
                fix="a model that is a function of its image",
            )
        if self._first is None:
            with torch.no_grad():
                self._first = (batch[:FIRST].clone(), logits[:FIRST].clone())
        return Answer(
            logits.float(), {name: tap_value.value[:rows] for name, tap_value in tapped.items()}
        )

    @torch.no_grad()
    def drift(self) -> float:
        """Change of its answer to the images of the first call, relative to the spread of that
        answer; 0 for a network that is a function of its image.
        """
        if self._first is None:
            return 0.0
        x, then = self._first
        difference = (self(x).logits[: len(then)] - then).abs().nan_to_num(0.0).amax().item()
        spread: float = then[then.isfinite()].std().nan_to_num(0.0).item()
        return float(difference / max(spread, 1e-12))

    def forget(self) -> None:
        """Forget what was answered first: from now on this is another network."""
        self._first = None

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
        tapped = dict[str, _Kept]()
        missing = [name for name in taps if name.split("#")[0] not in modules]
        if missing:
            raise HardcaseError(
                f"the model has no layer {missing[0]!r}.",
                f"layers: {', '.join(self.layers())}",
                fix="hardcase layers --model ...",
            )
        copied = self._writes_over
        handles = [
            _tap(modules[name], name, tap, tapped, copied)
            for name, tap in taps.items()
            if "#" not in name
        ]
        try:
            yield tapped
        finally:
            for handle in handles:
                handle.remove()
        silent = [name for name in taps if name not in tapped]
        if silent:
            raise HardcaseError(
                f"layer {silent[0]!r} did not run when the model was called, so it cannot be"
                " tapped."
            )


def prepared(
    x: Float[Tensor, "m c h w"],
    mean: Float[Tensor, "1 d 1 1"],
    std: Float[Tensor, "1 d 1 1"],
    channels: str,
) -> Tensor:
    """Images in [0, 1] as a network wants them: its channels (a kind of `CHANNELS`), normalised, in
    its order of axes.
    """
    if channels == "bgr":
        x = x.flip(1)
    elif channels == "grey" and x.shape[1] == len(LUMA):
        x = (x * x.new_tensor(LUMA).reshape(-1, 1, 1)).sum(1, keepdim=True)
    elif channels == "colour":
        x = x.expand(-1, len(LUMA), -1, -1)
    images = (x - mean) / std
    if channels == "last":
        return images.permute(0, 2, 3, 1)
    return images


@contextmanager
def in_evaluation_mode(net: nn.Module) -> Iterator[nn.Module]:
    """`net` in evaluation mode, for as long as this lasts."""
    flags = {module: module.training for module in net.modules()}
    try:
        yield net.eval()
    finally:
        for module, flag in flags.items():
            module.training = flag


def is_softmax(scores: Float[Tensor, "n k"]) -> bool:
    """Whether every row is non-negative and sums to 1: a softmax's output rather than logits."""
    return bool((scores >= 0).all() and (scores.sum(1) - 1).abs().max() < 1e-3)


def as_logits(scores: Float[Tensor, "m k"], outputs: str) -> Float[Tensor, "m l"]:
    """What a network returned, as logits; `outputs` is a kind of `OUTPUTS`."""
    if outputs == "probabilities":
        return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
    if outputs == "sigmoid":
        return scores.float().logit(eps=torch.finfo(torch.float32).eps)
    if outputs in BINARY:
        if scores.shape[1] != 1:
            raise HardcaseError(
                f"the model has {scores.shape[1]} outputs; outputs={outputs} is for one output of"
                " two classes."
            )
        if "sigmoid" in outputs:
            scores = as_logits(scores, "sigmoid")
        half = scores / 2  # the softmax of (-s/2, s/2) is the sigmoid of s
        return torch.cat([half, -half] if outputs.endswith("first") else [-half, half], 1)
    return scores


def _checked(logits: object, rows: int, name: str) -> Float[Tensor, "m k"]:
    """What a network returned for `rows` images, refused unless it is a table of real numbers."""
    if not isinstance(logits, Tensor):
        raise HardcaseError(
            f"the model returns a {type(logits).__name__}; it must be one tensor (images, classes)."
        )
    if logits.ndim == 1:
        logits = logits[:, None]  # one output for two classes, squeezed
    if logits.ndim != 2 or len(logits) < rows:
        raise HardcaseError(
            f"the model returns shape {tuple(logits.shape)} for {rows} images; it must be (images,"
            " classes)."
        )
    must = "it must return real logits (images, classes)."
    if logits.is_meta:
        raise HardcaseError(f"model {name} returns no values (meta tensors); {must}")
    if logits.layout != torch.strided:
        raise HardcaseError(
            f"model {name} returns a sparse tensor; {must}", fix="logits.to_dense()"
        )
    if logits.is_complex():
        raise HardcaseError(
            f"model {name} returns complex numbers; {must}",
            fix="logits.real or logits.abs() at the end of forward",
        )
    return logits if logits.is_floating_point() else logits.float()  # as of an integer network


class _Kept:
    """The tensor of a tap; a later layer may write over that memory, which torch counts."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self._counted = not value.is_inference()
        self._version = value._version if self._counted else 0

    @property
    def changed(self) -> bool:
        return self._counted and self.value._version != self._version


def _tap(
    module: nn.Module, name: str, tap: Tap, tapped: dict[str, _Kept], copied: bool
) -> torch.utils.hooks.RemovableHandle:
    """Keep what `tap` makes of a module's output; of a second run as ``name#2``."""
    calls = 0

    def hook(_module: nn.Module, _args: object, output: Tensor) -> None:
        nonlocal calls
        calls += 1
        if copied or output.is_inference():
            output = output.clone()
        tapped[name if calls == 1 else f"{name}#{calls}"] = _Kept(tap(output))

    return module.register_forward_hook(hook)


def _computable(net: nn.Module, name: str) -> None:
    """Refuse a network whose weights have shapes but no values."""
    named = (*net.named_parameters(), *net.named_buffers())
    empty = [weight for weight, value in named if value.is_meta]
    if empty:
        raise HardcaseError(
            f"model {name} lives on the meta device: its weights have shapes but no values.",
            f"{len(empty)} of {len(named)} tensors, the first of them {empty[0]}",
            fix="a factory that makes the network on the CPU and loads its weights",
        )


def device_of(net: nn.Module) -> torch.device:
    """Where the weights of a network are."""
    return next((weight.device for weight in net.parameters()), torch.device("cpu"))
