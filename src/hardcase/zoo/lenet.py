"""LeNet-1, -4 and -5 as the testing literature uses them.

Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document recognition", Proc. IEEE, 1998;
in the form of K. Pei, Y. Cao, J. Yang, S. Jana, "DeepXplore", SOSP 2017: 5x5 convolutions that keep the size, ReLU, 2x2
max-pooling, images in [0, 1].

`lenet4_lecun` and `lenet5_lecun` are nearer to the article, as ARGUS (B. Duan, M. Dwyer, G. Yang, 2025) cites it: tanh units,
means in place of maxima, convolutions that keep no margin after the first. Differences: sub-sampling has no weights of its own,
every map of the second convolution sees all of the first, and the last layer gives logits.

One channel or dense unit is one neuron, pooling and softmax counted: 52, 148 and 268 of DeepXplore's for ten classes. The
softmax is not part of the module; `logits` is its last layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hardcase.errors import Problem


def lenet1(channels: int, size: int, classes: int) -> nn.Sequential:
    return _lenet(channels, size, classes, convolutions=(4, 12), dense=())


def lenet4(channels: int, size: int, classes: int) -> nn.Sequential:
    return _lenet(channels, size, classes, convolutions=(6, 16), dense=(84,))


def lenet5(channels: int, size: int, classes: int) -> nn.Sequential:
    return _lenet(channels, size, classes, convolutions=(6, 16), dense=(120, 84))


def lenet4_lecun(channels: int, size: int, classes: int) -> nn.Sequential:
    return _lecun(channels, size, classes, convolutions=(4, 16), dense=(120,))


def lenet5_lecun(channels: int, size: int, classes: int) -> nn.Sequential:
    return _lecun(channels, size, classes, convolutions=(6, 16), dense=(120, 84))


def _lecun(
    channels: int, size: int, classes: int, *, convolutions: tuple[int, int], dense: Sequence[int]
) -> nn.Sequential:
    if size < 12:
        raise Problem(f"LeCun's LeNets need images of 12x12 pixels or more; these have {size}x{size}.")
    first, second = convolutions
    net = nn.Sequential()
    net.add_module("conv1", nn.Conv2d(channels, first, 5, padding=2))
    net.add_module("tanh1", nn.Tanh())
    net.add_module("pool1", nn.AvgPool2d(2))
    net.add_module("conv2", nn.Conv2d(first, second, 5))
    net.add_module("tanh2", nn.Tanh())
    net.add_module("pool2", nn.AvgPool2d(2))
    net.add_module("flatten", nn.Flatten())
    before = second * ((size // 2 - 4) // 2) ** 2
    for number, width in enumerate(dense, 1):
        net.add_module(f"dense{number}", nn.Linear(before, width))
        net.add_module(f"tanh{number + 2}", nn.Tanh())
        before = width
    net.add_module("logits", nn.Linear(before, classes))
    return net


def _lenet(
    channels: int, size: int, classes: int, *, convolutions: Sequence[int], dense: Sequence[int]
) -> nn.Sequential:
    if size < 4:
        raise Problem(f"a LeNet halves its images twice; {size}x{size} pixels are too few (4x4 or more).")
    net = nn.Sequential()
    for number, (before, width) in enumerate(zip((channels, *convolutions), convolutions, strict=False), 1):
        net.add_module(f"conv{number}", nn.Conv2d(before, width, 5, padding=2))
        net.add_module(f"relu{number}", nn.ReLU())
        net.add_module(f"pool{number}", nn.MaxPool2d(2))
    net.add_module("flatten", nn.Flatten())
    inputs = convolutions[-1] * (size // 4) ** 2
    for number, (before, width) in enumerate(zip((inputs, *dense), dense, strict=False), 1):
        net.add_module(f"dense{number}", nn.Linear(before, width))
        net.add_module(f"relu{number + len(convolutions)}", nn.ReLU())
    net.add_module("logits", nn.Linear(dense[-1] if dense else inputs, classes))
    return net
