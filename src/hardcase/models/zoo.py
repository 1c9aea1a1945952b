"""The networks that `zoo:NAME` can name, and how they are trained."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase import registry
from hardcase.errors import HardcaseError, choice, reading
from hardcase.randomness import named_randomness
from hardcase.tensors import per_row
from hardcase.training import cards
from hardcase.training.cards import (
    History,
    TrainingProgress,
    TrainingRecipe,
    geometry,
    pick,
    stated,
)
from hardcase.training.loop import Perturb, classify, fit, predict
from hardcase.types import Images

# Projected gradient ascent inside the training loop, for networks that are to withstand small
# perturbations.
#
# A. Madry, A. Makelov, L. Schmidt, D. Tsipras, A. Vladu, "Towards deep learning models resistant to
# adversarial attacks", ICLR 2018. Differences: 5 steps in place of 40 (their MNIST) or 7 (their
# CIFAR-10), a stride of 2.5 radii over all steps.


def _length(x: Tensor) -> Tensor:
    return per_row(x.flatten(1).norm(dim=1).clamp_min(1e-12), x)


Ball = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, float], Tensor]]
BALLS: dict[str, Ball] = {
    "linf": (torch.sign, lambda shift, radius: shift.clamp(-radius, radius)),
    "l2": (
        lambda gradient: gradient / _length(gradient),
        lambda shift, radius: shift * (radius / _length(shift)).clamp_max(1.0),
    ),
}
"""A norm's steepest direction of length 1, and the nearest point inside a radius."""


def attack(text: str, *, steps: int = 5) -> Perturb:
    """The attack that ``linf:0.1`` or ``l2:1.5`` names: norm, and radius in units of [0, 1]."""
    name, _, number = text.partition(":")
    direction, project = pick("norm", name, BALLS)
    fix = "adversarial='linf:0.1' or 'l2:1.5'"
    with reading(f"adversarial={text!r} names no radius above 0", fix=fix):
        radius = float(number)
        if not 0 < radius < float("inf"):
            raise ValueError(number)

    def perturb(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        start = torch.rand(x.shape, generator=noise, device=x.device) * 2 - 1
        shift = project(start * radius, radius)
        for _ in range(steps):
            here = (x + shift).clamp(0, 1).requires_grad_()
            (gradient,) = torch.autograd.grad(
                functional.cross_entropy(net(here), y, reduction="sum"), here
            )
            step = direction(gradient) * (2.5 * radius / steps)
            shift = project(here.detach() - x + step, radius)
        return (x + shift).clamp(0, 1)

    return perturb


# Names become networks: fresh ones, trained ones, and ones read from a folder.

KIND = "classifier"


def build_classifier(
    name: str, *, channels: int, size: int, classes: int, seed: int = 0
) -> nn.Module:
    """A fresh network for square images in [0, 1]; the same seed gives the same weights.

    Args:
        name: A network of ``hardcase list models``.
        channels: Colour channels of the images.
        size: Side of the square images in pixels.
        classes: Number of outputs.
        seed: Everything random follows from it.
    """
    return _from_config(dict(locals()))


def trained_classifier(
    name: str,
    images_train: Images,
    images_test: Images,
    *,
    seed: int = 0,
    epochs: int | None = None,
    augment: str | None = None,
    adversarial: str | None = None,
    progress: Callable[[TrainingProgress], None] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, cards.Card]:
    """The network trained on these images by its recipe, on `device` in eval mode, and its card;
    stored in the cache.

    Args:
        name: A network of ``hardcase list models``.
        images_train: What it learns from.
        images_test: What it is measured on.
        seed: Everything random follows from it.
        epochs: Passes over the training images; by default the recipe's.
        augment: What is done to training images, a name of `AUGMENTS`; by default the recipe's.
        adversarial: Norm and radius of attacks during training, e.g. ``linf:0.1``.
        progress: Called with the progress of the training.
        device: Where the networks are.
    """
    recipe = _recipe(name, epochs, augment)
    shape = geometry(images_train, images_test)
    config = _configuration(name, shape, seed, recipe, adversarial)
    perturb = None if adversarial is None else attack(adversarial)

    def train(net: nn.Module, how: Mapping[str, Any]) -> History:
        goal = classify(config["classes"], perturb=perturb, smoothing=recipe.smoothing)
        return fit(net, images_train, goal, recipe, **how)

    return cards.fitted_network(
        KIND,
        name,
        config,
        train,
        data=images_train.hash,
        build=_from_config,
        measure=lambda net: _measure(net, images_test, device),
        measured_on=images_test.hash,
        device=device,
        progress=progress,
    )


def _recipe(name: str, epochs: int | None, augment: str | None) -> TrainingRecipe:
    """How the network is trained, with the arguments in place of its row's."""
    recipe: TrainingRecipe = _row(name).facts["recipe"]
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs, steps=0)
    return recipe if augment is None else replace(recipe, augment=augment)


