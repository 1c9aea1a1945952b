"""SINVAD's boundary, sizes of its VAE and feasibility, end to end on a world of bars."""

from dataclasses import replace

import pytest
import torch

from hardcase.campaign.in_memory import search
from hardcase.methods.sinvad import sinvad_code
from hardcase.models.health import usable
from hardcase_studies import sinvad
from hardcase_studies.lab import Lab
from hardcase_studies.verdicts import read_figure


@pytest.mark.long
def test_rq2_finds_images_on_the_boundary_and_says_what_they_cost(bench, monkeypatch):
    monkeypatch.setattr(sinvad, "BUDGETS", {"sinvad": (10, 123), "sinvad@code": (51, 81)})
    ready = bench(seeds=20, code_seeds=4, paper_seeds=2, curve_seeds=2)
    outcome = sinvad.boundary(ready)
    gaps, costs, distances, budgets = outcome.tables
    ours = dict(zip(gaps.columns, gaps.rows[0]))
    assert ours["images"] >= 18
    assert float(ours["mean gap"].split()[0]) < 0.05 < ours["test set"]
    assert ours["Cliff's delta"] < -0.8
    cost = dict(zip(costs.columns, costs.rows[0]))
    assert cost["success"] > 0.9
    assert cost["queries per image"] < 124
    assert [row[0] for row in distances.rows] == ["sinvad", "sinvad@code", "sinvad@paper"]
    spent = [row[1] for row in budgets.rows if row[0] == "sinvad"]
    assert spent == sorted(spent)


def test_both_countings_agree_where_every_search_succeeds_and_differ_where_one_fails(bench):
    """The authors' code averages the last image of every search; the text, those that fail."""
    here = Lab(bench())
    seeds = usable(here.subject, here.test.first(12))
    near = sinvad_code(space=here.space, spread=0.05, generations=3)
    far = sinvad_code(space=here.space, spread=2.5, generations=6)
    for method in (near, far):
        done = search(here.subject, method, seeds, seed=3)
        ends = sinvad.final_gaps(here, method, done, seed=3)
        found = sinvad.gaps(here.subject, done)
        assert len(ends) == int(done.attempted.sum())
        failed = len(ends) - len(found)
        if failed:
            assert float(ends.mean()) > 0.5, "a search that failed ends where the label is sure"
        assert float(ends.sum()) >= float(found.sum())
    assert failed == 0
    assert float(ends.mean()) == pytest.approx(float(found.mean()))


def test_rq4_a_larger_code_keeps_more_labels(bench, written):
    ready = replace(bench(latents=[1, 16], kinds=["linear"]), repeats=3)
    outcome = sinvad.latent_sizes(ready)
    table, differences, typical = outcome.tables
    assert [row[0] for row in table.rows] == ["linear 1", "linear 16"]
    small, large = (read_figure(row[3]) for row in table.rows)
    assert large.value > small.value, "SSIM"
    assert large.units == 3, "an interval over the trainings"
    assert {row[0] for row in differences.rows} == {
        "linear 1 less linear 16", "linear 16 less linear 1",
    }  # fmt: skip
    assert [row[0] for row in typical.rows] == ["linear 1", "linear 16"]
    written(outcome, ready)


def test_rq4_goes_on_where_it_stopped(bench, monkeypatch):
    ready = replace(bench(latents=[1], kinds=["linear"]), repeats=1)
    monkeypatch.setattr(sinvad.figures, "images", lambda *args: "none")
    first = sinvad.latent_sizes(ready)
    monkeypatch.setattr(sinvad, "_rebuilt", lambda here, made, images: images)
    monkeypatch.setattr(sinvad, "accuracy", None)  # nothing is measured again
    assert sinvad.latent_sizes(ready).tables[2].rows == first.tables[2].rows


@pytest.mark.long
def test_feasibility_climbs_and_mixes_in_both_spaces(bench, written):
    ready = bench(seeds=6, climbers=2, passes=1, paper_seeds=1)
    outcome = sinvad.feasibility(ready)
    climbs, ambiguous = outcome.tables
    assert [row[0] for row in climbs.rows] == [name for name, _ in sinvad.CLIMBS]
    assert all(row[4] > 1 for row in climbs.rows)
    assert all(" of 2 = " in row[2] for row in climbs.rows)
    assert len(ambiguous.rows) == 4
    written(outcome, ready)


def test_interpolation_begins_and_ends_with_the_images(bench):
    here = Lab(bench())
    rows = sinvad.interpolations(here, here.test.first(2))
    assert torch.equal((rows["pixels 1"][[0, -1]] * 255).round().to(torch.uint8), here.test.x[:2])
    middle = rows["latent 1"][4]
    assert not torch.allclose(middle, rows["pixels 1"][4], atol=0.02)
