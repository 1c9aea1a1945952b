"""Populations whose failure rate is known, intervals that hold it, and the tables of the study in small."""

import numpy as np
import pytest

from hardcase_studies import intervals
from hardcase_studies.bench import Bench


@pytest.mark.parametrize("law", intervals.LAWS)
@pytest.mark.parametrize("truth", [1e-3, 0.1])
def test_a_law_has_the_rate_that_it_is_asked_for(law, truth):
    rng = np.random.default_rng(1)
    drawn = intervals.LAWS[law](rng, 2_000_000, truth)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert drawn.mean() == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("figure", intervals.PRINTED, ids=lambda figure: figure.name)
def test_printed_intervals_hold_rare_failures(figure):
    """At a truth of 1 in 1,000, of sixty images and of a thousand: the worst of five laws."""
    for count in (60, 1000):
        shares = [
            intervals._covered(figure, np.random.default_rng(count), law, count, 1e-3, 60)
            for law in intervals.LAWS
        ]
        assert min(shares) >= 0.95 - 2.6 * (0.95 * 0.05 / 60) ** 0.5


def test_the_study_has_its_tables(tmp_path):
    bench = Bench(out=tmp_path, options={"repeats": 4, "counts": [60], "truths": [0.01]})
    found = intervals.run(bench)
    titles = [table.title for table in found.tables]
    assert titles[0] == "Coverage of printed intervals"
    assert len(found.tables[0].rows) == len(intervals.FIGURES)
    assert [len(table.rows) for table in found.tables[2:]] == [2, 5, 4]
