"""The networks that ``zoo:NAME`` can name, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from hardcase.training.recipe import TrainingRecipe

# --- The networks that ``zoo:NAME`` can name, as a table. No torch: ``hardcase list models`` reads it at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A row. `where` is ``module:function`` in this folder, called with (channels, size, classes)."""

    name: str
    summary: str
    needs: str
    paper: str
    where: str
    recipe: TrainingRecipe
    laws: tuple[str, ...] = (
        "shapes",
        "deterministic",
        "global random state untouched",
        "layers fire once",
    )


_DIGITS = TrainingRecipe(epochs=10, steps=1500, batch=64, lr=4e-3, augment="shift")
_TANH = TrainingRecipe(epochs=10, steps=1500, batch=64, lr=2e-3, augment="shift")
_COLOUR = TrainingRecipe(
    epochs=40, steps=1500, batch=128, lr=2e-3, schedule="warm", augment="crop-flip", decay=0.05
)
_LECUN = "LeCun et al., Proc. IEEE 1998; as in DeepXplore, Pei et al., SOSP 2017"
_SIMONYAN = "Simonyan and Zisserman, ICLR 2015"
_HE = "He et al., CVPR 2016"

MODELS = {
    row.name: row
    for row in (
        Model(
            name="lenet1",
            summary="LeNet-1: two convolutions, one dense layer; 52 neurons",
            needs="images of 4x4 or more",
            paper=_LECUN,
            where="zoo:lenet1",
            recipe=_DIGITS,
        ),
        Model(
            name="lenet4",
            summary="LeNet-4: two convolutions, two dense layers; 148 neurons",
            needs="images of 4x4 or more",
            paper=_LECUN,
            where="zoo:lenet4",
            recipe=_DIGITS,
        ),
        Model(
            name="lenet5",
            summary="LeNet-5: two convolutions, three dense layers; 268 neurons",
            needs="images of 4x4 or more",
            paper=_LECUN,
            where="zoo:lenet5",
            recipe=_DIGITS,
        ),
        Model(
            name="lenet4-lecun",
            summary="LeNet-4 nearer to LeCun's article: tanh, means in place of maxima",
            needs="images of 12x12 or more",
            paper="LeCun et al., Proc. IEEE 1998",
            where="zoo:lenet4_lecun",
            recipe=_TANH,
        ),
        Model(
            name="lenet5-lecun",
            summary="LeNet-5 nearer to LeCun's article: tanh, means in place of maxima",
            needs="images of 12x12 or more",
            paper="LeCun et al., Proc. IEEE 1998",
            where="zoo:lenet5_lecun",
            recipe=_TANH,
        ),
        Model(
            name="sinvad-cnn",
            summary="SINVAD's six-layer classifier: four convolutions, two dense layers, dropout",
            needs="images of 4x4 or more",
            paper="Kang, Feldt and Yoo, TOSEM 2024",
            where="zoo:sinvad_cnn",
            recipe=TrainingRecipe(epochs=10, steps=600, batch=128, lr=1e-3),
        ),
        Model(
            name="alexnet",
            summary="AlexNet for small colour images: five convolutions, three dense layers",
            needs="images of 8x8 or more",
            paper="Krizhevsky et al., NeurIPS 2012",
            where="zoo:alexnet",
            recipe=_COLOUR,
        ),
        Model(
            name="vgg16",
            summary="VGG-16 with batch normalisation for small colour images; train it on a GPU",
            needs="images of 2x2 or more",
            paper=_SIMONYAN,
            where="zoo:vgg16",
            recipe=_COLOUR,
        ),
        Model(
            name="vgg16-small",
            summary="VGG-16 at a quarter of its width, for a CPU",
            needs="images of 2x2 or more",
            paper=_SIMONYAN,
            where="zoo:vgg16_small",
            recipe=_COLOUR,
        ),
        Model(
            name="resnet18",
            summary="ResNet-18 for small colour images; train it on a GPU",
            needs="any image size",
            paper=_HE,
            where="zoo:resnet18",
            recipe=_COLOUR,
        ),
        Model(
            name="resnet18-small",
            summary="ResNet-18 at a quarter of its width, for a CPU",
            needs="any image size",
            paper=_HE,
            where="zoo:resnet18_small",
            recipe=_COLOUR,
        ),
    )
}
