"""The same object in other surroundings: what a mask covers is kept byte for byte, the rest is painted anew.

python context.py --images PICTURES --mask u2net.onnx --inpaint migan.onnx --out OTHER [--draws 4] [--seed 0]

writes OTHER/CLASS/NAME-DRAW.png, which ``hardcase`` reads as ``folder:OTHER``. A picture whose mask cannot be trusted is left
out, and the reason is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

Saliency = Callable[[np.ndarray], np.ndarray]
"""An 8-bit image (h, w, 3) to the chance of every pixel (h, w) that it belongs to the object."""
Inpainter = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""An 8-bit image and the pixels to paint anew (h, w, true there) to an 8-bit image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """When a mask is believed.

    Args:
        least: Smallest share of the picture that an object may cover.
        most: Largest share.
        edge: Largest share of the picture's edge that it may touch: more is a part of something larger.
        doubt: Largest share of pixels of which the network is not sure (0.2 to 0.8).
    """

    least: float = 0.03
    most: float = 0.7
    edge: float = 0.4
    doubt: float = 0.15

    def refuses(self, chance: np.ndarray) -> str:
        """Why this mask is not believed; nothing if it is."""
        mask = chance >= 0.5
        edge = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        doubted = float(((chance > 0.2) & (chance < 0.8)).mean())
        if not self.least <= mask.mean() <= self.most:
            return f"the object covers {mask.mean():.0%} of the picture"
        if edge.mean() > self.edge:
            return f"the object touches {edge.mean():.0%} of the edge"
        return f"{doubted:.0%} of the pixels are doubtful" if doubted > self.doubt else ""


def grown(mask: np.ndarray, by: int) -> np.ndarray:
    """The mask and all pixels within `by` of it along rows and columns."""
    for _ in range(by):
        near = np.pad(mask, 1)
        mask = near[1:-1, 1:-1] | near[:-2, 1:-1] | near[2:, 1:-1] | near[1:-1, :-2] | near[1:-1, 2:]
    return mask


def holes(mask: np.ndarray, rng: np.random.Generator, *, margin: int = 2) -> np.ndarray:
    """Pixels to paint anew: a random part of the surroundings, never nearer to the object than `margin`."""
    height, width = mask.shape
    down, right = np.mgrid[0:height, 0:width]
    angle = rng.uniform(0, 2 * np.pi)
    side = (down - height / 2) * np.sin(angle) + (right - width / 2) * np.cos(angle)
    return (side > rng.uniform(-0.5, 0.0) * max(height, width)) & ~grown(mask, margin)


def surroundings(
    image: np.ndarray, mask: np.ndarray, inpaint: Inpainter, rng: np.random.Generator
) -> np.ndarray:
    """The image with other surroundings. Inpainters change pixels outside the hole too, so only those inside are taken."""
    hole = holes(mask, rng)
    generated = inpaint(image, hole)
    if generated.shape != image.shape or generated.dtype != np.uint8:
        raise ValueError(f"the inpainter gave {generated.dtype} {generated.shape} for {image.shape}")
    made = np.where(hole[:, :, None], generated, image)
    assert np.array_equal(made[mask], image[mask]), "the object was changed"
    return made


def varied(
    image: np.ndarray,
    saliency: Saliency,
    inpaint: Inpainter,
    *,
    draws: int,
    rng: np.random.Generator,
    guard: Guard | None = None,
) -> tuple[list[np.ndarray], str]:
    """So many variants of an image, or none and why its mask is not believed."""
    chance = saliency(image)
    why = (guard or Guard()).refuses(chance)
    if why:
        return [], why
    return [surroundings(image, chance >= 0.5, inpaint, rng) for _ in range(draws)], ""


def u2net(path: Path) -> Saliency:
    """U²-Net as ONNX: 320 pixels, ImageNet's normalisation, the first output."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def chance(image: np.ndarray) -> np.ndarray:
        small = np.asarray(Image.fromarray(image).resize((320, 320))) / 255
        given = ((small - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).transpose(2, 0, 1)
        seen = session.run(None, {name: given[None].astype(np.float32)})[0][0, 0]
        seen = (seen - seen.min()) / max(float(np.ptp(seen)), 1e-6)
        whole = Image.fromarray((255 * seen).astype(np.uint8)).resize(image.shape[1::-1])
        return np.asarray(whole) / 255

    return chance


def migan(path: Path) -> Inpainter:
    """MI-GAN as ONNX: 8-bit image and mask (255: keep) in, 8-bit image out."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image_name, mask_name = (given.name for given in session.get_inputs())

    def paint(image: np.ndarray, hole: np.ndarray) -> np.ndarray:
        keep = np.where(hole, 0, 255).astype(np.uint8)
        given = {image_name: image.transpose(2, 0, 1)[None], mask_name: keep[None, None]}
        made: np.ndarray = session.run(None, given)[0][0].transpose(1, 2, 0)
        return made

    return paint


def pictures(folder: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """Class, name and pixels of every picture in FOLDER/CLASS/NAME.*"""
    for path in sorted(folder.glob("*/*")):
        if path.suffix.lower() in {".png", ".jpg", ".jpeg"}:
            yield path.parent.name, path.stem, np.asarray(Image.open(path).convert("RGB"))


def write(
    folder: Path, out: Path, saliency: Saliency, inpaint: Inpainter, *, draws: int, seed: int
) -> dict[str, str]:
    """Variants of all pictures below `folder` into `out`; returns what was left out, and why."""
    left = {}
    for number, (label, name, image) in enumerate(pictures(folder)):
        rng = np.random.default_rng([seed, number])
        made, why = varied(image, saliency, inpaint, draws=draws, rng=rng)
        if why:
            left[f"{label}/{name}"] = why
        for draw, variant in enumerate(made):
            (out / label).mkdir(parents=True, exist_ok=True)
            Image.fromarray(variant).save(out / label / f"{name}-{draw}.png")
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for flag in ("--images", "--mask", "--inpaint", "--out"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    left = write(
        given.images,
        given.out,
        u2net(given.mask),
        migan(given.inpaint),
        draws=given.draws,
        seed=given.seed,
    )
    for name, why in left.items():
        print(f"left out {name}: {why}")


if __name__ == "__main__":
    main()
