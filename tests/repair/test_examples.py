"""Pictures of a repair: misread before and read now, each of another image."""

from base64 import b64decode

import torch

import hardcase as hc
from conditions.toys import darkness, grey
from hardcase.conditions import condition_box
from hardcase.repair.examples import repaired_examples
from hardcase.tensors import decode_all

BOX = condition_box(hc.Conditions({"exposure": "±1 stops"}), (1, 16, 16))


def test_only_samples_that_the_repaired_network_alone_reads_are_shown():
    images = grey(40)
    # 128/255 * 2^(s/2.2) is below .4 for s < -.72 stops, and never below .36
    found = repaired_examples(darkness(0.4), darkness(0.36), images, BOX, seed=0)
    assert len(found) == 6
    for one in found:
        assert (one.label, one.before) == ("light", "dark")
        assert "darker" in one.words
        before, after = (decode_all([b64decode(png)]) for png in (one.unmodified, one.sample))
        assert torch.equal(before[0], images.x[0])
        assert float(after.float().mean()) < 0.4 * 255
    assert repaired_examples(darkness(0.36), darkness(0.4), images, BOX, seed=0) == []


def test_classes_take_turns():
    images = grey(40)
    images.y[:] = 1
    images.y[30:] = 0

    # the network before calls everything light, the repaired one what it is
    class Reads(torch.nn.Module):
        def forward(self, x):
            bright = x.mean((1, 2, 3)) > 0.4
            return torch.stack([bright.float(), 0.5 + 0 * bright], 1)

    images.x[:30] = 60
    classes = images.classes
    after = hc.Subject(Reads(), classes=classes, name="after")
    found = repaired_examples(darkness(0.0), after, images, BOX, seed=0)
    assert found
    assert all(one.before == "light" for one in found)
