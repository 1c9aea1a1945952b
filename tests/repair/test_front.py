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
from hardcase.errors import Problem
from hardcase.models.load import Loading, load_model
from hardcase.models.subject import Subject
from hardcase.repair import front
from hardcase.repair.front import held_apart, joined_images
from hardcase.repair.loop import STATE, RepairRecipe
from hardcase.repair.proof import AttackSize, ProofSize, prove
from hardcase.runs.files import read_checked_json
from hardcase.testing.toys import toy_images, toy_subject
from repair.conftest import save_splits
from tiny import bars, trained_bars, weights

ATTACK = AttackSize(seeds=12, restarts=2, gradients=3, queries=4, draws=4)
TINY = ProofSize(seeds=60, draws=4, alone=1, attack=ATTACK)
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
    sized = "quick:seeds=8,attack.seeds=4"
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
    assert done.verdict in page
    assert "worst case" in page
    names = {row["name"]: row for row in record["proof"]["rows"]}
    assert {"error", "risk", "excess risk", "worst case", "shift", "others", "fog"} <= set(names)
    assert names["risk"]["after"] <= names["risk"]["before"]
    assert record["training"]["best"] > 0
    assert "0: risk" in names
    with pytest.raises(Problem, match="holds a repair already"):
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
HARDER = AttackSize(seeds=40, restarts=6, gradients=8, queries=10, draws=64)
LONG_ENOUGH = ProofSize(seeds=400, draws=8, alone=1, attack=HARDER)


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """A toy that fails where bars drift to the right, repaired."""
    how = {"conditions": FAR, "recipe": FARTHER, "proof": LONG_ENOUGH, "margin": 0.02}
    test = bars(400, seed=9, split="test")
    return repaired(tmp_path_factory.mktemp("repair"), test=test, **how)


def test_a_repair_takes_the_risk_away_and_is_proved(drifted):
    assert drifted.verdict == "repaired", drifted.proof.reasons
    rows = {row.name: row for row in drifted.proof.rows}
    assert rows["risk"].before > 0.05
    assert rows["risk"].after < 0.2 * rows["risk"].before
    assert rows["worst case"].after < 0.65 * rows["worst case"].before
    assert rows["error"].outcome == "not worse"
    assert drifted.record["verdict"] == "repaired"


@pytest.mark.parametrize(
    ("network", "shift", "verdict"),
    [("repaired", -2, "moved elsewhere"), ("before", 0, "cannot tell"), ("none", 0, "worse")],
)
def test_each_verdict_has_its_case(drifted, network, shift, verdict):
    """Bars of another origin that drift to the left; no repair at all; a ruined network."""
    unseen = bars(300, seed=9, split="test")
    ruined = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3))
    networks = {"repaired": drifted.subject, "before": trained_bars()}
    networks["none"] = Subject(ruined, classes=unseen.classes)
    outside = {"others": replace(unseen, x=unseen.x.roll(shift, 3))}
    given = (unseen, condition_box(hc.Conditions(FAR), unseen.shape), replace(TINY, seeds=300))
    how = {"margin": 0.02, "seed": 0, "outside": outside}
    found = prove(trained_bars(), networks[network], *given, **how)
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
    done = repaired(tmp_path, say=said.append)
    assert not any(text.startswith("epoch") for text in said), "the training was over already"
    assert not (tmp_path / "fixed" / STATE).exists()
    assert weights(done.subject.net) == weights(repaired(tmp_path, out=tmp_path / "b").subject.net)


