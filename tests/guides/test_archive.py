"""The map: what cells keep, that shards merge to one map, that it equals pyribs, and that it steers
toward empty cells."""

from dataclasses import replace

import pytest
import torch

from hardcase.campaign import Campaign, limits, parse_keep, run_shard
from hardcase.errors import HardcaseError
from hardcase.guides import archive as maps
from hardcase.guides.archive import FAILING, LEVELS, PARENT, WITNESSED, Archive, Axis, CellGrid
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel, Splits
from hardcase.randomness import Rng, stream
from hardcase.runs.folder import pack_deltas, unpack_deltas
from hardcase.searches.fuzzing import Fuzzing, WhiteNoise
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, Method, Probe, Seeds

AXES = (Axis("top", 0.0, 1.0, 4), Axis("left", 0.0, 1.0, 5))


def measure(x):
    """Mean light of the upper and of the left half."""
    h, w = x.shape[2:]
    return torch.stack([x[:, :, : h // 2].mean((1, 2, 3)), x[..., : w // 2].mean((1, 2, 3))], 1)


def archive(**options):
    return Archive(CellGrid(AXES, measure), LeavesLabel(), **options)


def looks(seed, count=40, first=0, peers=False):
    rng = stream(seed, "looks")
    light = torch.rand(count, 1, 2, 1, generator=rng)
    x = (light.expand(count, 1, 2, 2) * torch.rand(count, 1, 1, 2, generator=rng)).clamp(0, 1)
    logits = torch.randn(count, 3, generator=rng) * 4
    number = first + torch.randint(6, (count,), generator=rng)
    z = x.clone()
    origin = Seeds(z, torch.full_like(x, 0.5), torch.zeros(count, dtype=torch.int64), number)
    others = (torch.randn(count, 3, generator=rng) * 4,) if peers else ()
    return Probe(z, x, logits, origin, others, {}, {"row": number - first})


def same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def test_a_cell_keeps_the_nearest_failure_and_counts_visits():
    guide, naive = archive(), {}
    for seed in range(5):
        probe = looks(seed)
        guide.update(probe)
        failing, cell = LeavesLabel()(probe), guide.grid(probe.x).tolist()
        distance = (probe.x - probe.origin.x).flatten(1).norm(dim=1).tolist()
        for i, bad in enumerate(failing.tolist()):
            if bad and distance[i] < naive.get(cell[i], (9e9,))[0]:
                naive[cell[i]] = (distance[i], int(probe.origin.id[i]))
    rows = {row["cell"]: row for row in guide.table()}
    assert {cell for cell, row in rows.items() if row["state"] == "fails"} == set(naive)
    for cell, (distance, seed) in naive.items():
        assert rows[cell]["distance"] == pytest.approx(distance)
        assert rows[cell]["seed"] == seed
    assert sum(row["visits"] for row in rows.values()) == 200
    assert guide.value() == len(naive) / 20


def test_shards_merge_in_any_grouping_to_the_same_bytes():
    parts = [[looks(10 * s + i, first=6 * s) for i in range(3)] for s in range(4)]
    whole = archive()
    for part in parts:
        for probe in part:
            whole.update(probe)
    whole.merge([])
    apart = archive()
    forks = [apart.fork() for _ in parts]
    for fork, part in zip(forks, parts):
        for probe in part:
            fork.update(probe)
    deltas = [unpack_deltas(pack_deltas({"map": fork.delta()}))["map"] for fork in forks]
    apart.merge(deltas)
    same(apart.base, whole.base)
    grouped = archive()
    for part in (slice(1), slice(1, 3), slice(3, None)):
        grouped.merge(deltas[part])
    same(grouped.base, whole.base)
    inner = archive()
    inner.merge(deltas[2:])
    outer = archive()
    outer.merge([*deltas[:2], inner.fork().delta()])
    seen = (one.base["visits"] for one in (outer, whole))
    assert not torch.equal(*seen), "a fork hands on its own part only"
    backwards = archive()
    backwards.merge(deltas[::-1])
    same(backwards.base, whole.base)


def test_a_fork_does_not_touch_its_base():
    guide = archive()
    guide.update(looks(0))
    guide.merge([])
    before = {name: value.clone() for name, value in guide.base.items()}
    fork = guide.fork()
    fork.update(looks(1))
    fork.choose(torch.arange(6), Rng.numbered(0, "search", 6))
    same(guide.base, before)
    assert int(fork.delta()["visits"].sum()) == 40


def test_gain_is_pure_and_says_what_a_cell_learns():
    guide, probe = archive(), looks(3)
    first = guide.gain(probe)
    assert torch.equal(guide.gain(probe), first)
    assert set(first.tolist()) == {1.0, 2.0}
    guide.update(probe)
    assert not guide.gain(probe).any()
    harmless = archive()
    harmless.update(looks(4))
    assert int(harmless.gain(looks(5)).max()) <= 2


def test_witnessed_failures_go_before_nearer_ones():
    guide = archive(witnessed=Splits())
    probe = looks(0, count=400, peers=True)
    guide.update(probe)
    cell, kept, bad = guide.grid(probe.x), Splits()(probe), LeavesLabel()(probe)
    distance = (probe.x - probe.origin.x).flatten(1).norm(dim=1)
    for row in guide.table():
        here = cell == row["cell"]
        if bool((here & kept).any()):
            assert row["state"] == LEVELS[WITNESSED]
            assert row["distance"] == pytest.approx(float(distance[here & kept].min()))
        elif bool((here & bad).any()):
            assert row["state"] == LEVELS[FAILING]
    assert guide.value() == sum(row["state"] == LEVELS[WITNESSED] for row in guide.table()) / 20


def test_what_is_not_a_number_or_was_seen_before_counts_nowhere():
    guide, probe = archive(), looks(0, count=4)
    probe.logits[0] = torch.nan
    probe.x[1] = torch.nan
    seen = torch.tensor([False, False, True, False])
    guide.update(replace(probe, targets={**probe.targets, "seen": seen}))
    assert int(guide.own["visits"].sum()) == 1
    assert guide.gain(probe)[:2].tolist() == [0, 0]


def test_a_map_equals_that_of_pyribs_on_the_same_stream():
    ribs = pytest.importorskip("ribs.archives", reason="pip install ribs")
    sizes = {"dims": [4, 5], "ranges": [(0.0, 1.0), (0.0, 1.0)]}
    theirs = ribs.GridArchive(solution_dim=1, **sizes, dtype="float32")
    guide = archive()
    for seed in range(30):
        probe = looks(seed, count=50)
        guide.update(probe)
        bad = LeavesLabel()(probe)
        distance = (probe.x - probe.origin.x).flatten(1).norm(dim=1)[bad]
        seeds = probe.origin.id[bad].float()[:, None]
        theirs.add(seeds.numpy(), -distance.numpy(), measure(probe.x[bad]).numpy())
    data = theirs.data()
    rows = {row["cell"]: row for row in guide.table() if row["state"] == "fails"}
    assert sorted(data["index"].tolist()) == sorted(rows)
    for index, objective, solution in zip(data["index"], data["objective"], data["solution"]):
        assert rows[int(index)]["distance"] == pytest.approx(-float(objective), rel=1e-6)
        assert rows[int(index)]["seed"] == int(solution[0])


def test_aims_are_empty_cells_and_parents_the_nearest_of_the_same_seed():
    guide = archive(capacity=64)
    probe = looks(0, count=200)
    guide.update(probe)
    rows = torch.arange(6)
    for turn in range(20):
        targets = guide.choose(rows, Rng.numbered(turn, "search", len(rows)))
        assert bool((guide.own["level"][targets["map/cell"]] < FAILING).all())
        assert torch.allclose(targets["map/target"], guide.grid.centres()[targets["map/cell"]])
        own = [probe.z[probe.targets["row"] == row] for row in range(6)]
        for row in range(6):
            assert any(torch.equal(targets[PARENT][row], z) for z in own[row])
            target = guide.grid.scaled(targets["map/target"][row : row + 1])
            parents = torch.cat([targets[PARENT][row : row + 1], own[row]])
            gap, *others = (guide.grid.scaled(measure(parents)) - target).norm(dim=1).tolist()
            best = min(others)
            assert gap <= best + 1.5, "at most what the first candidate of the same cell differs by"
    assert int(guide.own["aimed"].sum()) == 120
    aimed = guide.own["aimed"][guide.own["level"] < FAILING]
    assert int(aimed.max()) < 60, "cells that were aimed at often are aimed at less"


def campaign(guides, children=5, queries=201):
    search = Fuzzing(mutator=WhiteNoise(0.08), children=children)
    parts = {"space": Pixels(Linf(0.5)), "search": search, "objective": Margin(), "guides": guides}
    how = {"oracle": LeavesLabel(), "until": "budget", "budget": Budget(queries=queries)}
    method = Method(name="map", **parts, **how)
    return Campaign(subject=toy_subject(), method=method, keep=parse_keep("best"), batch=64)


class SeedsOnly:
    """A search without a memory: every parent is the seed."""

    name, taps = "seeds", {}

    def __init__(self, watching):
        self.watching, self.seed = watching, None

    def choose(self, rows, rng):
        return {} if self.seed is None else {PARENT: self.seed[rows]}

    def gain(self, probe):
        return torch.zeros(len(probe.logits))

    def update(self, probe):
        self.seed = probe.z if self.seed is None else self.seed
        self.watching.update(probe)

    def fork(self):
        return self

    def delta(self):
        return {}

    def merge(self, deltas):
        """Nothing is learnt."""


def test_steering_fills_more_cells_than_the_same_queries_without():
    axes = (Axis("top", 0.25, 0.65, 6), Axis("left", 0.25, 0.65, 6))
    grid = CellGrid(axes, measure)
    steered = Archive(grid, LeavesLabel())
    blind = Archive(grid, LeavesLabel())
    memory = SeedsOnly(blind)
    images, queries = toy_images(4), 301
    one, two = campaign((steered,), queries=queries), campaign((memory,), queries=queries)
    shard = run_shard(one, images, limits(one.method.budget, 4), guides=one.method.guides)
    steered.merge([shard.deltas["map"]])
    run_shard(two, images, limits(two.method.budget, 4), guides=two.method.guides)
    assert int(steered.base["visits"].sum()) == int(blind.own["visits"].sum())
    assert steered.value() >= 2 * max(blind.value(), 1 / 36)


def test_axes_span_what_images_show_and_wrong_ones_are_told():
    axis = maps.spanned("light", torch.linspace(0, 1, 1001), 5)
    assert (axis.low, axis.high) == (pytest.approx(0.01 - 0.098), pytest.approx(0.99 + 0.098))
    with pytest.raises(HardcaseError, match="light"):
        Axis("light", 1.0, 1.0)
    with pytest.raises(HardcaseError, match="two or three"):
        CellGrid((), measure)
