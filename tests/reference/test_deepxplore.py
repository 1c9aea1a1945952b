"""DeepXplore against its loop written out, one seed, one picture and one layer at a time."""

import itertools

import pytest
import torch
from whitebox import MODELS, active, channel_means, grid, layers, made, pictures, rms, run, seeds

THRESHOLD, DIFFER, COVER, STEP_SIZE, STEPS = 0.3, 1.0, 0.1, 0.6, 8


def gradient(x, label, units, deviating):
    """Of the joint objective at the picture that networks see."""
    shown = grid(x).requires_grad_()
    total = torch.zeros(())
    for number, (model, unit) in enumerate(zip(MODELS, units, strict=True)):
        seen = layers(model, shown)
        total = total + (-DIFFER if number == deviating else 1.0) * seen["logits"][label]
        total = total + COVER * channel_means(seen)[unit]
    return torch.autograd.grad(total, shown)[0]


def labels(x):
    return [int(layers(model, grid(x))["logits"].argmax()) for model in MODELS]


def names(method):
    return [guide.name for guide in method.guides if guide.name != "deviating"]


def walk(start, label, looks, method, constrain):
    """The walk, with the units that were drawn; yields each code and says whether the models differ there."""
    x, codes = start.clone(), []
    for step in range(STEPS + 1):
        codes.append(x.clone())
        if len(set(labels(x))) > 1:
            return codes, True
        if step == STEPS:
            break
        targets = looks[step][2]
        units = [int(targets[f"{name}/unit"]) for name in names(method)]
        move = rms(gradient(x, label, units, int(targets.get("deviating", 0))))
        x = x + STEP_SIZE * constrain(move, start, x)
    return codes, False


def corner(move, start, x):
    kept = torch.zeros_like(move)
    kept[:, :5, :5] = move[:, :5, :5]
    return kept


def brightness(move, start, x):
    return torch.full_like(move, float(move.mean()))


CONSTRAINTS = {"occlusion": corner, "light": brightness, "none": lambda move, start, x: move}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_walks_findings_and_coverage_are_those_of_the_loop_written_out(constraint):
    form = "paper" if constraint == "light" else "code"
    images = seeds(6, *MODELS)
    options = {"size": 5, "threshold": THRESHOLD, "differ": DIFFER, "cover": COVER}
    options |= {"step_size": STEP_SIZE, "gradients": STEPS}
    method = made(f"deepxplore@{form}", peers=MODELS[1:], constraint=constraint, **options)
    spy, found, method = run(method, images, MODELS[1:], one_by_one=True)
    covered = [set() for _ in MODELS]
    fresh = [0, 0]
    for seed, picture, label in pictures(images):
        looks = spy.of(seed)
        units = [[int(look[2][f"{name}/unit"]) for look in looks] for name in names(method)]
        for model, drawn in zip(covered, units, strict=True):
            fresh[0] += sum(unit not in model for unit in drawn)
            fresh[1] += len(drawn)
            if form == "code":
                assert len(set(drawn)) == 1, "the code draws one neuron for the whole walk"
        codes, differs = walk(picture, label, looks, method, CONSTRAINTS[constraint])
        assert len(codes) == len(looks)
        for ours, theirs in zip(looks, codes, strict=True):
            assert torch.allclose(ours[0], theirs, atol=2e-4)
        assert len(found[seed]) == differs
        if differs:
            assert torch.equal(found[seed].x[0].float() / 255, grid(codes[-1]))
            for model, known in zip(MODELS, covered, strict=True):
                known |= active(codes[-1], THRESHOLD, model)
    assert fresh[0] == fresh[1], "a neuron that is covered was drawn although others were not"
    assert any(len(f) for f in found)
    guides = [guide for guide in method.guides if guide.name != "deviating"]
    for guide, known in zip(guides, covered, strict=True):
        assert set(guide.guide.memory.covered()[:, 0].nonzero().squeeze(1).tolist()) == known


def test_the_black_square_of_the_code_is_drawn_anew_and_only_darkens():
    options = {"constraint": "blackout", "size": 3, "step_size": 0.5, "gradients": 8}
    method = made("deepxplore@code", peers=MODELS[1:], **options)
    spy, _, _ = run(method, seeds(4, *MODELS), MODELS[1:])
    places = set()
    for seed in range(4):
        codes = [look[0] for look in spy.of(seed)]
        for before, after in itertools.pairwise(codes):
            change = after - before
            touched = (change != 0).nonzero()
            if len(touched):
                assert len(touched) == 9
                assert torch.allclose(change[change != 0], torch.tensor(-0.5))
                places.add(tuple(touched[0].tolist()))
    assert len(places) > 1
