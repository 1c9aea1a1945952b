"""Groups of likely faults on planted clusters."""

import torch

from hardcase.judges.grouping import SMALLEST, groups


def planted(sizes=(20, 15), spread=0.02, strays=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(len(sizes), 16, generator=rng), dim=1)
    drawn = (torch.randn(size, 16, generator=rng) for size in sizes)
    rows = [centre + spread * noise for centre, noise in zip(centres, drawn)]
    return torch.cat([*rows, centres[0] + 0.3 * torch.randn(strays, 16, generator=rng)])


def found(features, expected=0, predicted=1):
    count = len(features)
    whole = [torch.full((count,), value) for value in (expected, predicted)]
    falling = torch.arange(count, 0, -1).float()
    return groups(features, *whole, falling, torch.Generator().manual_seed(0))


def test_planted_clusters_are_found_whole_and_stable():
    features = planted()
    seen = found(features)
    assert found(planted()) == seen, "the same tests give the same groups"
    assert [len(group.rows) for group in seen] in ([22, 15], [20, 17], [21, 16])
    assert set(range(20)) <= set(seen[0].rows)
    assert set(range(20, 35)) <= set(seen[1].rows)
    assert all(group.stability is not None and group.stability > 0.8 for group in seen)


def test_every_test_is_in_one_group():
    seen = found(planted(sizes=(12, 12, 12), strays=5))
    assert sorted(row for group in seen for row in group.rows) == list(range(41))
    empty = torch.zeros(0, dtype=torch.int64)
    assert groups(torch.zeros(0, 4), empty, empty, torch.zeros(0), torch.Generator()) == []


def test_the_one_in_the_middle_and_the_one_nearest_its_seed_stand_for_a_group():
    features = planted(sizes=(20, 15), strays=0)
    for group in found(features):
        rows = list(group.rows)
        unit = torch.nn.functional.normalize(features[rows], dim=1)
        distance = (unit - unit.mean(0)).norm(dim=1)
        assert group.representative == rows[int(distance.argmin())]
        assert group.closest == max(rows)  # distances were given in falling order


def test_few_or_shapeless_tests_are_one_group():
    rng = torch.Generator().manual_seed(0)
    assert len(found(torch.randn(2 * SMALLEST - 1, 8, generator=rng))) == 1
    (whole,) = found(0.01 * torch.randn(40, 8, generator=rng) + torch.ones(8))
    assert whole.stability is None


def test_other_classes_are_other_faults():
    features = planted(sizes=(6,), strays=0)
    pair = torch.tensor([0, 0, 1, 1, 2, 2])
    seen = groups(features, pair, (pair + 1) % 3, torch.ones(6), torch.Generator().manual_seed(0))
    told = [(group.expected, group.predicted, len(group.rows)) for group in seen]
    assert told == [(0, 1, 2), (1, 2, 2), (2, 0, 2)]
