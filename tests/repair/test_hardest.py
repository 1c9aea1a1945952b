"""The hardest draws: worst of several, deterministic, in place of a part of a batch."""

import runpy
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.errors import Problem
from hardcase.repair.hardest import climb, render_draws, seeds_at
from hardcase.tensors import from_bytes, margin
from hardcase.testing.toys import toy_images, toy_subject
from tiny import global_state

EXAMPLES = Path(__file__).parents[2] / "examples" / "repair"
WIDE = {"shift": "±20 %", "exposure": "±1 stops"}


def linear(images, seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(images.x[0].numel(), 4))
    return net


def test_the_worst_of_more_draws_costs_more():
    images = toy_images(32)
    x, y = from_bytes(images.x), images.y
    net = toy_subject().net
    losses = []
    for draws in (1, 8):
        hard = hc.Hardest(net, WIDE, draws=draws, share=1.0)
        losses.append(float(functional.cross_entropy(net(hard(x, y)), y)))
    assert losses[1] > losses[0] + 0.1


def test_the_returned_row_is_the_draw_with_the_largest_loss():
    images = toy_images(8)
    x, y = from_bytes(images.x), images.y
    net = toy_subject().net
    hard = hc.Hardest(net, WIDE, draws=5, share=1.0, seed=3)
    found = hard(x, y)
    box = condition_box(hard.conditions, images.shape)
    drawn = render_draws(box, x, torch.arange(8), 5, seed=3).x
    loss = functional.cross_entropy(
        net(drawn.flatten(0, 1)), y.repeat_interleave(5), reduction="none"
    )
    best = loss.reshape(8, 5).argmax(1)
    assert torch.equal(found, drawn[torch.arange(8), best])


def test_draws_follow_from_the_seed_and_from_what_came_before():
    images = toy_images(16)
    x, y = from_bytes(images.x), images.y
    net = linear(images)
    before = global_state()
    one, two = hc.Hardest(net, WIDE, seed=1), hc.Hardest(net, WIDE, seed=1)
    first = one(x, y)
    assert torch.equal(first, two(x, y))
    assert not torch.equal(first, one(x, y)), "the next batch has draws of its own"
    two.load_state_dict(hc.Hardest(net, WIDE, seed=1).state_dict())
    assert torch.equal(first, two(x, y)), "a checkpoint goes on with the same draws"
    assert not torch.equal(first, hc.Hardest(net, WIDE, seed=2)(x, y))
    assert global_state() == before


def test_the_mode_of_the_network_and_its_statistics_stay():
    norm = torch.nn.BatchNorm2d(1)
    net = torch.nn.Sequential(norm, torch.nn.Flatten(), torch.nn.Linear(64, 4))
    images = toy_images(8)
    statistics = norm.running_mean.clone()
    hc.Hardest(net, WIDE)(from_bytes(images.x), images.y)
    assert net.training
    assert norm.training
    assert torch.equal(norm.running_mean, statistics)
    assert all(weight.grad is None for weight in net.parameters())


def test_normalised_images_are_changed_as_pixels_are():
    images = toy_images(8)
    x, y = from_bytes(images.x), images.y

    class Normalised(torch.nn.Module):
        def forward(self, x):
            return toy(x * 0.25 + 0.5)

    toy = toy_subject().net
    plain = hc.Hardest(toy, WIDE, share=1.0)(x, y)
    other = hc.Hardest(Normalised(), WIDE, share=1.0, mean=(0.5,), std=(0.25,))
    assert torch.allclose(other((x - 0.5) / 0.25, y) * 0.25 + 0.5, plain, atol=1.01 / 255)


def test_gradient_steps_go_further_than_the_worst_draw():
    images = toy_images(16)
    x, y = from_bytes(images.x), images.y
    net = toy_subject().net
    box = condition_box(hc.Conditions(WIDE), images.shape)
    origin = seeds_at(x, y, torch.zeros(16, box.size), torch.zeros(16, dtype=torch.int64))
    z = climb(net, box, origin, steps=20)
    assert float(margin(net(box.decode(z, origin)), y).mean()) > float(margin(net(x), y).mean())
    assert float(box.gauge(z).max()) <= 1 + 1e-6
    further = hc.Hardest(net, WIDE, draws=2, steps=5, share=1.0)(x, y)
    worst = hc.Hardest(net, WIDE, draws=2, share=1.0)(x, y)
    assert float(margin(net(further), y).mean()) > float(margin(net(worst), y).mean())


def test_impossible_options_are_refused():
    with pytest.raises(Problem, match="0 draws"):
        hc.Hardest(torch.nn.Linear(1, 1), WIDE, draws=0)
    with pytest.raises(Problem, match="profile of conditions"):
        hc.Hardest(torch.nn.Linear(1, 1), "scaner")


def test_the_example_of_a_plain_loop_learns():
    main = runpy.run_path(str(EXAMPLES / "plain_loop.py"))["main"]
    assert main(epochs=3) < 2.0, "below the loss of knowing nothing, 2.3"
