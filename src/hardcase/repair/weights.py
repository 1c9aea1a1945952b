"""Repaired weights, in the form in which the network came, with a card that says what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.cache import write_atomically
from hardcase.claims.answers import Standard
from hardcase.claims.subjects import Flattened
from hardcase.environment import VERSION
from hardcase.errors import Problem
from hardcase.models.adapters import Adapted
from hardcase.models.load import WHOLE
from hardcase.models.subject import Subject
from hardcase.runs.files import checked_json
from hardcase.tensors import digest_tensors
from hardcase.types import Model

__all__ = ["CARD", "WEIGHTS", "own_network", "repairable", "repaired_name", "write_weights"]

WEIGHTS = "weights.safetensors"
CARD = "card.json"


def repairable(model: Model) -> Subject:
    """Return the model, if it can learn and its weights can be written."""
    if not isinstance(model, Subject) or model.offers != "gradients":
        raise Problem(
            f"model {model.name} offers {model.offers} and no gradients, so it cannot be trained.",
            fix="the network itself: file.py:factory, weights@file.py:factory, zoo:NAME",
        )
    whole = "@" not in model.name and model.name.partition("?")[0].endswith(WHOLE)
    net = own_network(model.net)
    if whole or isinstance(net, torch.jit.ScriptModule | torch.fx.GraphModule):
        raise Problem(
            f"model {model.name} has no code: its weights cannot be written back.",
            fix="weights.safetensors@file.py:factory, with the code that made it",
        )
    odd = [name for name, value in net.state_dict().items() if not _is_plain(value)]
    if odd:
        raise Problem(
            f"model {model.name} keeps {odd[0]}, which is no plain tensor: its weights cannot be"
            " written back as safetensors.",
            fix="plain tensors in its state_dict: no extra state, no sparse or quantised weights",
        )
    if model.uncopied:
        raise Problem(
            f"model {model.name} cannot be copied ({model.uncopied}), so it cannot be trained.",
            fix="a factory without locks, sockets and open files",
        )
    return model


def _is_plain(value: object) -> bool:
    """Whether safetensors can hold a value of a state_dict."""
    return (
        isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized
    )


def own_network(net: nn.Module) -> nn.Module:
    """Return the user's network inside what adapts it."""
    while isinstance(net, Adapted | Flattened | Standard):
        net = net.net
    return net


def repaired_name(spec: str, weights: Path) -> str:
    """Return what ``--model`` calls the repaired network."""
    code = spec.rpartition("@")[2]
    return f"{weights}@{code.partition('?seed=')[0] if code.startswith('zoo:') else code}"


def write_weights(
    folder: Path, subject: Subject, net: nn.Module, about: Mapping[str, Any]
) -> tuple[str, str]:
    """Write the weights of a repaired network under the names they had, and its card.

    Returns what ``--model`` calls them, and their digest.
    """
    from safetensors.torch import load_file, save

    state = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in own_network(net).state_dict().items()
    }
    path = folder / WEIGHTS
    write_atomically(path, save(state))
    found = digest_tensors(state)
    if digest_tensors(load_file(path)) != found:
        raise Problem(f"{path} does not read back as it was written.", fix="another --out folder")
    name = repaired_name(subject.name, path)
    card = {
        "schema": 1,
        "kind": "repaired",
        "model": name,
        "weights": found,
        "parents": {"model": subject.name, "hash": subject.hash, "weights": subject.weights},
        "normalisation": {
            "mean": subject.mean.flatten().tolist(),
            "std": subject.std.flatten().tolist(),
            "channels": subject.channels,
            "outputs": subject.outputs,
        },
        **about,
        "versions": {"hardcase": VERSION, "torch": str(torch.__version__)},
    }
    write_atomically(folder / CARD, checked_json(json.loads(json.dumps(card))))
    return name, found
