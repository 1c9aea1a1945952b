"""A generator whose samples independent networks do not recognise is refused."""

import pytest
import torch

from hardcase.errors import Problem
from hardcase.generators.quality import refuse_unreadable
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject


class Painter:
    """Paints toy images of the class asked for, or of the next one."""

    latent, shape = 2, (1, 8, 8)

    def __init__(self, shift=0):
        images = toy_images(8)
        self.shift = shift
        self.pictures = [from_bytes(images.x[images.y == c][:1]) for c in range(4)]

    def sample(self, y, rng):
        picked = [self.pictures[(int(c) + self.shift) % 4] for c in y]
        return torch.zeros(len(y), 2), torch.cat(picked)


def test_samples_that_witnesses_recognise_are_accepted_and_others_refused():
    labels = torch.arange(4)
    assert refuse_unreadable(Painter(), labels, [toy_subject()], count=12) == 1.0
    with pytest.raises(Problem, match="would not show what they are called"):
        refuse_unreadable(Painter(shift=1), labels, [toy_subject()], count=12)
