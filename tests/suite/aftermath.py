"""Runs of two-pixel pictures with a model whose answers are known, for everything that comes after a search."""

from inspect import getsource

import numpy as np
import torch
from torch import nn

from hardcase.models.subject import Subject
from hardcase.runs.identity import Identity
from tiny import stored_run


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


MODELS = f"""
import torch
from torch import nn

{getsource(Brightness)}
def old(): return Brightness(0.5)
def new(): return Brightness(0.65)
"""


def write_world(folder):
    """``models.py`` with two versions of that model, and ``greys.npz``."""
    (folder / "models.py").write_text(MODELS)
    x = np.arange(40, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2) * 6
    np.savez(folder / "greys.npz", images=x, labels=(x[:, 0, 0] >= 128).astype(np.int64))


def write_run(
    folder, *, levels, found, verdicts=None, queries=None, kind=None, complete=True, codes=None,
    **record,
):  # fmt: skip
    """Seeds of grey `levels` (all of class 0); `found` maps rows of images to the grey levels of their tests."""
    n = len(levels)
    x = torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].expand(n, 1, 2, 2).contiguous()
    said = (x.float().mean((1, 2, 3)) / 255 >= 0.5).long()
    spent = queries or [10] * n
    rows = torch.tensor([row for row, tests in found.items() for _ in tests], dtype=torch.int64)
    tests = torch.tensor([level for each in found.values() for level in each], dtype=torch.uint8)
    about = {
        "method": "made", "model": "edge 0.5", "data": "greys", "split": "test", "classes": ["dark", "light"], "complete": complete,
        "shape": [1, 2, 2], "seed": 0, "shards": 1, "identity": Identity({"model": "edge"}).to_json(), "budget": {"queries": 10}, "totals": {"queries": sum(spent)}, "elapsed": 1.0,
        "hashes": {"model": subject().hash, "peers": [], "generator": None, "guides": {}, "data": "d"}, **record,
    }  # fmt: skip
    status = ["skipped: misclassified" if wrong else "done" for wrong in said.tolist()]
    columns = {"predicted": said.tolist(), "status": status, "evaluated": spent, "queries": spent}
    given = {"kind": kind, "code": codes}
    findings = {name: torch.tensor(one) for name, one in given.items() if one is not None}
    more = {"seeds": columns, "findings": findings, "record": about, "verdicts": verdicts}
    tests = tests[:, None, None, None].expand(len(rows), 1, 2, 2).contiguous()
    return stored_run(folder, x, torch.zeros(n, dtype=torch.int64), rows, tests, **more)


def verdict(word="kept", group="0-1-1", silent=False):
    group = group if word == "kept" else None
    return {"verdict": word, "by": "judge", "group": group, "high_confidence": silent}
