"""Planted faults: pictures with known traits, networks that learn them, and who notices."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.types import Images
from hardcase_studies import faults
from hardcase_studies.traits import NAMES, TRAITS, measures, own_trait, render, selected, world

SEGMENTS = {4: "bcfg", 9: "abcfg"}
WHERE = {
    "a": (slice(5, 8), slice(9, 19)), "g": (slice(13, 16), slice(9, 19)), "f": (slice(6, 15), slice(8, 11)),
    "b": (slice(6, 15), slice(17, 20)), "c": (slice(14, 23), slice(17, 20)),
}  # fmt: skip


def drawn(count=40, split="train", seed=0):
    """Fours and nines of seven segments, each moved a little."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.tensor([4, 9]).repeat(count // 2)
    x = torch.zeros(count, 1, 28, 28)
    for i, digit in enumerate(y.tolist()):
        for segment in SEGMENTS[digit]:
            x[i, 0][WHERE[segment]] = 1.0
    shifts = torch.randint(-1, 2, (count, 2), generator=rng).tolist()
    x = torch.stack([one.roll(tuple(shift), (1, 2)) for one, shift in zip(x, shifts)])
    return Images((x * 255).to(torch.uint8), y, tuple(f"{split}/{i}" for i in range(count)), tuple("0123456789"), "drawn", split)  # fmt: skip


SUBJECT = Subject(nn.Flatten(), name="flat")
GAPS = faults._gaps(drawn(), (4, 9))


class Generator(nn.Module):
    """A generator whose code is the traits themselves."""

    latent, shape, early = len(TRAITS), (3, 28, 28), (0,)

    def __init__(self):
        super().__init__()
        self.digits = nn.Parameter(from_bytes(drawn(2).x), requires_grad=False)

    def walk(self, z, y, meet):
        return render(self.digits[y], torch.sigmoid(2 * meet(0, z)))

    def sample(self, y, rng):
        z = torch.randn(len(y), self.latent, generator=rng)
        return z, self.walk(z, y, lambda place, h: h)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What is taught is kept for all tests of this file."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(autouse=True)
def small(kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(kept))
    monkeypatch.setattr(faults, "COPIES", 6)
    monkeypatch.setattr(faults, "TEACHING", replace(faults.TEACHING, steps=80, epochs=1, lr=4e-3))


@pytest.fixture
def room(monkeypatch):
    digits, pair = (drawn(), drawn(split="test", seed=1)), (4, 9)
    train, test = (world(part, pair, copies=6) for part in digits)
    here = faults.Lab(
        "drawn", digits, pair, train, test, nn.Identity(), Generator(), GAPS, "cpu", 0
    )
    monkeypatch.setattr(faults, "lab", lambda bench: here)
    return here


@pytest.mark.parametrize("name", NAMES)
def test_a_trait_is_drawn_measured_and_leaves_the_others_alone(name):
    column = NAMES.index(name)
    traits = torch.full((2, len(NAMES)), 0.5)
    traits[:, column] = torch.tensor([0.1, 0.9])
    digit = from_bytes(drawn(2).x[:1]).expand(2, -1, -1, -1)
    change = measures(render(digit, traits)).diff(dim=0)[0] / GAPS
    assert change[column] > 0.9
    others = change[[i for i in range(len(NAMES)) if i != column]].abs()
    assert others.max() < 0.35, dict(zip(NAMES, change.tolist()))


def test_the_noise_of_single_pixels_moves_no_trait():
    """Else a method that adds noise would seem to move what it never touched."""
    images = world(drawn(60), (4, 9), copies=4)
    x, rng = from_bytes(images.x), torch.Generator().manual_seed(0)
    noise = torch.where(torch.rand(x.shape, generator=rng) < 0.5, -0.1, 0.1)
    change = (measures((x + noise).clamp(0, 1)) - measures(x)) / GAPS
    share = (change.abs() >= faults.HALF).float().mean(0)
    assert share.max() <= 0.03, dict(zip(NAMES, share.tolist()))


