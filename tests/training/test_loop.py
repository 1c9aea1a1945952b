"""The training loop learns, repeats itself to the byte, keeps to its own randomness, and says what is wrong."""

import json
import logging
import math
from dataclasses import replace

import pytest
import torch
from played_device import PlayedDevice
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.randomness import named_randomness
from hardcase.training import cards
from hardcase.training.cards import OPTIMISERS, SCHEDULES, TrainingRecipe, geometry, load_card
from hardcase.training.loop import AUGMENTS, Goal, classify, fit, flip, predict
from tiny import bars, global_state, weights

RECIPE = TrainingRecipe(epochs=3, batch=20, lr=1e-2)


def net(seed=0, dropout=0.3):
    with named_randomness(seed, "test"):
        body = (nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Dropout(dropout))
        return nn.Sequential(*body, nn.Linear(16, 3))


def fitted(seed=0, recipe=RECIPE, images=None, **options):
    trained = net()
    return trained, fit(trained, images or bars(), classify(3), recipe, seed=seed, **options)


def test_it_learns_and_leaves_the_network_in_eval_mode():
    trained, history = fitted()
    assert not trained.training
    assert float((predict(trained, bars(seed=1)) == bars(seed=1).y).float().mean()) > 0.95
    assert len(history.loss) == 3
    assert history.steps == 18
    assert history.loss[-1] < history.loss[0] / 2
    assert history.warnings == ()


def test_several_steps_are_prepared_at_once_on_a_device_and_teach_as_much():
    with PlayedDevice():
        trained, history = fitted()
    assert history.steps == 18
    assert float((predict(trained, bars(seed=1)) == bars(seed=1).y).float().mean()) > 0.95


