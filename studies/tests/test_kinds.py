"""Ten kinds of photographs: how they are grouped and halved, and how a trunk is filled and given a head."""

from collections import OrderedDict

import numpy as np
import torch
from PIL import Image
from torch import nn

from hardcase_studies import kinds


def test_photographs_are_grouped_by_kind_and_halved_by_turns(tmp_path):
    for number in (0, 1, 2, 150, 151, 152, 153, 500):
        shade = Image.fromarray(np.full((40, 40, 3), number % 256, np.uint8))
        shade.save(tmp_path / f"{number:04d}_n0_x.jpg")
    x, y, fits = kinds.grouped(tmp_path, side=8)
    names = [list(kinds.KINDS)[label] for label in y.tolist()]
    assert names == ["fish"] * 3 + ["dog"] * 3, "150 and 500 are of no kind"
    assert x.shape == (6, 3, 8, 8)
    assert fits.tolist() == [True, False, True] * 2


def test_a_kind_has_a_bounded_number_of_photographs_spread_over_its_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "MOST", 4)
    for number in range(151, 171):
        Image.new("L", (8, 8), 12 * (number - 151)).save(tmp_path / f"{number:04d}_n0_dog.jpg")
    x, y, _ = kinds.grouped(tmp_path, side=8)
    assert len(x) == 4
    assert set(y.tolist()) == {list(kinds.KINDS).index("dog")}
    shades = x.float().mean((1, 2, 3))
    assert (shades.diff() > 40).all(), "not the first four alone"


def test_a_trunk_is_filled_in_order_and_its_head_learns_the_kinds():
    def trunk():
        layers = {"normalised": kinds.Normalised(), "conv1": nn.Conv2d(3, 4, 3, padding=1)}
        layers |= {"conv2": nn.Conv2d(4, 6, 3, padding=1), "mean": nn.AdaptiveAvgPool2d(1)}
        layers |= {"flatten": nn.Flatten(), "logits": nn.Linear(6, len(kinds.KINDS))}
        return nn.Sequential(OrderedDict(layers))

    net = trunk()
    arrays = {"Conv_10/bias": np.zeros(6, np.float32), "NetLinLayer_0/Conv_0/kernel": np.ones(1)}
    arrays["Conv_10/kernel"] = np.full((3, 3, 4, 6), 0.01, np.float32)
    arrays |= {"Conv_2/kernel": np.full((3, 3, 3, 4), 0.5, np.float32)}
    arrays |= {"Conv_2/bias": np.ones(4, np.float32)}
    kinds.fill_from_package(net, arrays)
    assert net[1].bias.tolist() == [1] * 4, "Conv_2 comes before Conv_10"
    assert torch.allclose(net[2].weight, torch.tensor(0.01))
    torch.manual_seed(0)
    net = trunk()
    y = torch.arange(60) % len(kinds.KINDS)
    colours = torch.randint(256, (len(kinds.KINDS), 3, 1, 1))
    x = colours[y].expand(60, 3, 8, 8).to(torch.uint8)
    kinds.fit_head(net, x, y)
    assert (net[-1](kinds.features(net, x)).argmax(1) == y).float().mean() > 0.5


def test_the_trunks_have_the_layers_that_their_weights_name():
    vgg, alex = kinds._vgg16_trunk(), kinds._alexnet_trunk()
    assert sum(isinstance(layer, nn.Conv2d) for layer in vgg.values()) == 13
    assert sum(isinstance(layer, nn.Conv2d) for layer in alex.values()) == 5
