"""Random numbers: evenly spread, independent, each original's own, and the same wherever they are made."""

import pickle
from itertools import combinations

import pytest
import torch
from scipy import stats

from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, keys_of, reserved, stream

NAMES = [f"data/test/{i:05d}" for i in range(400)]
ROWS = torch.arange(400)


def numbers(seed=7, name="search", ids=NAMES):
    return Rng(seed, name, keys_of(ids))


def splitmix(x):
    """SplitMix64's finaliser on Python's integers, which have no sign and no end."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def test_words_are_splitmix_of_the_counter():
    rng = numbers()
    rng.uniform(ROWS[:3])
    drawn = rng.uniform(ROWS[:3], (5,))
    name = int(keys_of(["7/search"])[0])
    for row in range(3):
        base = splitmix((splitmix(int(keys_of(NAMES[row : row + 1])[0])) + name) % 2**64)
        start = base + 1 * 0xD1342543DE82EF95
        words = [splitmix((start + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(3)]
        halves = [half for word in words for half in (word % 2**32, word >> 32)]
        assert drawn[row].tolist() == [(half >> 8) / 2**24 for half in halves[:5]]


def test_a_seed_has_its_numbers_whoever_else_draws():
    whole = numbers()
    first, second = whole.normal(ROWS, (6,)), whole.uniform(ROWS, (3,))
    some = [250, 3, 17]
    part = Rng(7, "search", keys_of([NAMES[i] for i in some]))
    order = torch.tensor([2, 0, 1])
    assert torch.equal(part.normal(order, (6,)), first[some][order])
    assert torch.equal(part.uniform(torch.tensor([0]), (3,)), second[some][:1])
    assert torch.equal(part.uniform(torch.tensor([1, 2]), (3,)), second[some][1:])


def test_rows_of_one_seed_are_its_draws_one_after_the_other():
    apart = numbers()
    one, two = apart.uniform(ROWS[:2], (4,)), apart.uniform(ROWS[:2], (4,))
    together = numbers().uniform(torch.tensor([1, 0, 1, 0]), (4,))
    assert torch.equal(together, torch.stack([one[1], one[0], two[1], two[0]]))
    beside = numbers().uniform(torch.tensor([5, 1, 9, 0, 1, 9, 0]), (4,))
    assert torch.equal(beside[[1, 3, 4, 6]], together)


def test_a_longer_draw_begins_as_a_shorter_one_and_a_copy_goes_on():
    assert torch.equal(numbers().normal(ROWS, (9,))[:, :4], numbers().normal(ROWS, (4,)))
    rng = numbers()
    rng.normal(ROWS[:7], (2,))
    copy = pickle.loads(pickle.dumps(rng))
    assert torch.equal(rng.normal(ROWS, (3,)), copy.normal(ROWS, (3,)))


@pytest.mark.parametrize("other", [numbers(seed=8), numbers(name="space"), numbers(ids=[f"x{n}" for n in NAMES])])  # fmt: skip
def test_other_seeds_names_and_ids_share_nothing(other):
    one, two = numbers().uniform(ROWS, (50,)).flatten(), other.uniform(ROWS, (50,)).flatten()
    assert float((one == two).float().mean()) < 1e-3
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.03


def test_uniform_numbers_are_even():
    drawn = numbers().uniform(ROWS, (2500,))
    assert 0 <= float(drawn.min()) < 1e-5
    assert 1 - 1e-5 < float(drawn.max()) < 1
    assert stats.kstest(drawn.flatten().numpy(), "uniform").pvalue > 1e-3
    counts = (drawn.flatten() * 4096).long().bincount(minlength=4096)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    lowest = (drawn.double() * 2**24).long().flatten() % 256
    assert stats.chisquare(lowest.bincount(minlength=256).numpy()).pvalue > 1e-3, "the lowest bits"


def test_normal_numbers_are_normal():
    drawn = numbers().normal(ROWS, (2500,)).flatten().double()
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    assert float(drawn.mean()) == pytest.approx(0, abs=4e-3)
    assert float(drawn.var()) == pytest.approx(1, abs=6e-3)
    assert float((drawn**4).mean()) == pytest.approx(3, abs=0.04)
    for far in (2.0, 3.0, 4.0):
        expected = len(drawn) * 2 * stats.norm.sf(far)
        assert int((drawn.abs() > far).sum()) == pytest.approx(expected, abs=4 * expected**0.5)
    grid = drawn * 2**20
    assert torch.equal(grid, grid.round()), "sums of the table are exact"


def test_whole_numbers_are_even_and_bounded():
    drawn = numbers().integers(ROWS, 7, (500,))
    assert stats.chisquare(drawn.flatten().bincount(minlength=7).numpy()).pvalue > 1e-3
    high = torch.arange(1, 401)
    assert bool((numbers().integers(ROWS, high) < high).all())
    assert int(numbers().integers(ROWS, 2**31 - 1, (50,)).max()) > 2**30
    with pytest.raises(HardcaseError, match="below 0"):
        numbers().integers(ROWS, 0)


def test_orders_are_permutations_and_all_occur():
    orders = numbers().permutation(ROWS, 3)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(3).expand(400, 3))
    counts = (orders * torch.tensor([9, 3, 1])).sum(1).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def neighbours():
    """Blocks of numbers that differ in one part of the counter by one: key, draw, place."""
    rng = Rng.numbered(0, "walk", 401)
    rows = torch.arange(401)
    first, second = rng.uniform(rows, (801,)), rng.uniform(rows, (801,))
    yield "keys", first[1:], first[:-1]
    yield "draws", first, second
    yield "places", first[:, 1:], first[:, :-1]
    yield "words", first[:, 2:], first[:, :-2]


@pytest.mark.parametrize(("what", "one", "two"), neighbours(), ids=lambda part: part if isinstance(part, str) else "")  # fmt: skip
def test_neighbouring_counters_give_independent_numbers(what, one, two):
    one, two = one.flatten(), two.flatten()
    bound = 4 / len(one) ** 0.5
    for left, right in ((one, two), (one, (two - 0.5).abs()), ((one * 256) % 1, (two * 256) % 1)):
        assert abs(float(torch.corrcoef(torch.stack([left, right]))[0, 1])) < bound
    cells = ((one * 16).long() * 16 + (two * 16).long()).bincount(minlength=256)
    assert stats.chisquare(cells.numpy()).pvalue > 1e-4, what


def test_one_bit_of_a_key_changes_half_of_all_bits():
    key = int(keys_of(["a seed"])[0])
    keys = torch.tensor([key] + [key ^ (1 << bit) for bit in range(63)])
    words = Rng(0, "avalanche", keys).integers(torch.arange(64), 2**31 - 1, (64,))
    flipped = words[1:] ^ words[:1]
    share = torch.stack([(flipped >> bit) & 1 for bit in range(31)]).double().mean((1, 2))
    assert bool(((share - 0.5).abs() < 0.04).all()), share
    by_key = torch.stack([(flipped >> bit) & 1 for bit in range(31)]).double().mean((0, 2))
    assert bool(((by_key - 0.5).abs() < 0.06).all()), by_key


def test_draws_and_places_never_meet():
    """The shortest way from a counter back to itself: so many draws on, so many places back."""
    size, draw, place = 2**64, 0xD1342543DE82EF95, 0x9E3779B97F4A7C15
    short, long = (1, -draw * pow(place, -1, size) % size), (0, size)
    while True:  # Gauss's reduction of a lattice of two dimensions
        if short[0] ** 2 + short[1] ** 2 > long[0] ** 2 + long[1] ** 2:
            short, long = long, short
        dot = short[0] * long[0] + short[1] * long[1]
        times = (2 * dot + short[0] ** 2 + short[1] ** 2) // (2 * (short[0] ** 2 + short[1] ** 2))
        if times == 0:
            break
        long = (long[0] - times * short[0], long[1] - times * short[1])
    assert max(map(abs, short)) > 2**31


def test_keys_follow_from_ids_alone_and_nobody_draws_nothing():
    assert len(set(keys_of([str(i) for i in range(20000)]).tolist())) == 20000
    assert bool((keys_of(NAMES) >= 0).all())
    assert keys_of([]).shape == (0,)
    nobody = ROWS[:0]
    rng = Rng(0, "nobody", nobody)
    assert rng.normal(nobody, (3, 2)).shape == (0, 3, 2)
    assert rng.integers(nobody, 5).shape == (0,)
    assert numbers().uniform(ROWS, (0,)).shape == (400, 0)
    assert numbers().uniform(ROWS[:2], (2, 3)).shape == (2, 2, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_makes_the_same_numbers():
    here, there = numbers(), Rng(7, "search", keys_of(NAMES).cuda())
    rows = torch.tensor([3, 1, 3, 0, 399])
    for draw in ("normal", "uniform"):
        for at in (ROWS, rows):
            made = getattr(there, draw)(at.cuda(), (33,)).cpu()
            assert torch.equal(getattr(here, draw)(at, (33,)), made)
    assert torch.equal(here.integers(rows, 9, (5,)), there.integers(rows.cuda(), 9, (5,)).cpu())
    assert torch.equal(here.permutation(rows, 9), there.permutation(rows.cuda(), 9).cpu())


def test_drawing_leaves_global_randomness_alone_and_costs_few_calls():
    before = torch.get_rng_state()
    rng = numbers()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        rng.uniform(ROWS, (64,))
    assert torch.equal(before, torch.get_rng_state())
    outer = [event for event in seen.events() if event.cpu_parent is None]
    assert len(outer) <= 45, [event.name for event in outer]


def test_streams_of_different_names_differ():
    drawn = [torch.rand(4, generator=stream(0, name)) for name in ("a", "b", "a/b")]
    assert not any(torch.equal(one, two) for one, two in combinations(drawn, 2))
    assert torch.equal(drawn[0], torch.rand(4, generator=stream(0, "a")))


def test_half_of_the_images_are_reserved_whichever_others_there_are():
    ids = [f"data/test/{i:05d}" for i in range(10_000)]
    held = reserved(ids)
    assert abs(float(held.double().mean()) - 0.5) < 0.02
    assert torch.equal(reserved(ids[::-1]).flip(0), held)
    assert torch.equal(reserved(ids[17:40]), held[17:40])
