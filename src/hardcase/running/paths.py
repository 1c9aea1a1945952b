"""Pictures on the way from a seed to its test, where a test is a perturbation of a generator: painted once, after the search."""

from __future__ import annotations

import pyarrow as pa
import torch
from jaxtyping import UInt8
from torch import Tensor

from hardcase import png
from hardcase.campaign import Campaign, enter
from hardcase.randomness import stream
from hardcase.report.choosing import gallery
from hardcase.report.sheet import Sheet
from hardcase.results import Run
from hardcase.store import table, to_parquet
from hardcase.store.tables import PATHS
from hardcase.tensors import chunks, to_bytes
from hardcase.types import Images

SHARES = (0.25, 0.5, 0.75)
"""Of the perturbation; none of it is the seed, all of it the test."""
TESTS, PIXELS = 240, 20_000_000
"""Tests whose way is painted: the smallest changes of every pair of classes; and how much at most."""


def paint_paths(run: Run, campaign: Campaign, images: Images) -> None:
    """Write ``state/paths.parquet``: pictures on the way to the tests that a report may show."""
    space, findings = campaign.method.space, run.findings
    if not campaign.method.details.get("places") or not len(findings):
        return
    rows = gallery(Sheet.of(run), max(1, min(TESTS, PIXELS // (len(SHARES) * images.x[0].numel()))))
    chosen = findings.take(pa.array(rows, pa.int64()))
    place = {name: i for i, name in enumerate(images.id)}
    own = torch.tensor([place[name] for name in chosen["seed"].to_pylist()])
    codes = torch.tensor(chosen["code"].to_pylist(), device=campaign.subject.device)
    seeds = enter(campaign, images.take(own), 0, stream(campaign.seed, "paths", device=campaign.subject.device))

    def painted(share: float) -> UInt8[Tensor, "t c h w"]:
        with torch.no_grad():
            parts = [
                space.decode(share * codes[part], seeds.take(torch.arange(len(own), device=codes.device)[part]))
                for part in chunks(len(own), campaign.batch)
            ]
        return torch.cat([to_bytes(part).cpu() for part in parts])

    ids = chosen["id"].to_pylist()
    pictures = [picture for share in SHARES for picture in png.encode_all(painted(share))]
    columns = {
        "id": ids * len(SHARES),
        "share": [share for share in SHARES for _ in ids],
        "image": [{"bytes": picture, "path": None} for picture in pictures],
    }
    run.store.write("state/paths.parquet", to_parquet(table(columns, PATHS)))