def test_a_tied_trait_follows_the_class_and_swapped_the_other_one():
    digits, column = drawn(), NAMES.index("tint")
    tied, swapped = (world(digits, (4, 9), tied="tint", swapped=way) for way in (False, True))
    for images, high in ((tied, 1), (swapped, 0)):
        tint = measures(from_bytes(images.x))[:, column]
        assert tint[images.y == high].min() > tint[images.y != high].max()
    assert tied.x.shape == (160, 3, 28, 28)
    assert tied.classes == ("4", "9")
    free = world(digits, (4, 9))
    tint = measures(from_bytes(free.x))[:, column]
    assert abs(float(tint[free.y == 0].mean() - tint[free.y == 1].mean())) < 0.3


def test_a_taught_network_has_the_fault_and_a_clean_one_has_not(room):
    taught, clean = faults.student(room, "tint"), faults.student(room, None)
    assert taught.acquired
    assert taught.tied > 0.95
    assert taught.swapped < 0.5
    assert not clean.acquired
    again = faults.student(room, "tint")
    assert again.subject.hash == taught.subject.hash


@pytest.mark.long
def test_perturbing_features_detects_what_pixels_do_not(room, capsys, monkeypatch):
    words = "faults --methods feature-perturbation,pgd --tests 12 --trainings 2 --faults tint --format json --set feature-perturbation.step_size=0.1 --set feature-perturbation.gradients=40 --set pgd.gradients=10 --out found -q"
    command = words.split()
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(faults, "search", None)  # cells that are done are not searched again
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == told
    acquired, detected, shares = told["tables"]
    assert [row[-1] for row in acquired["rows"]] == ["2 of 2"]
    for _, seeds, features, pixels, placebo in detected["rows"][:1]:
        assert 10 <= seeds <= 24
        assert features.startswith("**detected** +")
        assert not pixels.startswith("**detected**")
        assert int(placebo.split()[0]) <= 11, "100 draws at 5 %"
    assert "levels of blue over red" in detected["rows"][0][2]
    assert detected["rows"][1][2:4] == ["1 of 1", "0 of 1"]
    assert len(shares["rows"]) == 2


def test_both_networks_are_searched_from_the_same_seeds_which_both_get_right(room):
    networks = [faults.student(room, "tint"), faults.student(room, None)]
    bench = faults.Bench(out=Path("out"))
    generated = faults._generated(room, 10, bench)
    seeds = faults._seeds(room, networks, generated, 10)
    assert 10 <= len(seeds) <= 20
    for one in networks:
        assert bool((one.subject(from_bytes(seeds.x)).logits.argmax(1) == seeds.y).all())


def test_a_fault_in_own_data_by_an_own_measure(tmp_path):
    """Colour pictures of another size: nothing is drawn, pictures are selected."""
    file = tmp_path / "mine.py"
    file.write_text("def redness(x):\n    return x[:, 0].mean((1, 2)) - x[:, 1].mean((1, 2))\n")
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (200, 3, 20, 20), generator=rng, dtype=torch.uint8)
    x[:, 0] = (x[:, 0] * torch.rand(200, 1, 1, generator=rng)).to(torch.uint8)
    names = tuple(f"own/{i}" for i in range(200))
    images = Images(x, torch.arange(200) % 2, names, ("a", "b"), "own", "train")
    trait = own_trait(f"{file}:redness")
    tied, swapped = (
        selected(images, (0, 1), trait, tied=True, swapped=way) for way in (False, True)
    )
    for some, high in ((tied, 1), (swapped, 0)):
        value = trait.measure(from_bytes(some.x))
        assert value[some.y == high].min() > value[some.y != high].max()
    assert float(faults._own_gap(images, trait)) > 0
    free = selected(images, (0, 1), trait, tied=False)
    assert len(free) == 200
    file.write_text("def redness(x):\n    return x\n")
    with pytest.raises(HardcaseError, match="one finite number for each"):
        own_trait(f"{file}:redness").measure(from_bytes(x))
