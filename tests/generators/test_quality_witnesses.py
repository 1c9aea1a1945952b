"""A generator whose samples independent networks do not recognise is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.generators.quality import check_samples, fresh, verified_seeds
from hardcase.models.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject


class Generator:
    """Paints toy images of the class asked for, or of the next one."""

    latent, shape = 2, (1, 8, 8)

    def __init__(self, shift=0):
        images = toy_images(8)
        self.shift = shift
        self.pictures = [from_bytes(images.x[images.y == c][:1]) for c in range(4)]

    def sample(self, y, rng):
        picked = [self.pictures[(int(c) + self.shift) % 4] for c in y]
        return torch.zeros(len(y), 2), torch.cat(picked)


def test_samples_that_others_recognise_are_accepted_and_others_refused():
    labels = torch.arange(4)
    real = toy_images(12)
    verifiers = [toy_subject()]
    assert check_samples(Generator(), labels, verifiers, real, count=12)
    with pytest.raises(
        HardcaseError, match="recognise only 0% of the generator's samples, and 100%"
    ):
        check_samples(Generator(shift=1), labels, verifiers, real, count=12)
    unknown = replace(real, y=(real.y + 1) % 4)  # they do not know the data
    assert not check_samples(Generator(), labels, verifiers, unknown, count=12)


def test_seeds_are_what_the_subject_and_most_verifiers_see():
    """One of three verifiers is always wrong; two that are right are most."""
    right, names = toy_subject(), tuple("abcd")
    wrong = Subject(Other(), classes=names, name="other")
    generator = Generator()
    some = {"subject": right, "seed": 0}
    seeds, told = verified_seeds(generator, names, 8, verifiers=(right, wrong, right), **some)
    assert seeds.y.tolist() == [0, 1, 2, 3] * 2
    assert (told["generated"], told["correctly_classified"], told["verified"]) == (8, 8, 8)
    with pytest.raises(HardcaseError, match="twenty times over"):
        verified_seeds(generator, names, 4, verifiers=(right, wrong), **some)
    _, told = verified_seeds(generator, names, 8, verifiers=(), **some)
    assert (told["verified"], told["by"]) == (None, {})


def test_classes_that_nobody_recognises_are_left_out_and_named(caplog):
    seeds = fresh(Generator(), tuple("abcd"), 8, accept=lambda x, y: y != 2)
    assert seeds.y.tolist() == [0, 1, 3] * 2
    assert len(seeds.context["latent"]) == len(seeds.id) == 6
    assert "2 of 8 images are left out: samples of c " in caplog.text


class Other(nn.Module):
    """Sees the class after the one that is shown."""

    def forward(self, x):
        return toy_subject()(x).logits.roll(1, 1)
