"""A network that took no part as the judge: what it keeps, what it cannot tell, what it says of itself."""

import pytest
import torch
from torch import nn

from hardcase.errors import Problem
from hardcase.judges.features import encoder
from hardcase.judges.reserved import reserved_judge
from hardcase.models.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.types import Findings
from tiny import bars


class BrightestRow(nn.Module):
    """Says which of six bands of rows is the brightest; its first layer is only there to be read."""

    def __init__(self):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d((6, 1))
        self.flatten = nn.Flatten()
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight.data = 8 * torch.eye(6)

    def forward(self, x):
        return self.head(self.flatten(self.pool(x.mean(1, keepdim=True))))


NAMES = tuple("abcdef")


@pytest.fixture
def photographs():
    from dataclasses import replace

    images = bars(24, size=12, channels=3, classes=3, seed=0)
    x = torch.zeros_like(images.x)
    for band in range(6):
        x[:, :, 2 * band : 2 * band + 2] = 10 * band
    for row, label in enumerate(images.y.tolist()):
        x[row, :, 2 * label : 2 * label + 2] = 200
    return replace(images, x=x, classes=NAMES)


def judge_of(images, names=NAMES):
    own = encoder(Subject(BrightestRow(), classes=names), from_bytes(images.x[:1]), lineage="rows")
    return reserved_judge(own, images)


def findings(images, expected):
    count = len(images)
    none = torch.zeros(count)
    whole = torch.zeros(count, dtype=torch.int64)
    return Findings(
        torch.arange(count), images.x, whole, expected, whole, torch.zeros(count, 0).long(),
        none, none, none, whole, torch.zeros(count, 0),
    )  # fmt: skip


def test_its_first_answer_keeps_a_label_and_outside_the_first_five_it_is_lost(photographs):
    judge = judge_of(photographs)
    assert judge(findings(photographs, photographs.y)).label_kept == [True] * 24
    assert judge(findings(photographs, torch.full((24,), 5))).label_kept == [None] * 24
    darkest = judge(findings(photographs, torch.zeros(24, dtype=torch.int64)))
    assert darkest.label_kept == [label == 0 for label in photographs.y.tolist()]


def test_a_seed_that_it_misreads_leaves_it_undecided(photographs):
    from dataclasses import replace

    wrong = replace(photographs, y=torch.full((24,), 5))
    judge = judge_of(wrong)
    assert not bool(judge.read.any())
    assert judge(findings(photographs, torch.full((24,), 5))).label_kept == [None] * 24


def test_an_image_that_excites_nothing_is_not_called_valid(photographs):
    from dataclasses import replace

    judge = judge_of(photographs)
    assert judge(findings(photographs, photographs.y)).valid == [True] * 24
    black = replace(photographs, x=torch.zeros_like(photographs.x))
    assert judge(findings(black, photographs.y)).valid == [None] * 24


def test_it_says_what_it_is_and_refuses_classes_it_does_not_know(photographs):
    said = judge_of(photographs).about()
    assert said["calibrated"] is False
    assert said["accuracy"] == 1.0
    assert "reads 100.0% of 24 real images rightly" in said["standing"]
    assert said["lineages"] == ["rows"]
    with pytest.raises(Problem, match="does not know the classes"):
        judge_of(photographs, names=())
