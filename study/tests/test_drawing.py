from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from hardcase import Run
from hardcase_study.drawing import Source, allocate, population, rated_before, sample, verdict_of


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
    said = {"verdict": "unsure"}
    assert verdict_of(None) == "unjudged"
    assert verdict_of(said) == "unsure"
    assert verdict_of({"verdict": "kept"}) == "accepted"
    assert verdict_of({"verdict": "foreign"}) == "refused"


@pytest.fixture(scope="module")
def run(runs):
    return Source.of_run(Run(runs / "sinvad"))


def test_the_sample_is_stratified_and_its_probabilities_are_those_of_the_draw(run):
    drawn, strata = sample({"sinvad": run}, 30, np.random.default_rng(0))
    whole = population(run, np.random.default_rng(0))
    assert sum(one["size"] for one in strata.values()) == len(whole)
    assert len(drawn) == 30
    assert len({one.row["original"] for one in drawn}) == 30
    for one in drawn:
        facts = strata[one.stratum]
        assert one.probability == facts["drawn"] / facts["size"]
        assert one.stratum == f"sinvad/{one.verdict}"
        assert verdict_of(run.verdicts[one.row["id"]]) == one.verdict


def test_draws_have_the_frequencies_that_are_stored(run):
    hits = {}
    for seed in range(60):
        for one in sample({"sinvad": run}, 30, np.random.default_rng(seed))[0]:
            hits.setdefault(one.stratum, []).append(one.row["original"])
    for stratum, seeds in hits.items():
        facts = sample({"sinvad": run}, 30, np.random.default_rng(0))[1][stratum]
        expected = facts["drawn"] / facts["size"]
        counts = np.bincount(np.unique(seeds, return_inverse=True)[1], minlength=facts["size"]) / 60
        assert abs(counts.mean() - expected) < 1e-9
        assert counts.max() < expected + 5 * (0.25 / 60) ** 0.5


def test_a_seed_is_represented_by_a_finding_of_its_best_verdict(run):
    order = ("accepted", "unsure", "refused", "unjudged")
    best = {}
    for row in run.findings:
        word = verdict_of(run.verdicts[row["id"]])
        best[row["original"]] = min(best.get(row["original"], "unjudged"), word, key=order.index)
    chosen = population(run, np.random.default_rng(1))
    assert {seed: verdict for seed, (_, verdict) in chosen.items()} == best


def test_the_fixed_subset_is_part_of_every_stratum(run):
    drawn, strata = sample({"sinvad": run}, 60, np.random.default_rng(0), fixed=0.4)
    for name, facts in strata.items():
        own = [one for one in drawn if one.stratum == name]
        assert sum(one.fixed for one in own) == facts["fixed"] < facts["drawn"]
        assert {one.probability for one in own if one.fixed} == {facts["fixed"] / facts["size"]}


def test_what_people_have_rated_is_no_longer_unseen(run):
    first = run.findings[0]
    before = population(run, np.random.default_rng(0))
    after = population(replace(run, rated={first["id"]: "confirmed"}), np.random.default_rng(0))
    assert set(before) - set(after) == {first["original"]}


@pytest.mark.parametrize("people", [None, {}, {"rated": 3}, {"findings": None}, [1], "x"])
def test_a_record_without_rated_findings_has_none(people):
    assert rated_before({"people": people}) == {}
    assert rated_before({}) == {}


def test_images_made_in_memory_are_a_source():
    from hardcase.tensors import decode
    from hardcase.testing.toys import toy_images

    seeds = toy_images(3)
    x = 255 - seeds.x[[0, 0, 2]]
    wrong = (seeds.y + 1) % len(seeds.classes)
    predicted = torch.stack([wrong[0], seeds.y[0], wrong[2]])
    made = Source.of_images("mine", seeds, x, torch.tensor([0, 0, 2]), predicted)
    assert [len(rows) for rows in made.by_seed().values()] == [1, 1]
    assert [len(rows) for rows in made.by_seed(failing=False).values()] == [2, 1]
    assert torch.equal(decode(made.failing[1]["image"]["bytes"]), x[2])
    assert made.failing[1]["expected"] == int(seeds.y[2])
    assert [row["id"] for row in made.seeds] == list(seeds.id)