def is_trained(
    name: str,
    images_train: Images,
    images_test: Images,
    *,
    seed: int = 0,
    epochs: int | None = None,
    augment: str | None = None,
) -> bool:
    """Whether the cache holds what `trained_classifier` would return for these arguments."""
    shape = geometry(images_train, images_test)
    config = _configuration(name, shape, seed, _recipe(name, epochs, augment), None)
    return (cards.folder_of(KIND, name, config, images_train.hash) / cards.CARD).is_file()


def _configuration(
    name: str, shape: Sequence[int], seed: int, recipe: TrainingRecipe, adversarial: str | None
) -> dict[str, Any]:
    sizes = dict(zip(("channels", "size", "classes"), shape))
    how = {"recipe": stated(recipe), "adversarial": adversarial}
    return {"name": name, "seed": seed, **sizes, **how}


def cached_classifiers(images_train: Images, images_test: Images) -> list[str]:
    """Networks of the zoo whose plain training on these images is in the cache."""
    rows = registry.parts("model").items()
    names = [name for name, row in rows if "recipe" in row.facts]
    return [name for name in names if is_trained(name, images_train, images_test)]


def _row(name: str) -> registry.Part:
    rows = registry.parts("model", name)
    if name not in rows:
        raise choice("model", name, registry.names("model"))
    if "task" in rows[name].facts:
        task = rows[name].facts["task"]
        raise HardcaseError(f"{name} answers {task}; it is no classifier.", fix=f"--task {task}")
    if "recipe" not in rows[name].facts:
        raise HardcaseError(
            f"{name} was trained by others and is not trained here.",
            fix=f"hardcase fetch model {name}, then --model zoo:{name}",
        )
    return rows[name]


def _from_config(config: Mapping[str, Any]) -> nn.Module:
    row = _row(config["name"])
    shape = (config[key] for key in ("channels", "size", "classes"))
    with named_randomness(config["seed"], "zoo", config["name"]):
        net: nn.Module = row.make(*shape, **row.preset)
        return net


def _measure(net: nn.Module, images: Images, device: torch.device | str) -> Mapping[str, Any]:
    predicted = predict(net, images, device=device)
    if bool((predicted == predicted[0]).all()) and not bool((images.y == images.y[0]).all()):
        raise HardcaseError(
            f"the network says {images.classes[int(predicted[0])]!r} of all {len(images)} images it"
            " is measured on.",
            "It has learned nothing that tells them apart; nothing was kept.",
            fix="more epochs, or a look at the images and labels it was trained on",
        )
    return {
        "accuracy": int((predicted == images.y).sum()) / len(images),
        "measured_images": len(images),
    }


# The decorator of each factory is its row: its recipe, what it needs and where it is from.

_network = partial(
    registry.model,
    laws=("shapes", "deterministic", "global random state untouched", "layers fire once"),
)
_DIGITS = TrainingRecipe(epochs=10, steps=1500, batch=64, lr=4e-3, augment="shift")
_TANH = TrainingRecipe(epochs=10, steps=1500, batch=64, lr=2e-3, augment="shift")
_COLOUR = TrainingRecipe(
    epochs=40, steps=1500, batch=128, lr=2e-3, schedule="warm", augment="crop-flip", decay=0.05
)
_RESIDUAL = replace(
    _COLOUR,
    epochs=24,
    steps=600,
    batch=512,
    lr=0.4,
    optimiser="sgd",
    decay=5e-4,
    half=True,
    smoothing=0.1,
)
_SMALL = replace(_RESIDUAL, epochs=16, steps=1500, batch=128, lr=0.1, smoothing=0.0)
_lenet_row = partial(
    _network,
    needs="images of 4x4 or more",
    paper="LeCun et al., Proc. IEEE 1998; as in DeepXplore, Pei et al., SOSP 2017",
    cite=("lecun1998gradient", "pei2017deepxplore"),
    recipe=_DIGITS,
)
_lecun_row = partial(
    _network,
    needs="images of 12x12 or more",
    paper="LeCun et al., Proc. IEEE 1998",
    cite="lecun1998gradient",
    recipe=_TANH,
)
_vgg_row = partial(
    _network,
    needs="images of 2x2 or more",
    paper="Simonyan and Zisserman, ICLR 2015",
    cite="simonyan2015vgg",
)
_resnet_row = partial(
    _network, needs="any image size", paper="He et al., CVPR 2016", cite="he2016resnet"
)


