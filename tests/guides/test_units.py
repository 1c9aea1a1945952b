"""Guides: what shards learn apart equals what one pass learns, and who is picked."""

import pytest
import torch

from hardcase.guides import units
from hardcase.guides.adapt import Pools, score, tenths
from hardcase.guides.corpus import Entries, Fading, Recent
from hardcase.guides.units import Board, Deviating, Facts, FailingOnly, Hits, Strategies, pick
from hardcase.oracles import LeavesLabel
from hardcase.randomness import Rng, stream
from hardcase.types import Probe, Seeds

UNITS = 12


class Shown:
    """Units that are simply shown under one name; active above 0.5."""

    taps, count = {}, UNITS

    def active(self, probe):
        return probe.activations["units"] > 0.5

    def scaled(self, probe):
        return probe.activations["units"]


def probe(values, *, rows=None, wrong=None, targets=None):
    count = len(values)
    label = torch.zeros(count, dtype=torch.int64)
    logits = torch.zeros(count, 3)
    logits[:, 0] = 1
    if wrong is not None:
        logits[wrong, 1] = 5
    z = torch.zeros(count, 1, 2, 2)
    origin = Seeds(z, z, label, torch.arange(count))
    targets = {**(targets or {}), "row": torch.arange(count) if rows is None else rows}
    return Probe(z, z, logits, origin, (), {"units": values}, targets)


def numbers(seed, name="guides"):
    return Rng.numbered(seed, name, 4096)


def values(seed, count=8):
    return torch.rand(count, UNITS, generator=stream(seed, "values"))


def facts():
    heavy = torch.zeros(UNITS, dtype=torch.bool)
    heavy[3] = True
    return Facts(heavy=heavy, crossing=torch.ones(UNITS, dtype=torch.bool), threshold=0.5)


def strategies(**options):
    return Strategies("s", Shown(), facts(), ("often", "rarely"), 4, **options)


def learn(guide, probes, rng):
    for one in probes:
        rows = one.targets["row"]
        targets = guide.choose(rows, rng)
        guide.update(probe(one.activations["units"], rows=rows, targets=targets))


def test_shards_merged_in_order_know_what_one_pass_knows():
    looks = [probe(values(i)) for i in range(6)]
    whole, parts = strategies(), strategies()
    learn(whole, looks, numbers(0))
    forks = [parts.fork() for _ in range(3)]
    for i, fork in enumerate(forks):
        learn(fork, looks[2 * i : 2 * i + 2], numbers(i))
    parts.merge([fork.delta() for fork in forks])
    whole.merge([])
    assert torch.equal(parts.hits.base, whole.hits.base)
    more = probe(values(9))
    assert torch.equal(parts.gain(more), whole.gain(more))


def test_a_fork_does_not_touch_its_base_and_hands_on_only_its_own():
    guide = strategies()
    learn(guide, [probe(values(0))], numbers(0))
    guide.merge([])
    before = guide.hits.base.clone()
    fork = guide.fork()
    learn(fork, [probe(values(1))], numbers(0))
    assert torch.equal(guide.hits.base, before)
    assert torch.equal(fork.delta()["hits"], (values(1) > 0.5).sum(0))


def test_gain_counts_units_never_covered_and_pictures_once():
    guide = strategies()
    first = probe(values(0, 1))
    assert guide.gain(first).tolist() == [float((values(0, 1) > 0.5).sum())]
    assert torch.equal(guide.gain(first), guide.gain(first))
    guide.update(first)
    assert guide.gain(first).tolist() == [0.0]
    guide = strategies()
    shown = probe(values(0), targets={"seen": torch.ones(8, dtype=torch.bool)})
    guide.update(shown)
    assert not guide.hits.own.any()


def test_each_seed_can_count_for_itself():
    hits = Hits(UNITS, each=True)
    hits.add(torch.tensor([0, 2, 2]), values(0, 3) > 0.5)
    assert torch.equal(hits.of(torch.tensor([2]))[0], (values(0, 3)[1:] > 0.5).sum(0))
    assert not hits.of(torch.tensor([1])).any()
    assert torch.equal(hits.delta()["hits"], (values(0, 3) > 0.5).sum(0))


