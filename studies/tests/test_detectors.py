"""Claims about toy scenes: which are taken, what a lost one is, and names that are not there."""

import torch

from claims.toys import CLASSES, Pixels, Windows, scenes
from hardcase.campaign.claims import Claims
from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.load import claim_model
from hardcase_studies import detectors


def world(monkeypatch, count=6):
    monkeypatch.setattr(detectors, "SMALLEST", 16)
    known = AnnotatedImages(*scenes(count))
    subject = claim_model(Windows(), "boxes", CLASSES)
    return known, subject, detectors.large_objects(known)


def test_one_claim_an_image_the_largest_that_is_usable(monkeypatch):
    known, subject, objects = world(monkeypatch)
    assert bool(detectors.made(subject, objects).all())
    seeds = detectors.largest_of_each(objects)
    assert len({name.rpartition("#")[0] for name in seeds.id}) == len(seeds) == len(known)
    none = torch.zeros(len(objects), dtype=torch.bool)
    assert len(detectors.largest_of_each(objects, none)) == 0


def test_a_segmenter_keeps_a_box_that_its_class_covers_and_no_other(monkeypatch):
    _, _, objects = world(monkeypatch)
    seeds = detectors.largest_of_each(objects)
    segmenter = claim_model(Pixels(), "masks", CLASSES)
    assert bool(detectors.made(segmenter, seeds).all())
    claims = Claims.of(seeds)
    other = detectors.replace(claims, label=1 - claims.label)
    assert not bool(detectors.keeps(segmenter, seeds.x, other).any())


def test_what_is_lost_is_kept_by_the_witness_where_it_moved(monkeypatch):
    _, subject, objects = world(monkeypatch)
    seeds = detectors.largest_of_each(objects)
    witness = claim_model(Windows(shift=0.02), "boxes", CLASSES)
    method = detectors._searches(seeds, 60)["natural-blackbox"]
    found = detectors.lost_claims(subject, witness, method, seeds)
    kept = found.kept
    assert bool(found.lost[kept.seed].all())
    assert len(set(kept.seed.tolist())) == len(kept.seed) > 0
    assert not bool(detectors.keeps(subject, kept.x, kept.claims).any())
    assert bool(detectors.keeps(witness, kept.x, kept.claims).all())


def test_a_wrong_name_is_of_no_object_in_the_image(monkeypatch):
    known, _, _ = world(monkeypatch)
    shown = [set(one.labels.tolist()) for one in known.annotations]
    single = [row for row, labels in enumerate(shown) if len(labels) == 1]
    some = known.take(torch.tensor(single))
    seeds = detectors.largest_of_each(detectors.large_objects(some))
    wrong = detectors.absent_names(seeds, some)
    assert all(int(one) not in shown[row] for row, one in zip(single, wrong))
    assert detectors.mean_precision(claim_model(Windows(), "boxes", CLASSES), known) > 0.5
