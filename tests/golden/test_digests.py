"""Bytes of failures that are written down: a change of the house may not move one of them.

Another processor or another torch may round otherwise, so they are written down for each kind of
arithmetic, known by the bits of a fixed computation; on one that is not known yet the test says so.
``python tests/golden/test_digests.py`` adds the arithmetic of this machine, at a commit whose
failures are known to be right; after a change that is meant, remove the others.
"""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import hardcase as hc
from hardcase.methods import argus, sinvad
from hardcase.methods.sinvad import sinvad_code
from hardcase.randomness import Rng, stream
from hardcase.spaces.latent import Grid, Latent, collect
from hardcase.tensors import from_bytes
from hardcase.testing.toys import ToyAutoencoder, ToyQuantiser, toy_images, toy_peer, toy_subject
from hardcase.types import Images

FILE = Path(__file__).with_name("digests.json")
SPACE, GRID = Latent(ToyAutoencoder()), Grid(ToyQuantiser())


def library(space):
    def encode(x):
        return space.encode(x, torch.zeros(len(x)).long(), Rng.numbered(0, "space", len(x)))[0]

    return collect(toy_images(40, seed=1), encode, device=torch.device("cpu"))


def conv(seed, noise=0.0):
    """A small convolutional network whose weights are drawn, not learned."""
    body = (nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU())
    net = nn.Sequential(*body, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 6))
    draws = stream(seed, "digest")
    for value in net.parameters():
        value.data = torch.randn(value.shape, generator=draws) * (2 / value[0].numel()) ** 0.5
    for value in net.parameters():
        value.data += noise * torch.randn(value.shape, generator=draws)
    return hc.Subject(net, classes=tuple("abcdef"), name=f"conv {seed} {noise}")


def photographs(count, size=72):
    """Smooth colour images, labelled as the model reads them."""
    coarse = torch.rand(count, 3, 7, 7, generator=stream(0, "photographs"))
    x = nn.functional.interpolate(coarse, size=(size, size), mode="bicubic").clamp(0, 1)
    pixels = (x * 255).round().to(torch.uint8)
    y = conv(0)(from_bytes(pixels)).logits.argmax(1)
    ids = tuple(f"made/test/{i:05d}" for i in range(count))
    return Images(pixels, y, ids, tuple("abcdef"), name="made")


def toy(method, count=24, witnesses=(), **options):
    how = {"options": options or None, "train": toy_images(40, seed=1), "witnesses": witnesses}
    return hc.search(toy_subject(), toy_images(count), method=method, seed=3, **how)


def photographed():
    how = {"witnesses": hc.Witnesses(models=[conv(0, noise=0.02)], margin=0.0)}
    how["options"] = {"space": "warp*camera*light*weather*focus*sensor", "gradients": 12}
    return hc.search(conv(0), photographs(10), method="natural", seed=3, **how)


WITNESSED = {"space": "warp*camera*light", "gradients": 30}
BLACK_BOX = {"space": "warp*light", "search": "evolution", "queries": 120}
SEARCHES = {
    "pgd": lambda: toy("pgd", epsilon=0.2, gradients=10),
    "natural": lambda: toy("natural", space="warp*light", gradients=30),
    "natural witnessed": lambda: toy("natural", 24, [toy_peer()], **WITNESSED),
    "natural-blackbox": lambda: toy("natural-blackbox", 12, **BLACK_BOX),
    "sinvad": lambda: toy(sinvad(space=SPACE, partners=library(SPACE))),
    "sinvad@code": lambda: toy(sinvad_code(space=SPACE, spread=1.5, generations=20)),
    "argus": lambda: toy(argus(space=GRID, partners=library(GRID), mix=0.7)),
    "deephunter": lambda: toy("deephunter"),
    "dlfuzz": lambda: toy("dlfuzz"),
    "photographs": photographed,
}


def digest(found):
    """One hash of originals, kinds, labels and images, in the order in which they are found."""
    text = hashlib.sha256()
    columns = (found.seed, found.kind, found.expected, found.predicted)
    text.update(json.dumps([column.tolist() for column in columns]).encode())
    text.update(found.x.contiguous().numpy().tobytes())
    return f"{len(found)}:{text.hexdigest()[:24]}"


def arithmetic():
    """A hash of what this processor and this torch make of a fixed computation."""
    x = torch.rand(16, 3, 72, 72, generator=stream(0, "arithmetic")).requires_grad_()
    out = conv(7)(x).logits.softmax(1)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    return hashlib.sha256(out.detach().numpy().tobytes() + gradient.numpy().tobytes()).hexdigest()[
        :24
    ]


@pytest.mark.parametrize("name", SEARCHES)
def test_the_findings_have_the_bytes_that_are_written_down(name):
    stored = json.loads(FILE.read_text()).get(arithmetic())
    if stored is None:
        pytest.skip("a processor or torch without digests: a fixed computation has other bits here")
    assert digest(SEARCHES[name]()) == stored[name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    digests = {name: digest(search()) for name, search in SEARCHES.items()}
    known = json.loads(FILE.read_text()) | {arithmetic(): digests}
    FILE.write_text(json.dumps(known, indent=2) + "\n")