def board(hits, shown=None):
    shown = torch.full(hits.shape, 0.5) if shown is None else shown
    return Board(torch.arange(len(hits)), hits, shown, facts())


def test_picks_go_where_they_say():
    hits = torch.arange(UNITS).expand(2000, -1)
    drawn = {}
    for name in (*units.DRAWN, *units.FIRST):
        drawn[name] = pick(name, board(hits), 1, numbers(7, name))["unit"].flatten()
    for name, unit in {"uncovered": 0, "heavy": 3, "most": 11, "least": 0}.items():
        assert set(drawn[name].tolist()) == {unit}
    often, rarely = (drawn[name].bincount(minlength=UNITS) / 2000 for name in ("often", "rarely"))
    in_proportion = torch.arange(UNITS) / 66  # to hits, or to what is missing
    assert torch.allclose(often, in_proportion, atol=0.03)
    assert torch.allclose(rarely, in_proportion.flip(0), atol=0.03)
    assert drawn["anything"].unique().numel() == UNITS


def test_units_near_the_threshold_are_pushed_across_or_apart():
    shown = torch.tensor([[0.0, 0.6, 0.55, 0.9, 0.45, 0.35, 0.1, 0.2, 0.74, 0.3, 0.5, 1.0]])
    none = torch.zeros(1, UNITS, dtype=torch.int64)
    for name, sign in (("across", -1.0), ("apart", 1.0)):
        found = pick(name, board(none, shown), 4, numbers(0))
        assert found["unit"].tolist() == [[1, 2, 4, 5]]
        assert found["sign"].tolist() == [[sign, sign, -sign, -sign]]
    nothing = pick("across", board(none, shown * 0), 4, numbers(0))
    assert not nothing["sign"].any()


def test_strategies_take_turns_when_a_list_starts_and_stay_while_it_goes_on():
    guide = Strategies("s", Shown(), facts(), ("most", "least", "heavy"), 1, cycle=True)
    guide.hits.add(torch.zeros(1, dtype=torch.int64), torch.arange(UNITS)[None] == 7)
    rows, rng = torch.tensor([0, 1]), numbers(0)
    picked = []
    for _ in range(4):
        targets = guide.choose(rows, rng)
        assert torch.equal(guide.follow(rows, targets, rng)["s/unit"], targets["s/unit"])
        picked.append(int(targets["s/unit"][0, 0]))
    assert picked[0] == picked[3] == 7
    assert picked[1:3] == [0, 3]


def test_scores_are_the_product_of_features_and_vector():
    rng = stream(5)
    vector = torch.randn(4, 29, generator=rng)
    fixed = (torch.rand(UNITS, 17, generator=rng) < 0.3).float()
    hits = torch.randint(0, 4, (4, UNITS), generator=rng)
    failing = torch.rand(4, UNITS, generator=rng) < 0.5
    table = torch.zeros(4, UNITS, 29)
    table[..., :17], table[..., 17], table[..., 18] = fixed, failing, hits == 0
    place = tenths(hits)
    for m, u in (place >= 0).nonzero().tolist():
        table[m, u, 19 + place[m, u]] = 1
    expected = (table * vector[:, None]).sum(2)
    assert torch.allclose(score(vector, fixed, failing, hits), expected, atol=1e-5)


def test_pools_hand_out_each_vector_once_then_breed_from_the_records():
    base = {"vector": torch.empty(0, 29), "cover": torch.empty(0, UNITS, dtype=torch.bool)}
    pools = Pools(base, UNITS, 4, 10, each=False)
    rows, rng = torch.tensor([0, 1]), numbers(0)
    first = torch.cat([pools.next(rows, rng) for _ in range(4)])
    assert len(first.unique(dim=0)) == 8
    pool = pools.pool.clone()
    pools.cover(rows, torch.ones(2, UNITS, dtype=torch.bool))
    pools.next(rows, rng)
    assert not torch.equal(pools.pool, pool)
    assert int(pools.written) == 8
    made = pools.made()
    assert len(made["vector"]) == 8 + 2
    assert torch.equal(made["vector"][:8], first)
    assert made["cover"][6:8].all()
    assert not made["cover"][:6].any()


