"""The worst draws of training images in class folders, for a training elsewhere."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import hardcase as hc
from hardcase.cli.main import main
from hardcase.conditions import condition_box
from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.models.wrappers import LabelOnly
from hardcase.randomness import keys_of
from hardcase.repair.export import export_hardest
from hardcase.repair.hardest import render_draws
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject

WIDE = hc.Conditions({"shift": "±20 %", "exposure": "±1 stops"}, name="wide")


def test_each_image_is_written_as_the_draw_with_the_largest_loss(tmp_path):
    images, subject = toy_images(12), toy_subject()
    out = export_hardest(subject, images, WIDE, tmp_path / "hard", draws=5, seed=3)
    box = condition_box(WIDE, images.shape)
    drawn = render_draws(box, from_bytes(images.x), keys_of(images.id), 5, seed=3).x
    loss = functional.cross_entropy(
        subject(drawn.flatten(0, 1)).logits, images.y.repeat_interleave(5), reduction="none"
    )
    worst = drawn[torch.arange(12), loss.reshape(12, 5).argmax(1)]
    rows = list(csv.DictReader((out / "metadata.csv").open()))
    assert [row["id"] for row in rows] == list(images.id)
    assert [row["label"] for row in rows] == [images.classes[label] for label in images.y]
    again = load(f"folder:{out}?split=all").images()
    assert len(again.classes) == 4
    assert sorted(again.y.tolist()) == sorted(images.y.tolist()), "classes keep their numbers"
    written = {
        path.rpartition("/")[2].removesuffix(".png"): x for path, x in zip(again.id, again.x)
    }
    for i, row in enumerate(rows):
        stored = written[Path(row["file_name"]).stem]
        assert torch.equal(from_bytes(stored[None])[0], worst[i])
        assert row["changed"]


def test_the_card_says_whose_worst_draws_they_are_and_nothing_is_written_over(tmp_path):
    images, subject = toy_images(6), toy_subject()
    out = export_hardest(subject, images, WIDE, tmp_path / "hard")
    card = json.loads((out / "card.json").read_text())
    assert (card["model"]["hash"], card["data"]["hash"]) == (subject.hash, images.hash)
    assert (card["conditions"]["name"], card["draws"]) == ("wide", 4)
    with pytest.raises(Problem, match="not empty"):
        export_hardest(subject, images, WIDE, tmp_path / "hard")
    with pytest.raises(Problem, match="labels alone"):
        export_hardest(LabelOnly(subject), images, WIDE, tmp_path / "other")


def test_training_images_of_a_run_are_exported_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    train, test = toy_images(20, seed=5), toy_images(12, seed=6)
    np.savez("toy.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    Path("model.py").write_text("from hardcase.testing.toys import Quarters as make\n")
    words = ["run", "--data", "npz:toy.npz", "--model", "model.py:make", "--method", "none", "-q"]
    assert main([*words, "--conditions", "scanner", "--seeds", "6", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["export", "run", "--to", "hardest", "--draws", "2", "-q"]) == 0
    assert capsys.readouterr().out.strip() == "run-hardest"
    assert len(list(Path("run-hardest").rglob("*.png"))) == 20, "all training images"
    card = json.loads(Path("run-hardest/card.json").read_text())
    assert (card["draws"], card["conditions"]["name"], card["data"]["split"]) == (
        *(2, "scanner"),
        "train",
    )
    Path("model.py").write_text("from hardcase.testing.toys import Quarters\n"
                                "def make(): return Quarters(3.0)\n")  # fmt: skip
    assert main(["export", "run", "--to", "hardest", "--out", "other", "-q"]) == 2
    assert not Path("other").exists()
