"""`hc.attack`: a method in the form of an attack library, tensors in and tensors out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hardcase.campaign.in_memory import search
from hardcase.errors import HardcaseError
from hardcase.models.subject import device_of, in_evaluation_mode
from hardcase.registry import resolve
from hardcase.tensors import digest_tensors, from_bytes, length, to_bytes
from hardcase.types import Answer, Images, Method, Model, Offer, Tap

__all__ = ["AttackedImages", "attack"]


class AttackedImages(NamedTuple):
    """The result of an attack on a batch of images.

    Args:
        images: The failing variant of each image; where the attack failed, the image itself.
        success: Whether the model misreads it.
        distances: The L2 norm of each change.
        rounding: The largest change by rounding the input images to the grid of 8
            bits, before the attack.
    """

    images: Float[Tensor, "n c h w"]
    success: Bool[Tensor, " n"]
    distances: Float[Tensor, " n"]
    rounding: float


def attack(
    model: nn.Module | Model,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    *,
    method: str | Method = "pgd",
    seed: int = 0,
    **options: Any,
) -> AttackedImages:
    """Attack a batch of images, as `foolbox` and `torchattacks` do.

    Differences from those: images lie on the grid of 8 bits, before, inside and after the attack,
    so a PNG can hold the result exactly; an image ends at its first failure (or at its nearest,
    where the method minimises the distance); an image that the model misreads before the attack
    counts as a success at distance 0. A module is called directly, in evaluation mode, with images
    in [0, 1].

    Args:
        model: A network of normalised inputs inside, or an `hc.Subject`.
        x: Images in [0, 1].
        y: Their labels.
        method: A name from ``hardcase list methods`` that needs nothing but the model, or a recipe.
        seed: Everything random follows from it.
        options: Options of the method, if `method` is a name.

    Raises:
        HardcaseError: If the method needs more than a model (``hc.search`` gives it), or lacks an
            option.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> images = toy_images(8)
        >>> result = hc.attack(toy_subject().net, images.x / 255, images.y, epsilon=0.3)
        >>> result.images.shape == images.x.shape, bool(result.success.any())
        (True, True)
    """
    recipe = _recipe(method, tuple(x.shape[1:]), options) if isinstance(method, str) else method
    model_in_unit_range = _model_of(model)
    images = to_bytes(x).cpu()
    start = from_bytes(images).to(x.device)
    with torch.no_grad():
        logits = model_in_unit_range(start).logits
    wrong = (logits.argmax(1) != y.to(logits.device)).cpu()
    right = (~wrong).nonzero().squeeze(1)
    result = images.clone()
    if len(right):
        names = tuple(f"attack/{row:06d}" for row in range(len(images)))
        classes = tuple(map(str, range(logits.shape[1])))
        seeds = Images(images, y.cpu(), names, classes, name="attack").take(right)
        keep = "first" if recipe.until == "first" else "best"
        findings = search(model_in_unit_range, recipe, seeds, seed=seed, keep=keep).findings
        result[right[findings.seed]] = findings.x
        wrong[right[findings.seed]] = True
    images_out = from_bytes(result).to(x.device)
    change = length((images_out - start).flatten(1))
    return AttackedImages(images_out, wrong.to(x.device), change, float((start - x).abs().max()))


def _recipe(name: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> Method:
    """The method of a name with its options, for images of a shape."""
    part = resolve("method", name)
    missing = [given for given in part.given if given not in ("shape", "target")]
    if missing:
        raise HardcaseError(
            f"method {name!r} needs {', '.join(missing)}, which tensors alone do not give.",
            fix=f'hc.search(model, data, method="{name}")',
        )
    given = {"shape": shape} if "shape" in part.given else {}
    method: Method = part(**given, **options)
    return method


def _model_of(model: nn.Module | Model) -> Model:
    """The model; for a bare network, a model that calls it with images in [0, 1]."""
    if isinstance(model, nn.Module) and not hasattr(model, "offers"):
        return _AsItIs(model)
    return cast("Model", model)


class _AsItIs:
    """A network that is neither copied nor padded: whoever counts its calls counts these."""

    offers: Offer = "gradients"
    name = "model"

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.device = device_of(net)
        self.hash = digest_tensors(net.state_dict())

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        if taps:
            raise HardcaseError("an attack reads no layers.", fix="hc.search(model, data, ...)")
        with in_evaluation_mode(self.net):
            return Answer(self.net(x).float(), {})
