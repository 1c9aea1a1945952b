"""The lab: everything is made once, and only when it is asked for."""

import pytest

from hardcase.errors import HardcaseError
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_studies import lab
from hardcase_studies.lab import Lab, labs


def test_each_split_is_loaded_once(bench, monkeypatch):
    loaded = []
    plain = lab.load
    monkeypatch.setattr(
        lab, "load", lambda name, *, split: loaded.append(split) or plain(name, split=split)
    )
    here = Lab(bench())
    assert loaded == []
    assert len(here.notes) == 2
    assert here.subject is here.subject
    assert here.latent is here.latent
    assert len(here.codes.codes) == len(here.train)
    assert sorted(loaded) == ["test", "train"]
    assert "240 training images" in here.notes[0]
    assert len(here.notes) == 3, "the generator too, once it was used"
    assert len(Lab(bench(train_images=30)).train) == 30


def test_seeds_are_correctly_classified_by_all_models(bench):
    images = toy_images(24, seed=3)
    here = Lab(bench(), splits=(images, images), subject=toy_subject())
    seeds = here.seeds(8, seed=0)
    assert len(seeds) == 8
    assert bool((toy_subject()(seeds.x.float() / 255).logits.argmax(1) == seeds.y).all())


def test_networks_under_test_share_their_data(bench):
    made = labs(bench(model_epochs=12), ["lenet1", "lenet4"])
    assert list(made) == ["lenet1", "lenet4"]
    one, two = made.values()
    assert one.train is two.train
    assert one.subject.name == "zoo:lenet1"


def test_a_network_without_gradients_is_refused(bench, monkeypatch):
    monkeypatch.setattr(lab, "load_model", lambda name, how: object())
    with pytest.raises(HardcaseError, match="shows no layers"):
        _ = Lab(bench(), ["http://x"]).subject
