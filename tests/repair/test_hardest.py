"""The hardest draws: worst of several, deterministic, in place of a part of a batch, and as folders."""

import csv
import json
import runpy
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import hardcase as hc
from hardcase.cli.main import main
from hardcase.conditions import condition_box
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.adapters import LabelOnly
from hardcase.randomness import keys_of
from hardcase.repair.hardest import climb, export_hardest, render_draws, seeds_at
from hardcase.tensors import from_bytes, margin
from hardcase.testing.toys import toy_images, toy_subject
from tiny import bars, global_state

EXAMPLES = Path(__file__).parents[2] / "examples" / "repair"
WIDE = {"shift": "±20 %", "exposure": "±1 stops"}
DECLARED = hc.Conditions(WIDE, name="wide")


def worst_of_five(images, keys):
    """Of five samples of each image, the one with the largest loss of the toy network."""
    box = condition_box(DECLARED, images.shape)
    drawn, _ = render_draws(box, from_bytes(images.x), keys, 5, seed=3)
    logits, y = toy_subject().net(drawn.flatten(0, 1)), images.y.repeat_interleave(5)
    loss = functional.cross_entropy(logits, y, reduction="none")
    return drawn[torch.arange(len(images)), loss.reshape(-1, 5).argmax(1)]


def test_the_worst_of_more_draws_costs_more():
    images = toy_images(32)
    x, y = from_bytes(images.x), images.y
    net = toy_subject().net
    losses = []
    for draws in (1, 8):
        hard = hc.WorstOfK(net, WIDE, draws=draws, share=1.0)
        losses.append(float(functional.cross_entropy(net(hard(x, y)), y)))
    assert losses[1] > losses[0] + 0.1
    with pytest.raises(HardcaseError, match="0 draws"):
        hc.WorstOfK(torch.nn.Linear(1, 1), WIDE, draws=0)
    with pytest.raises(HardcaseError, match="profile of conditions"):
        hc.WorstOfK(torch.nn.Linear(1, 1), "scaner")


def test_the_returned_row_is_the_draw_with_the_largest_loss():
    images = toy_images(8)
    hard = hc.WorstOfK(toy_subject().net, WIDE, draws=5, share=1.0, seed=3)
    found = hard(from_bytes(images.x), images.y)
    assert torch.equal(found, worst_of_five(images, torch.arange(8)))


def test_draws_follow_from_the_seed_and_from_what_came_before():
    images = toy_images(16)
    x, y = from_bytes(images.x), images.y
    net = toy_subject().net
    before = global_state()
    one, two = hc.WorstOfK(net, WIDE, seed=1), hc.WorstOfK(net, WIDE, seed=1)
    first = one(x, y)
    assert torch.equal(first, two(x, y))
    assert not torch.equal(first, one(x, y)), "the next batch has draws of its own"
    two.load_state_dict(hc.WorstOfK(net, WIDE, seed=1).state_dict())
    assert torch.equal(first, two(x, y)), "a checkpoint goes on with the same draws"
    assert not torch.equal(first, hc.WorstOfK(net, WIDE, seed=2)(x, y))
    assert global_state() == before


def test_the_mode_of_the_network_and_its_statistics_stay():
    norm = torch.nn.BatchNorm2d(1)
    net = torch.nn.Sequential(norm, torch.nn.Flatten(), torch.nn.Linear(64, 4))
    images = toy_images(8)
    statistics = norm.running_mean.clone()
    hc.WorstOfK(net, WIDE)(from_bytes(images.x), images.y)
    assert net.training
    assert norm.training
    assert torch.equal(norm.running_mean, statistics)
    assert all(weight.grad is None for weight in net.parameters())


def test_normalised_images_are_changed_as_pixels_are():
    images = toy_images(8)
    x, y = from_bytes(images.x), images.y

    class Normalised(torch.nn.Module):
        def forward(self, x):
            return toy(x * 0.25 + 0.5)

    toy = toy_subject().net
    plain = hc.WorstOfK(toy, WIDE, share=1.0)(x, y)
    other = hc.WorstOfK(Normalised(), WIDE, share=1.0, mean=(0.5,), std=(0.25,))
    assert torch.allclose(other((x - 0.5) / 0.25, y) * 0.25 + 0.5, plain, atol=1.01 / 255)


