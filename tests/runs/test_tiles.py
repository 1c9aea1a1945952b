"""One constant tile of rows: which tiles hold, and that runs then depend on the row alone.

A device is played by networks whose last bits depend on the shape of the batch, that mix rows, or
whose memory runs out, on a CPU that is told to use a constant tile.
"""

import pytest
import torch
from torch import nn

from hardcase.campaign.in_memory import search_campaign
from hardcase.campaign.record import Campaign
from hardcase.methods import pgd
from hardcase.models.subject import Subject
from hardcase.runs import tiles
from hardcase.runs.tiles import candidates, holds, largest_tile
from hardcase.tensors import any_rows, tile_rows, tiled, use_tile
from hardcase.testing.toys import CLASSES, Quarters, toy_images, toy_subject
from hardcase.types import Budget

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    use_tile("cpu", None)


class ByShape(Quarters):
    """Another batch size, other last bits: what kernels of a GPU do."""

    def forward(self, x):
        return super().forward(x) * (1 + 1e-4 * len(x))


class Mixing(nn.Module):
    """Rows of a large batch see each other."""

    def __init__(self, above):
        super().__init__()
        self.above = above
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        out = self.out(x.flatten(1)[:, :4])
        return out + 1e-6 * out.mean(0) if len(x) > self.above else out


class Full(Quarters):
    """Memory for so many rows and no more."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, x):
        if len(x) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory, says the toy")
        return super().forward(x)


def found(net, *, tile, shard, batch=256):
    subject = Subject(net, classes=CLASSES, name="toy")
    method = pgd(epsilon=0.3, gradients=8)
    campaign = Campaign(subject=subject, method=method, tile=tile, batch=batch)
    images = toy_images(10)
    done = search_campaign(campaign, images, Budget(), shard=shard).findings
    order = done.seed.argsort(stable=True)
    return done.x[order], done.score[order]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two))


def test_the_largest_tile_that_mixes_no_rows_is_taken():
    torch.manual_seed(0)
    x = torch.rand(40, 1, 2, 2)
    assert largest_tile([(Mixing(above=10_000), x)]) == 1024
    assert largest_tile([(Mixing(above=64), x)]) == 64
    assert largest_tile([(Mixing(above=64), x), (Mixing(above=20), x)]) == 16
    assert largest_tile([(Mixing(above=0), x)]) is None
    assert not holds(Mixing(above=64), x, 256)


def test_photographs_get_tiles_that_fit_whatever_memory_there_is():
    assert candidates(torch.zeros(1, 1, 28, 28)) == (1024, 256, 64, 16)
    assert candidates(torch.zeros(1, 3, 32, 32)) == (256, 64, 16)
    assert candidates(torch.zeros(1, 3, 224, 224)) == (64, 16)
    assert candidates(torch.zeros(1, 3, 2000, 2000)) == (16,)


@pytest.mark.parametrize("tile", [16, 64])
def test_findings_depend_on_the_row_alone_where_the_tile_is_constant(tile):
    usual = found(ByShape(), tile=tile, shard=10)
    assert same(found(ByShape(), tile=tile, shard=3), usual)
    assert same(found(ByShape(), tile=tile, shard=10, batch=tile), usual)
    assert not same(found(ByShape(), tile=64 if tile == 16 else 16, shard=10), usual)


def test_memory_that_runs_out_changes_no_byte_down_to_one_tile():
    usual = found(Quarters(), tile=16, shard=10)
    assert same(found(Full(16), tile=16, shard=10, batch=256), usual)
    with pytest.raises(torch.OutOfMemoryError):
        found(Full(8), tile=16, shard=10)


def test_every_call_has_the_rows_of_the_tile():
    seen = []

    def double(x):
        seen.append(len(x))
        return 2 * x

    use_tile("cpu", 32)
    x = torch.arange(70.0)[:, None]
    assert torch.equal(tiled(double, x), 2 * x)
    assert seen == [32, 32, 32]
    with any_rows(CPU):
        tiled(double, x)
    assert seen[-1] == 80
    assert tile_rows(CPU) == 32


def test_trials_are_remembered_by_device_network_and_rows(monkeypatch, tmp_path):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    monkeypatch.setattr(tiles, "device_kind", lambda device: "one GPU")
    tried = []
    monkeypatch.setattr(tiles, "holds", lambda network, x, rows: tried.append(rows) or rows <= 64)
    x = torch.rand(4, 1, 8, 8)
    first = [(tiles.Logits(toy_subject()), x)]
    assert tiles.largest_tile(first) == 64
    assert tried == [1024, 256, 64]
    assert tiles.largest_tile(first) == 64
    assert len(tried) == 3, "a second command tries nothing"
    monkeypatch.setattr(tiles, "device_kind", lambda device: "another GPU")
    assert tiles.largest_tile(first) == 64
    assert len(tried) == 6
    assert tiles.largest_tile([(lambda x: x, x)]) == 64, "an unnamed network is tried each time"
    assert len(tried) == 9
