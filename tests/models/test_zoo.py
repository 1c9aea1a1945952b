"""Every network of the table: shapes, layers, neuron counts, and randomness of its own."""

import pytest
import torch
from torch import nn

from hardcase import registry
from hardcase.errors import HardcaseError
from hardcase.models import zoo
from tiny import global_state, weights

MODELS = [name for name, row in registry.parts("model").items() if "recipe" in row.facts]

SLOW = {"vgg16", "resnet18"}


def layers(net):
    """The modules without modules of their own, by name."""
    return {name: module for name, module in net.named_modules() if not list(module.children())}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_shapes(name, channels, size):
    net = zoo.build_classifier(name, channels=channels, size=size, classes=7).eval()
    x = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    logits = net(x)
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[1])
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_fires_once_and_nothing_writes_over_it(name):
    net = zoo.build_classifier(name, channels=3, size=32, classes=10).eval()
    fired, seen = [], []

    def keep(module, inputs, output):
        fired.append(module)
        seen.append((inputs[0], inputs[0].clone(), output, output.clone()))

    for module in layers(net).values():
        module.register_forward_hook(keep)
    net(torch.rand(1, 3, 32, 32))
    silent = set(layers(net).values()) - set(fired)
    assert len(fired) == len(set(fired))
    assert all(isinstance(one, nn.Sequential) and len(one) == 0 for one in silent)
    assert all(torch.equal(now, then) for row in seen for now, then in (row[:2], row[2:]))
    assert not any(getattr(module, "inplace", False) for module in net.modules())
    assert list(layers(net))[-1] == "logits"


@pytest.mark.parametrize(("name", "neurons"), [("lenet1", 52), ("lenet4", 148), ("lenet5", 268)])
def test_lenets_have_the_neurons_that_deepxplore_counts(name, neurons):
    net = zoo.build_classifier(name, channels=1, size=28, classes=10).eval()
    counted = {}

    def count(layer):
        return lambda module, inputs, output: counted.update({layer: output.shape[1]})

    for layer, module in layers(net).items():
        if layer.startswith(("relu", "pool", "logits")):
            module.register_forward_hook(count(layer))
    softmax = net(torch.rand(1, 1, 28, 28)).softmax(1)
    assert sum(counted.values()) + softmax.shape[1] == neurons


@pytest.mark.parametrize(
    ("name", "widths", "inner", "dense"),
    [
        ("lenet5", [6, 16], (14, 14), [784, 120, 84]),
        ("lenet5-lecun", [6, 16], (10, 10), [400, 120, 84]),
        ("lenet4-lecun", [4, 16], (10, 10), [400, 120]),
    ],
)
def test_lenets_are_those_of_the_articles(name, widths, inner, dense):
    net = zoo.build_classifier(name, channels=1, size=28, classes=10)
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert [module.out_channels for module in convolutions] == widths
    assert all(module.kernel_size == (5, 5) for module in convolutions)
    assert net.conv2(net.pool1(net.conv1(torch.rand(1, 1, 28, 28)))).shape[2:] == inner
    inputs = [module.in_features for module in net.modules() if isinstance(module, nn.Linear)]
    assert inputs == dense


def test_depths_are_those_of_their_names():
    def depth(name):
        net = zoo.build_classifier(name, channels=3, size=32, classes=10)
        counted = [module for name, module in net.named_modules() if "shortcut" not in name]
        return sum(isinstance(module, nn.Conv2d | nn.Linear) for module in counted)

    assert depth("sinvad-cnn") == 6
    assert depth("alexnet") == 8
    assert depth("resnet18-small") == depth("resnet18") == 18
    assert depth("vgg16-small") == depth("vgg16") == 15


@pytest.mark.parametrize("name", [name for name in MODELS if name not in SLOW])
def test_the_same_seed_gives_the_same_weights_whatever_the_global_state(name):
    def fresh(seed):
        return weights(zoo.build_classifier(name, channels=1, size=28, classes=10, seed=seed))

    torch.manual_seed(1)
    before = global_state()
    first = fresh(0)
    assert global_state() == before
    torch.manual_seed(2)
    assert fresh(0) == first
    assert fresh(1) != first


def test_a_wrong_name_and_a_small_picture_are_told():
    with pytest.raises(HardcaseError, match="no model 'lenet6'") as told:
        zoo.build_classifier("lenet6", channels=1, size=28, classes=10)
    assert "lenet5" in str(told.value)
    small = {"lenet5": 3, "lenet5-lecun": 8, "sinvad-cnn": 3, "alexnet": 7, "vgg16-small": 1}
    for name, size in small.items():
        with pytest.raises(HardcaseError, match=f"{size}x{size}"):
            zoo.build_classifier(name, channels=1, size=size, classes=10)


@pytest.mark.parametrize("name", ["digit-detector", "efficientdet-lite0"])
def test_detectors_are_not_built_as_classifiers(name):
    with pytest.raises(HardcaseError) as caught:
        zoo.build_classifier(name, channels=1, size=28, classes=10)
    assert caught.value.fix == "--task boxes"
