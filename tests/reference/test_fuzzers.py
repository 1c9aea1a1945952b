"""DeepHunter's and TensorFuzz's corpora against their rules written out, candidate by candidate."""

import torch
from whitebox import ONE, SUBJECT, profiles, run, seeds

from hardcase.methods.fuzzers import deephunter, tensorfuzz
from hardcase.tensors import from_bytes

SECTIONS = 20


def channel_means(x):
    seen, value = [], x[None]
    for name, module in SUBJECT.net.named_children():
        value = module(value)
        if name in ("conv1", "conv2", "dense1", "logits"):
            seen += [float(channel.mean()) for channel in value[0]]
    return seen


def wrong(x, label):
    p = SUBJECT(x[None]).logits[0].softmax(0)
    return float(max(p[k] for k in range(4) if k != label) - p[label]) >= 1e-4


def test_deephunters_corpus_holds_what_filled_a_new_section_and_did_not_fail():
    images, profile = seeds(4, SUBJECT), profiles()
    options = {"criterion": f"kmnc:k={SECTIONS}", "capacity": 400, "queries": 61}
    method = deephunter(subject=SUBJECT, profile=profile, **options)
    spy, _, method = run(method, images)
    training = [channel_means(x) for x in from_bytes(profile.training().x)]
    low, high = ([f(column) for column in zip(*training, strict=True)] for f in (min, max))

    def cells(x):
        filled = set()
        for unit, value in enumerate(channel_means(x)):
            if low[unit] <= value <= high[unit]:
                place = int((value - low[unit]) / (high[unit] - low[unit]) * SECTIONS)
                filled.add((unit, min(place, SECTIONS - 1)))
        return filled

    covered, corpus = set(), [[] for _ in images.y]
    for number, step in enumerate(spy.calls):
        sound = [(seed, x) for seed, _, x, _ in step if not wrong(x, int(images.y[seed]))]
        for seed, x in sound:
            if cells(x) - covered or number == 0:
                corpus[seed].append(x)
        for _, x in sound:
            covered |= cells(x)
    kept = method.guides[0].base
    for seed, expected in enumerate(corpus):
        ours = from_bytes(kept["picture"][kept["seed"] == seed])
        assert len(ours) == len(expected)
        assert torch.equal(ours, torch.stack(expected))
    result = method.guides[0].novelty.result()
    assert result.covered == len(covered)
    assert any(wrong(x, int(images.y[seed])) for seed, _, x, _ in spy.looks), "nothing failed"


def test_deephunters_pixel_changes_obey_the_rule_of_alpha_and_beta():
    images = seeds(4, SUBJECT)
    method = deephunter(subject=SUBJECT, profile=profiles(), criterion="nc", queries=81)
    spy, _, _ = run(method, images)
    checked = 0
    for seed, _, x, targets in spy.looks:
        if not bool(targets["entry/turned"]):
            assert torch.equal(targets["entry/reference"], from_bytes(images.x[seed]))
            change = ((x - targets["entry/reference"]) * 255).round().abs()
            assert int((change > 0).sum()) < int(0.02 * 64) or int(change.max()) < 51
            checked += 1
    assert 20 < checked < len(spy.looks) - 20


def test_tensorfuzz_keeps_far_outputs_stays_near_its_seed_and_stops_at_the_first_disagreement():
    images = seeds(5, SUBJECT, ONE)
    options = {"threshold": 0.02, "radius": 0.3, "capacity": 400, "children": 8, "queries": 65}
    method = tensorfuzz(subject=SUBJECT, peers=(ONE,), profile=profiles(), **options)
    spy, found, method = run(method, images, (ONE,))
    kept, corpus, finished = [], [[] for _ in images.y], {}
    for number, step in enumerate(spy.calls):
        answers = [(SUBJECT(x[None]).logits[0], ONE(x[None]).logits[0]) for _, _, x, _ in step]
        before = list(kept)
        for (seed, _, x, _), (own, other) in zip(step, answers, strict=True):
            assert float((x - from_bytes(images.x[seed])).abs().max()) <= 76 / 255 + 1e-6
            assert finished.get(seed, (number,))[0] == number, "a finished seed was looked at again"
            if int(own.argmax()) != int(other.argmax()):
                finished.setdefault(seed, (number, []))[1].append(x)
                continue
            if number == 0 or all(float((own - k).square().sum()) > 0.02 for k in before):
                corpus[seed].append(x)
            if all(float((own - k).square().sum()) > 0.02 for k in kept):
                kept.append(own)
    assert finished
    assert set(found[0].seed.tolist()) == set(finished)
    assert method.guides[0].novelty.result().covered == len(kept)
    base = method.guides[0].base
    for seed, expected in enumerate(corpus):
        assert torch.equal(from_bytes(base["picture"][base["seed"] == seed]), torch.stack(expected))
