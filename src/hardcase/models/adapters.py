"""Whatever a user has, as a model that hardcase can ask: modules, Lightning modules, traced and
exported programs, functions, files of weights; and what can be put around any model: a memory of
its answers, patience, labels alone.

Networks are called in their number type (half and bfloat16 included) and answer in float32. What
they return may be a tensor, a tuple, a dictionary or an object with ``logits``.
"""

from __future__ import annotations

import copy
import inspect
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import (
    Endless,
    HardcaseError,
    Raised,
    Unanswered,
    guarded,
    reading,
    require_consent,
    within,
)
from hardcase.models.subject import LOOPING, Subject, device_of, in_evaluation_mode
from hardcase.tensors import chunks, digest, pad_rows
from hardcase.types import Answer, Model, Offer, Tap

SURE = 30.0
"""The lead in logits of a class that is all a model names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to call a model that may be slow, far away or costly."""

    batch: int = 32
    """Images per request."""
    concurrency: int = 4
    """Requests at a time."""
    rate: float | None = None
    """Requests per second."""
    timeout: float | None = None
    """Seconds for an answer; None: 30 for servers, no limit for others."""
    retries: int = 5
    cache: int = 100_000
    """Answers that are remembered."""
    label_only: bool = False

    @property
    def seconds(self) -> float:
        """The time that a server has for an answer."""
        return self.timeout or 30.0


