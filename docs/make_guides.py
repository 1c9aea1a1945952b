"""Draw the pictures of the guides: pairs of images and failures, data sets, a terminal. Run by hand, stored small.

    hardcase demo --out DEMO
    hardcase run --model zoo:efficientnet-lite0 --data "folder:PHOTOS?labels=prefix&split=all" --conditions handheld --method none --out PHOTORUN
    python docs/make_guides.py DEMO PHOTORUN [PHOTOS/credits.csv]

Photographs must be free to be shown with credit: authors and sources go into ``docs/credits.md``.
"""

from __future__ import annotations

import base64
import copy
import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file

import hardcase as hc
from hardcase.analysis.conditions import shown_samples
from hardcase.claims.annotations import load_annotations
from hardcase.claims.load import draw_annotations
from hardcase.conditions import condition_box, risk
from hardcase.conditions.box import samples_of
from hardcase.conditions.declared import profile
from hardcase.repair.examples import repaired_examples

PICTURES = Path(__file__).parent / "pictures"
SIDE, GAP, LINE = 132, 10, 16
"""Side of a picture, space around it, height of a line of text, in pixels."""
ENDS = {"rotation": "±30 deg", "scale": "±25 %", "shift": "±12 %", "view": "±12 deg", "exposure": "±0.7 stops"}
ENDS |= {"shade": "0..0.7 stops", "defocus": "0..1.5 %", "motion": "0..2 %", "noise": "0..10 levels"}
"""The profile ``phone``, condition by condition."""
INK, FAULT, PAPER = (28, 39, 51), (200, 60, 40), (255, 255, 255)


def font(size: int, *, mono: bool = False, bold: bool = False) -> Any:
    """A font of the machine, else the small one of Pillow."""
    name = "DejaVuSansMono.ttf" if mono else f"DejaVuSans{'-Bold' if bold else ''}.ttf"
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return ImageFont.load_default(size)


def picture_of(x: torch.Tensor) -> Image.Image:
    """An 8-bit image of (channels, height, width), in the size of a pair."""
    array = x.movedim(0, -1).numpy().astype(np.uint8)
    image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).convert("RGB")
    return image.resize((SIDE, SIDE), Image.Resampling.BOX if max(x.shape) < 64 else Image.Resampling.LANCZOS)


def fitted(pen: ImageDraw.ImageDraw, text: str, face: Any, width: int) -> str:
    """Text that fits into a width, cut at a comma or a word."""
    while text and pen.textlength(text, font=face) > width:
        text = text.rpartition(" ")[0].rstrip(",")
    return text


def sheet(pairs: list[dict[str, Any]], path: Path, wording: str = "read as {}") -> None:
    """Six pairs side by side: above the image with its label, below the failure with what the model reads."""
    width = len(pairs) * (SIDE + GAP) + GAP
    page = Image.new("RGB", (width, 2 * SIDE + 4 * LINE + 4 * GAP), PAPER)
    pen = ImageDraw.Draw(page)
    for column, pair in enumerate(pairs):
        left = GAP + column * (SIDE + GAP)
        middle = left + SIDE / 2
        top = 2 * GAP + LINE
        pen.text((middle, GAP), fitted(pen, pair["label"], font(13, bold=True), SIDE), INK, font(13, bold=True), anchor="ma")
        page.paste(picture_of(pair["unmodified"]), (left, top))
        below = top + SIDE + GAP
        page.paste(picture_of(pair["image"]), (left, below))
        pen.rectangle((left - 2, below - 2, left + SIDE + 1, below + SIDE + 1), outline=FAULT, width=2)
        word = fitted(pen, wording.format(pair["predicted"]), font(13, bold=True), SIDE)
        pen.text((middle, below + SIDE + 6), word, FAULT, font(13, bold=True), anchor="ma")
        words = fitted(pen, pair["words"], font(10), SIDE)
        pen.text((middle, below + SIDE + 9 + LINE), words, INK, font(10), anchor="ma")
    store(page, path)


def store(page: Image.Image, path: Path) -> None:
    """As a JPEG of photographs, or as a PNG of few colours."""
    if path.suffix == ".jpg":
        page.save(path, quality=82, optimize=True, progressive=True)
    else:
        page.quantize(64).save(path, optimize=True)
    print(path, path.stat().st_size)


def pairs_of(run: hc.Run, count: int) -> list[dict[str, Any]]:
    """Failing samples of a run, of classes as different as there are, with names of classes."""
    chosen: dict[int, dict[str, Any]] = {}
    for row in shown_samples(run):
        if row["label"] not in chosen and row["predicted"] >= 0:
            chosen[row["label"]] = row
    names = [name.split(",")[0].replace("_", " ") for name in run.classes]
    rows = list(chosen.values())
    return [{**row, "label": names[row["label"]], "predicted": names[row["predicted"]]} for row in rows[:count]]


def lenet5() -> tuple[torch.nn.Module, hc.Images]:
    digits = {split: hc.data.load("mnist5k", split=split) for split in ("train", "test")}
    return hc.models.trained_classifier("lenet5", digits["train"], digits["test"])[0], digits["test"]