# LeNet-1, -4 and -5 as the testing literature uses them.
#
# Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
# recognition", Proc. IEEE, 1998; in the form of K. Pei, Y. Cao, J. Yang, S. Jana, "DeepXplore",
# SOSP 2017: 5x5 convolutions that keep the size, ReLU, 2x2 max-pooling, images in [0, 1].
#
# `lenet4_lecun` and `lenet5_lecun` are nearer to the article, as ARGUS (B. Duan, M. Dwyer, G. Yang,
# 2025) cites it: tanh units, means in place of maxima, convolutions that keep no margin after the
# first. Differences: sub-sampling has no weights of its own, every map of the second convolution
# sees all of the first, and the last layer gives logits.
#
# One channel or dense unit is one neuron, pooling and softmax counted: 52, 148 and 268 of
# DeepXplore's for ten classes. The softmax is not part of the module; `logits` is its last layer.


@_lenet_row("lenet1")
def lenet1(channels: int, size: int, classes: int) -> nn.Sequential:
    """LeNet-1: two convolutions, a dense layer; 52 neurons."""
    return _lenet(channels, size, classes, convolutions=(4, 12), dense=())


@_lenet_row("lenet4")
def lenet4(channels: int, size: int, classes: int) -> nn.Sequential:
    """LeNet-4: two convolutions, two dense layers; 148 neurons."""
    return _lenet(channels, size, classes, convolutions=(6, 16), dense=(84,))


@_lenet_row("lenet5")
def lenet5(channels: int, size: int, classes: int) -> nn.Sequential:
    """LeNet-5: two convolutions, three dense layers; 268 neurons."""
    return _lenet(channels, size, classes, convolutions=(6, 16), dense=(120, 84))


@_lecun_row("lenet4-lecun")
def lenet4_lecun(channels: int, size: int, classes: int) -> nn.Sequential:
    """LeNet-4 nearer to LeCun's article: tanh, means in place of maxima."""
    return _lenet(channels, size, classes, convolutions=(4, 16), dense=(120,), lecun=True)


@_lecun_row("lenet5-lecun")
def lenet5_lecun(channels: int, size: int, classes: int) -> nn.Sequential:
    """LeNet-5 nearer to LeCun's article: tanh, means in place of maxima."""
    return _lenet(channels, size, classes, convolutions=(6, 16), dense=(120, 84), lecun=True)


