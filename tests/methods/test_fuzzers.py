"""DiffChaser: its fitness written out, its cap on drift, its failures."""

import math
from collections import Counter

import pytest
import torch

import hardcase as hc
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.errors import HardcaseError
from hardcase.methods.fuzzers import TowardClass, Uncertainty, diffchaser
from hardcase.models import quantised
from hardcase.randomness import stream
from hardcase.report import report
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Probe, Seeds
from hardcase.wording.search import kinds_in_words

IMAGES = toy_images(6)
SUBJECT = toy_subject()
with pytest.MonkeyPatch.context() as coarse:  # a copy of four bits differs on small images too
    coarse.setattr(quantised, "LEVELS", 15)
    coarse.setattr(quantised, "LARGEST", 7)
    COPY = quantised.int8(SUBJECT, from_bytes(IMAGES.x))


def probe(*logits):
    x = torch.zeros(len(logits[0]), 1, 2, 2)
    seeds = Seeds(x, x, torch.zeros(len(x), dtype=torch.int64), torch.arange(len(x)))
    return Probe(x, x, logits[0], seeds, tuple(logits[1:]))


def test_fitness_is_the_gap_between_probabilities_in_the_model_that_hesitates_most():
    one, two = (torch.randn(5, 4, generator=stream(seed)) for seed in (1, 2))
    pairs = list(zip(one.softmax(1).tolist(), two.softmax(1).tolist()))
    for k in (2, 3):
        expected = [max(sorted(p)[-k] - max(p) for p in pair) for pair in pairs]
        torch.testing.assert_close(Uncertainty(k)(probe(one, two)), torch.tensor(expected))
    expected = [max(p[3] - max(p) for p in pair) for pair in pairs]
    torch.testing.assert_close(TowardClass(3)(probe(one, two)), torch.tensor(expected))


def searched(**options):
    method = diffchaser(peers=(COPY,), **options)
    campaign = Campaign(subject=SUBJECT, peers=(COPY,), method=method)
    return run_shard(campaign, IMAGES, limits(method.budget, 6))


def test_findings_are_images_on_which_the_copy_answers_otherwise():
    shard = searched()
    assert len(set(shard.findings.seed.tolist())) >= 4
    x = from_bytes(shard.findings.x)
    assert bool((SUBJECT(x).logits.argmax(1) != COPY(x).logits.argmax(1)).all())
    assert torch.equal(shard.counts.peer_queries, shard.counts.queries)


@pytest.mark.parametrize("drift", [0.02, 0.1])
def test_no_pixel_drifts_further_from_the_seed_than_allowed(drift):
    found = searched(drift=drift, generations=12).findings
    change = (found.x.int() - IMAGES.x[found.seed].int()).abs()
    assert int(change.max() if len(change) else 0) <= math.floor(drift * 255 + 1e-6)


def test_options_that_mean_nothing_are_refused():
    for options in ({"peers": ()}, {"peers": (COPY,), "k": 1}, {"peers": (COPY,), "drift": 0.0}):
        with pytest.raises(HardcaseError):
            diffchaser(**options)


def test_disagreements_are_counted_as_what_they_are(tmp_path):
    """In the summary and in the report: failing is what leaves the label, the rest is named."""
    method = diffchaser(peers=(COPY,))
    run = hc.run(SUBJECT, IMAGES, method=method, peers=(COPY,), out=tmp_path / "run", judge=False)
    kinds = Counter(run.findings["kind"].to_pylist())
    assert kinds["disagreement"] > 0
    said = kinds_in_words(kinds)
    assert said.startswith(f"{len(run)} findings: ")
    assert said.endswith(f"{kinds['disagreement']} disagreement{'s' * (kinds['disagreement'] > 1)}")
    page = report(run).read_text()
    for text in (run.summary(), page):
        assert said in text
