"""MaXplore against its loops written out: filter by filter, or layer by layer, or unit by unit."""

import pytest
import torch
from whitebox import MODELS, ONE, SUBJECT, TWO, grid, layers, made, pictures, run, seeds

STEP_SIZE, STEPS, K = 1.0, 6, 3


def targets(form, per, picture):
    """Groups of (layer, channel, row, column): what each walk pushes."""
    seen = layers(SUBJECT, grid(picture))
    chosen = ["relu1"] if form == "one" else ["relu1", "relu2"]
    groups = []
    for name in chosen:
        places = [(name, *map(int, place)) for place in (seen[name] * 0 + 1).nonzero()]
        value = lambda place: float(seen[place[0]][place[1:]])  # noqa: E731
        if form == "one":
            groups += [[place] for place in places]
        elif per == "layer":
            groups.append(sorted(places, key=lambda p: -value(p))[:K])
        else:
            for channel in range(len(seen[name])):
                inside = [place for place in places if place[1] == channel]
                groups.append(sorted(inside, key=lambda p: -value(p))[:K])
    return groups


def gradient(x, label, group, form):
    shown = grid(x).requires_grad_()
    seen = layers(SUBJECT, shown)
    total = sum(seen[place[0]][place[1:]] for place in group)
    if form == "multi":
        others = layers(ONE, shown)["logits"][label] + layers(TWO, shown)["logits"][label]
        total = total - 1.5 * seen["logits"][label] + others
    return torch.autograd.grad(total, shown)[0]


def differ(x):
    return len({int(layers(model, grid(x))["logits"].argmax()) for model in MODELS}) > 1


@pytest.mark.parametrize(
    ("recipe", "form", "per", "walks"),
    [
        ("maxplore@code", "multi", "filter", 7),
        ("maxplore@paper", "multi", "layer", 2),
        ("maxplore@code", "topk", "filter", 7),
        ("maxplore@code", "one", "unit", 20),
    ],
)
def test_walks_are_those_of_the_loops_written_out(recipe, form, per, walks):
    images = seeds(4, *MODELS)
    options = {"form": form, "k": K, "walks": 20, "step_size": STEP_SIZE, "steps": STEPS}
    method = made(recipe, peers=(ONE, TWO), **options)
    assert method.search.walks == walks
    spy, found, _ = run(method, images, (ONE, TWO))
    stopped = 0
    for seed, picture, label in pictures(images):
        theirs = [picture]
        groups = targets(form, per, picture)
        for number in torch.linspace(0, len(groups) - 1, walks).round().int().tolist():
            group = groups[number]
            x = picture
            for step in range(STEPS + 1):
                theirs.append(x)
                if form == "multi" and differ(x):
                    stopped += 1
                    break
                if step < STEPS:
                    x = x + STEP_SIZE * gradient(x, label, group, form)
        walked = ([look[0] for look in spy.of(seed)], theirs)
        ours, theirs = (torch.tensor(sorted(x.flatten().tolist() for x in xs)) for xs in walked)
        assert len(ours) == len(theirs)
        assert torch.allclose(ours, theirs, atol=1e-3)
    if form == "multi":
        assert sum(map(len, found)) == stopped > 0
