"""The settling experiments of ARGUS: what is counted, and what training mode does."""

import torch
from torch import nn

from hardcase.models.subject import Subject
from hardcase.spaces.latent import Grid
from hardcase.testing.toys import ToyQuantiser
from hardcase_studies import argus_settling
from hardcase_studies.argus_paper import ABLATION, PAPER
from hardcase_studies.argus_settling import in_training_mode, run
from hardcase_studies.lab import LatentModel
from tiny import bars

CARD = {"configuration": {"family": "vqvae", "kind": "toy"}, "accuracy": 1.0}


def test_published_numbers_are_those_of_the_tables():
    assert len(PAPER) == 6 * 7
    assert PAPER["lenet5", "ARGUS 0.3"] == (0.0066, 0.8768, 8.6, 43.75, 100)
    assert PAPER["resnet18", "dlfuzz@adapt"].er == 39.13
    assert ABLATION["no VQ"].cells() == ["0.0243", "0.6594", "6.0", "32.28 %", "100 %"]


def test_training_mode_normalises_by_the_batch_and_moves_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3))
    net[1].running_mean.fill_(5.0)  # far from any batch
    subject = Subject(net, classes=("a", "b", "c"))
    x = torch.rand(16, 1, 8, 8)
    said = in_training_mode(subject)(x)
    with torch.no_grad():
        fresh = nn.Sequential(*net).train()(x).argmax(1)
    assert torch.equal(said, fresh)
    assert float(subject.net[1].running_mean.mean()) == 5.0
    assert torch.equal(in_training_mode(subject)(x), said), "asked twice, the same"


def test_every_network_meets_every_generator_and_the_paper_stands_beside(bench, monkeypatch):
    net = ToyQuantiser()
    library = bars(60)
    made = LatentModel(net, Grid(net), CARD, library)
    asked = []

    def quantised(here, **options):
        asked.append(options.get("reduction"))
        return made

    monkeypatch.setattr(argus_settling, "quantised", quantised)
    here = bench(
        originals=6, partners=5, mixes=[0.0, 0.3], plain=1, normalised="lenet1", model_epochs=4, own_epochs=4,
        reductions=["sum"], normalised_epochs=4,
    )  # fmt: skip
    outcome = run(here)
    assert asked == [None, None, "sum", "sum", "sum"]
    every, kept, likeness, paper = outcome.tables
    assert [row[0] for row in every.rows][:4] == [
        "no discriminators; lenet1, as trained here", "no discriminators; lenet1, not augmented, 1",
        "no discriminators; lenet1", "no discriminators; lenet1, in training mode",
    ]  # fmt: skip
    assert len(every.rows) == 8
    assert len(kept.rows) == 6, "one image is no batch"
    assert [row[0] for row in likeness.rows] == ["no discriminators", "jointly, sum"]
    assert paper.rows == [], "the paper has no such network"


def test_the_papers_point_is_reached_or_above_every_curve(tmp_path):
    from hardcase_studies.bench import Bench

    wrong = {"net": torch.tensor([[True, False], [False, False]])}
    spots = [
        argus_settling.Spot("g", 0.1, 0.001, 0.9, wrong),
        argus_settling.Spot("g", 0.5, 0.0016, 0.5, {"net": ~wrong["net"]}),
    ]
    rows = argus_settling._paper(spots, Bench(out=tmp_path)).rows
    assert [row[-1] for row in rows] == ["reached", "reached", "reached"]
    assert rows[0][3] == 25.0
    assert (
        argus_settling._paper(spots[1:], Bench(out=tmp_path)).rows[0][4] == "no setting is so like"
    )
