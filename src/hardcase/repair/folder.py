"""The folder of a repair: weights in the form in which the network came, a card that says what they
are, the page, and a gate that passes them only if nothing is worse than in the network before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardcase.cache import write_atomically
from hardcase.claims.answers import Standard
from hardcase.claims.subjects import Flattened
from hardcase.conditions import Conditions
from hardcase.conditions.box import conditions_digest
from hardcase.environment import VERSION
from hardcase.errors import HardcaseError
from hardcase.models.adapters import Adapted
from hardcase.models.load import WHOLE
from hardcase.models.subject import Subject
from hardcase.plain import read_plain
from hardcase.repair.examples import RepairedExample
from hardcase.repair.proof import FAILURE_RATE, ProofRow
from hardcase.runs.files import checked_json, read_checked_json
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.statistics import ImagesNeeded, Outcome
from hardcase.suite.gate import Check, GateLimits, require_believable
from hardcase.tensors import digest_tensors
from hardcase.types import Model
from hardcase.wording.repair import headline

__all__ = [
    *("CARD", "PAGE", "RECORD", "WEIGHTS", "StoredRepair", "own_network", "repair_checks"),
    *("repair_page", "repairable", "repaired_name", "write_weights"),
]

WEIGHTS = "weights.safetensors"
CARD = "card.json"
PAGE = "report.html"
RECORD = "repair.json"
PARTS = {
    "attack": "what an attack finds: lower bounds that decide nothing",
    "stored": "the failures that the run found",
    "condition": "each declared condition alone",
    "elsewhere": "conditions and corruptions that were not trained on",
    "class": "each class",
}
"""Tables of the page after the deciding table, by the groups of their rows."""


def repairable(model: Model) -> Subject:
    """Return the model, if it can learn and its weights can be written."""
    if not isinstance(model, Subject) or model.offers != "gradients":
        raise HardcaseError(
            f"model {model.name} offers {model.offers} and no gradients, so it cannot be trained.",
            fix="the network itself: file.py:factory, weights@file.py:factory, zoo:NAME",
        )
    stored_module = "@" not in model.name and model.name.partition("?")[0].endswith(WHOLE)
    net = own_network(model.net)
    if stored_module or isinstance(net, torch.jit.ScriptModule | torch.fx.GraphModule):
        raise HardcaseError(
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
        raise HardcaseError(
            f"model {model.name} keeps {odd[0]}, which is no plain tensor: its weights cannot be"
            " written back as safetensors.",
            fix="plain tensors in its state_dict: no extra state, no sparse or quantised weights",
        )
    if model.uncopied:
        raise HardcaseError(
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
    digest = digest_tensors(state)
    if digest_tensors(load_file(path)) != digest:
        raise HardcaseError(
            f"{path} does not read back as it was written.", fix="another --out folder"
        )
    name = repaired_name(subject.name, path)
    card = {
        "schema": 1,
        "kind": "repaired",
        "model": name,
        "weights": digest,
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
    return name, digest


def repair_page(record: Mapping[str, Any], examples: Sequence[RepairedExample]) -> str:
    """Return the page of a repair: the decision, pictures, what decides, every other figure."""
    from hardcase.report.page import render

    rows = record["proof"]["rows"]
    decides = [row for row in rows if row["decides"]]
    parts = [("what decides", decides)]
    parts += [
        (title, [row for row in rows if row["group"] == group and row not in decides])
        for group, title in PARTS.items()
    ]
    word, _, sentence = headline(record).partition("  ")
    filters = {"percent": lambda share: f"{100 * share:.1f} %", "pp": lambda x: f"{100 * x:+.1f}"}
    return render(
        Path(__file__).with_name("page.html"),
        filters,
        record=record,
        word=word,
        sentence=sentence,
        parts=[(title, part) for title, part in parts if part],
        examples=examples,
    )


@dataclass(frozen=True, slots=True)
class StoredRepair:
    """A repair as its folder holds it.

    Args:
        record: What ``repair.json`` says.
        rows: The figures of its proof.
    """

    record: Mapping[str, Any]
    rows: tuple[ProofRow, ...]

    @staticmethod
    def read(folder: Path) -> StoredRepair:
        """Return the repair of a folder, if record and weights are what was written.

        Raises:
            HardcaseError: If anything was changed, is missing, or is no repair.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        again = "hardcase repair again"
        try:
            record, sound = read_checked_json(read_plain(folder / RECORD))
            keys = [column.name for column in fields(ProofRow)]
            rows = tuple(ProofRow(*(row[key] for key in keys)) for row in record["proof"]["rows"])
            expected = str(record["weights"])
            _ = str(record["parents"]["hash"]), str(record["verdict"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise HardcaseError(f"{folder / RECORD} cannot be read: {error}", fix=again) from error
        if not sound:
            raise HardcaseError(f"{folder / RECORD} is not what was written.", fix=again)
        path = folder / WEIGHTS
        try:
            digest = digest_tensors(load(path.read_bytes()))
        except (OSError, SafetensorError, ValueError) as error:
            raise HardcaseError(
                f"the repaired weights {path} cannot be read: {error}", fix=again
            ) from error
        if digest != expected:
            raise HardcaseError(
                f"{path} is not the network that was proved.",
                f"The proof is of weights {expected}, the file holds {digest}.",
                fix=again,
            )
        return StoredRepair(record, rows)

    def require_parent(self, run: Run) -> None:
        """Refuse a run of another network than the repaired network, or of other conditions."""
        then = Identity.from_json(run.record.get("identity"))
        if then is None or then.parts.get("model") != str(self.record["parents"]["hash"]):
            raise HardcaseError(
                f"the repair is of another network than that of {run.folder}.",
                fix="--repaired-from with the run of the network that was repaired",
            )
        declared = run.record.get("conditions")
        if declared is None:
            raise HardcaseError(f"{run.folder} was measured without declared conditions.")
        shape = tuple(run.record["shape"])
        if conditions_digest(Conditions.load(declared), shape) != self.record["conditions_digest"]:
            raise HardcaseError(
                f"the repair was proved under other conditions than those of {run.folder}.",
                fix="hardcase repair RUN without --conditions",
            )


def repair_checks(folder: Path, before: Run, limits: GateLimits) -> list[Check]:
    """Return a check for every figure of a repair, held against the project's margin, and for the
    limits that the proof says nothing about.

    Args:
        folder: The folder of the repair.
        before: A verified run of the network before.
        limits: The project's limits. Without a margin among them it is what the images can show.
            The margin of the repair itself never counts, unless it is the stricter.

    Raises:
        HardcaseError: If the folder is not what was written, or of another network or conditions.
    """
    require_believable(before)
    stored = StoredRepair.read(folder)
    stored.require_parent(before)
    margin = limits.margin if "margin" in limits.model_fields_set else None
    checks = [_check(row, margin) for row in stored.rows if not row.informs]
    if stored.record["verdict"] == "inconclusive":
        text = "the proof of the repair was inconclusive"
        checks.append(Check("proof", "inconclusive", text, "more images: a larger test split"))
    if limits.any or limits.conditions is not None:
        text = "the declared limits were not measured of the repaired network"
        measured = f"hardcase run --model {stored.record['model']} ..., then hardcase gate of it"
        checks.append(Check("limits", "inconclusive", text, measured))
    return checks


def _check(row: ProofRow, margin: float | None) -> Check:
    """The failure rate must be lower, what decides not worse, and no part certainly worse."""
    outcome: Outcome
    if row.name == FAILURE_RATE:
        outcome = "pass" if row.outcome == "better" else "inconclusive"
        if not row.before or (row.high >= 0 and row.low > -row.margin):
            outcome = "fail"
        return _told(row, outcome, "must be lower")
    allowed = row.planned if margin is None else margin
    held = row.with_margin(min(allowed, row.margin))
    outcome = "pass"
    if held.outcome == "worse":
        outcome = "fail"
    elif held.outcome == "unclear" and row.decides:
        outcome = "inconclusive"
    return _told(held, outcome, f"margin {100 * held.margin:.1f} pp")


def _told(row: ProofRow, outcome: Outcome, limit: str) -> Check:
    text = f"{row.group}, {row.name}: {row.in_points()} over {row.units:,} images; {limit}"
    decide = ""
    if outcome == "inconclusive":
        wanted = "more images"
        if row.needed is not None:
            wanted = str(ImagesNeeded(row.needed, row.at_least))
        decide = f"a larger test split: {wanted}"
    return Check(f"{row.group}: {row.name}", outcome, text, decide, limit=row.margin)