class ModelWrapper:
    """A wrapper around a model; `tally` counts calls and seconds, for all layers of wrappers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.hash = model.hash
        self.weights: str = getattr(model, "weights", "")
        self.outputs: str = getattr(model, "outputs", "")
        self.class_names: tuple[str, ...] = getattr(model, "class_names", ())
        shared = getattr(model, "tally", None)
        self.tally: Counter[str] = shared if isinstance(shared, Counter) else Counter()

    @property
    def offers(self) -> Offer:
        return self.model.offers

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        raise AssertionError("a layer answers itself")


class Cached(ModelWrapper):
    """Remembers the answers to the last `size` different images.

    Args:
        model: The model that is wrapped.
        size: Most images that are remembered.
    """

    def __init__(self, model: Model, size: int) -> None:
        super().__init__(model)
        self.size = size
        self.known: dict[bytes, Tensor] = {}

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps or x.requires_grad or not len(x):
            return self.model(x, taps)
        keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in x.cpu().numpy()]
        new = {key: row for row, key in enumerate(keys) if key not in self.known}
        answers = {key: self.known[key] for key in keys if key in self.known}
        if new:
            answers |= dict(zip(new, self.model(x[list(new.values())]).logits))
        self.tally["cached"] += len(keys) - len(new)
        self.known.update({key: answers[key] for key in new if bool(answers[key].isfinite().all())})
        for key in list(self.known)[: max(0, len(self.known) - self.size)]:
            del self.known[key]
        return Answer(torch.stack([answers[key] for key in keys]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "known": {}}


class LabelOnly(ModelWrapper):
    """Reduces answers to the label, as if the model returned no more.

    Args:
        model: The model that is wrapped.
    """

    @property
    def offers(self) -> Offer:
        return "label"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        logits = self.model(x).logits
        indicator = SURE * torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float()
        return Answer(torch.where(logits.isfinite().all(1, keepdim=True), indicator, torch.nan))


class Retrying(ModelWrapper):
    """Finds out which inputs of a call are not answered, and answers NaN for them, so that the
    others go on.

    If an image that was answered before is not answered any more either, the model is gone, and the
    search stops.

    Args:
        model: The model that is wrapped.
        timeout: Seconds after which a call in this process is broken off.
        piece: Rows of a call after a failed call, before calls are halved.
    """

    def __init__(self, model: Model, timeout: float | None = None, piece: int = 2**30) -> None:
        super().__init__(model)
        self.timeout = timeout
        self.piece = piece
        self.good: Tensor | None = None
        self.scores = 0  # per image, once it has answered

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        try:
            return self._ask(x, taps)
        except Unanswered as reason:
            if taps or x.requires_grad:
                raise _silent(self.name, str(reason)) from reason
            # a model that tries again by itself does not while the culprits are sought
            with getattr(self.model, "hurry", nullcontext)():
                if self.good is not None:
                    self._alive(reason)
                return Answer(self._apart(x, reason))

    def _ask(self, x: Tensor, taps: Mapping[str, Tap] | None = None) -> Answer:
        with within(self.timeout):
            answer = self.model(x, taps)
        if self.good is None and len(x):
            self.good = x[:1].detach().clone()
            self.scores = answer.logits.shape[1]
        return answer

    def _apart(self, x: Tensor, reason: Unanswered) -> Tensor:
        """Call with smaller and smaller parts until the rows at fault are identified."""
        if len(x) > 1:
            size = self.piece if len(x) > self.piece else (len(x) + 1) // 2
            return torch.cat([self._part(x[part]) for part in chunks(len(x), size)])
        try:  # once more, alone: it may have been the others' fault, or chance
            return self._ask(x).logits
        except Unanswered:
            self._alive(reason)
        self.tally["unanswered"] += 1
        return torch.full((1, self.scores), torch.nan)

    def _alive(self, reason: Unanswered) -> None:
        """Raise if an image that was answered before is not answered any more."""
        if self.good is None:
            raise _silent(self.name, str(reason)) from reason
        try:
            self._ask(self.good)
        except Unanswered:
            raise _silent(self.name, str(reason)) from reason

    def _part(self, x: Tensor) -> Tensor:
        try:
            return self._ask(x).logits
        except Unanswered as reason:
            return self._apart(x, reason)


def _silent(name: str, why: str) -> HardcaseError:
    return HardcaseError(
        f"the model {name} does not answer any more: {why}",
        "Shards that were finished are stored.",
        fix="see to the model, then go on",
    )


KEYS = ("logits", "scores", "output", "outputs", "out", "class_logits", "predictions", "prediction")
"""Keys under which a dictionary or an object holds a row of class scores for each image."""


def logits_of(returned: Any) -> Tensor:
    """The class scores in whatever a network returned."""
    if isinstance(returned, np.ndarray):
        returned = torch.from_numpy(returned)
    if isinstance(returned, Tensor):
        return returned
    parts: dict[Any, Any] = {}
    if isinstance(returned, Mapping):
        parts = dict(returned)
    elif isinstance(returned, tuple | list):
        parts = dict(enumerate(returned))
    for key in KEYS:
        value = parts.get(key, getattr(returned, key, None))
        if isinstance(value, Tensor | np.ndarray):
            return logits_of(value)
    tables = [part for part in parts.values() if isinstance(part, Tensor) and part.ndim == 2]
    if len(tables) == 1 or (tables and isinstance(returned, tuple | list)):
        return tables[0]
    shapes = [f"{name}: {_size(part)}" for name, part in parts.items()]
    raise HardcaseError(
        f"the model returns {type(returned).__name__}; which part of it are the class scores?",
        *([f"It holds {', '.join(shapes)}."] if shapes else []),
        fix='a forward that returns the logits, or a dictionary with "logits"',
    )


class Adapted(nn.Module):
    """A network that is called in its number type, perhaps in calls of `rows`, and returns
    float32."""

    def __init__(self, net: nn.Module, *, rows: int | None = None) -> None:
        super().__init__()
        self.net = net
        self.rows = rows

    @property
    def dtype(self) -> torch.dtype:
        """That of the first floating-point weight; float32 where there is none."""
        weights = [*self.net.parameters(), *self.net.buffers()]
        return next((each.dtype for each in weights if each.is_floating_point()), torch.float32)

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        typed = x.to(self.dtype)
        if self.rows is None:
            return logits_of(self.net(typed)).float()
        padded = pad_rows(typed, self.rows)
        answers = [logits_of(self.net(padded[part])) for part in chunks(len(padded), self.rows)]
        return torch.cat(answers)[: len(x)].float()

    def __deepcopy__(self, memo: dict[Any, Any]) -> Adapted:
        """A copy whose weights are leaves, also of a traced module."""
        with torch.no_grad():
            return Adapted(copy.deepcopy(self.net, memo), rows=self.rows).train(self.training)

    def train(self, mode: bool = True) -> Adapted:
        """As `nn.Module.train`; an exported program has a single mode and stays in it."""
        self.training = mode
        with suppress(NotImplementedError):
            self.net.train(mode)
        return self


class _Function(nn.Module):
    """A bare function as a module without weights."""

    def __init__(self, function: Callable[..., Any], *, arrays: bool) -> None:
        super().__init__()
        self.function = function
        self.arrays = arrays

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        batch = x.detach().cpu().numpy() if self.arrays else x
        return logits_of(self.function(batch)).to(x.device).float()

    def extra_repr(self) -> str:
        return _source(self.function)


class Scored(ModelWrapper):
    """A model that says its scores and nothing else: a function whose gradients do not exist."""

    @property
    def offers(self) -> Offer:
        return "scores"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise HardcaseError(
                f"{self.name} is a function; it has no layers that could be watched."
            )
        with torch.no_grad():
            return Answer(self.model(x).logits)


def module_of(thing: nn.Module | torch.export.ExportedProgram) -> nn.Module:
    """A module of any kind, or an exported program, ready for `Subject`."""
    if isinstance(thing, torch.export.ExportedProgram):
        return Adapted(thing.module(), rows=_fixed_rows(thing))
    return Adapted(without_trainer(thing))


def is_model(thing: Any) -> bool:
    """Whether this is a model of hardcase already."""
    if isinstance(thing, nn.Module):
        return isinstance(thing, Subject)
    return isinstance(thing, Model)


def function_model(
    function: Any, example: Float[Tensor, "m c h w"], name: str = "", **how: Any
) -> Model:
    """A model of a function of tensors, or of arrays where it does not answer tensors; `how` as for
    `Subject`.
    """
    if not callable(function) or isinstance(function, type):
        raise HardcaseError(
            f"{type(function).__name__} is no kind of model that is known.",
            "Known are modules of torch and Lightning, traced, scripted and exported programs, and"
            " functions of images.",
            fix="an object, not its class, or a function that takes images and returns scores",
        )
    net = _Function(function, arrays=False)
    try:
        with guarded("the function"):
            function(example)
    except (HardcaseError, MemoryError):  # whatever it raises, it did not answer tensors
        net.arrays = True
    name = name or str(getattr(function, "__name__", "") or type(function).__name__)
    subject = Subject(net, name=name, **how)
    differentiable = False
    with torch.enable_grad(), suppress(Raised):  # it may refuse tensors that carry gradients
        probe = example[:1].to(subject.device).detach().requires_grad_()
        differentiable = not net.arrays and subject(probe).logits.requires_grad
    return subject if differentiable else Scored(subject)


@torch.no_grad()
def adapted_if_needed(net: nn.Module, x: Float[Tensor, "m c h w"]) -> nn.Module:
    """`net` where it takes float32 and returns a tensor, so that layers keep their names."""
    if isinstance(net, Adapted):
        return net
    wrapped = Adapted(net)
    if wrapped.dtype is not torch.float32 or isinstance(net, torch.jit.ScriptModule):
        return wrapped
    try:
        with guarded("the model"), within(LOOPING, Endless), in_evaluation_mode(net):
            returned = net(x.to(device_of(net)))
    except Exception:  # told in full by the check of the model's health
        return net
    return net if isinstance(returned, Tensor) else wrapped


def from_model_file(path: Path) -> nn.Module:
    """A network that a file holds with its code: TorchScript, or a ``torch.export`` (``.pt2``)."""
    if not path.is_file():
        raise HardcaseError(f"there is no file {path}.")
    require_consent(path)
    fix = f"{path}@FILE.py:FUNCTION, where FUNCTION makes the network"
    if _saved_by_torch(path):
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever is pickled in it
            raise HardcaseError(
                f"{path} is a network that torch.save has pickled whole; it is not loaded.",
                "Pickled code can do anything, and it needs the classes that it was saved with.",
                fix=f"torch.save(net.state_dict(), {path.name!r}), then --model {fix}",
            ) from error
        raise HardcaseError(f"{path} holds weights; they need the code of their network.", fix=fix)
    with reading(
        f"{path} holds no network that can be run",
        "A file of weights needs the code of its network.",
        fix=f"{fix}, {path}@timm:NAME or {path}@torchvision:NAME",
    ):
        if path.suffix == ".pt2":
            return module_of(torch.export.load(path))
        # torch leaves `jit.load` without types
        return module_of(torch.jit.load(path, map_location="cpu"))  # type: ignore[no-untyped-call]


def _saved_by_torch(path: Path) -> bool:
    """Whether a file is of ``torch.save``, rather than a traced, scripted or exported network."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    inside = {name.partition("/")[2] for name in names}
    return "data.pkl" in inside and not any(name.startswith("code/") for name in inside)