def test_gradient_steps_go_further_than_the_worst_draw():
    images = toy_images(16)
    x, y = from_bytes(images.x), images.y
    net = toy_subject().net
    box = condition_box(hc.Conditions(WIDE), images.shape)
    origin = seeds_at(x, y, torch.zeros(16, box.size), torch.zeros(16, dtype=torch.int64))
    z = climb(net, box, origin, steps=20)
    assert float(margin(net(box.decode(z, origin)), y).mean()) > float(margin(net(x), y).mean())
    assert float(box.gauge(z).max()) <= 1 + 1e-6
    further = hc.WorstOfK(net, WIDE, draws=2, steps=5, share=1.0)(x, y)
    worst = hc.WorstOfK(net, WIDE, draws=2, share=1.0)(x, y)
    assert float(margin(net(further), y).mean()) > float(margin(net(worst), y).mean())


def test_a_loader_collates_harder_batches_in_its_own_process_alone():
    images = bars(12)
    rows = [(x, int(y)) for x, y in zip(from_bytes(images.x), images.y)]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    hard = hc.WorstOfK(net, WIDE)
    x, y = next(iter(DataLoader(rows, batch_size=6, collate_fn=hard.collate)))
    assert x.shape == (6, 1, 12, 12)
    assert y.tolist() == images.y[:6].tolist()
    assert not torch.equal(x[:3], from_bytes(images.x[:3]))
    assert torch.equal(x[3:], from_bytes(images.x[3:6]))
    with pytest.raises(Exception, match="num_workers=0"):
        next(iter(DataLoader(rows, batch_size=6, collate_fn=hard.collate, num_workers=1)))


def test_the_example_of_a_plain_loop_learns():
    main = runpy.run_path(str(EXAMPLES / "plain_loop.py"))["main"]
    assert main(epochs=3) < 2.0, "below the loss of knowing nothing, 2.3"


def test_each_image_is_written_as_the_draw_with_the_largest_loss(tmp_path):
    images, subject = toy_images(12), toy_subject()
    out = export_hardest(subject, images, DECLARED, tmp_path / "hard", draws=5, seed=3)
    worst = worst_of_five(images, keys_of(images.id))
    rows = list(csv.DictReader((out / "metadata.csv").open()))
    assert [row["id"] for row in rows] == list(images.id)
    assert [row["label"] for row in rows] == [images.classes[label] for label in images.y]
    again = load(f"folder:{out}?split=all").images()
    assert len(again.classes) == 4
    assert sorted(again.y.tolist()) == sorted(images.y.tolist()), "classes keep their numbers"
    written = {Path(path).stem: x for path, x in zip(again.id, again.x)}
    for i, row in enumerate(rows):
        stored = written[Path(row["file_name"]).stem]
        assert torch.equal(from_bytes(stored[None])[0], worst[i])
        assert row["changed"]


def test_the_card_says_whose_worst_draws_they_are_and_nothing_is_written_over(tmp_path):
    images, subject = toy_images(6), toy_subject()
    out = export_hardest(subject, images, DECLARED, tmp_path / "hard")
    card = json.loads((out / "card.json").read_text())
    assert (card["model"]["hash"], card["data"]["hash"]) == (subject.hash, images.hash)
    assert (card["conditions"]["name"], card["draws"]) == ("wide", 4)
    with pytest.raises(HardcaseError, match="not empty"):
        export_hardest(subject, images, DECLARED, tmp_path / "hard")
    with pytest.raises(HardcaseError, match="labels alone"):
        export_hardest(LabelOnly(subject), images, DECLARED, tmp_path / "other")


def test_training_images_of_a_run_are_exported_from_the_command_line(toy_folder, capsys):
    words = ["run", "--data", "npz:toy.npz", "--model", "model.py:make", "--method", "none", "-q"]
    assert main([*words, "--conditions", "scanner", "--images", "6", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["export", "run", "--to", "hardest", "--draws", "2", "-q"]) == 0
    assert capsys.readouterr().out.strip() == "run-hardest"
    assert len(list(Path("run-hardest").rglob("*.png"))) == 80, "all training images"
    card = json.loads(Path("run-hardest/card.json").read_text())
    assert card["draws"] == 2
    assert (card["conditions"]["name"], card["data"]["split"]) == ("scanner", "train")
    changed = "from hardcase.testing.toys import Quarters\ndef make(): return Quarters(3.0)\n"
    Path("model.py").write_text(changed)
    assert main(["export", "run", "--to", "hardest", "--out", "other", "-q"]) == 2
    assert not Path("other").exists()
