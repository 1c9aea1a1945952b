"""DLFuzz against its queue written out, one seed and one picture at a time."""

from dataclasses import replace

import pytest
import torch
from whitebox import SUBJECT, active, channel_means, grid, layers, made, pictures, rms, run, seeds

from hardcase.methods.dlfuzz import FIXED

THRESHOLD, STEP_SIZE, STEPS, BUDGET, RADIUS = 0.7, 0.1, 3, 40, 0.6


def gradient(x, label, units, signs, rivals):
    shown = grid(x).requires_grad_()
    seen = layers(SUBJECT, shown)
    own = seen["logits"][label]
    others = seen["logits"].sum() - own
    pushed = 0.5 * (channel_means(seen)[units] * signs).sum()
    return torch.autograd.grad(rivals * others - own + pushed, shown)[0]


def fuzz(start, label, number, looks, hits, *, rivals, by_time):
    """Every picture that is looked at, in order; `hits` are counted as it goes."""
    queue, shown, adversarial, popped, spent = [start.clone()], [], [], 0, 0

    def count(x):
        for i in active(x, THRESHOLD):
            hits[i] += 1

    while queue:
        x = queue.pop(0)
        shown.append(x.clone())
        if popped == 0:
            count(x)
        asked = 0.01 * len(hits) / ((popped if by_time else number) + 1)
        popped += 1
        for step in range(STEPS):
            shown.append(x.clone()) if step == 0 else None
            if spent == BUDGET:
                return shown, adversarial
            spent += 1
            aims = looks[len(shown) - 1][2]
            units, signs = (aims[f"{FIXED}/{name}"] for name in ("unit", "sign"))
            x = x + STEP_SIZE * rms(gradient(x, label, units, signs, rivals))
            shown.append(x.clone())
            gain = sum(hits[i] == 0 for i in active(x, THRESHOLD))
            near = float((x - start).norm() / start.norm()) < RADIUS
            count(x)
            if gain > asked and near:
                queue.append(x.clone())
            if int(layers(SUBJECT, grid(x))["logits"].argmax()) != label:
                adversarial.append(grid(x))
    return shown, adversarial


@pytest.mark.parametrize(
    ("recipe", "rivals", "by_time"), [("dlfuzz@code", 0.5, False), ("dlfuzz@paper", 1.0, True)]
)
def test_looks_hits_and_findings_are_those_of_the_queue_written_out(recipe, rivals, by_time):
    images = seeds(4, SUBJECT)
    options = {"neurons": 4, "threshold": THRESHOLD, "step_size": STEP_SIZE}
    method = made(recipe, **options, steps=STEPS, gradients=BUDGET)
    assert method.search.radius == 0.02
    wide = replace(method.search, radius=RADIUS)  # so that this small world queues something
    spy, found, method = run(replace(method, search=wide), images, one_by_one=True)
    hits, entries = [0] * method.guides[0].units.count, 0
    for seed, picture, label in pictures(images):
        looks = spy.of(seed)
        shown, adversarial = fuzz(picture, label, seed, looks, hits, rivals=rivals, by_time=by_time)
        assert len(shown) == len(looks)
        for ours, theirs in zip(looks, shown, strict=True):
            assert torch.allclose(ours[0], theirs, atol=1e-4)
        entries += len(looks) // (STEPS + 2) + bool(len(looks) % (STEPS + 2))
        assert len(found[seed]) == len(adversarial)
    assert method.guides[0].hits.base.tolist() == hits
    assert entries > len(images), "nothing was ever queued, so the queue was not tested"
