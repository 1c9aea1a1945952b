"""Runs of two-pixel pictures with a subject whose answers are known, for everything that comes after a search."""

import numpy as np
import torch
from torch import nn

from hardcase.models.subject import Subject
from hardcase.runs.folder import Packed, Store, pack_deltas
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.runs.tables import findings_table, seeds_table, to_parquet
from hardcase.statistics import count
from hardcase.types import Findings
from tiny import put_verdicts


class Brightness(nn.Module):
    """Class 1 where the mean is at least `edge`, else class 0."""

    def __init__(self, edge=0.5):
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(edge))

    def forward(self, x):
        gap = 40 * (x.mean((1, 2, 3)) - self.edge)
        return torch.stack([torch.zeros_like(gap), gap], 1)


def subject(edge=0.5):
    return Subject(Brightness(edge), name=f"edge {edge}")


MODELS = """
import torch
from torch import nn

class Brightness(nn.Module):
    def __init__(self, edge):
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(edge))
    def forward(self, x):
        gap = 40 * (x.mean((1, 2, 3)) - self.edge)
        return torch.stack([torch.zeros_like(gap), gap], 1)

def old():
    return Brightness(0.5)

def new():
    return Brightness(0.65)
"""


def write_world(folder):
    """``models.py`` with two versions of that subject, and ``greys.npz``."""
    (folder / "models.py").write_text(MODELS)
    x = np.arange(40, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2) * 6
    np.savez(folder / "greys.npz", images=x, labels=(x[:, 0, 0] >= 128).astype(np.int64))


def write_run(
    folder,
    *,
    levels,
    found,
    verdicts=None,
    queries=None,
    kind=None,
    complete=True,
    codes=None,
    **record,
):
    """Seeds of grey `levels` (all of class 0); `found` maps rows of seeds to the grey levels of their tests."""
    n = len(levels)
    x = torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].expand(n, 1, 2, 2).contiguous()
    label = torch.zeros(n, dtype=torch.int64)
    said = (x.float().mean((1, 2, 3)) / 255 >= 0.5).long()
    ids = [f"s{i}" for i in range(n)]
    spent = queries or [10] * n
    columns = {
        "id": ids, "label": label.tolist(), "predicted": said.tolist(), "confidence": [0.9] * n,
        "status": ["skipped: misclassified" if wrong else "done" for wrong in said.tolist()],
        "looked": spent, "failing": [1] * n, "queries": spent, "gradients": [0] * n, "peer_queries": [0] * n, "witness_queries": [0] * n, "witness_gradients": [0] * n, "surrogate_queries": [0] * n, "surrogate_gradients": [0] * n,
    }  # fmt: skip
    table = seeds_table(columns, x)
    rows = torch.tensor([row for row, tests in found.items() for _ in tests], dtype=torch.int64)
    tests = torch.tensor([level for each in found.values() for level in each], dtype=torch.uint8)
    t = len(rows)
    findings = Findings(
        seed=rows, x=tests[:, None, None, None].expand(t, 1, 2, 2).contiguous(),
        kind=torch.zeros(t, dtype=torch.int64) if kind is None else torch.tensor(kind), expected=label[rows],
        predicted=torch.ones(t, dtype=torch.int64), peer_predicted=torch.zeros(t, 0, dtype=torch.int64),
        confidence=torch.full((t,), 0.8), score=torch.zeros(t), distance=torch.ones(t),
        queries=torch.arange(1, t + 1), code=torch.zeros(t, 0) if codes is None else torch.tensor(codes),
    )  # fmt: skip
    part = findings_table(
        findings, x[rows], [ids[i] for i in rows.tolist()], method="made", oracle="label"
    )
    about = {
        "method": "made", "model": "edge 0.5", "data": "greys", "split": "test", "classes": ["dark", "light"], "complete": complete,
        "image": [1, 2, 2], "seed": 0, "shards": 1, "identity": Identity({"model": "edge"}).to_json(), "budget": {"queries": 10}, "totals": {"queries": sum(spent)}, "elapsed": 1.0,
        "hashes": {"subject": subject().hash, "peers": [], "generator": None, "guides": {}, "data": "d"}, **record,
    }  # fmt: skip
    said = None
    if verdicts is not None:
        said = [{"id": name, **row} for name, row in zip(part["id"].to_pylist(), verdicts)]
    counts = count(
        table.drop_columns(["image"]).to_pylist(), part.select(["id", "seed", "kind"]).to_pylist(),
        None if said is None else {row["id"]: row for row in said},
    )  # fmt: skip
    store = Store.create(folder, {**about, **counts}, "", [table])
    store.put(0, Packed(to_parquet(part), to_parquet(table), pack_deltas({})))
    return Run(folder) if said is None else put_verdicts(Run(folder), said)


def verdict(valid=True, kept=True, group="0-1-1", silent=False):
    return {
        "valid": valid,
        "label_kept": kept,
        "group": group if valid and kept else None,
        "silent": silent,
    }
