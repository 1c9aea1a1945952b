"""The first hour of a new user: nothing is trained for nothing, and advice fits what is wrong."""

import logging
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hardcase.cli import inspect
from hardcase.config import parse
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.models import witnesses
from hardcase.models.adapters import LabelOnly
from hardcase.models.health import check
from hardcase.models.mistakes import diagnose, settled, trying
from hardcase.models.subject import Subject
from hardcase.testing.toys import Quarters, toy_images, toy_subject


@pytest.mark.parametrize(("search", "count"), [("evolution", 600), ("auto", 40)])
def test_a_black_box_trains_nothing_that_it_does_not_use(monkeypatch, caplog, search, count):
    train = lambda *args, **kwargs: pytest.fail("a network is trained")  # noqa: E731
    monkeypatch.setattr("hardcase.models.load.trained_classifier", train)
    given = {"options": {"search": search}, "witnesses": (), "train": toy_images(count, seed=1)}
    context = Context.of(LabelOnly(toy_subject()), toy_images(8), "natural-blackbox", **given)
    with caplog.at_level(logging.WARNING):
        assert context.method.details["options"]["search"] == "evolution"
    assert ("too few for surrogates" in caplog.text) == (search == "auto")


def test_surrogates_are_trained_on_enough_images_for_a_bounded_time(monkeypatch):
    patience = []
    noted = lambda seconds: patience.append(seconds) or nullcontext()  # noqa: E731
    monkeypatch.setattr(witnesses, "patient_for", noted)
    load = lambda name: toy_subject(21.0)  # noqa: E731
    made = witnesses.surrogates_for(toy_subject(), (1, 8, 8), lambda: toy_images(500), load)
    assert (len(made), patience) == (len(witnesses.SURROGATES), [witnesses.SURROGATE_PATIENCE])


WRONG = {
    "run --model zoo:lenett5 --data mnist5k": "lenet5",
    "run --model zoo:lenet5 --data folder:nowhere": "does not exist",
    "run --model gone.py:make --data mnist5k": "no file gone.py",
    "run --model zoo:lenet5 --data mnist5k --method PGD": "try: pgd",
    "run --model zoo:lenet5 --data mnist5k --method pgd --set method.eps=1": "epsilon",
    "run --model zoo:lenet5 --data mnist5k --method naturall --dry-run": "try: natural",
    "doctor --model zoo:lenett5": "lenet5",
    "doctor --model nowhere.py:make --data mnist5k": "no file nowhere.py",
    "doctor --model net.py:mak --data mnist5k": "try: net.py:make",
    "open runs/gone": "it does not exist",
    "gate runs/gone": "it does not exist",
}


def test_names_are_checked_before_torch_is_imported(tmp_path):
    (tmp_path / "net.py").write_text("import torch\n\ndef make():\n    pass\n")
    code = f"""
import io, sys
from hardcase.cli.main import main
for words, said in {WRONG!r}.items():
    sys.stderr = told = io.StringIO()
    assert main(words.split()) == 2, words
    assert said in told.getvalue() and "the run goes to" not in told.getvalue(), told.getvalue()
    assert "torch" not in sys.modules, words
"""
    told = {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, **told)
    assert done.returncode == 0, done.stdout + done.stderr


PHOTOGRAPHS = """
from torch import nn

class Photographs(nn.Module):
    # takes its time, and is right or not
    def __init__(self, right):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.right = right
    def forward(self, x):
        red = x.mean((2, 3)) * (20 if self.right else 0)
        return red + 0 * self.body(x).mean((2, 3))[:, :3]

def good(): return Photographs(True)
def bad(): return Photographs(False)
"""


def photographs(count, side):
    """Plain images of three colours."""
    y = torch.arange(count) % 3
    x = torch.randint(40, 80, (count, 3, side, side), generator=torch.Generator().manual_seed(0))
    x[torch.arange(count), y] += 120
    return replace(toy_images(count), x=x.byte(), y=y, classes=("a red", "b green", "c blue"))


@pytest.mark.parametrize("name", ["good", "bad"])
def test_the_doctor_is_quick_with_photographs_and_says_what_it_tries(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(PHOTOGRAPHS)
    images = photographs(24, 224)
    arrays = {"images": images.x.numpy(), "labels": images.y.numpy()}
    np.savez("photos.npz", **arrays, classes=np.array(images.classes))
    data = "npz:photos.npz?split=all"
    config = parse({"model": f"net.py:{name}", "data": data, "method": "pgd"})
    told = []
    began = time.process_time()
    lines = list(inspect.job(config, lambda progress: None, told.append))
    assert time.process_time() - began < 10
    assert any("loading" in text for text in told)
    words = " ".join(line.detail for line in lines)
    if name == "good":
        assert "smoke run" in [line.what for line in lines], words
    else:
        assert any(text.startswith("trying ") for text in told), words
        assert "weak on these images" in words or "no better than chance" in words


def test_trying_ends_when_its_time_is_over():
    told, blind = [], nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    with trying(0.0, told.append):
        assert diagnose(blind, photographs(6, 32)).accuracy is not None
    assert told == []


def test_one_class_tells_nothing_of_normalisation_and_gets_its_own_advice():
    images = toy_images(24)
    one = images.take((images.y == 2).nonzero().squeeze(1))
    assert settled(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), one) is None
    alone = replace(one, classes=(one.classes[2],), y=torch.zeros_like(one.y))
    with pytest.raises(HardcaseError) as caught:
        check(toy_subject(), alone)
    said = str(caught.value)
    assert "All images are of one class, 'south-west', which is taken for output 0 of 4" in said
    assert "chance is 25 %" in said
    assert "model.classes=" in said


def test_several_labels_at_once_and_outputs_in_one_row_have_messages_of_their_own():
    class Several(nn.Module):
        def forward(self, x):
            return (Quarters()(x) - 3).sigmoid()

    found = diagnose(Several(), toy_images(16))
    assert found.mistakes[0].name == "several labels"
    assert "several labels at once" in str(found)
    health = check(Subject(Several()), toy_images(16))
    assert any("several labels at once" in note for note in health.notes)

    class Flat(nn.Module):
        def forward(self, x):
            return Quarters()(x).flatten()

    found = diagnose(Flat(), toy_images(8))
    assert found.mistakes[0].name == "returned"
    assert "32 x 1 numbers" in found.mistakes[0].what
