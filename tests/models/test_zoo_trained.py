"""Trained networks: learned, kept, found again, measured on what they are asked about; attacks for training."""

import errno
from dataclasses import replace

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.models import zoo
from hardcase.models.zoo import attack
from hardcase.training import cards, monitor
from tiny import bars, global_state, kill_at, weights

TRAIN, TEST = bars(192, size=24), bars(60, size=24, seed=1, split="test")
SMALL = bars(64, size=24)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    return tmp_path


def test_a_trained_network_is_kept_and_found_again(cache):
    before = global_state()
    told = []
    net, card = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=8, progress=told.append)
    assert global_state() == before
    assert card["accuracy"] > 0.9
    known = card["configuration"]
    assert (known["name"], known["size"], card["seed"]) == ("lenet1", 24, 0)
    assert card["data"] == TRAIN.hash
    assert not net.training
    reports = len(told)
    again, same = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=8, progress=told.append)
    assert len(told) == reports
    assert same == card
    assert weights(again) == weights(net)


def test_an_emptied_cache_gives_the_same_bytes_again(cache, monkeypatch):
    first, _ = zoo.trained_classifier("sinvad-cnn", SMALL, TEST, epochs=2)
    monkeypatch.setenv("HARDCASE_CACHE", str(cache / "another"))
    again, _ = zoo.trained_classifier("sinvad-cnn", SMALL, TEST, epochs=2)
    other, _ = zoo.trained_classifier("sinvad-cnn", SMALL, TEST, epochs=2, seed=1)
    assert weights(first) == weights(again)
    assert weights(first) != weights(other)


def test_a_training_that_was_stopped_goes_on_to_the_same_bytes(cache, monkeypatch):
    whole, _ = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=2)
    monkeypatch.setenv("HARDCASE_CACHE", str(cache / "another"))
    unharmed = kill_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=2)
    unharmed()
    told = []
    again, _ = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=2, progress=told.append)
    assert "goes on after step 3" in told[0].warning
    assert weights(again) == weights(whole)
    assert not list(cache.rglob("*.unfinished"))


def test_a_full_disk_at_the_end_loses_no_training(cache, monkeypatch):
    def full(path, *content, **how):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(monitor, "SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(cards, "write_atomically", full)
        with pytest.raises(HardcaseError, match="No space left"):
            zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=2)
    assert list(cache.rglob("*.unfinished"))
    told = []
    zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=2, progress=told.append)
    assert not told  # no step was left to do


def test_another_test_set_is_measured_without_training():
    net, card = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=8)
    wrong = replace(TEST, y=(TEST.y + 1) % 3)
    told = []
    same, other = zoo.trained_classifier("lenet1", TRAIN, wrong, epochs=8, progress=told.append)
    assert told == []
    assert weights(same) == weights(net)
    assert other["accuracy"] < 0.1 < card["accuracy"]


def test_a_network_that_always_says_the_same_is_not_kept(cache):
    bad = replace(TRAIN, y=(torch.arange(192) == 0).long())
    with pytest.raises(HardcaseError, match="says '0' of all 60 images"):
        zoo.trained_classifier("lenet1", bad, TEST, epochs=2)
    assert list((cache / "networks").iterdir()) == []


@pytest.mark.parametrize(("text", "order"), [("linf:0.1", float("inf")), ("l2:1.5", 2)])
def test_an_attack_stays_in_its_ball_and_raises_the_loss(text, order):
    net, _ = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=4)
    x, y = TEST.x.float() / 255, TEST.y
    before = x.clone()
    radius = float(text.split(":")[1])

    def attacked(steps):
        return attack(text, steps=steps)(net, x, y, torch.Generator().manual_seed(0))

    moved = attacked(5)
    assert (moved - x).flatten(1).norm(order, dim=1).max() <= radius + 1e-5
    assert (moved - x).flatten(1).norm(order, dim=1).min() > radius / 3
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert torch.equal(x, before)
    loss = torch.nn.functional.cross_entropy
    assert loss(net(moved), y) > loss(net(attacked(0)), y) > 0
    assert loss(net(moved), y) > 1.5 * loss(net(x), y)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_adversarial_training_is_another_network_and_harder_to_attack():
    plain, _ = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=16)
    hard, card = zoo.trained_classifier("lenet1", TRAIN, TEST, epochs=16, adversarial="linf:0.2")
    assert card["configuration"]["adversarial"] == "linf:0.2"
    x, y = TEST.x.float() / 255, TEST.y

    def cost(net):
        moved = attack("linf:0.2", steps=10)(net, x, y, torch.Generator().manual_seed(0))
        return torch.nn.functional.cross_entropy(net(moved), y).item()

    assert cost(hard) < cost(plain) * 0.8 < 0.1


@pytest.mark.parametrize("text", ["linf", "linf:", "linf:-1", "linf:nan", "l1:0.1", "linf:inf"])
def test_an_attack_that_cannot_be_is_refused(text):
    with pytest.raises(HardcaseError):
        attack(text)
