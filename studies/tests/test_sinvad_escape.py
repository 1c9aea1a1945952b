"""Mixed labels: how many, which, the smaller share inside the larger; and who notices."""

import os
from dataclasses import replace

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase_studies import sinvad_escape
from hardcase_studies.inference import correlation
from hardcase_studies.sinvad_escape import pollute
from tiny import bars

long = pytest.mark.skipif(
    os.environ.get("HARDCASE_TORTURE") != "long",
    reason="trains several networks: HARDCASE_TORTURE=long, as make torture does",
)
NAMES = [sinvad_escape.OURS, sinvad_escape.FLOOR, sinvad_escape.GENETIC, sinvad_escape.ERROR]


def test_the_share_of_both_classes_is_mixed_and_nothing_else():
    images = bars(120, classes=3)
    mixed = pollute(images, (0, 2), 0.25)
    changed = images.y != mixed.y
    assert int((changed & (images.y == 0)).sum()) == int((changed & (images.y == 2)).sum()) == 10
    assert set(mixed.y[changed & (images.y == 0)].tolist()) == {2}
    assert not bool(changed[images.y == 1].any())
    assert mixed.hash != images.hash


def test_a_smaller_share_lies_inside_a_larger_one():
    images = bars(120, classes=3)
    none, small, large = (pollute(images, (0, 1), share).y != images.y for share in (0, 0.1, 0.3))
    assert not bool((small & ~large).any())
    assert not bool(none.any())
    with pytest.raises(HardcaseError):
        pollute(images, (1, 1), 0.1)


def test_rq3_measures_each_pair_at_each_share(bench, written):
    ready = bench(pairs=[[0, 1]], shares=[0.05, 0.1, 0.4, 0.5], attempts=8, walks=5)
    outcome = sinvad_escape.run(replace(ready, repeats=1))
    correlations, rates = outcome.tables
    assert [row[0] for row in correlations.rows] == [row[1] for row in rates.rows] == NAMES
    by_name = {row[1]: row[2:] for row in rates.rows}
    assert by_name[sinvad_escape.FLOOR] == sorted(by_name[sinvad_escape.FLOOR])
    assert max(by_name[sinvad_escape.ERROR]) > 0.1, (
        "half of the labels mixed must show in the test error"
    )
    written(outcome, ready)


def test_the_matrix_counts_arrivals_in_every_class_and_goes_on_where_it_stopped(
    bench, written, monkeypatch
):
    ready = bench(seeds=9)
    outcome = sinvad_escape.matrix(ready)
    spread, escapes, errors = outcome.tables
    assert [row[0] for row in spread.rows] == ["errors", "escapes", "escapes above errors"]
    for table in (escapes, errors):
        assert len(table.rows) == 3
        assert all(row[1 + place] == "" for place, row in enumerate(table.rows)), "the diagonal"
    assert "escape.png" in written(outcome, ready)
    monkeypatch.setattr(sinvad_escape, "measure_as_published", None)  # every column is kept
    assert sinvad_escape.matrix(ready).tables[1].rows == escapes.rows


def test_intervals_are_over_trainings_and_one_training_has_none():
    def training(slope):
        rate = slope * torch.tensor([[0.0, 0.05, 0.1]]) + torch.tensor([[0.0, 0.01, 0.0]])
        of = {name: rate if name != sinvad_escape.ERROR else 0 * rate for name in NAMES}
        return sinvad_escape.Rates((0.0, 0.05, 0.1), ((0, 1),), of, dict.fromkeys(NAMES, 0.0))

    rounds = [training(slope) for slope in (0.05, 0.2, 1.0)]
    low = torch.tensor([True, True, True])
    each = sinvad_escape._by_training(rounds, sinvad_escape.GENETIC, low)
    assert each.shape == (3,)
    assert "[" in sinvad_escape._over(each)
    alone = sinvad_escape._lead(rounds[:1], sinvad_escape.OURS, low)
    assert alone.startswith("+nan"), "a test error that never moves has no coefficient to lead"


def test_a_measure_that_never_moves_has_no_coefficient_and_is_counted():
    """Zeros in its place made a lead out of a small test half."""
    shares = (0.0, 0.05, 0.1)
    rates = torch.tensor([[0.0, 0.02, 0.05], [0.0, 0.03, 0.04]])
    errors = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.01, 0.02]])
    of = {name: rates if name != sinvad_escape.ERROR else errors for name in NAMES}
    rounds = [sinvad_escape.Rates(shares, ((0, 1), (2, 5)), of, dict.fromkeys(NAMES, 0.0))] * 3
    low = torch.tensor([True, True, True])
    assert sinvad_escape._by_training(rounds, sinvad_escape.ERROR, low).tolist() == [1.0] * 3
    assert sinvad_escape._undefined(rounds, sinvad_escape.ERROR, low) == "3 of 6"
    assert sinvad_escape._undefined(rounds, sinvad_escape.OURS, low) == "0 of 6"
    second = float(correlation(torch.tensor(shares), rates[1]))
    lead = sinvad_escape._lead(rounds, sinvad_escape.OURS, low)
    assert lead.startswith(f"{second - 1:+.3f}"), "over the pair that has both coefficients"


def test_rq3_refuses_pairs_that_the_data_does_not_have(bench):
    with pytest.raises(HardcaseError, match="do not fit"):
        sinvad_escape.run(bench())


@long
def test_a_clean_network_is_held_against_clean_retrainings(bench):
    small = bench(clean=3, shares=[0.5], tested=1, seeds=12, walks=4, epochs=4)
    (table,) = sinvad_escape.null(small).tables
    assert [row[0] for row in table.rows] == [
        "nothing mixed, training 4",
        "0 and 1, 0.5 mixed, training 4",
    ]
    assert table.rows[0][1:3] == ["none", "no"]
    assert 0.25 <= float(table.rows[1][1]) <= 1, "three retrainings cannot say more"
