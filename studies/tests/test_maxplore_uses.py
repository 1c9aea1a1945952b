"""What MaXplore's report proposes, small: tables are whole, and nearest neighbours tell labels."""

import os
from dataclasses import replace

import pytest

from hardcase.campaign.in_memory import search
from hardcase.methods.pgd import fgsm
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_studies import maxplore_uses

long = pytest.mark.skipif(
    os.environ.get("HARDCASE_TORTURE") != "long",
    reason="trains several networks: HARDCASE_TORTURE=long, as make torture does",
)


def test_neighbours_vote_for_the_seeds_label():
    train = toy_images(60, seed=1)
    seeds = toy_images(12, seed=2)
    done = search(toy_subject(), fgsm(epsilon=0.3), seeds)
    near = maxplore_uses.alike(train, done, seeds)
    assert near.shape == (len(done.findings.x),)
    turned = replace(seeds, y=(seeds.y + 1) % len(seeds.classes))
    other = maxplore_uses.alike(train, done, turned)
    assert not bool((near & other).any()), "no image has most neighbours in two classes"


@long
def test_the_proposals_are_measured_beside_their_controls(bench, monkeypatch):
    monkeypatch.setattr(maxplore_uses, "NETWORKS", ("zoo:lenet1", "zoo:lenet1?seed=1"))
    small = bench(taught=40, seeds=10, retrain_epochs=1, added=12)
    outcome = maxplore_uses.run(replace(small, repeats=2))
    sections = outcome.tables[-1]
    assert [row[0] for row in sections.rows] == [
        "Multi-Topk-MaXplore, pixels",
        "sinvad, a VAE's codes",
    ]
    for row in sections.rows:
        assert float(row[4]) <= float(row[3]) + 1e-6, "fewer images cover no more"
    first = outcome.tables[0]
    assert first.columns[0] == "failing images" or first.rows[0][0] == "before"
