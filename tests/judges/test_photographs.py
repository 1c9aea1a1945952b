"""The judge of photographs: made once, kept with a card, and able to tell kept labels from lost ones."""

from dataclasses import replace

import pytest
import torch
from judged import cache_of, network, photographs
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.judges.features import Encoder, encoder
from hardcase.judges.photographs import feature_judge, reserved_judge
from hardcase.judges.rules import rules_from_card, with_thresholds
from hardcase.judges.training_data import exam_of_photographs
from hardcase.models.subject import Subject
from hardcase.statistics import auroc
from hardcase.tensors import from_bytes
from hardcase.testing import check_judge
from hardcase.types import ImagePairs
from tiny import bars


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with cache_of(tmp_path_factory):
        train, test = photographs(150), photographs(45, seed=4, split="test")
        own = encoder(Subject(network()), from_bytes(train.x[:1]), lineage="small")
        told = []
        judge = feature_judge((), train, test, encoders=[own], progress=told.append)
        (total,) = {one.steps for one in told}
        counts = [one.step for one in told]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (0, total)  # every image is told of, to the last
        yield own, train, test, (judge.panel, judge.card, judge.folder)


def test_the_card_says_what_a_judge_must(made):
    own, train, test, (_, card, folder) = made
    assert card["accuracy"] > 0.95
    assert card["measured_images"] == len(test)
    assert card["members"]["encoder 1"] == own.hash
    assert card["lineages"] == ["small"]
    assert set(card["rules"]) == {"label_kept", "domain"}
    assert (card["configuration"]["channels"], card["configuration"]["size"]) == (3, 32)
    assert card["data"] == train.hash
    assert {path.name for path in folder.iterdir()} == {"card.json", "weights.safetensors"}


def test_a_second_one_is_read_and_says_the_same(made, monkeypatch):
    own, train, test, (panel, card, _) = made
    again_asked = lambda *_, **__: pytest.fail("features were computed again")  # noqa: E731
    monkeypatch.setattr(Encoder, "ask", again_asked)
    again = feature_judge((), train, test, encoders=[own])
    assert again.card == card
    x = from_bytes(test.x)
    assert torch.equal(
        again.panel.ask(x, test.y)[0].classifiers, panel.ask(x, test.y)[0].classifiers
    )


def test_its_rules_tell_kept_from_lost_whatever_the_number_of_good_pictures(made):
    _, _, test, (panel, card, _) = made
    x = from_bytes(test.x)
    [right], [wrong] = panel.ask(x, test.y), panel.ask(x, (test.y + 1) % 3)
    rule = rules_from_card(card)["label_kept"]
    evidence = torch.cat([rule.evidence(right), rule.evidence(wrong)])
    assert float(auroc(evidence, torch.arange(90) < 45)) > 0.95
    assert float(rule.probability(right).median()) > 0.5 > float(rule.probability(wrong).median())
    [signals] = panel.ask(torch.cat([x, x]), torch.cat([test.y, (test.y + 1) % 3]))
    truth = torch.arange(90) < 45
    often = torch.cat([torch.arange(45), torch.arange(45), torch.arange(90)])
    first = with_thresholds(rule, signals, truth)
    second = with_thresholds(rule, signals[often], truth[often])
    assert first.high == pytest.approx(second.high)
    assert first.low <= 0.5 <= first.high
    nothing = with_thresholds(rule, signals[torch.arange(45)], truth[:45])
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def test_images_that_are_not_square_are_told(made):
    own, train, test, _ = made
    with pytest.raises(HardcaseError, match="square"):
        feature_judge((), replace(train, x=train.x[:, :, :20]), test, encoders=[own])


def test_its_answers_are_precise_on_made_pictures_it_has_not_seen(made):
    _, _, test, (panel, card, _) = made
    exam = exam_of_photographs(test, torch.Generator().manual_seed(3))
    assert len(exam.x) == 4 * len(test)
    assert 0 <= float(exam.x.min()) <= float(exam.x.max()) <= 1
    for truth in (exam.domain, exam.label_kept):
        assert set(truth.tolist()) == {-1, 0, 1}
    known = exam.label_kept >= 0
    rule = rules_from_card(card)["label_kept"]
    assert 0 <= rule.low <= rule.high <= 1
    [signals] = panel.ask(exam.x[known], exam.expected[known])
    said = rule.answers(rule.probability(signals)).tolist()
    yes = [truth for answer, truth in zip(said, exam.label_kept[known].tolist()) if answer == 1]
    assert len(yes) > 20
    assert sum(yes) / len(yes) > 0.85


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
def banded():
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


def pairs(images, original, expected):
    return ImagePairs(images.x, original.x, expected)


def test_its_first_answer_keeps_a_label_and_what_it_misreads_leaves_it_unsure(banded):
    """Six classes: of a picture of one, the darkest band is the only one not among five answers."""
    judge = judge_of(banded)
    assert judge(pairs(banded, banded, banded.y)).verdict == ["kept"] * 24
    fives = torch.full((24,), 5)
    assert set(judge(pairs(banded, banded, fives)).verdict) == {"unsure"}
    first = banded.take(torch.zeros(24, dtype=torch.int64))
    expected = first.y
    words = judge(pairs(banded, first, expected)).verdict
    assert words == [("lost", "kept")[label == expected[0]] for label in banded.y.tolist()]
    check_judge(judge, pairs(banded, first, expected)[:4])


def test_it_says_what_it_is_and_refuses_classes_it_does_not_know(banded):
    said = judge_of(banded).about()
    assert said["calibrated"] is False
    assert "no person has rated" in said["status"]
    assert said["lineages"] == ["rows"]
    with pytest.raises(HardcaseError, match="does not know the classes"):
        judge_of(banded, names=())
