"""The folder of a repair: weights in the form in which the network came, a card that says what they
are, the page, and a gate that passes them only if nothing is worse than in the network before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
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
from hardcase.plain import read_plain
from hardcase.repair.proof import Proof, ProofRow, ProofValues, compare_values
from hardcase.runs.files import checked_json, read_checked_json
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_beside
from hardcase.suite.gate import Check, Outcome
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


def repair_checks(new: Path, old: Run, margin: float) -> list[Check]:
    """Return a check for every figure of a repaired network against the network before."""
    if (new / RECORD).exists():
        return [_check(row) for row in _proof_rows(new, old)]
    run = Run(new)
    if run.record.get("conditions") != old.record.get("conditions"):
        raise Problem("the two runs have other conditions, so their risks cannot be compared.")
    before, after = _common(_seeds(old), _seeds(run))
    return [_check(row) for row in compare_values(before, after, old.classes, margin)]


def _proof_rows(folder: Path, old: Run) -> list[ProofRow]:
    """The rows of a repair whose parent is the network of a run."""
    try:
        record, sound = read_checked_json(read_plain(folder / RECORD))
        keys = [one.name for one in fields(ProofRow)]
        rows = [ProofRow(*(row[key] for key in keys)) for row in record["proof"]["rows"]]
        parent = str(record["parents"]["hash"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Problem(f"{folder / RECORD} cannot be read: {error}") from error
    if not sound:
        raise Problem(f"{folder / RECORD} is not what was written.", fix="hardcase repair again")
    then = Identity.from_json(old.record.get("identity"))
    if then is None or then.parts.get("model") != parent:
        raise Problem(
            f"{folder} repaired another network than that of {old.folder}.",
            fix="--repaired-from with the run of the network that was repaired",
        )
    return rows


def _check(row: ProofRow) -> Check:
    """A figure passes if it is not worse; one of many passes unless it is certainly worse."""
    said: Outcome = "pass"
    if row.outcome == "worse":
        said = "fail"
    elif row.outcome == "cannot tell" and row.decides:
        said = "cannot tell"
    text = (
        f"{row.group}, {row.name}: {row.before:.2%} before, {row.after:.2%} after, change"
        f" {row.low:+.2%} to {row.high:+.2%} over {row.units} images, margin {row.margin:.2%}"
    )
    decide = "more images: a larger test split, or --proof full" if said == "cannot tell" else ""
    return Check(f"{row.group}: {row.name}", said, text, decide, limit=row.margin)


def _seeds(run: Run) -> dict[str, dict[str, Any]]:
    kept = read_beside(run.store, CONDITIONS)
    if kept is None:
        raise Problem(
            f"{run.folder} has no risk: it was run without declared conditions.",
            fix="hardcase run ... --conditions scanner",
        )
    return {row["id"]: {**row, "risk": row["failing"] / kept["draws"]} for row in kept["seeds"]}


def _common(
    one: dict[str, dict[str, Any]], two: dict[str, dict[str, Any]]
) -> tuple[ProofValues, ProofValues]:
    """What two networks do with the seeds that both runs have."""
    names = [name for name in one if name in two]
    if not names:
        raise Problem("the two runs have no seed in common: they cannot be compared.")

    def values(rows: dict[str, dict[str, Any]]) -> ProofValues:
        label, clean, risk = (
            np.array([rows[name][key] for name in names]) for key in ("label", "clean", "risk")
        )
        return ProofValues(label, clean.astype(np.float64), risk)

    return values(one), values(two)
