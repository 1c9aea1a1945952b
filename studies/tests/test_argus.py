"""The ARGUS tables on the toy world: what each column counts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.methods.generative import argus as interpolated, argus_adaptive
from hardcase.spaces.latent import Grid
from hardcase.tensors import from_bytes, to_grid
from hardcase.testing.toys import ToyQuantiser, toy_images, toy_subject
from hardcase_studies import argus, argus_measure
from hardcase_studies.argus_measure import (
    EXTRA,
    RIVALS,
    measured,
    mixed,
    reconstruction_errors,
    rival,
)
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab, LatentModel, labs

NET, SUBJECT, TEST = ToyQuantiser(), toy_subject(), toy_images(24, seed=3)
CARD = {
    "configuration": {"family": "vqvae", "kind": "toy"},
    "ssim": 1.0, "mse": 0.0, "reconstruction_accuracy": 1.0, "judge_accuracy": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def generator():
    return LatentModel(NET, Grid(NET), CARD, toy_images(40, seed=2))


def toy_lab(bench):
    return Lab(bench, splits=(TEST, TEST), subject=SUBJECT)


@pytest.fixture
def toys(generator, monkeypatch):
    """The study's only network is the toy, its only generator the toy's."""
    monkeypatch.setattr(argus, "labs", lambda bench, names, **more: {"lenet5": toy_lab(bench)})
    monkeypatch.setattr(Lab, "generator", lambda *given, **options: generator)


def test_mixing_is_counted_image_by_image(generator):
    images = TEST.first(3)
    partner = torch.stack([generator.codes.by_class[int(y)][:4] for y in images.y])
    error, _, wrong = mixed(generator, SUBJECT, images, partner, 0.8)
    for i in range(3):
        for j in range(4):
            x = from_bytes(images.x[i : i + 1])
            code = 0.2 * NET.encode(x) + 0.8 * generator.codes.codes[partner[i, j]]
            made = to_grid(NET.decode(code))
            assert float(error[i, j]) == pytest.approx(float((made - x).square().mean()), rel=1e-3)
            assert bool(wrong[i, j]) == bool(SUBJECT(made).logits.argmax(1) != images.y[i])
    assert not bool(reconstruction_errors(generator, SUBJECT, images).any())


def test_rates_of_a_mix_are_shares_of_all_pairs(generator):
    groups = [TEST.first(4), TEST.take(torch.arange(4, 8))]
    done = measured(
        SUBJECT, interpolated(space=generator.space, partners=generator.codes, mix=0.7), groups
    )
    assert (done.originals, done.lost, len(done.seeds.er)) == (8, 0, 8)
    images = TEST.first(8)
    for i in range(8):
        partner = generator.codes.by_class[int(images.y[i])][None]
        wrong = mixed(generator, SUBJECT, images.take(torch.tensor([i])), partner, 0.7)[2]
        assert float(done.seeds.er[i]) == pytest.approx(float(wrong.float().mean()), abs=0.05)
    assert set(done.findings.seed.tolist()) <= set(range(8))
    adaptive = measured(
        SUBJECT, argus_adaptive(space=generator.space, partners=generator.codes), groups
    )
    assert float(adaptive.seeds.ld.mean()) >= float(done.seeds.ld.mean())
    assert bool((adaptive.alike <= adaptive.seeds.ld).all())


def test_nothing_is_set_aside_and_what_would_be_is_known(generator):
    """An original that the network misreads is counted, and apart from those it reads rightly."""
    wrong = replace(TEST.first(6), y=torch.cat([1 - TEST.y[:2].clamp_max(1), TEST.y[2:6]]))
    here = Lab(Bench(out=Path()), splits=(TEST, TEST), subject=SUBJECT)
    done = argus_measure.interpolated(here, generator, 1e-6, [wrong], count=8)
    right = SUBJECT(from_bytes(wrong.x)).logits.argmax(1) == wrong.y
    assert done.lost == 0
    assert done.originals == len(done.seeds.er) == 6
    assert done.kept.tolist() == right.tolist()
    assert done.seeds.er.tolist() == (~right).double().tolist(), (
        "next to mix 0 nothing else changes"
    )


@pytest.mark.usefixtures("toys")
def test_the_tables_hold_a_row_for_every_method_and_a_picture(generator, tmp_path):
    options = {"mixes": [0.2], "ablation": [0.7], "rivals": False, "originals": 4}
    bench = Bench(out=tmp_path, repeats=1, options=options)
    outcome = argus.comparison(bench)
    ours, paper = outcome.tables
    assert [row[1] for row in ours.rows] == [
        "ARGUS 0.2", "ARGUS 0.7, ablation: no discriminators", "argus-adaptive", "argus-adaptive, nothing taken back",
    ]  # fmt: skip
    assert all(len(row) == len(ours.columns) for row in ours.rows)
    assert ours.rows[0][ours.columns.index("ER at mix 0")] == "0.00 %"
    assert ours.rows[0][ours.columns.index("ER judged")] == ""
    assert any("no judge" in note for note in ours.notes)
    each = [len(generator.codes.by_class[int(y)]) for y in toy_lab(bench).originals()[0].y]
    assert ours.rows[0][ours.columns.index("perturbations an original")] == round(
        sum(each) / len(each)
    )
    assert len(paper.rows) == 7
    assert (tmp_path / outcome.figures[0]).read_bytes().startswith(b"\x89PNG")
    (ablation, _) = argus.ablation(
        Bench(out=tmp_path, repeats=1, options={"originals": 4, "mix": 0.7})
    ).tables
    assert [row[1] for row in ablation.rows] == [
        "full, mix 0.7",
        "no VQ, mix 0.7",
        "no discriminators, mix 0.7",
    ]


@pytest.mark.usefixtures("toys")
def test_a_generator_that_collapses_is_a_row(tmp_path, monkeypatch):
    def collapsed(here, mix):
        raise HardcaseError("the VQ-VAE has collapsed: 1 of 256 codes in use")

    monkeypatch.setattr(argus, "jointly", collapsed)
    options = {"mixes": [0.2], "ablation": [], "rivals": False, "originals": 4}
    (ours, _) = argus.comparison(Bench(out=tmp_path, repeats=1, options=options)).tables
    assert ours.rows[0][:2] == ["lenet5", "ARGUS 0.2: collapsed in training"]
    assert len(ours.rows[0]) == len(ours.columns)
    assert any("1 of 256" in note for note in ours.notes)


@pytest.mark.usefixtures("toys")
def test_every_method_is_compared_at_the_same_number_of_perturbations(
    generator, tmp_path, monkeypatch
):
    asked = []

    def rival(here, name, groups, count, *, bar):
        asked.append((name, count))
        return measured(
            SUBJECT,
            interpolated(space=generator.space, partners=generator.codes, mix=0.7, queries=count),
            groups,
        )

    monkeypatch.setattr(argus, "rival", rival)
    options = {"mixes": [0.7], "ablation": [], "originals": 4, "rival_queries": 7}
    (ours, _) = argus.comparison(Bench(out=tmp_path, repeats=1, options=options)).tables
    column = ours.columns.index("perturbations an original")
    made = {row[1]: row[column] for row in ours.rows}
    assert made["ARGUS 0.7"] > 7
    assert made["ARGUS 0.7, equal number"] == 7
    assert asked == [(name, 7) for name in (*RIVALS, *EXTRA)]
    assert all(made[name] == 7 for name in RIVALS)
    assert any("at 7 perturbations" in note for note in ours.notes)


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_make_as_many_images_as_they_are_asked_for(name, bench):
    (here,) = labs(bench(model_epochs=12), ["lenet1"]).values()
    done = rival(here, name, [here.right.first(3)], 60)
    assert len(done.made) == 3
    assert all(60 <= count < 60 + 50 for count in done.made.tolist())
    assert bool((done.seeds.er <= 1).all())


def test_diffchasers_peer_is_the_8_bit_copy(bench, monkeypatch):
    given = []

    def watched(subject, method, groups, **more):
        given.append((method, more))
        return measured(subject, method, groups, **more)

    monkeypatch.setattr(argus_measure, "measured", watched)
    (here,) = labs(bench(model_epochs=12), ["lenet1"]).values()
    rival(here, "diffchaser", [here.right.first(1)], 200)
    ((method, more),) = given
    assert [peer.name for peer in more["peers"]] == ["zoo:lenet1@int8"]
    assert (more["count"], method.until) == (200, "budget")
    assert (
        method.search.population + (method.search.generations - 1) * (method.search.population - 1)
        >= 200
    )


@pytest.mark.usefixtures("toys")
def test_retraining_is_measured_beside_its_controls_on_the_same_images(tmp_path):
    options = {"mixes": [0.7], "originals": 12, "added": 6, "retrain_epochs": 1}
    ours, paper = argus.retraining(Bench(out=tmp_path, repeats=2, options=options)).tables
    assert [row[0] for row in ours.rows] == [
        "before", argus.RANDOM, "augmented", argus.AGAIN, "ARGUS 0.7, generated", "ARGUS 0.7, failing",
    ]  # fmt: skip
    assert [row[1] for row in ours.rows] == [0, 6, 6, 6, 6, 6]
    assert any(f"scored on {len(TEST) - 6} test images" in note for note in ours.notes)
    assert paper.rows[0] == ["lenet5, Random", 98.12, 98.21]
    assert paper.rows[-1][0] == "resnet50, ARGUS-0.3"