@pytest.mark.parametrize("recipe", [RECIPE, *(replace(RECIPE, augment=name) for name in AUGMENTS)])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(recipe):
    first, again, other = (weights(fitted(seed, recipe)[0]) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_the_bytes_do_not_depend_on_global_randomness_which_survives():
    torch.manual_seed(1)
    before = global_state()
    first = weights(fitted()[0])
    assert global_state() == before
    torch.manual_seed(2)
    assert weights(fitted()[0]) == first

    def burst(trained, x, y, noise):
        raise ValueError(str(torch.rand(1)))

    before = global_state()
    with pytest.raises(ValueError, match="tensor"):
        fit(net(), bars(), Goal(burst, lambda trained, x, y: x, 1.0), RECIPE, seed=0)
    assert global_state() == before


def test_every_image_is_seen_once_an_epoch():
    seen = []

    def loss(trained, x, y, noise):
        seen.append((x[:, 0, 0, 0] * 255).round())
        return classify(3).loss(trained, x, y, noise)

    images = bars(60)
    images.x[:, 0, 0, 0] = torch.arange(60)
    fit(net(), images, replace(classify(3), loss=loss), RECIPE, seed=0)
    epochs = torch.cat(seen).reshape(3, 60)
    assert (epochs.sort(1).values == torch.arange(60)).all()
    assert not (epochs[0] == epochs[1]).all()


def test_progress_tells_every_epoch_and_ends_at_the_last_step():
    told = []
    fitted(progress=told.append)
    assert {report.epoch for report in told} == {1, 2, 3}
    assert (told[-1].step, told[-1].steps, told[-1].epochs) == (18, 18, 3)
    assert all(math.isfinite(report.loss) for report in told)
    assert all("bars" in report.what for report in told)


def test_a_dead_network_and_a_loss_that_is_not_a_number_stop_the_training():
    def lost(trained, *_):
        return trained[1].weight.sum() * torch.nan

    with pytest.raises(HardcaseError, match="the loss became nan by step 1"):
        fit(net(), bars(), replace(classify(3), loss=lost), RECIPE, seed=0)
    dead = net()
    nn.init.constant_(dead[1].bias, -1e6)
    with pytest.raises(HardcaseError, match="one and the same answer for 120 different images"):
        fit(dead, bars(), classify(3), RECIPE, seed=0)


def test_learning_nothing_is_said_not_hidden(caplog):
    told = []
    lazy = replace(RECIPE, lr=1e-9)
    assert classify(3).chance == pytest.approx(math.log(3))
    with caplog.at_level(logging.WARNING):
        goal = replace(classify(3), chance=0.5)
        history = fit(net(), bars(), goal, lazy, seed=0, progress=told.append)
    heads = [text.split(" the loss")[0] for text in history.warnings]
    assert heads == ["after epoch 1 of 3", "after epoch 3 of 3"]
    assert all(text.endswith("ignoring the input costs 0.5") for text in history.warnings)
    warned = [report.warning for report in told if report.warning]
    assert warned == list(history.warnings) == caplog.messages


def test_a_recipe_that_cannot_be_is_refused():
    unknown = {"optimiser": "adm", "schedule": "cosin", "augment": "shfit"}
    for kind, name in unknown.items():
        with pytest.raises(HardcaseError, match=f"no {kind.replace('ment', 'mentation')} '{name}'"):
            fitted(recipe=replace(RECIPE, **{kind: name}))
    for change in ({"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(HardcaseError, match="at least one epoch"):
            replace(RECIPE, **change)


def test_small_data_gets_more_epochs_and_a_batch_may_be_larger_than_the_data():
    recipe = TrainingRecipe(epochs=10, steps=1000, batch=64, lr=1.0)
    assert recipe.rounds(4000) == (17, 62)
    assert recipe.rounds(60_000) == (10, 937)
    assert recipe.rounds(10) == (1000, 1)
    assert fitted(images=bars(12))[1].steps == 3


def test_a_long_gradient_is_shortened():
    whole = TrainingRecipe(epochs=1, batch=len(bars()), lr=1.0)
    steep = replace(whole, optimiser="sgd", schedule="constant")
    moved = {}
    for clip in (0.0, 1e-3):
        trained, _ = fitted(recipe=replace(steep, clip=clip))
        pairs = zip(trained.parameters(), net().parameters())
        moved[clip] = float(sum((a - b).detach().square().sum() for a, b in pairs)) ** 0.5
    assert moved[1e-3] == pytest.approx(1.9e-3, rel=1e-3)  # Nesterov's first step is 1 + momentum
    assert moved[0.0] > 10 * moved[1e-3]


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_every_optimiser_learns(name):
    rate = {"adam": 1e-2, "sgd": 5e-2}[name]
    _, history = fitted(recipe=replace(RECIPE, optimiser=name, lr=rate, epochs=6))
    assert history.loss[-1] < 0.5


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_schedules_stay_between_nothing_and_the_full_rate(name):
    factors = [SCHEDULES[name](step / 100) for step in range(100)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == pytest.approx(1, abs=0.01)


def test_every_step_is_taken_at_the_rate_of_its_schedule(monkeypatch):
    """The first step at the schedule's beginning, the last one step before its end."""
    rates = []

    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    monkeypatch.setitem(OPTIMISERS, "sgd", lambda parameters, lr, decay: Noting(parameters, lr=lr))
    _, history = fitted(recipe=replace(RECIPE, optimiser="sgd", schedule="cosine", lr=0.1))
    parts = (done / history.steps for done in range(history.steps))
    assert rates == [0.1 * SCHEDULES["cosine"](part) for part in parts]
    stairs = SCHEDULES["stairs"]
    assert [stairs(done) for done in (0.39, 0.4, 0.79, 0.8)] == pytest.approx([1, 0.1, 0.1, 0.01])


def refused(train, test, message):
    with pytest.raises(HardcaseError, match=message):
        geometry(train, test)


def test_data_that_cannot_be_learned_from_is_refused():
    good = bars()
    assert geometry(good, bars(9, split="test")) == (1, 12, 3)
    refused(replace(good, x=good.x[:, :, :6]), good, "square and alike")
    refused(good, bars(size=15), "square and alike")
    refused(good, bars(classes=4), "classes")
    refused(good.take(torch.arange(0)), good, "train split of bars holds no images")
    refused(replace(good, y=good.y + 1), good, "40 of 120 labels lie outside the 3 classes")
    refused(replace(good, y=good.y * 0), good, "single class")


CONFIG = {"name": "small", "width": (3, 4)}


def kept(data="d1", measured_on="m1", config=CONFIG, calls=None, train=None):
    calls = [] if calls is None else calls

    def count(what):
        calls.append(what)
        return {what: len(calls)}

    def teach(trained):
        nn.init.constant_(trained[1].bias, 0.5)
        return count("trained")

    how = {"data": data, "build": lambda config: net(), "train": train or teach}
    how |= {"measure": lambda trained: count("measured"), "measured_on": measured_on}
    return cards.cached("toy", "small", config, **how)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def only_folder(cache):
    (folder,) = (cache / "networks").iterdir()
    return folder


def test_a_card_round_trip(cache):
    calls = []
    first, card = kept(calls=calls)
    again, same = kept(calls=calls)
    assert calls == ["trained", "measured"]
    assert card == same
    assert weights(first) == weights(again)
    assert again[1].bias.tolist() == [0.5] * 16
    folder = only_folder(cache)
    assert folder.name.startswith("toy-small-")
    assert {path.name for path in folder.iterdir()} == {"card.json", "weights.safetensors"}
    assert card["configuration"] == {"name": "small", "width": [3, 4]}
    assert card["data"] == "d1"
    assert card.keys() >= {"kind", "name", "versions", "weights", "schema", "trained", "measured"}
    assert card["versions"].keys() == {"python", "torch", "hardcase"}
    assert folder == cards.folder_of("toy", "small", CONFIG, "d1")


def test_other_data_is_trained_anew_and_another_yardstick_measures_again(cache):
    calls = []
    kept(calls=calls)
    _, card = kept(calls=calls, measured_on="m2")
    assert calls == ["trained", "measured", "measured"]
    assert card["measured"] == 3
    assert card == cards.read_card(only_folder(cache))
    kept(calls=calls, measured_on="m2")
    assert len(calls) == 3
    calls.clear()
    for data, config in (("d3", CONFIG), ("d2", CONFIG), ("d1", {**CONFIG, "seed": 1})):
        kept(data=data, config=config, calls=calls)
    assert calls.count("trained") == 3
    assert len(list((cache / "networks").iterdir())) == 1 + 3


def test_two_that_train_at_once_both_succeed_with_the_same_network(cache):
    inner = []

    def slow(trained):
        inner.append(kept())
        nn.init.constant_(trained[1].bias, 9.0)
        return {"trained": 1}

    outer, card = kept(train=slow)
    assert weights(outer) == weights(inner[0][0])
    assert card == inner[0][1]
    assert only_folder(cache).name.startswith("toy-")


def test_a_failed_training_leaves_nothing(cache):
    def fail(trained):
        raise HardcaseError("no")

    with pytest.raises(HardcaseError, match="no"):
        kept(train=fail)
    assert list((cache / "networks").iterdir()) == []


def other_configuration(raw):
    return json.dumps({**json.loads(raw), "configuration": {"name": "large"}}).encode()


@pytest.mark.parametrize(
    ("named", "spoil"),
    [
        ("weights.safetensors", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
        ("weights.safetensors", lambda raw: raw[: len(raw) // 2]),
        ("weights.safetensors", None),
        ("card.json", lambda raw: b"{"),
        ("card.json", lambda raw: b"[]"),
        ("card.json", lambda raw: b"\xff\xfe"),
        ("card.json", None),
        ("card.json", other_configuration),
    ],
)
def test_a_damaged_cache_names_the_file_and_what_to_delete(cache, named, spoil):
    kept()
    folder = only_folder(cache)
    raw = (folder / named).read_bytes()
    (folder / named).unlink()
    if spoil:
        (folder / named).write_bytes(spoil(raw))
    with pytest.raises(HardcaseError) as told:
        kept()
    assert named in told.value.what
    assert str(folder) in str(told.value)
    assert told.value.fix.startswith(f"delete card.json and weights.safetensors in {folder}")
    for path in folder.iterdir():
        path.unlink()
    assert kept()[1]["data"] == "d1"


def test_a_folder_without_a_network_is_told_without_asking_to_delete_it(tmp_path):
    with pytest.raises(HardcaseError, match="there is no trained network in") as told:
        load_card(tmp_path, lambda config: net(), kind="toy")
    assert told.value.fix == ""


def test_a_network_made_from_other_data_or_of_another_kind_is_refused(cache):
    kept()
    folder = only_folder(cache)
    assert load_card(folder, lambda config: net(), kind="toy", data="d1")[1]["data"] == "d1"
    with pytest.raises(
        HardcaseError, match="trained on other data: its card says d1, asked for is d2"
    ):
        load_card(folder, lambda config: net(), kind="toy", data="d2")
    with pytest.raises(HardcaseError, match="describes a toy, not a vae"):
        load_card(folder, lambda config: net(), kind="vae")
    with pytest.raises(HardcaseError, match=r"weights\.safetensors cannot be used"):
        load_card(folder, lambda config: nn.Linear(2, 2), kind="toy")


def test_a_cache_that_cannot_be_written_is_told_before_training(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HARDCASE_CACHE", str(blocked))
    calls = []
    with pytest.raises(HardcaseError, match="cannot write"):
        kept(calls=calls)
    assert calls == []


def test_a_shift_moves_whole_images_and_a_flip_mirrors_them():
    rng = torch.Generator().manual_seed(0)
    dots = torch.zeros(64, 2, 9, 9)
    dots[:, :, 4, 4] = 1
    moved = AUGMENTS["shift"](dots, rng)
    assert (moved.sum((2, 3)) == 1).all()
    assert (moved[:, 0] == moved[:, 1]).all()
    places = moved[:, 0].nonzero()[:, 1:]
    assert places.min() >= 2
    assert places.max() <= 6
    assert len(places.unique(dim=0)) > 10
    corner = torch.zeros(64, 1, 4, 4)
    corner[:, :, 0, 0] = 1
    mirrored = flip(corner, rng)
    share = float(mirrored[:, 0, 0, 3].mean())
    assert 0.25 < share < 0.75
    assert (mirrored[:, 0, 0, 0] + mirrored[:, 0, 0, 3] == 1).all()


@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_augmentation_keeps_shape_and_range_and_repeats_itself(name, channels):
    x = torch.rand(8, channels, 12, 12, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    first, again = (AUGMENTS[name](x, torch.Generator().manual_seed(2)) for _ in range(2))
    assert first.shape == x.shape
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1
    assert torch.equal(first, again)
    assert torch.equal(x, before)
    assert name == "none" or not torch.equal(first, x)
