"""Weights as people save them: inside a checkpoint, under the prefixes that wrappers leave,
in safetensors or torch files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.errors import Problem, reading
from hardcase.usercode import require_consent

__all__ = ["fit_state", "read_state", "state_of"]

INSIDE = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "params",
    "weights",
)
"""Under which a checkpoint holds the weights, in the order in which they are looked for."""
State = dict[str, Tensor]


def read_state(path: Path, *, trust: bool = False) -> State:
    """The weights in a file, whatever surrounds them; with `trust` it may be unpickled."""
    if not path.is_file():
        raise Problem(f"there is no weights file {path}.")
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
            raise Problem(
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
    why = []
    if isinstance(content, Mapping):
        names = ", ".join(map(str, list(content)[:8]))
        why.append(f"Looked for {', '.join(INSIDE)}; it holds {names}.")
    raise Problem(
        f"{where} holds no weights that are known.",
        *why,
        fix='torch.save({"state_dict": net.state_dict()}, path)',
    )


def fit_state(net: nn.Module, state: Mapping[str, Tensor], where: str = "the weights") -> str:
    """Load weights into `net`, prefixes such as ``module.`` taken off or put on; return what was
    done to make them fit, in words.

    All weights of the network must be there; others in the file are left out and counted.
    """
    own = net.state_dict()
    prefix, renamed = _renamed(own, state)
    missing = [
        name for name in own if name not in renamed and not name.endswith("num_batches_tracked")
    ]
    if missing:
        raise Problem(
            f"{where} lacks {len(missing)} of the network's {len(own)} weights, the first is"
            f" {missing[0]}.",
            f"It has {len(state)}, the first is {next(iter(state), 'none')}.",
            fix="the factory of the network that these weights were saved from",
        )
    wrong = [name for name in own if name in renamed and own[name].shape != renamed[name].shape]
    if wrong:
        why = "It is another network."
        last_layer = [name for name, value in own.items() if value.ndim][-2:]
        if set(wrong) <= set(last_layer):
            why = "Most often the number of classes differs."
        raise Problem(
            f"{wrong[0]} is {_size(renamed[wrong[0]])} in {where} and {_size(own[wrong[0]])} in the"
            " network.",
            why,
        )
    taken = {name: value for name, value in renamed.items() if name in own}
    with reading(f"{where} does not fit the network"):  # weights of strange types
        net.load_state_dict(taken, strict=False)
    notes = []
    if prefix:
        notes.append(f"{'removed' if prefix[0] == '-' else 'added'} the prefix {prefix[1:]!r}")
    left = len(state) - len(taken)
    if left:
        notes.append(f"left out {left} weights that the network does not have")
    return "; ".join(notes)


def _renamed(own: Mapping[str, Any], state: Mapping[str, Tensor]) -> tuple[str, State]:
    """The weights under the network's names, and the prefix taken off (``-``) or put on (``+``)."""
    votes = Counter[str]()
    votes.update({"": sum(name in own for name in state)})
    votes.update(_prefixes(own, state, "-"))
    votes.update(_prefixes(state, own, "+"))
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


def _size(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "one number"
