"""Counting and sampling what methods make; error rates that a judge accepts; MSE, SSIM, LD, ER and SR by hand."""

import math
from pathlib import Path

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.judges.judge import SignalSource, TrainedJudge
from hardcase.methods.generative import argus
from hardcase.oracles import LeavesLabel
from hardcase.randomness import stream
from hardcase.spaces.latent import Grid, collect
from hardcase.tensors import fingerprints, from_bytes
from hardcase.testing.toys import ToyQuantiser, toy_images, toy_subject
from hardcase.types import KINDS, Findings, Probe, Seeds, Verdicts
from hardcase_studies import argus_measure
from hardcase_studies.argus_measure import (
    Bar,
    PerSeed,
    Witness,
    accepted,
    admit,
    judged,
    label_diversity,
    measured,
    mse,
    per_seed,
    ssim,
)

SUBJECT, TEST = toy_subject(), toy_images(24, seed=3)


def probe(images, rows, **targets):
    """A look at the seeds themselves, some of them often, with answers that put every other row wrong."""
    x, y = from_bytes(images.x[rows]), images.y[rows]
    logits = torch.nn.functional.one_hot(y, len(images.classes)).float() * 10
    logits[::2] = logits[::2].roll(1, 1)
    return Probe(x, x, logits, Seeds(x, x, y, rows), targets=targets)


def witness(count, n=3):
    return Witness(LeavesLabel(), TEST.first(n), count=count, rng=stream(0, "lots"))


def test_every_new_image_is_counted_once_and_the_oracle_answers_as_before():
    seen = witness(0)
    rows = torch.tensor([0, 0, 2, 2, 2])
    looked = probe(TEST, rows)
    assert torch.equal(seen(looked), LeavesLabel()(looked))
    seen(probe(TEST, rows, seen=torch.tensor([True, False, True, True, False])))
    assert seen.made.tolist() == [3, 0, 4]
    assert seen.kind == "label"


def test_likeness_is_a_mean_over_the_sample():
    seen = witness(6)
    rows = torch.tensor([0, 0, 2])
    looked = probe(TEST, rows)
    seen(Probe(looked.z, torch.cat([looked.x[:1], 1 - looked.x[1:]]), looked.logits, looked.origin))
    error, like = seen.likeness(TEST.first(3))
    assert float(error[0]) == pytest.approx(
        float((1 - 2 * looked.x[1]).square().mean()) / 2, rel=1e-4
    )
    assert bool(error[1].isnan())
    assert float(like[0]) > float(like[2])


def test_every_image_has_the_same_chance_to_be_sampled():
    early = 0
    for trial in range(200):
        seen = Witness(LeavesLabel(), TEST.first(1), count=4, rng=stream(trial, "lots"))
        zero = torch.zeros(8, dtype=torch.int64)
        first = probe(TEST, zero)
        seen(Probe(first.z, torch.zeros_like(first.x), first.logits, first.origin))
        seen(Probe(first.z, torch.ones_like(first.x), first.logits, first.origin))
        assert bool(seen.there.all())
        early += int((seen.x.flatten(2).amax(2) == 0).sum())
    assert early / 800 == pytest.approx(0.5, abs=0.06)


class Known(SignalSource):
    """No network, only what was learned."""

    networks = ()

    def __init__(self, learned):
        super().__init__()
        self.register_buffer("learned", torch.as_tensor(learned, dtype=torch.int64))


class ToyJudge(TrainedJudge):
    """Looks at the first pixel: bright enough is kept, all white is unsure."""

    def __init__(self, learned=(), members=None):
        super().__init__(Known(learned), {"members": members or {}}, Path(), {})

    def __call__(self, pairs):
        first = pairs.x.flatten(1)[:, 0].tolist()
        return Verdicts(["unsure" if v > 230 else ("lost", "kept")[v > 128] for v in first])


JUDGE = ToyJudge()


def mixing():
    net = ToyQuantiser()
    codes = collect(toy_images(40, seed=2), net.encode, device=torch.device("cpu"))
    return argus(space=Grid(net), partners=codes, mix=0.7)


