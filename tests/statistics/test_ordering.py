"""The area under the ROC curve: scipy's count of pairs, and an interval that few images widen."""

import pytest
import torch
from scipy import stats as reference

from hardcase.statistics import auroc, auroc_interval, auroc_of_counts


def test_the_area_is_the_share_of_ordered_pairs_and_its_interval_never_certain():
    score = torch.tensor([0.1, 0.4, 0.35, 0.8, 0.8])
    truth = torch.tensor([False, False, True, True, False])
    pairs = reference.mannwhitneyu(score[truth], score[~truth]).statistic / 6
    assert auroc(score, truth) == pytest.approx(float(pairs))
    perfect = auroc_of_counts(1.0, 5, 5)
    assert perfect["low"] < 0.8
    assert perfect["high"] == 1
    assert auroc_interval(score, torch.ones(5).bool())["value"] is None
