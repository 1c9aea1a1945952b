"""ADAPT against its fuzzer written out: features and scores neuron by neuron, one worklist at a time."""

import torch
import whitebox
from whitebox import SUBJECT, channel_means, grid, layers, made, pictures, run, seeds

from hardcase.guides.adapt import breed, constant, greedy_cover
from hardcase.methods.dlfuzz import LEARNT
from hardcase.randomness import Rng, stream

STEP_SIZE, STEPS, BUDGET, NEURONS, RADIUS = 2.0, 3, 45, 4, 0.5
WIDTHS = {"relu1": 3, "pool1": 3, "relu2": 4, "relu3": 6, "logits": 4}
LAYER_KINDS = ("conv", "pool", "conv", "linear", "linear")
WEIGHTS = {"relu1": "conv1", "relu2": "conv2", "relu3": "dense1", "logits": "logits"}
NAMES = ("norm", "pool", "conv", "linear", "activation", "join", "other")


def fixed_features():
    """Features 0 to 16, one neuron at a time."""
    layered = enumerate(WIDTHS.items())
    neurons = [(number, name, i) for number, (name, width) in layered for i in range(width)]
    modules = dict(SUBJECT.net.named_children())
    weight = {}
    for place, (_, name, i) in enumerate(neurons):
        if name in WEIGHTS:
            weight[place] = float(modules[WEIGHTS[name]].weight[i].mean())
    ranked = sorted(weight, key=lambda place: -weight[place])
    table = []
    for place, (number, _, _) in enumerate(neurons):
        features = [0] * 17
        features[4 * number // len(WIDTHS)] = 1
        if place in weight:
            tenth = 10 * ranked.index(place) // len(ranked)
            features[4 + min(tenth, 5)] = 1
        features[10 + NAMES.index(LAYER_KINDS[number])] = 1
        table.append(features)
    return table


def chosen(vector, hits, failing):
    """The neurons that a strategy vector likes best."""
    covered = sorted((i for i, h in enumerate(hits) if h), key=lambda i: (-hits[i], i))
    scores = []
    for i, features in enumerate(fixed_features()):
        features = [*features, failing[i] > 0, hits[i] == 0, *[0] * 10]
        if hits[i]:
            features[19 + 10 * covered.index(i) // len(covered)] = 1
        scores.append(sum(float(s) * f for s, f in zip(vector, features, strict=True)))
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:NEURONS]


def gradient(x, label, units):
    shown = grid(x).requires_grad_()
    seen = layers(SUBJECT, shown)
    own = seen.pop("softmax")[label]
    return torch.autograd.grad(0.5 * channel_means(seen)[units].sum() - 0.5 * own, shown)[0]


def active(x):
    return whitebox.active(x, 0.5, by=whitebox.mean_then_scale)


def fuzz(start, label, looks):
    hits, failing, shown, episodes, spent, again = [0] * 20, [0] * 20, [], [], 0, 0

    def count(x):
        wrong = int(layers(SUBJECT, grid(x))["logits"].argmax()) != label
        for i in active(x):
            hits[i] += 1
            failing[i] += wrong
        episodes[-1] |= active(x)

    while True:
        queue, vector = [start.clone()], looks[len(shown)][2][f"{LEARNT}/vector"]
        episodes.append(set())
        again -= 1
        while queue:
            x = queue.pop(0)
            again += 1
            units = chosen(vector, hits, failing)
            assert units == looks[len(shown)][2][f"{LEARNT}/unit"].tolist()
            if not shown:
                count(x)
            shown.append(x.clone())
            for _ in range(STEPS):
                if spent == BUDGET:
                    return shown, hits, again
                spent += 1
                x = x + STEP_SIZE * gradient(x, label, units)
                shown.append(x.clone())
                grew = any(hits[i] == 0 for i in active(x))
                count(x)
                if grew and float((x - start).norm() / start.norm()) < RADIUS:
                    queue.append(x.clone())


def test_choices_looks_and_tables_are_those_of_the_fuzzer_written_out():
    images = seeds(3, SUBJECT)
    options = {"neurons": NEURONS, "step_size": STEP_SIZE, "steps": STEPS, "radius": RADIUS}
    spy, _, method = run(made("adapt@paper", **options, gradients=BUDGET), images)
    assert method.guides[0].fixed.tolist() == fixed_features()
    total, repeated = [0] * 20, 0
    for seed, picture, label in pictures(images):
        shown, hits, again = fuzz(picture, label, spy.of(seed))
        for ours, theirs in zip(spy.of(seed), shown, strict=True):
            assert torch.allclose(ours[0], theirs, atol=2e-4)
        total = [a + b for a, b in zip(total, hits, strict=True)]
        repeated += again
    assert method.guides[0].hits.base.tolist() == total
    assert repeated, "no list ever had a second entry, so lists were not tested"


def test_features_of_layers_without_weights_have_no_rank():
    table = constant([2, 3], ["pool", "conv"], torch.tensor([torch.nan, torch.nan, 3.0, 1.0, 2.0]))
    assert table[:2, 4:10].sum() == 0
    assert table[2:, 4:10].argmax(1).tolist() == [0, 5, 3]


def slow_cover(records, count):
    left, picks = set().union(*records), []
    while len(picks) < count:
        best = max(range(len(records)), key=lambda i: (len(records[i] & left), -i))
        if not records[best] & left:
            break
        picks.append(best)
        left -= records[best]
    alone = sorted(range(len(records)), key=lambda i: (-len(records[i]), i))
    for i in range(count - len(picks)):
        picks.append(alone[i % len(alone)])
    return picks


def test_greedy_cover_is_the_textbook_one_for_every_group():
    share = torch.rand(5, 12, 1, generator=stream(1, "cover")) / 2
    covered = torch.rand(5, 12, 30, generator=stream(0, "cover")) < share
    known = torch.ones(5, 12, dtype=torch.bool)
    known[3, 7:] = False
    picks = greedy_cover(covered, known, 15)
    for group in range(5):
        records = [set(row.nonzero().squeeze(1).tolist()) for row in covered[group][known[group]]]
        assert picks[group].tolist() == slow_cover(records, 15)


def test_children_mix_their_parents_gene_by_gene():
    spread = torch.linspace(-4, 4, 50)[:, None].expand(50, 29)
    parents = torch.stack([torch.full((50, 29), 4.0), spread])
    children = breed(parents, torch.arange(len(parents)), Rng.numbered(0, "breed", len(parents)))
    assert children.shape == (2, 100, 29)
    assert bool((children.abs() <= 5).all())
    noise = (children[0] - 4)[children[0] < 5]
    assert abs(float(noise[noise < 0].std()) - 0.6) < 0.1, "half a normal one of size 1"
    assert float(children[1].std(1).mean()) > 1.2, "genes of a child come from both parents"
