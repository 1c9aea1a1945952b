"""Latte's single steps and style mixing against the same written as plain loops."""

import pytest
import torch

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, parse_keep
from hardcase.errors import HardcaseError
from hardcase.generators.adapters import Decoder
from hardcase.generators.gan import Gan
from hardcase.generators.vae import conditional
from hardcase.methods.generative import latte, style_mixing
from hardcase.randomness import Rng, keys_of
from hardcase.spaces.activations import Activations, Styles, conditioned_stages, early_places
from hardcase.spaces.latent import Grid, collect
from hardcase.tensors import from_bytes, to_bytes, to_grid
from hardcase.testing import toys
from hardcase.testing.toys import ToyQuantiser, toy_images, toy_subject
from hardcase.types import Seeds

NET, SUBJECT = ToyQuantiser(), toy_subject()
MIN_MARGIN = 1e-4


def search(method, images):
    campaign = Campaign(subject=SUBJECT, method=method, keep=parse_keep("all"), batch=64)
    return run_shard(campaign, images, limits(method.budget, len(images)))


def key(x):
    return bytes(to_bytes(x).flatten().tolist())


def fails(x, label):
    """Whether an image of the batch's only row leaves `label`, and what it is then taken for."""
    p = SUBJECT(to_grid(x)).logits.softmax(1)[0].clone()
    expected = float(p[label])
    p[label] = -1
    return float(p.max()) - expected >= MIN_MARGIN, int(p.argmax())


def test_latte_takes_one_step_toward_each_anchor():
    images = toy_images(6)
    library = collect(toy_images(30, seed=2), NET.encode, device=torch.device("cpu"))
    method = latte(Grid(NET), library, anchors=7, step_sizes=(0.55, 0.9))
    shard = search(method, images)
    rng = Rng(0, "search", keys_of(images.id))
    sizes = torch.tensor([[len(library.by_class[y])] for y in images.y])
    drawn = rng.integers(torch.arange(6), sizes, (7,))
    expected, queries = set(), 0
    for i, (x, y) in enumerate(zip(from_bytes(images.x), images.y.tolist())):
        z = NET.encode(x[None])
        for place in drawn[i].tolist():
            anchor = library.codes[library.by_class[y][place]]
            assert int(library.label[library.by_class[y][place]]) != y
            for t in (0.55, 0.9):
                queries += 1
                image = NET.decode(z + t * (anchor - z))
                failed, answer = fails(image, y)
                if failed:
                    expected.add((i, answer, key(image)))
    found = shard.findings
    pictures = (bytes(x.flatten().tolist()) for x in found.x)
    assert expected == set(zip(found.seed.tolist(), found.predicted.tolist(), pictures))
    assert len(expected) > 10
    assert int(shard.counts.queries.sum()) == queries + len(images)


def slow_mix(generator, latent, label, other, mix, stages):
    """The image of one latent code whose last stages are conditioned on `other`."""
    h = latent[None]
    for number, stage in enumerate(generator.stages):
        weight = 0.0
        if number in stages:
            weight = min(max(mix - (len(stages) - 1 - stages.index(number)), 0.0), 1.0)
        own, mixed = (stage(h, torch.tensor([y])) for y in (label, other))
        h = (1 - weight) * own + weight * mixed
    return h


def test_style_mixing_finds_the_smallest_mix_that_a_plain_loop_finds():
    images, generator = toys.generated_images(6), toys.ToyGenerator()
    space = Activations(generator, early_places(generator, classes=4), classes=4)
    method = style_mixing(space, untouched=0, steps=5, halvings=4)
    found = search(method, images).findings
    smallest = {}
    for seed, code, distance in zip(found.seed.tolist(), found.code, found.distance.tolist()):
        track = (seed, int(code.reshape(4, -1).sum(1).argmax()))
        smallest[track] = min(distance, smallest.get(track, 9.0))
    expected = {}
    for i, label in enumerate(images.y.tolist()):
        for other in set(range(4)) - {label}:
            low, high = 0.0, None
            for mix in (0.2, 0.4, 0.6, 0.8, 1.0):
                image = slow_mix(generator, images.context["latent"][i], label, other, mix, (1,))
                if fails(image, label)[0]:
                    high = mix
                    break
                low = mix
            for _ in range(4 if high else 0):
                mix = (low + high) / 2
                image = slow_mix(generator, images.context["latent"][i], label, other, mix, (1,))
                low, high = (low, mix) if fails(image, label)[0] else (mix, high)
            if high:
                expected[i, other] = high
    assert smallest == pytest.approx(expected)
    assert len(expected) > 10


def test_only_conditioned_stages_are_mixed_from_the_last_to_the_first():
    net = Gan(1, 8, 4, latent=4, widths=(8, 8, 8)).eval().requires_grad_(False)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "scale" in name or "shift" in name:
                own = torch.Generator().manual_seed(len(name))
                weight.copy_(torch.randn(weight.shape, generator=own))
    assert conditioned_stages(net, 4) == (1, 2, 3)
    y = torch.tensor([0, 1, 2])
    latent, image = net.sample(y, torch.Generator().manual_seed(0))
    space = Styles(net, (2, 3), classes=4)
    z, context = space.encode(image, y, Rng.numbered(0, "test", 3))
    seeds = Seeds(z, image, y, y, {**context, "latent": latent})
    assert torch.allclose(space.decode(z, seeds), image, atol=1e-6)
    z[:, 3] = torch.tensor([0.25, 1.0])
    for row, label in enumerate(y.tolist()):
        expected = slow_mix(net, latent[row], label, 3, 1.25, (2, 3))
        assert torch.allclose(space.decode(z, seeds)[row], expected[0], atol=1e-5)
    assert torch.equal(space.project(z, seeds), z)
    assert space.distance(z, seeds).tolist() == [1.25] * 3
    with pytest.raises(HardcaseError):
        style_mixing(Activations(net, (), classes=4), untouched=3)
    with pytest.raises(HardcaseError):
        conditioned_stages(Decoder(conditional(1, 12, 3, 4)), 3)
