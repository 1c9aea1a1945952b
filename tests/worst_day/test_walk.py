"""A new user with classes of their own: fine-tune a small network, one command, an answer.

The walk goes through what stopped new users: own classes, one output, a black box, slow checks,
names told late, images of several sizes.
"""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

KINDS = ("bowl", "cup", "fork", "knife", "plate")
SIDE = 96
NET = """
import torch
from torch import nn

class Net(nn.Module):
    '''Fixed filters and a head that was tuned.'''
    def __init__(self, outputs):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 24, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(6))
        self.head = nn.Linear(24 * 36, outputs)
    def forward(self, x):
        return self.head(self.body(x).flatten(1))

def make():
    return Net({outputs})
"""


def picture(kind, rng):
    """A photograph of sorts: a bright figure for each kind on a noisy ground."""
    x = rng.normal(90, 20, (SIDE, SIDE, 3))
    row, column = np.mgrid[:SIDE, :SIDE] - SIDE / 2 - rng.integers(-6, 7, 2)[:, None, None]
    figures = (
        (row**2 + column**2 < 900) & (row > 0),
        (abs(row) < 28) & (abs(column) < 12),
        abs(row - column) < 9,
        abs(column) < 5,
        row**2 + column**2 < 1200,
    )
    x[figures[kind]] += rng.normal(90, 10, 3)
    return x.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder of photographs, code and tuned weights, as somebody has them."""
    folder = tmp_path_factory.mktemp("project")
    rng = np.random.default_rng(0)
    for outputs, kinds, name in ((5, KINDS, "things"), (1, KINDS[:2], "pair")):
        (folder / f"{name}.py").write_text(NET.replace("{outputs}", str(outputs)))
        images, labels = [], []
        for label, kind in enumerate(kinds):
            (folder / name / kind).mkdir(parents=True)
            for i in range(24):
                image = picture(label, rng)
                Image.fromarray(image).save(folder / name / kind / f"{i}.png")
                images.append(image)
                labels.append(label)
        scope = {}
        exec((folder / f"{name}.py").read_text(), scope)
        net = scope["make"]()
        tuned(net, np.stack(images), np.array(labels), outputs)
        torch.save(net.state_dict(), folder / f"{name}.pt")
    return folder


def tuned(net, images, labels, outputs):
    """Fit the head by least squares."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        features = net.body(x).flatten(1)
        wanted = torch.eye(5)[labels] * 12 - 6 if outputs > 1 else torch.tensor(labels)[:, None] * 12.0 - 6  # fmt: skip
        whole = torch.cat([features, torch.ones(len(x), 1)], 1).double()
        ridge = whole.T @ whole + 0.05 * torch.eye(whole.shape[1])
        solved = torch.linalg.solve(ridge, whole.T @ wanted.double()).float()
        net.head.weight.copy_(solved[:-1].T)
        net.head.bias.copy_(solved[-1])


@pytest.fixture
def here(project, monkeypatch, command):
    monkeypatch.chdir(project)
    monkeypatch.setenv("HARDCASE_CACHE", str(project / "cache"))
    return command


MODEL = "--model things.pt@things.py:make"
THINGS = f"{MODEL} --data folder:things?split=all"
PAIR = "--model pair.pt@pair.py:make --data folder:pair?split=all"
SHORT = "--images 4 --gradients 4 --conditions handheld"


def test_own_classes_get_figures_of_the_declared_conditions_from_one_command(here, project):
    code, said = here(f"run {THINGS} {SHORT} --out one")
    assert code == 0, said
    record = json.loads((project / "one/run.json").read_text())
    assert record["risk"], said
    assert not record.get("witnesses")
    assert not (project / "cache/networks").exists(), "a network was trained"
    assert "risk" in said.lower() or "fail" in said.lower()
    assert "hardcase judge" in said or "no judge" in said


def test_one_output_for_two_classes_is_a_model_like_any_other(here, project):
    code, said = here(f"run {PAIR} {SHORT} --out two")
    assert code == 0, said
    assert "one logit for two classes, of the class 'cup'" in said


def test_a_black_box_asks_at_once(here, project):
    began = time.process_time()
    search = "--method natural-blackbox --queries 20 --witness none --images 2"
    code, said = here(f"run {THINGS} {search} --out three")
    assert code == 0, said
    assert "training" not in said
    assert not (project / "cache/networks").exists()
    assert time.process_time() - began < 60


@pytest.mark.parametrize("verb", ["doctor", "run --dry-run --images 4"])
def test_checks_are_quick_and_say_what_they_do(here, verb):
    began = time.process_time()
    code, said = here(f"{verb} {THINGS}")
    assert code == 0, said
    assert "asking the model about the images" in said
    assert time.process_time() - began < 20


def test_a_wrong_name_promises_nothing(here, project):
    for words in (f"run {MODEL} --data folder:thing", "doctor --model zoo:x"):
        code, said = here(words)
        assert code == 2
        assert "goes to" not in said
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("layer", "advice", "words"),
    [
        ("nn.AdaptiveAvgPool2d(6)", "?resize=224&crop=center", "28 to 384 pixels"),
        ("nn.AvgPool2d(3)", "?resize=96&crop=center", "takes 96 pixels"),
    ],
)
def test_images_of_several_sizes_are_told_with_a_size_that_the_model_takes(
    here, project, tmp_path, monkeypatch, layer, advice, words
):
    monkeypatch.chdir(tmp_path)
    code = (project / "things.py").read_text().replace("nn.AdaptiveAvgPool2d(6)", layer)
    Path("net.py").write_text(code.replace("* 36", "* 49") if layer.startswith("nn.Avg") else code)
    Path("mixed/a").mkdir(parents=True)
    for i, side in enumerate((300, 480)):
        Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(f"mixed/a/{i}.png")
    for verb in ("run --images 2", "doctor"):
        code, said = here(f"{verb} --model net.py:make --data folder:mixed?split=all")
        assert code == 2, said
        flat = " ".join(said.split())
        assert advice in flat or advice.replace("?", "split=all&") in flat
        assert words in flat


def test_the_doctor_tries_the_sizes_that_a_model_may_take(here):
    code, said = here(f"doctor {THINGS} --format json")
    assert code == 0, said
    lines = json.loads(said[said.index("[") : said.rindex("]") + 1])
    (sizes,) = [line["detail"] for line in lines if line["what"] == "sizes"]
    assert "28 to 384 pixels; these have 96" in sizes
