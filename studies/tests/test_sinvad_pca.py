"""Between two clusters is beyond nine tenths of either; the study end to end on bars."""

import torch

from hardcase_studies import sinvad_pca
from hardcase_studies.sinvad_pca import Projected
from hardcase_studies.verdicts import read_figure


def test_between_is_beyond_nine_tenths_of_the_images_of_either_class():
    rng = torch.Generator().manual_seed(0)
    left = torch.randn(500, 2, generator=rng).double()
    right = left + torch.tensor([8.0, 0.0])
    y = torch.tensor([3] * 500 + [7] * 500)
    found = torch.tensor([[4.0, 5.0], [0.0, 0.0], [8.0, 0.0], [-9.0, 0.0], [20.0, 0.0]]).double()
    seen = Projected(torch.cat([left, right]), y, found)
    assert seen.between(seen.found).tolist() == [True, False, False, False, False]
    assert 0.05 < float(seen.between(seen.test).double().mean()) <= 0.1
    mixed = Projected(torch.cat([left, left + 0.1]), y, found)
    assert not bool(mixed.between(mixed.test).any()), "one cluster has nothing between"


def test_found_images_of_bars_are_counted_pair_by_pair(bench, written):
    ready = bench(pairs=[[0, 1]], seeds=6)
    outcome = sinvad_pca.run(ready)
    ((pair, found, test),) = outcome.tables[0].rows
    assert pair == "0 and 1"
    assert 0 < read_figure(found).units <= 12
    assert read_figure(test).value <= 20
    assert "pca.png" in written(outcome, ready)