def own_names(thing: Any) -> tuple[str, ...]:
    """Class names that a network carries (Hugging Face's ``id2label``), by its outputs."""
    table = getattr(getattr(thing, "config", None), "id2label", None)
    if not isinstance(table, Mapping):
        return ()
    numbered = sorted((int(number), str(label)) for number, label in table.items())
    if [number for number, _ in numbered] != list(range(len(numbered))):
        return ()
    return tuple(label for _, label in numbered)


def timm_config(thing: object, config: Any = None) -> dict[str, Any]:
    """timm's configuration of a network's preprocessing, or `config`, as a dictionary."""
    settings = config or getattr(thing, "pretrained_cfg", None) or getattr(thing, "default_cfg", {})
    if isinstance(settings, Mapping):
        return dict(settings)
    return {name: getattr(settings, name) for name in dir(settings) if not name.startswith("_")}


def _fixed_rows(program: torch.export.ExportedProgram) -> int | None:
    """The batch size of an exported program, if it takes no other."""
    wanted = set(program.graph_signature.user_inputs)
    inputs = [
        node for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted
    ]
    size = inputs[0].meta["val"].shape[0]
    return size if isinstance(size, int) else None


def without_trainer(module: nn.Module) -> nn.Module:
    """A Lightning module without its trainer, which cannot be copied."""
    if not (hasattr(module, "training_step") and hasattr(module, "configure_optimizers")):
        return module
    alone = copy.copy(module)
    for name in ("trainer", "_trainer", "_fabric"):
        if name in alone.__dict__:
            alone.__dict__[name] = None
    user_classes = [
        kind for kind in type(alone).__mro__ if kind.__module__.split(".")[0] not in _FRAMEWORKS
    ]
    if any("forward" in vars(kind) for kind in user_classes):
        return alone
    inner = [child for child in alone.children() if any(True for _ in child.parameters())]
    if len(inner) == 1:
        return inner[0]
    raise HardcaseError(
        f"{type(module).__name__} defines no forward.",
        fix="pass the network inside it, as model.net",
    )


