"""Ranking: scores against naive forms, orders, and how good they were."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch

from hardcase.cli.main import main
from hardcase.criteria import surprise as criteria
from hardcase.errors import HardcaseError
from hardcase_studies import ranking
from hardcase_studies.ranking import apfd, by_answer, near_failures, order, rank_images, surprise
from tiny import HALVES, bars, columns_subject as subject


def answers(count=300, classes=5, seed=0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)) * 3


def naive_apfd(wrong, ranked):
    """Area below the curve of errors found, by the trapezoid of each image."""
    found = area = 0
    for row in ranked:
        before = found
        found += wrong[row]
        area += (before + found) / 2
    return area / (len(ranked) * sum(wrong))


def test_scores_are_what_their_papers_say():
    p = answers().softmax(1)
    for row in range(20):
        values = p[row].tolist()
        best = sorted(values, reverse=True)
        assert float(ranking.deepgini(p)[row]) == pytest.approx(
            1 - sum(v * v for v in values), abs=1e-6
        )
        assert float(ranking.small_margin(p)[row]) == pytest.approx(
            1 - (best[0] - best[1]), abs=1e-6
        )
        assert float(ranking.entropy(p)[row]) == pytest.approx(
            -sum(v * math.log(v) for v in values), abs=1e-5
        )
    assert float(ranking.entropy(torch.tensor([[1.0, 0.0]]))[0]) == 0


@pytest.mark.parametrize("name", ranking.SCORES)
def test_unsure_answers_come_first(name):
    logits = torch.tensor([[9.0, 0, 0], [1.0, 1, 1], [2.0, 0, 0], [float("nan"), 0, 0]])
    assert order(by_answer(name, logits)).tolist() == [3, 1, 2, 0]


def test_apfd_is_the_area():
    rng = torch.Generator().manual_seed(0)
    wrong, ranked = torch.rand(200, generator=rng) < 0.2, torch.randperm(200, generator=rng)
    assert apfd(wrong, ranked) == pytest.approx(naive_apfd(wrong.tolist(), ranked.tolist()))
    best = order(wrong.double())
    assert apfd(wrong, best) > 0.85
    assert apfd(wrong, best) + apfd(wrong, best.flip(0)) == pytest.approx(1)
    assert math.isnan(apfd(torch.zeros(3, dtype=torch.bool), torch.arange(3)))
    with pytest.raises(HardcaseError, match="each of them once"):
        apfd(wrong, ranked[:-1].repeat(2)[:200])


def traces(seed=0, count=300):
    predicted = torch.arange(count) % 3
    values = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return values + 2 * predicted[:, None], predicted


@pytest.mark.parametrize("kind", ["Distance", "Likelihood"])
def test_a_class_without_traces_is_most_surprising(kind):
    (known, label), (points, predicted) = traces(), traces(1, 90)
    fitted = getattr(criteria, kind).fit(criteria.Traces(known, label, label))
    assert bool(surprise(fitted, points, predicted).isfinite().all())
    assert order(surprise(fitted, points[:2], torch.tensor([7, 0]))).tolist() == [0, 1]


def test_near_failures_first():
    features = torch.tensor([[0.0, 0], [5.0, 0], [2.0, 0]])
    failures = torch.tensor([[4.9, 0], [9.0, 9.0]])
    assert order(near_failures(features, failures)).tolist() == [1, 2, 0]
    assert torch.allclose(
        near_failures(features, failures, batch=2), near_failures(features, failures)
    )
    with pytest.raises(HardcaseError, match="no found failure"):
        near_failures(features, failures[:0])


@pytest.mark.parametrize("score", ["deepgini", "margin", "dsa", "mdsa", "near-failures"])
def test_weak_images_come_first(score):
    images = bars(60)
    x = images.x.clone()
    x[::6] = (x[::6].float() * 0.4).to(torch.uint8)  # pale, so unsure and unlike training images
    pale = images.__class__(x, images.y, images.id, images.classes)
    failures = (bars(9, seed=5).x.float() * 0.4).to(torch.uint8)
    ranked = rank_images(subject(), pale, score, train=bars(90, seed=3), failures=failures)
    unsure = torch.zeros(60, dtype=torch.bool)
    unsure[::6] = True
    assert apfd(unsure, ranked.order) > 0.8
    rows = ranked.rows(pale, 3)
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert rows[0]["id"] in {images.id[i] for i in range(0, 60, 6)}
    assert len(ranked.rows(pale)) == 60


def test_what_an_order_lacks_is_told():
    for score, message in (("gini", "deepgini"), ("dsa", "--profile"), ("near-failures", "--near")):
        with pytest.raises(HardcaseError, match=message):
            rank_images(subject(), bars(6), score)
    with pytest.raises(HardcaseError, match="mdsa"):
        ranking.surprise_scores(subject(), bars(6), bars(30), "nc")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(HALVES)
    rng = numpy.random.default_rng(0)
    x = rng.integers(0, 60, (200, 16, 16)).astype(numpy.uint8)
    y = numpy.arange(200) % 2
    for i in range(200):
        x[i, :, 8 * y[i] : 8 * y[i] + 8] += numpy.uint8(i % 60)
    numpy.savez(tmp_path / "halves.npz", images=x, labels=y)


NAMED = ("--model", "models.py:net", "--data", "npz:halves.npz?split=all")


def test_an_order_is_told_with_how_good_it_is(home, capsys):
    assert main(["rank", *NAMED, "--labelled", "--first", "3", "--out", "order.json"]) == 0
    assert "APFD" in capsys.readouterr().out
    written = json.loads(Path("order.json").read_text())
    assert len(written["rows"]) == 200
    assert written["apfd"] > 0.5
    assert main(["rank", *NAMED, "--by", "margin", "--format", "json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert "apfd" not in plain
