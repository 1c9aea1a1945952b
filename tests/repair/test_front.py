"""A repair from end to end: weights that load again, a proof, a page; and what cannot be repaired."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hardcase as hc
from hardcase.cli.main import main
from hardcase.conditions import condition_box
from hardcase.data.files import Stream
from hardcase.data.sources import large
from hardcase.errors import HardcaseError
from hardcase.models.load import Loading, load_model
from hardcase.models.subject import Subject
from hardcase.repair import front
from hardcase.repair.front import held_apart, joined_images
from hardcase.repair.loop import STATE, RepairRecipe
from hardcase.repair.measures import AttackSize, ProofSize
from hardcase.repair.proof import measure_before, prove
from hardcase.runs.files import read_checked_json
from tiny import bars, trained_bars, weights

ATTACK = AttackSize(images=12, restarts=2, gradients=3, queries=4, samples=4)
TINY = ProofSize(images=60, samples=4, alone=1, attack=ATTACK)
SHIFTS = {"shift": "±16 %", "exposure": "±2 stops"}
SHORT = RepairRecipe(epochs=6, batch=16, rate=3e-3)
USUAL = {"conditions": SHIFTS, "recipe": SHORT, "proof": TINY}
NET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, 2), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(96, 2),
    )
"""


def test_many_photographs_are_repaired_from_their_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    for row in range(60):
        place = tmp_path / "photos" / ("train", "test")[row // 30] / ("dark", "light")[row % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 120, (16, 16, 3)) + 120 * (row % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{row}.png")
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(front, "large", partial(large, most=8))
    monkeypatch.setattr("hardcase.splits.large", partial(large, most=8))
    monkeypatch.setattr("hardcase.data.files.HELD", 8 * 768)
    asked, read = [], Stream.images
    monkeypatch.setattr(Stream, "images", lambda self: asked.append(len(self)) or read(self))
    monkeypatch.setattr(front, "SHARD", 8)
    monkeypatch.setattr("hardcase.data.files.SHARD", 8)
    monkeypatch.setattr("hardcase.splits.SAMPLE", 4)
    sized = "quick:images=8,attack.images=4"
    how = {"conditions": SHIFTS, "recipe": replace(SHORT, epochs=2, batch=4), "proof": sized}
    done = hc.repair("net.py:make", "folder:photos", **how, out=tmp_path / "one")
    assert done.record["data"]["images"] == 20
    words = ["--model", "net.py:make", "--data", "folder:photos", "--epochs", "2", "--batch", "4"]
    main(["repair", *words, "--rate", "0.01", "--proof", sized, "--out", "two", "-q"])
    assert read_checked_json((tmp_path / "two/repair.json").read_bytes())[1]
    assert max(asked) <= 10  # the validation images


def repaired(tmp_path, **how):
    given = {"test": bars(200, seed=9, split="test"), **USUAL, "out": tmp_path / "fixed"}
    return hc.repair(trained_bars(), bars(200), **{**given, **how})


def test_a_repair_writes_weights_card_record_and_page(tmp_path, monkeypatch):
    outside = {"others": bars(40, seed=20, split="other")}
    done = repaired(tmp_path, outside=outside)
    files = {path.name for path in done.folder.iterdir() if path.name[0] != "."}
    assert files == {"card.json", "repair.json", "report.html", "weights.safetensors"}
    record, sound = read_checked_json((done.folder / "repair.json").read_bytes())
    assert sound
    assert record["verdict"] == done.verdict
    assert record["parents"]["hash"] == trained_bars().hash
    assert record["data"]["hash"] == bars(200).hash
    card, sound = read_checked_json((done.folder / "card.json").read_bytes())
    assert sound
    assert card["recipe"]["draws"] == 4
    assert card["model"] == f"{done.folder}/weights.safetensors@bars.py:make"
    page = (done.folder / "report.html").read_text()
    assert done.verdict.upper() in page
    assert "worst case" in page
    names = {row["name"]: row for row in record["proof"]["rows"]}
    expected = {
        "error on unmodified images",
        "failure rate",
        "worst case",
        "shift",
        "others",
        "fog",
    }
    assert expected <= set(names)
    assert names["failure rate"]["after"] <= names["failure rate"]["before"]
    assert record["training"]["best"] > 0
    assert "0: failure rate" in names
    with pytest.raises(HardcaseError, match="holds a repair already"):
        repaired(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("bars.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(),"
        " torch.nn.Linear(144, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))\n"
    )
    again = load_model(done.model, Loading(test=bars(40)))
    assert weights(again.net) == weights(done.subject.net)
    assert weights(again.net) != weights(trained_bars().net)


FAR = {"shift": "0..24 %"}
"""Bars drift to the right, to where another class stood in the training of the toy."""
FARTHER = RepairRecipe(epochs=12, batch=16, rate=5e-3)
HARDER = AttackSize(images=40, restarts=2, gradients=8, queries=10, samples=64)
LONG_ENOUGH = ProofSize(images=400, samples=8, alone=1, attack=HARDER)


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """A toy that fails where bars drift to the right, repaired."""
    how = {"conditions": FAR, "recipe": FARTHER, "proof": LONG_ENOUGH, "margin": 0.02}
    test = bars(400, seed=9, split="test")
    return repaired(tmp_path_factory.mktemp("repair"), test=test, **how)


def test_a_repair_takes_the_risk_away_and_is_proved(drifted):
    assert drifted.verdict == "repaired", drifted.proof.reasons
    rows = {row.name: row for row in drifted.proof.rows}
    assert rows["failure rate"].before > 0.05
    assert rows["failure rate"].after < 0.2 * rows["failure rate"].before
    assert rows["worst case"].after < 0.65 * rows["worst case"].before
    assert rows["error on unmodified images"].outcome == "not worse"
    assert drifted.record["verdict"] == "repaired"
    page = (drifted.folder / "report.html").read_text()
    assert 0 < page.count('<figure class="pair">') <= 6


@pytest.mark.parametrize(
    ("network", "shift", "verdict"),
    [
        ("repaired", -2, "regressed elsewhere"),
        ("before", 0, "not repaired"),
        ("none", 0, "not repaired"),
    ],
)
def test_each_verdict_has_its_case(drifted, network, shift, verdict):
    """Bars of another origin that drift to the left; no repair at all; a ruined network."""
    unseen = bars(300, seed=9, split="test")
    ruined = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    networks = {"repaired": drifted.subject, "before": trained_bars()}
    networks["none"] = Subject(ruined, classes=unseen.classes)
    outside = {"others": replace(unseen, x=unseen.x.roll(shift, 3))}
    box = condition_box(hc.Conditions(FAR), unseen.shape)
    how = {"seed": 0, "outside": outside}
    before = measure_before(
        trained_bars(), unseen, box, replace(TINY, images=300), margin=0.02, **how
    )
    found = prove(before, (trained_bars(), networks[network]), box, TINY, **how)
    assert found.verdict == verdict
    assert found.reasons


def test_weights_of_the_zoo_load_by_name(tmp_path, monkeypatch):
    from hardcase.models.zoo import build_classifier

    monkeypatch.chdir(tmp_path)
    net = build_classifier("lenet1", channels=1, size=12, classes=3, seed=4)
    Path("new").mkdir()
    Path("new/weights.safetensors").write_bytes(weights(net))
    found = load_model("new/weights.safetensors@zoo:lenet1", Loading(test=bars(40)))
    assert weights(found.net) == weights(net)


def test_a_stopped_repair_goes_on_in_its_folder(tmp_path, monkeypatch):
    from hardcase.repair import front

    def stopped(*args, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(front, "prove", stopped)
    with pytest.raises(KeyboardInterrupt):
        repaired(tmp_path)
    assert (tmp_path / "fixed" / STATE).is_file()
    monkeypatch.undo()
    said = []
    done = repaired(tmp_path, log=said.append)
    assert not any(text.startswith("epoch") for text in said), "the training was over already"
    assert not (tmp_path / "fixed" / STATE).exists()
    assert weights(done.subject.net) == weights(repaired(tmp_path, out=tmp_path / "b").subject.net)


def test_training_images_prove_nothing():
    train, test = bars(60), bars(60, seed=4, split="test")
    both = joined_images(test, train)
    assert len(held_apart(train, both)) == 60
    with pytest.raises(HardcaseError, match="no image is left"):
        held_apart(train, train)
    with pytest.raises(HardcaseError, match="training images are"):
        held_apart(train, bars(60, size=16))


class Silent:
    """A model that tells labels alone."""

    name = "server"
    hash = "0"
    offers = "label"
    device = torch.device("cpu")

    def __call__(self, x, taps=None):
        raise AssertionError


def program(name):
    """A network whose code is not known."""
    return Subject(torch.jit.trace(trained_bars().net, torch.rand(1, 1, 12, 12)), name=name)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"subject": Silent()}, "no gradients"),
        ({"subject": program("net.pt")}, "cannot be written back"),
        ({"subject": Subject(trained_bars().net, name="net.pt2")}, "cannot be written back"),
        ({"train": bars(12)}, "12 training images"),
        ({"test": None}, "none to prove"),
        ({"train": bars(200, classes=6), "test": bars(60, classes=6, seed=3)}, "3 outputs"),
        ({"margin": 2.0}, "margin"),
        ({"conditions": {"temperature": "±1 stops"}}, "grey"),
    ],
)
def test_what_cannot_be_repaired_is_told_first(tmp_path, change, match):
    given = {"test": bars(60, seed=9), **USUAL, **change}
    subject = given.pop("subject", Subject(trained_bars().net, name="bars.py:make"))
    train = given.pop("train", bars(200))
    with pytest.raises(HardcaseError, match=match):
        hc.repair(subject, train, out=tmp_path / "out", **given)
    assert not (tmp_path / "out" / "weights.safetensors").exists()


