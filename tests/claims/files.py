"""Annotated images as files, in every format, of the same few scenes."""

import csv
import json
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "red kite")
ABOVE = (22, 2, 38, 14)
SCENES = [
    ("one.png", (40, 30), [(0, (4, 5, 20, 25))]),
    ("zwei ü.png", (50, 40), [(1, (10, 10, 30, 30)), (2, (0, 0, 12, 8))]),
    ("three & more.png", (40, 40), [(2, (20, 20, 40, 40)), (0, (1, 2, 9, 18)), (0, ABOVE)]),
    ("nothing.png", (30, 30), []),
]
"""Name, width and height, and class and box of each object."""


def picture(size, objects):
    """Objects are bright rectangles, so that boxes can be found again in the pixels."""
    pixels = np.zeros((size[1], size[0], 3), dtype=np.uint8)
    for label, (x0, y0, x1, y1) in objects:
        pixels[y0:y1, x0:x1] = (255, 80 * label, 40)
    return Image.fromarray(pixels)


def write_images(folder, scenes=SCENES):
    folder.mkdir(parents=True, exist_ok=True)
    for name, size, objects in scenes:
        picture(size, objects).save(folder / name)


def write_coco(root, *, form="xywh", scenes=SCENES):
    write_images(root / "images", scenes)
    numbers = [7, 3, 90]  # ids need be neither in order nor without gaps
    annotations = []
    for image, (_, _, objects) in enumerate(scenes):
        for label, (x0, y0, x1, y1) in objects:
            box = [x0, y0, x1 - x0, y1 - y0] if form == "xywh" else [x0, y0, x1, y1]
            annotations.append({"image_id": image, "category_id": numbers[label], "bbox": box})
    text = {"images": [{"id": i, "file_name": name} for i, (name, _, _) in enumerate(scenes)]}
    text["categories"] = [{"id": n, "name": word} for n, word in zip(numbers, CLASSES)]
    text["annotations"] = annotations
    (root / "labels.json").write_text(json.dumps(text))
    return f"coco:{root / 'labels.json'}?split=all"


def write_yolo(root, *, outline=False, scenes=SCENES):
    write_images(root / "images", scenes)
    (root / "labels").mkdir()
    for name, (width, height), objects in scenes:
        lines = []
        for label, (x0, y0, x1, y1) in objects:
            centre = [(x0 + x1) / 2 / width, (y0 + y1) / 2 / height]
            values = [*centre, (x1 - x0) / width, (y1 - y0) / height]
            if outline:
                corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
                values = [share for x, y in corners for share in (x / width, y / height)]
            lines.append(" ".join([str(label), *(f"{value:.8f}" for value in values)]))
        if lines:
            path = root / "labels" / f"{name.removesuffix('.png')}.txt"
            path.write_text("\n".join(lines) + "\n")
    named = "".join(f"  {i}: {word}\n" for i, word in enumerate(CLASSES))
    (root / "data.yaml").write_text(f"path: .\nnames:\n{named}")
    return f"yolo:{root}?split=all"


def write_voc(root, scenes=SCENES):
    write_images(root / "JPEGImages", scenes)
    (root / "Annotations").mkdir()
    for number, (name, _, objects) in enumerate(scenes):
        inside = "".join(
            f"<object><name>{CLASSES[label]}</name><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin>"
            f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            for label, (x0, y0, x1, y1) in objects
        )
        text = f"<annotation><filename>{escape(name)}</filename>{inside}</annotation>"
        (root / "Annotations" / f"{number}.xml").write_text(text)
    return f"voc:{root}?split=all"


def write_tags(root, *, columns, scenes=SCENES):
    write_images(root, scenes)
    with (root / "tags.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", *(CLASSES if columns else ["labels"])])
        for name, _, objects in scenes:
            held = {label for label, _ in objects}
            words = [int(i in held) for i in range(len(CLASSES))]
            if not columns:
                words = ["|".join(CLASSES[i] for i in sorted(held))]
            table.writerow([name, *words])
    return f"tags:{root / 'tags.csv'}?split=all"


def write_masks(root, *, beside=False, scenes=SCENES):
    images = root if beside else root / "images"
    masks = root if beside else root / "masks"
    write_images(images, scenes)
    masks.mkdir(exist_ok=True)
    for name, size, objects in scenes:
        mask = np.full((size[1], size[0]), 255, dtype=np.uint8)
        for label, (x0, y0, x1, y1) in objects:
            mask[y0:y1, x0:x1] = label
        ending = "_mask.png" if beside else ".png"
        Image.fromarray(mask).save(masks / f"{name.removesuffix('.png')}{ending}")
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return f"masks:{root}?split=all"