def single_conditions(path: Path) -> None:
    """One digit at the far end of each condition of a telephone, and what LeNet-5 reads."""
    net, digits = lenet5()
    subject = hc.Subject(net, name="lenet5")
    image = digits.take((digits.y == 7).nonzero().flatten()[:1])
    cells = [("unmodified", image.x[0])]
    for name, span in ENDS.items():
        box = condition_box(hc.Conditions({name: span}), tuple(image.x.shape[1:]))
        cells.append((f"{name} {span}", farthest(box, image)))
    high = SIDE + 2 * LINE + 2 * GAP
    page = Image.new("RGB", (5 * (SIDE + GAP) + GAP, 2 * high + GAP), PAPER)
    pen = ImageDraw.Draw(page)
    for place, (name, x) in enumerate(cells):
        left, top = GAP + place % 5 * (SIDE + GAP), GAP + place // 5 * high
        page.paste(picture_of(x), (left, top))
        read = int(subject(x[None].float() / 255).logits.argmax(1))
        wrong = read != int(image.y[0])
        pen.text((left + SIDE / 2, top + SIDE + 4), name, INK, font(12), anchor="ma")
        words = (left + SIDE / 2, top + SIDE + 4 + LINE)
        pen.text(words, f"read as {read}", FAULT if wrong else INK, font(12, bold=wrong), anchor="ma")
    store(page, path)


def farthest(box: Any, image: hc.Images) -> torch.Tensor:
    """The image at about the far end of the declared conditions."""
    draws = samples_of(box, image.id, 256, seed=0)
    codes = draws.z.flatten(0, 1)
    row = int(box.gauge(codes).argmax())
    origin = risk.with_pattern(risk.seeds_of(image, box, torch.device("cpu")), draws.pattern.flatten()[row : row + 1])
    return (box.decode(codes[row : row + 1], origin)[0] * 255).round().clamp(0, 255).byte()


def repaired(demo: Path, path: Path) -> None:
    """Samples that the network of the demo misread before its repair, and reads after it."""
    net, digits = lenet5()
    after = copy.deepcopy(net)
    after.load_state_dict(load_file(next(demo.rglob("weights.safetensors"))))
    models = [hc.Subject(one, name=name) for one, name in ((net, "before"), (after, "after"))]
    box = condition_box(profile("phone"), (1, 28, 28))
    rows = [
        {"label": row.label, "predicted": row.before, "words": row.words, "unmodified": decoded(row.unmodified), "image": decoded(row.sample)}
        for row in repaired_examples(*models, digits, box, seed=0)
    ]
    sheet(rows, path, "before: {}")


def decoded(png: str) -> torch.Tensor:
    """A PNG in base64 as 8-bit numbers."""
    array = np.atleast_3d(np.array(Image.open(io.BytesIO(base64.b64decode(png)))))
    return torch.from_numpy(array.copy()).movedim(-1, 0)


def data_sets(path: Path) -> None:
    """Digits, and canvases with boxes."""
    digits = hc.data.load("mnist5k", split="test").sample(per_class=1, seed=0)
    page = Image.new("RGB", (10 * (64 + 4) + 4, 64 + 8), PAPER)
    for column in range(10):
        page.paste(picture_of(digits.x[column]).resize((64, 64)), (4 + column * 68, 4))
    canvases = draw_annotations(load_annotations("canvas5k"), 8)
    canvases.thumbnail((page.width - 8, 10_000))
    whole = Image.new("RGB", (page.width, page.height + canvases.height + 8), PAPER)
    whole.paste(page, (0, 0))
    whole.paste(canvases, (4, page.height + 4))
    store(whole, path)


def terminal(command: str, path: Path) -> None:
    """A command and what it prints, as a terminal of 100 columns shows it."""
    done = subprocess.run(command.split(), capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}, check=False)
    lines = [f"$ {command}", *(line[:100] for line in (done.stdout + done.stderr).splitlines())]
    face = font(13, mono=True)
    page = Image.new("RGB", (int(max(map(face.getlength, lines))) + 2 * GAP, 18 * len(lines) + 2 * GAP), (250, 250, 248))
    pen = ImageDraw.Draw(page)
    for row, line in enumerate(lines):
        pen.text((GAP, GAP + 18 * row), line, INK if row else (20, 90, 150), face)
    store(page, path)


def credit_page(rows: list[dict[str, Any]], path: Path) -> str:
    """Who made the photographs that are shown."""
    with path.open(encoding="utf-8") as file:
        known = {row["file"]: row for row in csv.DictReader(file)}
    lines = ["# Credits", "", "Photographs on these pages are under [CC BY 2.0](https://creativecommons.org/licenses/by/2.0/).", "They were cropped, scaled and recompressed. The failing ones were changed by hardcase as the page says.", "", "| photograph | author | source |", "|---|---|---|"]
    for row in rows:
        credit = next(one for name, one in known.items() if Path(name).stem in row["seed"])
        lines.append(f"| {row['label']} | [{' '.join(credit['author'].split())}]({credit['author_url']}) | [Flickr]({credit['source']}) |")
    return "\n".join([*lines, "", "Digits are from MNIST (Y. LeCun, C. Cortes, C. J. C. Burges).", ""])


def main() -> None:
    demo, photos, credits = map(Path, sys.argv[1:])
    digits = pairs_of(hc.Run(demo / "before"), 6)
    photographs = pairs_of(hc.Run(photos), 6)
    sheet(digits, PICTURES / "digits.png")
    sheet(photographs, PICTURES / "photographs.jpg")
    sheet([*photographs[:3], *digits[:3]], PICTURES / "hero.jpg")
    (PICTURES.parent / "credits.md").write_text(credit_page(photographs, credits), encoding="utf-8")
    single_conditions(PICTURES / "conditions.png")
    repaired(demo, PICTURES / "repair.png")
    data_sets(PICTURES / "data.png")
    store(draw_annotations(load_annotations("canvas5k"), 8), PICTURES / "detectors.png")
    terminal("hardcase doctor --model zoo:lenet5 --data mnist5k", PICTURES / "doctor.png")


if __name__ == "__main__":
    main()
