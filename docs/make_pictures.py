"""Draws docs/pictures/METHOD.png: six digits, and what each method makes of them. Methods whose generator is not in the cache are left out.

Run by hand (``python docs/make_pictures.py [METHOD...]``) when a method changes; the site shows what is stored.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

import hardcase as hc
from hardcase import registry
from hardcase.tensors import from_bytes

HERE = Path(__file__).parent / "pictures"
TRAINED = ("vae",)
"""Generators that are taken from the cache; others would be trained."""


def drawn(name: str, subject: hc.Subject, seeds: hc.Images) -> Figure | None:
    """Seeds in the first row, the nearest finding of each in the second; None where nothing is found."""
    witnesses: dict[str, tuple[()]] = {"witnesses": ()} if name.startswith("natural") else {}
    found = hc.search(subject, seeds, method=name, seed=0, keep="best", **witnesses)
    if not len(found):
        return None
    figure = Figure(figsize=(6, 2.35), dpi=80)
    axes = figure.subplots(2, len(seeds))
    for column in range(len(seeds)):
        rows = (found.seed == column).nonzero().flatten().tolist()
        images = [seeds.x[column], *(found.x[row] for row in rows[:1])]
        words = [str(int(seeds.y[column])), *(str(int(found.predicted[row])) for row in rows[:1])]
        for axis in axes[:, column]:
            axis.set_axis_off()
        for axis, image, word in zip(axes[:, column], images, words, strict=False):
            axis.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=255)
            axis.set_title(word, fontsize=9)
    figure.tight_layout(pad=0.3)
    return figure


def store(figure: Figure, path: Path) -> None:
    """As a grey PNG of a few kilobytes."""
    data = io.BytesIO()
    figure.savefig(data)
    Image.open(data).convert("L").quantize(32).save(path, optimize=True)


def main() -> None:
    digits = {split: hc.data.load("mnist5k", split=split) for split in ("train", "test")}
    net, _ = hc.models.trained_classifier("lenet5", digits["train"], digits["test"])
    subject = hc.Subject(net, name="lenet5")
    drawn_from = digits["test"].sample(count=20, seed=3)
    right = subject(from_bytes(drawn_from.x)).logits.argmax(1) == drawn_from.y
    seeds = drawn_from.take(right.nonzero().flatten()[:6])
    HERE.mkdir(exist_ok=True)
    for row in registry.rows("methods"):
        wanted = row["name"] in sys.argv[1:] if sys.argv[1:] else "@" not in row["name"]
        if wanted and row.get("generator", "vae") in TRAINED and row.get("seeds") != "generator":
            try:
                figure = drawn(row["name"], subject, seeds)
            except hc.HardcaseError as problem:
                print(f"{row['name']}: {problem}")
                continue
            if figure is None:
                print(f"{row['name']} finds nothing from these")
                continue
            store(figure, HERE / f"{row['name']}.png")
            print(row["name"])


if __name__ == "__main__":
    main()
