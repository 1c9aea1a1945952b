"""The folder of a repair: weights in the form in which the network came, a card that says what they
are, the page, and a gate that passes them only if nothing is worse than in the network before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.cache import write_atomically
from hardcase.claims.answers import Standard
from hardcase.claims.subjects import Flattened
from hardcase.conditions.box import conditions_digest
from hardcase.conditions.declared import Conditions
from hardcase.environment import VERSION
from hardcase.errors import Problem
from hardcase.models.adapters import Adapted
from hardcase.models.load import WHOLE
from hardcase.models.subject import Subject
from hardcase.plain import read_plain
from hardcase.repair.proof import Proof, ProofRow
from hardcase.runs.files import checked_json, read_checked_json
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.statistics import Outcome
from hardcase.suite.gate import Check, GateLimits, require_believable
from hardcase.suite.tables import Cell, Outcome as Tables, Table, page
from hardcase.tensors import digest_tensors
from hardcase.types import Model

__all__ = [
    *("CARD", "PAGE", "RECORD", "WEIGHTS", "own_network", "repair_checks", "repair_page"),
    *("repairable", "repaired_name", "write_weights"),
]

WEIGHTS = "weights.safetensors"
CARD = "card.json"
PAGE = "report.html"
RECORD = "repair.json"
PARTS = {
    "condition": "each declared condition alone",
    "elsewhere": "conditions and corruptions that were not trained on",
    "class": "each class",
}
"""Tables of the page after the one that decides, by the groups of their rows."""


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
    odd = [
        name
        for name, value in net.state_dict().items()
        if not isinstance(value, torch.Tensor)
        or value.layout is not torch.strided
        or value.is_quantized
    ]
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


def repair_page(folder: Path, record: Mapping[str, Any], proof: Proof) -> str:
    """The one page: verdict and why, what decides, every other figure, how it was trained."""
    training = record["training"]
    first: list[list[Cell]] = [["verdict", proof.verdict]]
    first += [["because" if i == 0 else "", text] for i, text in enumerate(proof.reasons)]
    first.append(["repaired weights", str(record["model"])])
    notes = [
        f"{proof.seeds} images that neither training, validation nor search saw; differences are"
        " paired by image, intervals hold in 95 of 100 cases, those of the tables below together",
        "1 - least scale: how much less than the whole range is enough to break an image;"
        " both networks were attacked with what broke the other",
    ]
    decisive = [row for row in proof.rows if row.decides or row.group in ("declared", "stored")]
    tables = [Table("verdict", ["", "told"], first), _table("what decides", decisive, notes)]
    for group, title in PARTS.items():
        others = [row for row in proof.rows if row.group == group and row not in decisive]
        tables.append(_table(title, others))
    rows: list[list[Cell]] = [
        [name, str(training[name])] for name in ("rate", "epochs", "best", "seconds")
    ]
    rows += [[name, str(value)] for name, value in record["recipe"].items()]
    rows += [[name, str(value)] for name, value in record["conditions"].items()]
    tables.append(Table("how it was trained", ["", "value"], rows, training["notes"]))
    name = f"Repair of {record['parents']['model']}: {proof.verdict}"
    return page(Tables(name, tables), folder, "")


def _table(title: str, proved: Sequence[ProofRow], notes: Sequence[str] = ()) -> Table:
    """Figures before and after as a table."""
    rows: list[list[Cell]] = [
        [
            row.name,
            f"{row.before:.2%}",
            f"{row.after:.2%}",
            f"{row.after - row.before:+.2%}",
            f"{row.low:+.2%} to {row.high:+.2%}",
            row.units,
            row.outcome,
        ]
        for row in proved
    ]
    columns = ["figure", "before", "after", "change", "95 %", "images", "it is"]
    return Table(title, columns, rows, list(notes))


def repair_checks(folder: Path, old: Run, limits: GateLimits) -> list[Check]:
    """Return a check for every figure of the proof of a repair, and for every limit.

    The margin is the project's, whatever the repair was given. A limit that needs a run of the
    repaired network is inconclusive: the proof says nothing about it.

    Args:
        folder: The folder of the repair.
        old: A verified run of the network that was repaired.
        limits: The project's limits.

    Raises:
        Problem: If the folder is not what was written, its weights are others, or it is a repair of
            another network or for other conditions.
    """
    require_believable(old)
    record, rows = _proof(folder, old)
    found = [_check(replace(row, margin=limits.margin)) for row in rows]
    proved = str(record["proof"]["verdict"]).lower()
    said: Outcome = "inconclusive"
    if proved == "repaired":
        said = "pass"
    elif proved in ("worse", "moved elsewhere", "not repaired", "regressed elsewhere"):
        said = "fail"
    measured = f"hardcase run --model {record['model']} ..., then hardcase gate of that run"
    decide = "more images: a larger test split, or --proof full" if said == "inconclusive" else ""
    found.insert(0, Check("proof", said, f"the proof says: {proved}", decide))
    if limits.any or limits.conditions is not None:
        text = "the declared limits were not measured of the repaired network"
        found.append(Check("limits", "inconclusive", text, measured))
    return found


def _proof(folder: Path, old: Run) -> tuple[dict[str, Any], list[ProofRow]]:
    """The record of a repair and the rows of its proof, whose parent is the network of a run."""
    try:
        record, sound = read_checked_json(read_plain(folder / RECORD))
        keys = [one.name for one in fields(ProofRow)]
        rows = [ProofRow(*(row[key] for key in keys)) for row in record["proof"]["rows"]]
        parent = str(record["parents"]["hash"])
        stored = str(record["weights"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Problem(f"{folder / RECORD} cannot be read: {error}") from error
    if not sound:
        raise Problem(f"{folder / RECORD} is not what was written.", fix="hardcase repair again")
    if _weights_digest(folder / WEIGHTS) != stored:
        raise Problem(
            f"{folder / WEIGHTS} is missing or not what the proof is about.",
            fix="hardcase repair again",
        )
    then = Identity.from_json(old.record.get("identity"))
    if then is None or then.parts.get("model") != parent:
        raise Problem(
            f"{folder} repaired another network than that of {old.folder}.",
            fix="--repaired-from with the run of the network that was repaired",
        )
    shape = tuple(old.record["image"])
    if conditions_digest(Conditions.load(record["conditions"]), shape) != old.record.get(
        "conditions_digest"
    ):
        raise Problem(f"{folder} was proved under other conditions than those of {old.folder}.")
    return record, rows


def _weights_digest(path: Path) -> str:
    """The digest of a file of weights; nothing if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return digest_tensors(load_file(path))
    except (OSError, SafetensorError, ValueError):
        return ""


def _check(row: ProofRow) -> Check:
    """A figure passes if it is not worse; one of many passes unless it is certainly worse."""
    said: Outcome = "pass"
    if row.outcome == "worse":
        said = "fail"
    elif row.outcome not in ("better", "not worse") and row.decides:
        said = "inconclusive"
    text = (
        f"{row.group}, {row.name}: {row.before:.2%} before, {row.after:.2%} after, change"
        f" {row.low:+.2%} to {row.high:+.2%} over {row.units} images, margin {row.margin:.2%}"
    )
    decide = "more images: a larger test split, or --proof full" if said == "inconclusive" else ""
    change = (row.after - row.before, row.low, row.high, row.margin, row.units)
    return Check(f"{row.group}: {row.name}", said, text, decide, *change)
