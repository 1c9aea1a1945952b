import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardcase import Run
from hardcase.study.drawing import RATED, allocate, population, sample, verdict_of


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3), st.integers(1, 80), min_size=1, max_size=6
    ),
    st.integers(1, 120),
)
def test_allocation_uses_what_there_is_and_no_more(sizes, count):
    given_out = allocate(sizes, count)
    assert all(0 <= given_out[name] <= size for name, size in sizes.items())
    least = sum(min(2, size) for size in sizes.values())
    assert sum(given_out.values()) == min(sum(sizes.values()), max(count, least))
    assert all(given_out[name] >= min(2, size) for name, size in sizes.items())


def test_verdicts_in_one_word():
    said = {"valid": True, "label_kept": None}
    assert verdict_of(None) == "unjudged"
    assert verdict_of(said) == "undecided"
    assert verdict_of({**said, "label_kept": True}) == "confirmed"
    assert verdict_of({"valid": False, "label_kept": None}) == "rejected"


def test_the_sample_is_stratified_and_its_probabilities_are_those_of_the_draw(runs):
    run = Run(runs / "sinvad")
    drawn, strata = sample({"sinvad": run}, 30, np.random.default_rng(0))
    whole = population(run, np.random.default_rng(0))
    assert sum(one["size"] for one in strata.values()) == len(whole)
    assert len(drawn) == 30
    assert len({one.row["seed"] for one in drawn}) == 30
    for one in drawn:
        facts = strata[one.stratum]
        assert one.probability == facts["drawn"] / facts["size"]
        assert one.stratum == f"sinvad/{one.verdict}"
        assert verdict_of(run.verdicts[one.row["id"]]) == one.verdict


def test_draws_have_the_frequencies_that_are_stored(runs):
    run = Run(runs / "sinvad")
    hits = {}
    for seed in range(60):
        for one in sample({"sinvad": run}, 30, np.random.default_rng(seed))[0]:
            hits.setdefault(one.stratum, []).append(one.row["seed"])
    for stratum, seeds in hits.items():
        facts = sample({"sinvad": run}, 30, np.random.default_rng(0))[1][stratum]
        expected = facts["drawn"] / facts["size"]
        counts = np.bincount(np.unique(seeds, return_inverse=True)[1], minlength=facts["size"]) / 60
        assert abs(counts.mean() - expected) < 1e-9
        assert counts.max() < expected + 5 * (0.25 / 60) ** 0.5


def test_a_seed_is_represented_by_a_finding_of_its_best_verdict(runs):
    run = Run(runs / "sinvad")
    order = ("confirmed", "undecided", "rejected", "unjudged")
    best = {}
    for row in run.findings.to_pylist():
        word = verdict_of(run.verdicts[row["id"]])
        best[row["seed"]] = min(best.get(row["seed"], "unjudged"), word, key=order.index)
    chosen = population(run, np.random.default_rng(1))
    assert {seed: verdict for seed, (_, verdict) in chosen.items()} == best


def test_the_fixed_subset_is_part_of_every_stratum(runs):
    drawn, strata = sample(
        {"sinvad": Run(runs / "sinvad")}, 60, np.random.default_rng(0), fixed=0.4
    )
    for name, facts in strata.items():
        own = [one for one in drawn if one.stratum == name]
        assert sum(one.fixed for one in own) == facts["fixed"] < facts["drawn"]
        assert {one.probability for one in own if one.fixed} == {facts["fixed"] / facts["size"]}


def test_what_people_have_rated_is_no_longer_unseen(runs, tmp_path):
    import shutil

    shutil.copytree(runs / "sinvad", tmp_path / "run")
    run = Run(tmp_path / "run")
    first = run.findings.to_pylist()[0]
    (tmp_path / "run" / RATED).write_text(json.dumps({"findings": {first["id"]: "confirmed"}}))
    before = population(Run(runs / "sinvad"), np.random.default_rng(0))
    after = population(run, np.random.default_rng(0))
    assert set(before) - set(after) == {first["seed"]}


def test_a_damaged_list_of_rated_findings_is_named(runs, tmp_path):
    from hardcase.errors import Problem
    from hardcase.study.drawing import rated_before

    (tmp_path / RATED).write_text("{")
    with pytest.raises(Problem, match=r"people\.json cannot be read"):
        rated_before(tmp_path)
