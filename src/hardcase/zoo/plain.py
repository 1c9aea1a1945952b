"""Convolutional classifiers without shortcuts: SINVAD's, an AlexNet and a VGG-16 for small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from hardcase.errors import Problem


def sinvad_cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """The six-layer classifier of S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike: search-based test
    input generation for DNNs using variational autoencoders", TOSEM 2024 (SINVAD).

    3x3 convolutions that keep the size: 32, 32, pool, 64, 64, pool, dense 512. The share of dropout is not in our
    sources: a quarter before and a half after the dense layer.
    """
    _at_least("SINVAD's classifier", size, 4)
    layers = OrderedDict[str, nn.Module]()
    before = channels
    for number, width in enumerate((32, 32, 64, 64), 1):
        layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
        if number % 2 == 0:
            layers[f"pool{number // 2}"] = nn.MaxPool2d(2)
        before = width
    layers["flatten"] = nn.Flatten()
    layers["dropout1"] = nn.Dropout(0.25)
    layers["dense1"] = nn.Linear(64 * (size // 4) ** 2, 512)
    layers["relu5"] = nn.ReLU()
    layers["dropout2"] = nn.Dropout(0.5)
    layers["logits"] = nn.Linear(512, classes)
    return nn.Sequential(layers)


def alexnet(channels: int, size: int, classes: int) -> nn.Sequential:
    """Five convolutions and three dense layers in the manner of A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet
    classification with deep convolutional neural networks", NeurIPS 2012, for images of about 32x32.

    Differences: 3x3 and 5x5 kernels of stride 1, dense layers of 1024, batch normalisation in place of local response
    normalisation.
    """
    _at_least("this AlexNet", size, 8)
    layers = OrderedDict[str, nn.Module]()
    before = channels
    for number, (width, kernel, pool) in enumerate(((64, 5, 1), (192, 5, 2), (384, 3, 0), (256, 3, 0), (256, 3, 3)), 1):
        _convolution(layers, str(number), before, width, kernel)
        if pool:
            layers[f"pool{pool}"] = nn.MaxPool2d(2)
        before = width
    layers["flatten"] = nn.Flatten()
    before *= (size // 8) ** 2
    for number in (1, 2):
        layers[f"dropout{number}"] = nn.Dropout(0.5)
        layers[f"dense{number}"] = nn.Linear(before, 1024)
        layers[f"relu{number + 5}"] = nn.ReLU()
        before = 1024
    layers["logits"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


def vgg16(channels: int, size: int, classes: int, *, width: int = 64) -> nn.Sequential:
    """Configuration D of K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image recognition",
    ICLR 2015, as it is used for 32x32: 13 convolutions with batch normalisation, then one dense layer of 8 x `width`.

    Differences: one dense layer in place of two of 4096; a pool is left out where the picture is already one pixel.
    """
    _at_least("a VGG-16", size, 2)
    layers = OrderedDict[str, nn.Module]()
    before, side = channels, size
    for stage, (count, factor) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)), 1):
        for number in range(1, count + 1):
            _convolution(layers, f"{stage}_{number}", before, width * factor, 3)
            before = width * factor
        if side > 1:
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
            side //= 2
    layers["flatten"] = nn.Flatten()
    layers["dense1"] = nn.Linear(before * side**2, 8 * width)
    layers["relu6"] = nn.ReLU()
    layers["dropout1"] = nn.Dropout(0.5)
    layers["logits"] = nn.Linear(8 * width, classes)
    return nn.Sequential(layers)


def vgg16_small(channels: int, size: int, classes: int) -> nn.Sequential:
    """`vgg16` at a quarter of its width."""
    return vgg16(channels, size, classes, width=16)


def _convolution(layers: OrderedDict[str, nn.Module], name: str, before: int, width: int, kernel: int) -> None:
    layers[f"conv{name}"] = nn.Conv2d(before, width, kernel, padding=kernel // 2, bias=False)
    layers[f"norm{name}"] = nn.BatchNorm2d(width)
    layers[f"relu{name}"] = nn.ReLU()


def _at_least(what: str, size: int, least: int) -> None:
    if size < least:
        raise Problem(f"{what} needs images of {least}x{least} pixels or more; given are {size}x{size}.")