def test_every_seed_alone_has_a_pool_of_its_own_of_the_last_records():
    vectors = torch.arange(14.0)[:, None].expand(14, 29)
    base = {"vector": vectors, "cover": torch.zeros(14, UNITS, dtype=torch.bool)}
    pools = Pools(base, UNITS, 4, 10, each=False)
    assert sorted(pools.vectors[0, :, 0].tolist()) == list(map(float, range(4, 14)))
    base = {"vector": torch.empty(0, 29), "cover": torch.empty(0, UNITS, dtype=torch.bool)}
    pools = Pools(base, UNITS, 2, 10, each=True)
    one = pools.next(torch.tensor([0, 1, 2]), numbers(0))
    assert len(one.unique(dim=0)) == 3
    for _ in range(4):
        pools.next(torch.tensor([1]), numbers(1))
    assert pools.used.tolist() == [1, 1, 1]


def test_a_learnt_pool_prefers_vectors_that_covered_something():
    """Records of good vectors (all entries 4) breed a pool near them."""
    covers = torch.zeros(10, UNITS, dtype=torch.bool)
    covers[:5] = torch.eye(UNITS, dtype=torch.bool)[:5]
    vectors = torch.full((10, 29), -4.0)
    vectors[:5] = 4.0
    pools = Pools({"vector": vectors, "cover": covers}, UNITS, 5, 10, each=False)
    assert float(pools.next(torch.tensor([0, 1, 2]), numbers(0)).mean()) > 3


def test_coverage_of_findings_only():
    guide = FailingOnly(strategies(), LeavesLabel())
    guide.update(probe(values(0), wrong=torch.tensor([2, 5])))
    assert torch.equal(guide.delta()["hits"], (values(0)[[2, 5]] > 0.5).sum(0))
    assert guide.fork().name == guide.name == "s"


def test_a_walk_keeps_its_deviating_model():
    guide, rows, rng = Deviating(3), torch.arange(300), numbers(0)
    targets = guide.choose(rows, rng)
    assert torch.equal(guide.follow(rows, targets, rng)["deviating"], targets["deviating"])
    assert targets["deviating"].bincount().tolist() == pytest.approx([100] * 3, abs=25)


def picks_of(schedule, size, picks, *, count=4000):
    sizes, table = torch.full((count,), size), torch.tensor(picks).expand(count, -1)
    cursor = torch.zeros(count, dtype=torch.int64)
    entries = Entries(torch.arange(count), sizes, table, cursor)
    chosen, cursor = schedule(entries, Rng.numbered(0, "schedule", count))
    return chosen.bincount(minlength=table.shape[1]) / count, chosen, cursor


def test_recent_entries_are_chosen_five_times_in_six():
    share, _, _ = picks_of(Recent(), 9, [0] * 12)
    assert share[9:].sum() == 0
    assert torch.allclose(share[4:9], torch.full((5,), (1 + 1 / 9) / 6), atol=0.02)
    assert torch.allclose(share[:4], torch.full((4,), 1 / 54), atol=0.01)


def test_entries_take_turns_and_fade():
    share, chosen, cursor = picks_of(Fading(), 3, [0, 0, 0, 0])
    assert share.tolist() == [1, 0, 0, 0], "a fresh entry is always accepted"
    assert torch.equal(cursor, (chosen + 1) % 3)
    share, _, _ = picks_of(Fading(), 2, [10, 0])
    assert share[:2].tolist() == pytest.approx([0.5, 0.5], abs=0.03), "1 - 10 / 20"
    share, _, _ = picks_of(Fading(5.0, 0.2, 0.8), 2, [9, 0])
    ends = 0.2 / (1 - 0.8 * 0.2)
    assert share[0] == pytest.approx(ends, abs=0.03), "the code's chance ends at 0.2"