def test_training_images_prove_nothing():
    train, test = bars(60), bars(60, seed=4, split="test")
    both = joined_images(test, train)
    assert len(held_apart(train, both)) == 60
    with pytest.raises(Problem, match="no image is left"):
        held_apart(train, train)
    with pytest.raises(Problem, match="training images are"):
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
    with pytest.raises(Problem, match=match):
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
    words += ["--epochs", "2", "--batch", "8", "--rate", "0.01", "--proof", "quick:attack.seeds=4"]
    code = main([*words, "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert code == {"repaired": 0, "cannot tell": 4}.get(told["verdict"], 1)
    assert told["conditions"]["name"] == "handheld", "the usual ones of photographs"
    assert told["model"] == "fixed/weights.safetensors@net.py:make"
    assert Path("fixed/report.html").is_file()
    assert told["proof"]["seeds"] == 48
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


def test_a_run_is_repaired_with_its_findings_and_gated(toy_folder, capsys):
    Path("c.toml").write_text('[conditions]\nshift = "±5 %"\nexposure = "±1 stops"\n')
    common = ["--data", "npz:toy.npz", "--model", "model.py:make", "--conditions", "c.toml"]
    common += ["--method", "pgd", "--set", "method.epsilon=0.3", "--progress", "none", "-q"]
    assert main(["run", *common, "--seeds", "12", "--out", "old"]) == 0
    short = ["--epochs", "1", "--proof", "quick:attack.seeds=4", "--rate", "0.001", "-q"]
    assert main(["repair", "old", "--out", "fixed", *short]) in (0, 1, 4)
    record = json.loads(Path("fixed/repair.json").read_text())
    rows = {row["name"]: row for row in record["proof"]["rows"]}
    assert record["proof"]["seeds"] == 48, "the twelve seeds of the run are not proof"
    assert rows["findings of the run"]["before"] == 1.0, "a finding is what the network misreads"
    assert "shift" in record["conditions"]
    capsys.readouterr()
    code = main(["gate", "fixed", "--repaired-from", "old"])
    told = capsys.readouterr().out
    assert code in (0, 1, 4)
    assert "declared, risk:" in told
    assert main(["run", *common, "--seeds", "12", "--out", "same"]) == 0
    capsys.readouterr()
    assert main(["gate", "same", "--repaired-from", "old", "--format", "json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == "cannot tell", "twelve images show nothing"
    assert main(["repair", "old", "--findings", "--out", "more", *short]) in (0, 1, 4)
    more = json.loads(Path("more/repair.json").read_text())
    assert more["findings"] is True
    assert more["weights"] != record["weights"]
    assert main(["repair", "--model", "model.py:make", *short]) == 2


def test_a_run_is_repaired_with_the_network_it_began_with_alone(toy_folder, monkeypatch, capsys):
    monkeypatch.setenv("SHARP", "20")
    Path("model.py").write_text(
        "import os\nfrom hardcase.testing.toys import Quarters\n"
        "class Tilted(Quarters):\n"
        "    def forward(self, x): return super().forward(x) + float(os.environ['TILT'])\n"
        "def make(): return Tilted(float(os.environ['SHARP']))\n"
    )
    monkeypatch.setenv("TILT", "0")
    words = ["run", "--data", "npz:toy.npz", "--model", "model.py:make", "--method", "none", "-q"]
    assert main([*words, "--conditions", "scanner", "--seeds", "12", "--out", "old"]) == 0
    short = ["--epochs", "1", "--proof", "quick:seeds=20,attack.seeds=4", "--rate", "0.001", "-q"]
    changed = {"SHARP=30": "the model is not the one this run began with"}
    changed["TILT=1"] = "answers 12 of 12 seeds differently"
    for setting, told in changed.items():
        with monkeypatch.context() as other:
            other.setenv(*setting.split("="))
            capsys.readouterr()
            assert main(["repair", "old", "--out", "fixed", *short]) == 2
            assert told in capsys.readouterr().err
    save_splits(test_seed=7)
    assert main(["repair", "old", "--out", "fixed", *short]) == 2
    assert "seeds" in capsys.readouterr().err
    assert not Path("fixed").exists()
    save_splits()
    assert main(["repair", "old", "--model", "zoo:lenet5", *short]) == 2
    words = ["repair", "old", "--out", "fixed", "--conditions", "handheld"]
    assert main([*words, *short]) in (0, 1, 4), "other conditions than the run's may be asked"
    record = json.loads(Path("fixed/repair.json").read_text())
    assert record["conditions"]["name"] == "handheld"
    assert record["proof"]["seeds"] == 20


def test_sizes_of_a_proof_are_checked_before_anything_is_loaded(command):
    wrong = {"huge": "size of a proof", "usual:restart=3": "restarts", "quick:seeds=0": "'0'"}
    for size, words in wrong.items():
        code, said = command(f"repair --model none.py:make --data folder:none --proof {size}")
        assert (code, words in said) == (2, True), said


def test_a_gate_refuses_the_repair_of_another_network(tmp_path, monkeypatch):
    from hardcase.repair.folder import repair_checks

    monkeypatch.chdir(tmp_path)
    done = repaired(tmp_path)
    run = hc.run(toy_subject(), toy_images(8), method="pgd", out=tmp_path / "run", judge=False)
    with pytest.raises(Problem, match="another network"):
        repair_checks(done.folder, run, 0.01)
    text = (done.folder / "repair.json").read_text().replace('"cannot tell"', '"better"')
    (done.folder / "repair.json").write_text(text.replace("0.0", "0.1", 1))
    with pytest.raises(Problem, match="not what was written"):
        repair_checks(done.folder, run, 0.01)