def test_only_a_kept_label_counts_and_unsure_is_no():
    x = torch.tensor([0, 100, 200, 255], dtype=torch.uint8).reshape(4, 1, 1, 1).expand(4, 1, 8, 8)
    said = accepted(JUDGE, x, torch.zeros(4, dtype=torch.int64))
    assert said.tolist() == [False, False, True, False]
    assert accepted(JUDGE, x[:0], torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_judged_is_the_share_of_the_sample_that_fails_and_is_accepted():
    seen = witness(4, n=2)
    seen.lot[0] = torch.tensor([0.4, 0.3, 0.2, -1.0])
    seen.left[0] = torch.tensor([True, True, False, True])
    seen.x[0, 0], seen.x[0, 2], seen.x[0, 3] = 200, 200, 200
    share = judged(JUDGE, seen, TEST.y[:2])
    assert float(share[0]) == pytest.approx(1 / 3)
    assert bool(share[1].isnan())


def test_judged_error_rates_stand_beside_raw_ones_and_never_above(monkeypatch):
    method = mixing()
    plain = measured(SUBJECT, method, [TEST.first(4)])
    assert plain.judged is None
    assert int(plain.made.min()) > 10
    everything = lambda judge, x, label: torch.ones(len(x), dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(argus_measure, "accepted", everything)
    whole = measured(SUBJECT, method, [TEST.first(4)], bar=Bar(JUDGE, ""))
    assert whole.judged == pytest.approx(whole.seeds.er, abs=1e-6), (
        "every image was sampled, all were accepted"
    )
    monkeypatch.setattr(
        argus_measure, "accepted", lambda judge, x, label: ~everything(judge, x, label)
    )
    assert float(measured(SUBJECT, method, [TEST.first(4)], bar=Bar(JUDGE, "")).judged.sum()) == 0


def test_a_judge_must_be_independent():
    admit(JUDGE, [SUBJECT], [TEST])
    with pytest.raises(HardcaseError, match="one of the judge's own networks"):
        admit(ToyJudge(members={"member 1": SUBJECT.hash}), [SUBJECT], [TEST])
    with pytest.raises(HardcaseError, match="learned from 5 of the 24 originals"):
        admit(ToyJudge(learned=fingerprints(TEST.x[:5])), [SUBJECT], [TEST])


def test_many_originals_are_searched_piece_by_piece_and_keep_their_places(monkeypatch):
    method = mixing()
    whole = measured(SUBJECT, method, [TEST.first(7)])
    monkeypatch.setattr(argus_measure, "AT_ONCE", 3)
    pieces = measured(SUBJECT, method, [TEST.first(7)])
    assert torch.equal(pieces.seeds.er, whole.seeds.er)
    assert torch.equal(pieces.made, whole.made)
    assert pieces.originals == 7
    key = lambda done: sorted(zip(done.findings.seed.tolist(), done.findings.predicted.tolist()))  # noqa: E731
    assert key(pieces) == key(whole)


def test_mse_and_ssim_of_each_pair():
    x, y = (torch.rand(3, 1, 16, 16, generator=stream(seed)) for seed in (1, 2))
    expected = [
        sum((a - b) ** 2 for a, b in zip(p.flatten().tolist(), q.flatten().tolist())) / 256
        for p, q in zip(x, y)
    ]
    assert mse(x, y).tolist() == pytest.approx(expected, rel=1e-4)
    assert ssim(x, x).tolist() == pytest.approx([1, 1, 1])
    assert bool((ssim(x, y) < 0.5).all())
    assert ssim(x[:1], y[:1]).tolist() == pytest.approx(ssim(x, y)[:1].tolist(), rel=1e-5)
    assert ssim(x[:0], y[:0]).shape == (0,)


def test_rates_and_diversity_count_what_they_say():
    owner, label = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 1, 3, 0, 0])
    assert label_diversity(owner, label, 4).tolist() == [2, 0, 1, 0]
    assert label_diversity(owner[:0], label[:0], 2).tolist() == [0, 0]


def test_seeds_are_measured_by_label_failures_only():
    seeds = torch.zeros(2, 1, 12, 12, dtype=torch.uint8)
    x = torch.full((3, 1, 12, 12), 51, dtype=torch.uint8)
    x[2] = 255
    whole, real = torch.tensor([1, 2, 3]), torch.zeros(3)
    kind = torch.tensor([KINDS.index("label"), KINDS.index("label"), KINDS.index("disagreement")])
    nothing = real[:, None][:, :0]
    columns = (kind, whole * 0, whole, nothing.long(), real, real, real, whole, nothing)
    found = Findings(torch.tensor([0, 0, 1]), x, *columns)
    measured = per_seed(found, seeds, failing=torch.tensor([5, 0]), looked=torch.tensor([10, 10]))
    assert measured.mse[0] == pytest.approx(0.04)
    assert math.isnan(measured.mse[1])
    assert math.isnan(measured.ssim[1])
    counted = [getattr(measured, name).tolist() for name in ("ld", "er", "sr")]
    assert counted == [[2, 0], [0.5, 0], [1, 0]]
    both = PerSeed.join([measured, measured.take(torch.tensor([False, True]))])
    assert both.er.tolist() == [0.5, 0, 0]
