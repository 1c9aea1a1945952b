"""Class escapes on a toy world, and what is said about a network that was spoilt on purpose."""

import json
from dataclasses import replace

import pytest
import torch

from hardcase.methods.sinvad import sinvad_code
from hardcase.spaces.latent import Latent
from hardcase.testing.toys import CLASSES, ToyAutoencoder, toy_images, toy_subject
from hardcase.types import ClassNames, Images
from hardcase_studies import escape

SPACE = Latent(ToyAutoencoder())


@pytest.fixture(scope="module")
def measured():
    return escape.measure(toy_subject(), escape.ways_out(SPACE, None, walks=6), toy_images(24))


def test_ways_out_are_counted_by_class(measured):
    escapes, walks, seeds = measured
    assert escapes.seeds == len(seeds) == 24
    assert (
        int(escapes.entered.sum()) == int(escapes.attempts.sum()) == int((walks.entered >= 0).sum())
    )
    assert int(escapes.entered.diag().sum()) == 0
    rows = escapes.rate.nan_to_num(0).sum(1)
    assert torch.allclose(rows, torch.ones(4))


def test_the_published_count_reaches_only_targets(measured):
    def method(target):
        return sinvad_code(
            space=SPACE, target=target, population=20, elite=8, spread=1.5, generations=10
        )

    counted = escape.measure_as_published(toy_subject(), method, toy_images(8), targets=(0, 2))
    assert bool((counted.entered <= counted.attempts[:, None]).all())
    assert int(counted.entered[:, [1, 3]].sum()) == 0
    assert int(counted.entered.sum()) > 0


def told(floor, measured):
    escapes, walks, seeds = measured
    return escape.Escaped(
        ClassNames(CLASSES), escapes, walks, seeds, torch.eye(4).long() * 6, floor
    )


def test_a_mixed_pair_is_named_and_only_that(measured):
    floor = torch.full((4, 4), 1e-4).fill_diagonal_(torch.nan)
    floor[0, 3] = 0.03
    ranked = escape.pairs(told(floor, measured))
    assert [(p.source, p.goal) for p in ranked if p.suspicious] == [(0, 3)]
    assert (ranked[0].source, ranked[0].goal) == (0, 3)
    assert "mislabelled or under-trained: north-west → south-east" in escape.answer(
        told(floor, measured), ranked
    )


def test_a_clean_and_an_unsure_network_are_not_accused_of_a_pair(measured):
    for level, words in (
        (1e-4, "No class pair looks mislabelled"),
        (0.1, "unsure between many classes"),
    ):
        floor = torch.full((4, 4), level).fill_diagonal_(torch.nan)
        ranked = escape.pairs(told(floor, measured))
        assert not any(p.suspicious for p in ranked)
        assert words in escape.answer(told(floor, measured), ranked)


def test_a_subject_without_scores_is_not_given_an_all_clear(measured):
    record = told(torch.full((4, 4), torch.nan), measured)
    ranked = escape.pairs(record)
    assert {p.suspicious for p in ranked} == {None}
    assert ranked[0].rate >= ranked[-1].rate
    said = escape.answer(record, ranked)
    assert said.startswith("Not measured")
    assert "No class pair" not in said


def clean_rates(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rates = torch.rand(count, 4, 4, generator=rng)
    rates.diagonal(dim1=1, dim2=2).fill_(0)
    return list(rates / rates.sum(2, keepdim=True))


def test_labels_alone_suffice_beside_clean_retrainings():
    """A pair that takes all ways out is found; networks like the clean ones are seldom accused."""
    null = clean_rates(12)
    mixed = clean_rates(1, seed=5)[0]
    mixed[0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert float(escape.unusual(mixed, null)[0, 1]) == pytest.approx(1 / 13)
    low = [float(escape.unusual(rate, null).min()) <= escape.LEVEL for rate in clean_rates(80, 9)]
    assert sum(low) / 80 < 0.3


@pytest.mark.parametrize("level", [0.18, 1e-4])
def test_clean_retrainings_never_turn_a_found_fault_into_an_all_clear(measured, level):
    """Ways out have little power: what the median probability shows stays beside what they show."""
    floor = torch.full((4, 4), 1e-4).fill_diagonal_(torch.nan)
    floor[0, 3] = level
    alone = told(floor, measured)
    null = (alone.escapes.rate.nan_to_num(0.0),) * escape.CLEAN
    beside = replace(alone, null=null)
    named = [(p.source, p.goal) for p in escape.pairs(alone) if p.suspicious]
    assert [(p.source, p.goal) for p in escape.pairs(beside) if p.suspicious] == named
    said = escape.answer(beside, escape.pairs(beside))
    assert ("north-west → south-east (18.0%" in said) == bool(named)
    assert "No class pair has more ways out" in said
    kinds = [row["evidence"] for row in escape.as_json(beside)["suspicious"]]
    assert kinds == [[escape.MEDIAN]] * len(named)


def test_pictures_tables_and_numbers_are_written(measured, tmp_path):
    floor = torch.full((4, 4), 1e-4).fill_diagonal_(torch.nan)
    page = escape.outcome(told(floor, measured), SPACE.vae.decode, tmp_path).write(tmp_path)
    assert "Class pairs" in page.read_text()
    assert (tmp_path / "escape.png").stat().st_size > 1000
    assert (tmp_path / "examples.png").stat().st_size > 1000
    numbers = json.loads(json.dumps(escape.as_json(told(floor, measured))))
    assert numbers["escape"][0][0] is None
    assert numbers["confusion"][0][0] == 6


def test_nobody_to_walk_from():
    images = toy_images(4)
    wrong = Images(images.x, (images.y + 1) % 4, images.id, images.classes, name="toy")
    escapes, walks, seeds = escape.measure(toy_subject(), escape.ways_out(SPACE, None), wrong)
    assert (escapes.seeds, len(walks.seed), len(seeds)) == (0, 0, 0)
    counted = escape.measure_as_published(
        toy_subject(), lambda target: sinvad_code(space=SPACE, target=target), wrong
    )
    assert int(counted.attempts.sum()) == 0
