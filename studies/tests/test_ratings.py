"""The papers' studies with people: what is set up is whole, blind, and answered like any other study."""

from types import SimpleNamespace

import pytest
import torch

from hardcase.methods.pgd import cw
from hardcase.testing.toys import toy_images
from hardcase.types import Findings
from hardcase_studies import ratings
from hardcase_studies.argus_measure import Measured, PerSeed
from hardcase_studies.lab import Lab
from hardcase_study import Study, analyse, simulate


@pytest.fixture
def few_strengths(monkeypatch):
    monkeypatch.setattr(ratings, "EPSILONS", (0.05, 0.2, 0.5))
    monkeypatch.setattr(ratings, "cw", lambda target: cw(target=target, steps=20, rounds=3))


@pytest.mark.usefixtures("few_strengths")
def test_quadruples_lie_between_the_same_two_classes(bench):
    here = Lab(bench())
    made = ratings.quadruples(here, 6)
    assert 0 < len(made) <= 6
    said = here.subject(made.x.flatten(0, 1).float() / 255).logits.argmax(1).reshape(len(made), 3)
    assert bool((said == made.target[:, None]).all())
    assert bool((made.seeds.y != made.target).all())
    assert len(made) <= made.tried <= 12
    assert ratings.quadruples(here, 1).tried < made.tried


@pytest.mark.usefixtures("few_strengths")
def test_sinvads_study_from_nothing_to_its_figures(bench, written):
    ready = bench(quadruples=4, raters=6)
    text = written(ratings.sinvad(ready), ready)
    assert "hardcase study serve" in text
    study = Study.open(ready.out / "study")
    assert study.design == "sinvad"
    assert study.settings["quadruples"] == len(study.main) / 3
    assert {one.method for one in study.stimuli.values()} == {"", *ratings.METHODS}
    simulate(study)
    found = analyse(study.folder)["all"]["sinvad"]
    assert [row["method"] for row in found["methods"]] == ["real", "cw", "fgsm", "sinvad"]


def measured(seeds, count):
    """As if a method had made `count` images of every seed."""
    none = torch.zeros(len(seeds))
    x = seeds.x[:, None].repeat(1, count, 1, 1, 1)
    x[:, 1:] = 255 - x[:, 1:]
    number = torch.zeros(0, dtype=torch.int64)
    share = torch.zeros(0)
    nothing = Findings(
        seed=number, x=seeds.x[:0], kind=number, expected=number, predicted=number, peer_predicted=number.reshape(0, 0),
        confidence=share, score=share, distance=share, queries=number, code=share.reshape(0, 0),
    )  # fmt: skip
    return Measured(
        seeds=PerSeed(none, none, none, none, none), kept=none.bool(), alike=none, made=none, mse=none, ssim=none, judged=None,
        findings=nothing, sample=x, there=torch.ones(len(seeds), count, dtype=torch.bool), lost=0, originals=len(seeds),
    )  # fmt: skip


def test_arguss_study_draws_from_all_that_was_made(tmp_path, monkeypatch, written):
    from hardcase.testing.toys import toy_subject
    from hardcase_studies.bench import Bench

    seeds = toy_images(4, seed=1)
    here = SimpleNamespace(subject=toy_subject(), notes=["toys"], originals=lambda: [seeds])
    monkeypatch.setattr(ratings, "labs", lambda *args, **options: {"toy": here})
    monkeypatch.setattr(ratings, "quantised", lambda *args, **options: SimpleNamespace(note="none"))
    monkeypatch.setattr(ratings, "interpolated", lambda *args: measured(seeds, 2))
    monkeypatch.setattr(ratings, "rival", lambda *args: measured(seeds, 3))
    bench = Bench(out=tmp_path, options={"raters": 5})
    outcome = ratings.argus(bench)
    written(outcome, bench)
    assert [row[:2] for row in outcome.tables[0].rows] == [
        *([f"ARGUS {mix}", 8] for mix in ratings.MIXES),
        *([name, 12] for name in ratings.RIVALS),
    ]
    study = Study.open(tmp_path / "study")
    assert study.raters == 5
    classes = len(set(seeds.y.tolist()))
    assert len(study.main) == classes
    assert all(len(item.stimuli) == 7 for item in study.main.values())
    kinds = {one.predicted == one.expected for one in study.stimuli.values() if one.role == "test"}
    assert kinds == {True, False}
    assert study.settings["drawn_from"] == "all generated images"
    simulate(study)
    assert len(analyse(study.folder)["all"]["argus"]["methods"]) == 7
