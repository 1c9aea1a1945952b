"""Images between a seed and its finding, drawn once, after the search.

Where a finding is a perturbation of a generator's activations, with part of it; where a finding is
a mixture of two codes, with none of the partner and with nothing else.
"""

from __future__ import annotations

import math

import pyarrow as pa
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hardcase.campaign.loop import enter
from hardcase.campaign.record import Campaign
from hardcase.data.streams import ImageSet
from hardcase.report.words import Sheet, gallery
from hardcase.runs.files import locked
from hardcase.runs.ledger import PATHS as PAINTED, Entry
from hardcase.runs.results import Run
from hardcase.runs.tables import PATHS, table, to_parquet
from hardcase.tensors import chunks, encode_all, to_bytes
from hardcase.types import Method, Seeds

SHARES = (0.25, 0.5, 0.75)
"""Of the perturbation; none of it is the seed, all of it the finding."""
MOST = 240
PIXELS = 20_000_000
"""Findings whose way is painted: the smallest changes of every pair of classes; and how much at
most.
"""


def paint_paths(run: Run, campaign: Campaign, images: ImageSet) -> None:
    """Write ``state/paths.parquet``: images on the way to the findings that a report may show."""
    space = campaign.method.space
    findings = run.findings
    shares = _shares(campaign.method)
    if not shares or not len(findings):
        return
    most = PIXELS // (len(shares) * math.prod(images.shape))
    rows = gallery(Sheet.of(run), max(1, min(MOST, most)))
    if not rows:
        return
    chosen = findings.take(pa.array(rows, pa.int64()))
    place = {name: i for i, name in enumerate(images.id)}
    own = torch.tensor([place[name] for name in chosen["seed"].to_pylist()])
    stored = torch.tensor(chosen["code"].to_pylist(), device=campaign.subject.device)
    seeds = enter(campaign, images.take(own).images())
    start, change = _line(campaign.method, seeds, stored)

    def generated(share: float) -> UInt8[Tensor, "t c h w"]:
        with torch.no_grad():
            parts = [
                space.decode(
                    start[part] + share * change[part],
                    seeds.take(torch.arange(len(own), device=stored.device)[part]),
                )
                for part in chunks(len(own), campaign.batch)
            ]
        return torch.cat([to_bytes(part).cpu() for part in parts])

    ids = chosen["id"].to_pylist()
    images_between = [image for share in shares for image in encode_all(generated(share))]
    columns = {
        "id": ids * len(shares),
        "share": [share for share in shares for _ in ids],
        "image": [{"bytes": image, "path": None} for image in images_between],
    }
    with locked(run.folder):
        data = to_parquet(table(columns, PATHS))
        run.store.write("state/paths.parquet", data)
        run.store.ledger.add(PAINTED, Entry.of({"state/paths.parquet": data}, {}))


def _shares(method: Method) -> tuple[float, ...]:
    """At which shares of the change there is something to see.

    A mixture of which `mix` is the partner's is the seed at 0 and the partner at 1 / `mix`; what is
    there of either is what the generator makes of it."""
    if method.details.get("places"):
        return SHARES
    return (0.0, 1 / method.details["mix"]) if "mix" in method.details else ()


def _line(method: Method, seeds: Seeds, stored: Float[Tensor, "t d"]) -> tuple[Tensor, Tensor]:
    """Codes of the seeds, and what leads from them to the findings; perturbations of activations
    are kept as changes."""
    if "mix" not in method.details:
        return torch.zeros_like(stored), stored
    return seeds.z, stored.reshape_as(seeds.z) - seeds.z