_FRAMEWORKS = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "builtins")


def _source(function: Callable[..., Any]) -> str:
    """What identifies a function: its source, or its name if the source is unavailable."""
    try:
        return digest([inspect.getsource(function)])
    except (OSError, TypeError):
        return str(getattr(function, "__qualname__", type(function).__name__))


# Weights as people save them: inside a checkpoint, under the prefixes that wrappers leave, in
# safetensors or torch files.

INSIDE = (
    *("state_dict", "model_state_dict", "model", "module"),
    *("net", "network", "params", "weights"),
)
"""Under which a checkpoint holds the weights, in the order in which they are looked for."""
State = dict[str, Tensor]


def read_state(path: Path, *, trust: bool = False) -> State:
    """The weights in a file, whatever surrounds them; with `trust` it may be unpickled."""
    if not path.is_file():
        raise HardcaseError(f"there is no weights file {path}.")
    if trust:
        require_consent(path)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        with reading(f"{path} is not a safetensors file"):
            return dict(load_file(path))
    with reading(f"{path} cannot be read"):
        try:
            content = torch.load(path, map_location="cpu", weights_only=not trust)
        except UnpicklingError as error:
            raise HardcaseError(
                f"{path} needs unpickling, which can run code. Not loaded.",
                fix="save a state_dict or safetensors, or pass --trust-pickle",
            ) from error
        return state_of(content, str(path))


