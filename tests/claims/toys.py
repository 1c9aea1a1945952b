"""A detector, a tagger and a segmenter whose answers follow from the brightness of windows."""

import torch
from torch import nn

from hardcase.claims.subjects import Annotation, Detections
from hardcase.types import Images

SIDE = 24
WINDOW = 8
CLASSES = ("dim", "bright")
LEVEL = (0.5, 0.9)
"""Brightness of an object of each class; the background is 0.1."""


class Windows(nn.Module):
    """Every window of 8 pixels, 2 apart, is a box; how bright it is says what it holds."""

    def __init__(self, sharpness=40.0, shift=0.0):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))
        self.shift = nn.Parameter(torch.tensor(shift))

    def means(self, x):
        return nn.functional.avg_pool2d(x.mean(1, keepdim=True), WINDOW, 2)  # m 1 i j

    def scores(self, x):
        mean = self.means(x).flatten(1) + self.shift  # m d
        near = torch.stack([0.1 - (mean - LEVEL[0]).abs(), mean - 0.75], 2)
        return self.sharpness * near

    def forward(self, x):
        places = [torch.arange(count) * 2.0 for count in self.means(x).shape[2:]]
        top, left = torch.meshgrid(*places, indexing="ij")
        corner = torch.stack([left, top], 2).reshape(1, -1, 2).expand(len(x), -1, -1)
        return Detections(torch.cat([corner, corner + WINDOW], 2), self.scores(x))


class Tags(Windows):
    """Which classes any window shows."""

    def forward(self, x):
        return self.scores(x).amax(1)


class Pixels(nn.Module):
    """The class of every pixel by its brightness; the last is the background."""

    def __init__(self, sharpness=40.0):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, x):
        level = torch.tensor([*LEVEL, 0.1]).reshape(1, -1, 1, 1)
        return -self.sharpness * (x - level).abs()


def scenes(count=6, seed=0):
    """Images with one or two objects in the lattice of windows, and what is in them."""
    luck = torch.Generator().manual_seed(seed)
    x = torch.full((count, 1, SIDE, SIDE), 0.1)
    known = []
    for row in range(count):
        labels, boxes = [], []
        mask = torch.full((SIDE, SIDE), 255)
        for place in range(1 + row % 2):
            label = int(torch.randint(2, (1,), generator=luck))
            left, top = (2 + 2 * torch.randint(2, (2,), generator=luck)).tolist()
            left += 10 * place
            top += 6 * place
            area = (slice(top, top + WINDOW), slice(left, left + WINDOW))
            x[(row, 0, *area)] = LEVEL[label]
            mask[area] = label
            labels.append(label)
            boxes.append([left, top, left + WINDOW, top + WINDOW])
        known.append(Annotation(torch.tensor(labels), torch.tensor(boxes).float(), mask))
    pixels = (x * 255).round().to(torch.uint8)
    names = tuple(f"scene/{row}" for row in range(count))
    return Images(pixels, torch.zeros(count).long(), names, CLASSES, name="scenes"), tuple(known)