def _lenet(
    channels: int,
    size: int,
    classes: int,
    *,
    convolutions: Sequence[int],
    dense: Sequence[int],
    lecun: bool = False,
) -> nn.Sequential:
    kinds: tuple[type[nn.Module], type[nn.Module]] = (nn.ReLU, nn.MaxPool2d)
    least, unit = 4, "relu"
    if lecun:
        kinds = (nn.Tanh, nn.AvgPool2d)
        least, unit = 12, "tanh"
    if size < least:
        raise _too_small("a LeNet", size, least)
    activation, pool = kinds
    layers = OrderedDict[str, nn.Module]()
    before = channels
    side = size
    for number, width in enumerate(convolutions, 1):
        margin = 0 if lecun and number > 1 else 2
        layers[f"conv{number}"] = nn.Conv2d(before, width, 5, padding=margin)
        layers[f"{unit}{number}"] = activation()
        layers[f"pool{number}"] = pool(2)
        side = (side - 4 + 2 * margin) // 2
        before = width
    layers["flatten"] = nn.Flatten()
    before *= side**2
    for number, width in enumerate(dense, 1):
        layers[f"dense{number}"] = nn.Linear(before, width)
        layers[f"{unit}{number + len(convolutions)}"] = activation()
        before = width
    layers["logits"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


# Convolutional classifiers without shortcuts: SINVAD's, an AlexNet and a VGG-16 for small images.


@_network(
    "sinvad-cnn",
    needs="images of 4x4 or more",
    paper="Kang, Feldt and Yoo, TOSEM 2024",
    cite="kang2024sinvad",
    recipe=TrainingRecipe(epochs=10, steps=600, batch=128, lr=1e-3),
)
def sinvad_cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """SINVAD's six-layer classifier: four convolutions, two dense layers, dropout.

    3x3 convolutions that keep the size: 32, 32, pool, 64, 64, pool, dense 512. The share of dropout
    is not in our sources: a quarter before and a half after the dense layer.
    """
    if size < 4:
        raise _too_small("SINVAD's classifier", size, 4)
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


@_network(
    "alexnet",
    needs="images of 8x8 or more",
    paper="Krizhevsky et al., NeurIPS 2012",
    cite="krizhevsky2012alexnet",
    recipe=_COLOUR,
)
def alexnet(channels: int, size: int, classes: int) -> nn.Sequential:
    """AlexNet for small colour images: five convolutions, three dense layers.

    Differences, for images of about 32x32: 3x3 and 5x5 kernels of stride 1, dense layers of 1024,
    batch normalisation in place of local response normalisation.
    """
    if size < 8:
        raise _too_small("this AlexNet", size, 8)
    layers = OrderedDict[str, nn.Module]()
    before = channels
    for number, (width, kernel, pool) in enumerate(
        ((64, 5, 1), (192, 5, 2), (384, 3, 0), (256, 3, 0), (256, 3, 3)), 1
    ):
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


@_vgg_row("vgg16", recipe=_COLOUR)
def vgg16(channels: int, size: int, classes: int, *, width: int = 64) -> nn.Sequential:
    """VGG-16 with batch normalisation for small colour images; train it on a GPU.

    Configuration D as it is used for 32x32: 13 convolutions with batch normalisation, then a
    dense layer of 8 x `width` in place of two of 4096; a pool is left out where the image is
    already a single pixel.
    """
    if size < 2:
        raise _too_small("a VGG-16", size, 2)
    layers = OrderedDict[str, nn.Module]()
    before = channels
    side = size
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


@_vgg_row("vgg16-small", recipe=_SMALL)
def vgg16_small(channels: int, size: int, classes: int) -> nn.Sequential:
    """VGG-16 at a quarter of its width, for a CPU."""
    return vgg16(channels, size, classes, width=16)


def _convolution(
    layers: OrderedDict[str, nn.Module], name: str, before: int, width: int, kernel: int
) -> None:
    layers[f"conv{name}"] = nn.Conv2d(before, width, kernel, padding=kernel // 2, bias=False)
    layers[f"norm{name}"] = nn.BatchNorm2d(width)
    layers[f"relu{name}"] = nn.ReLU()


def _too_small(what: str, size: int, least: int) -> HardcaseError:
    return HardcaseError(
        f"{what} needs images of {least}x{least} pixels or more; given are {size}x{size}."
    )


# ResNet-18 for small images.
#
# K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016.
# Differences, as usual for 32x32: a 3x3 first convolution of stride 1 and no pooling after it.


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; every layer is a separate module and fires once."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut.add_module("conv", nn.Conv2d(before, width, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(width))
        self.relu2 = nn.ReLU()

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        inner = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu2(inner + self.shortcut(x))
        return out


@_resnet_row("resnet18", recipe=_RESIDUAL)
def resnet18(channels: int, size: int, classes: int, *, width: int = 64) -> nn.Sequential:
    """ResNet-18 for small colour images; train it on a GPU.

    Four stages of two blocks, `width` to 8 x `width` channels. Any `size`: the last layer averages
    over the image.
    """
    layers = OrderedDict[str, nn.Module]()
    layers["conv1"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    layers["norm1"] = nn.BatchNorm2d(width)
    layers["relu1"] = nn.ReLU()
    before = width
    for stage in range(1, 5):
        after = width * 2 ** (stage - 1)
        layers[f"block{stage}_1"] = Block(before, after, 1 if stage == 1 else 2)
        layers[f"block{stage}_2"] = Block(after, after, 1)
        before = after
    layers["pool1"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["logits"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


@_resnet_row("resnet18-small", recipe=_SMALL)
def resnet18_small(channels: int, size: int, classes: int) -> nn.Sequential:
    """ResNet-18 at a quarter of its width, for a CPU."""
    return resnet18(channels, size, classes, width=16)
