"""Coverage before and after: seeds alone, and together with the tests that were found."""

import torch

import hardcase as hc
from hardcase.runs.results import Run
from hardcase.suite.coverage import reach
from hardcase.testing.toys import toy_images, toy_subject

CRITERIA = "nc:threshold=0.5,kmnc:k=20,tknc:k=1"


def test_a_run_keeps_and_shows_what_its_seeds_and_its_tests_reach(tmp_path):
    images, subject = toy_images(12), toy_subject()
    training = toy_images(40, seed=1)
    run = hc.run(subject, images, method="pgd", out=tmp_path / "run")
    assert "No coverage was measured" in run.report().read_text()
    run = reach(run, subject, CRITERIA, training=training)
    rows = {row["criterion"].split(":")[0]: row for row in run.record["coverage"]}
    found = run.images()
    both = toy_images(12 + len(found))
    both.x[:] = torch.cat([images.x, found])
    for (name, row), before, after in zip(
        rows.items(),
        hc.coverage(subject, images, CRITERIA, profile=training),
        hc.coverage(subject, both, CRITERIA, profile=training),
        strict=True,
    ):
        assert (row["before"], row["after"]) == (before["value"], after["value"]), name
    assert rows["kmnc"]["after"] > rows["kmnc"]["before"] > 0
    page = Run(tmp_path / "run").report().read_text()
    assert "kmnc:k=20" in page
    assert "with the findings" in page