def photographs(folder, count):
    """Pictures whose left or right half is brighter, in folders by class."""
    rng = np.random.default_rng(count)
    for split in ("train", "test"):
        for i in range(count):
            name = ("left", "right")[i % 2]
            x = rng.integers(0, 120, (24, 24, 3)).astype(np.uint8)
            x[:, 12 * (i % 2) : 12 * (i % 2) + 12] += 90
            path = folder / split / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(path)


def test_a_folder_of_photographs_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photographs(Path("photos"), 48)
    Path("net.py").write_text(NET)
    words = ["repair", "--model", "net.py:make", "--data", "folder:photos", "--out", "fixed"]
    words += ["--epochs", "2", "--batch", "8", "--rate", "0.01", "--proof", "quick:attack.images=4"]
    code = main([*words, "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert code == {"repaired": 0, "inconclusive": 4}.get(told["verdict"], 1)
    assert told["conditions"]["name"] == "handheld", "the usual ones of photographs"
    assert told["model"] == "fixed/weights.safetensors@net.py:make"
    assert Path("fixed/report.html").is_file()
    assert told["proof"]["images"] == 48
    images = hc.data.load("folder:photos", split="test")
    again = load_model(told["model"], Loading(test=images))
    assert isinstance(again.net[1], torch.nn.BatchNorm2d)
    assert not torch.equal(again.net[1].running_mean, torch.zeros(6)), "statistics are kept too"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("folder:photos?split=all", "no image is left to prove a repair on"),
        ("folder:photos/test/left", "class"),
        ("folder:few", "training images; a repair needs"),
    ],
)
def test_data_without_a_training_split_is_told(tmp_path, monkeypatch, capsys, data, told):
    monkeypatch.chdir(tmp_path)
    photographs(Path("photos"), 24)
    photographs(Path("few"), 4)
    Path("net.py").write_text(NET)
    words = ["repair", "--model", "net.py:make", "--data", data, "--out", "fixed", "-q"]
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert not Path("fixed").exists()