def state_of(content: Any, where: str = "the checkpoint") -> State:
    """The table of weights in a checkpoint, at any depth."""
    if isinstance(content, nn.Module):
        return dict(content.state_dict())
    if isinstance(content, Mapping):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        for key in INSIDE:
            inner = content.get(key)
            if isinstance(inner, nn.Module) or (isinstance(inner, Mapping) and inner):
                return state_of(inner, where)
        if tensors:
            return tensors
    content_words = type(content).__name__
    if isinstance(content, Mapping):
        content_words = ", ".join(map(str, list(content)[:8]))
    raise HardcaseError(
        f"{where} holds no weights that are known.",
        f"Looked for {', '.join(INSIDE)}; it holds {content_words}.",
        fix='torch.save({"state_dict": net.state_dict()}, path)',
    )


def fit_state(net: nn.Module, state: Mapping[str, Tensor], where: str = "the weights") -> str:
    """Load weights into `net`, removing or adding prefixes such as ``module.``; return the changes
    in words.

    All weights of the network must be there; others in the file are left out and counted.
    """
    expected = net.state_dict()
    prefix, renamed = _renamed(expected, state)
    needed = [name for name in expected if not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in renamed]
    if missing:
        raise HardcaseError(
            f"{where} lacks {len(missing)} of the network's {len(expected)} weights, the first is"
            f" {missing[0]}.",
            f"It has {len(state)}, the first is {next(iter(state), 'none')}.",
            fix="the factory of the network that these weights were saved from",
        )
    wrong = [
        name for name in expected if name in renamed and expected[name].shape != renamed[name].shape
    ]
    if wrong:
        why = "It is another network."
        last_layer = [name for name, value in expected.items() if value.ndim][-2:]
        if set(wrong) <= set(last_layer):
            why = "Most often the number of classes differs."
        raise HardcaseError(
            f"{wrong[0]} is {_size(renamed[wrong[0]])} in {where} and"
            f" {_size(expected[wrong[0]])} in the network.",
            why,
        )
    fitting = {name: value for name, value in renamed.items() if name in expected}
    with reading(f"{where} does not fit the network"):  # weights of strange types
        net.load_state_dict(fitting, strict=False)
    notes = []
    if prefix:
        done = {"-": "removed", "+": "added"}[prefix[0]]
        notes.append(f"{done} the prefix {prefix[1:]!r}")
    left = len(state) - len(fitting)
    if left:
        notes.append(f"left out {left} weights that the network does not have")
    return "; ".join(notes)


def _renamed(expected: Mapping[str, Any], state: Mapping[str, Tensor]) -> tuple[str, State]:
    """The weights under the network's names, and the removed (``-``) or added (``+``) prefix."""
    votes = Counter[str]()
    votes.update({"": sum(name in expected for name in state)})
    votes.update(_prefixes(expected, state, "-"))
    votes.update(_prefixes(state, expected, "+"))
    best, _ = max(votes.items(), key=lambda pair: (pair[1], -len(pair[0])))
    if best.startswith("-"):
        cut = best[1:]
        return best, {
            name.removeprefix(cut): value for name, value in state.items() if name.startswith(cut)
        }
    return best, {f"{best[1:]}{name}": value for name, value in state.items()}


def _prefixes(short: Mapping[str, Any], long: Mapping[str, Any], sign: str) -> Iterator[str]:
    """For every name of `long`, the beginnings after which it is a name of `short`."""
    for name in long:
        words = name.split(".")
        for cut in range(1, len(words)):
            if ".".join(words[cut:]) in short:
                yield f"{sign}{'.'.join(words[:cut])}."


def _size(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return " x ".join(map(str, value.shape)) or "one number"
