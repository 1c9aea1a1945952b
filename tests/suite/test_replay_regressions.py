"""Regressions beyond their nulls: which nulls there are, what counts, and what a folder keeps."""

import math

import pytest
import torch
from aftermath import verdict, write_run

from hardcase.analysis.references import excess
from hardcase.errors import Problem
from hardcase.runs.verify import REGRESSION, keep_beside
from hardcase.suite.replay import _another_training, against_nulls, nearest, stored_excess


def test_a_zoo_network_is_retrained_and_no_other():
    assert _another_training("zoo:lenet5") == "zoo:lenet5?seed=1"
    assert _another_training("zoo:resnet50-imagenet") is None
    assert _another_training("models.py:old") is None


def test_attempted_seeds_count_with_what_was_found_for_them(tmp_path):
    run = write_run(tmp_path / "run", levels=[10] * 4, found={1: [200]}, verdicts=[verdict()])
    said = nearest(run)
    assert len(said) == 4
    assert sum(math.isfinite(value) for value in said.values()) == 1
    assert min(said.values()) == run.findings["distance"][0].as_py()


def test_a_run_without_a_version_before_is_refused(tmp_path):
    run = write_run(tmp_path / "run", levels=[10] * 4, found={1: [200]}, verdicts=[verdict()])
    (run.folder / "config.toml").write_text(
        'model = "zoo:lenet5"\ndata = "mnist5k"\nmethod = "pgd"\n'
    )
    with pytest.raises(Problem, match="did not search for regressions"):
        against_nulls(run)


def test_what_a_folder_keeps_is_read_again_if_it_says_something(tmp_path):
    run = write_run(tmp_path / "run", levels=[10] * 4, found={1: [200]}, verdicts=[verdict()])
    assert stored_excess(run) is None
    found = {str(i): 0.2 if i < 30 else math.inf for i in range(40)}
    null = {str(i): 0.2 if i < 2 else math.inf for i in range(40)}
    seen = excess(found, {"swapped": null}, rng=torch.Generator().manual_seed(0))
    keep_beside(run.store, REGRESSION, seen.to_json())
    kept = stored_excess(run)
    assert kept["shown"]
    assert kept["excess"] == pytest.approx(0.7)
    assert "a regression" in kept["sentence"]
    (run.folder / REGRESSION).write_text("[]")
    assert stored_excess(run) is None
