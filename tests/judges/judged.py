"""A tiny data set with a judge of its own, trained in seconds, and runs on it."""

from dataclasses import replace

import torch

from hardcase.judges import panel
from hardcase.judges.panel import trained
from hardcase.runs.folder import Packed, Store, pack_deltas
from hardcase.runs.results import Run
from hardcase.runs.tables import findings_table, seeds_table, to_parquet
from hardcase.statistics import count
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Findings
from tiny import bars

SIZE = 12
QUICK = replace(
    panel.USUAL,
    ensemble=panel.USUAL.ensemble[:2],
    members=replace(panel.USUAL.members, epochs=1, steps=60, batch=32),
    density=replace(panel.USUAL.density, epochs=1, steps=30, batch=32),
)


def splits():
    return bars(160, size=SIZE), bars(60, size=SIZE, seed=9, split="test")


def quick_judge(seed=0):
    train, test = splits()
    return trained(train, test, seed=seed, config=QUICK)


def made_run(folder, x, y, found, *, predicted=None, kind=None, record=None):
    """A finished run of these seeds; `found` are the tests, one a seed."""
    n = len(y)
    ids = [f"test-{i}" for i in range(n)]
    columns = {
        "id": ids, "label": y.tolist(), "predicted": y.tolist(), "confidence": torch.linspace(0.8, 1, n).tolist(),
        "status": ["done"] * n, **dict.fromkeys(("looked", "failing", "queries"), [5] * n), "gradients": [0] * n, "peer_queries": [0] * n, "witness_queries": [0] * n, "witness_gradients": [0] * n, "surrogate_queries": [0] * n, "surrogate_gradients": [0] * n,
    }  # fmt: skip
    table = seeds_table(columns, x)
    other = (y + 1) % 3 if predicted is None else predicted
    rows = torch.arange(len(found))
    findings = Findings(
        seed=rows, x=to_bytes(found), kind=torch.zeros(len(found), dtype=torch.int64) if kind is None else kind,
        expected=y[rows], predicted=other[rows], peer_predicted=torch.zeros(len(found), 0, dtype=torch.int64),
        confidence=torch.full((len(found),), 0.9), score=torch.zeros(len(found)), distance=torch.ones(len(found)),
        queries=torch.arange(1, len(found) + 1), code=torch.zeros(len(found), 0),
    )  # fmt: skip
    tests = findings_table(
        findings, x[rows], [ids[i] for i in rows.tolist()], method="made", oracle="label"
    )
    about = {
        "method": "made", "model": "nobody", "data": "bars", "split": "test", "classes": ["0", "1", "2"], "complete": True,
        "image": list(x.shape[1:]), "seed": 0, "budget": {}, "hashes": {"subject": "s", "peers": [], "generator": None, "guides": {}, "data": "d"},
        "totals": {"queries": 5 * n}, "elapsed": 1.0, **(record or {}),
    }  # fmt: skip
    counts = count(
        table.drop_columns(["image"]).to_pylist(),
        tests.select(["id", "seed", "kind"]).to_pylist(),
        None,
    )
    store = Store.create(folder, {**about, **counts}, "", [table])
    store.put(0, Packed(to_parquet(tests), to_parquet(table), pack_deltas({})))
    return Run(folder)


def test_run(folder, **given):
    """Twelve seeds: four tests a little dimmed, four blank, four that are another class."""
    _, test = splits()
    x, y = test.x[:12], test.y[:12]
    seed = from_bytes(x)
    other = seed[[(i + 1) if (i + 1) < 12 else 0 for i in range(12)]]
    found = torch.cat([0.8 * seed[:4], 0.02 * seed[4:8], other[8:]])
    return made_run(folder, x, y, found, **given)


test_run.__test__ = False
