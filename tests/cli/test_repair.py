"""``hardcase repair``: of a run, of what flags name; by the run's network alone; and its gate."""

import json
from pathlib import Path

import pytest
import torch

import hardcase as hc
from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.randomness import reserved
from hardcase.repair.folder import StoredRepair, repair_checks
from hardcase.suite.gate import GateLimits, outcome
from hardcase.testing.toys import toy_images, toy_subject
from repair.conftest import save_splits, toy_folder

__all__ = ["toy_folder"]

CONDITIONS = '[conditions]\nshift = "±5 %"\nexposure = "±1 stops"\n'
COMMON = ["--data", "npz:toy.npz", "--model", "model.py:make", "--conditions", "c.toml"]
COMMON += ["--progress", "none", "-q"]
SHORT = ["--epochs", "1", "--proof", "quick:attack.images=4", "--rate", "0.001", "-q"]


def stored(folder):
    return json.loads((Path(folder) / "repair.json").read_text())


def test_a_run_is_repaired_with_its_findings(toy_folder, capsys):
    Path("c.toml").write_text(CONDITIONS)
    search = ["--method", "pgd", "--set", "method.epsilon=0.3", "--images", "12"]
    assert main(["run", *COMMON, *search, "--out", "old"]) == 0
    assert main(["repair", "old", "--out", "fixed", *SHORT]) in (0, 1, 4)
    record = stored("fixed")
    rows = {row["name"]: row for row in record["proof"]["rows"]}
    assert record["proof"]["images"] == 48, "the twelve images of the search are not proof"
    assert rows["findings of the run"]["before"] == 1.0, "a finding is what the network misreads"
    assert "shift" in record["conditions"]
    assert main(["repair", "old", "--findings", "--out", "more", *SHORT]) in (0, 1, 4)
    assert stored("more")["findings"] is True
    assert stored("more")["weights"] != record["weights"]
    assert main(["repair", "--model", "model.py:make", *SHORT]) == 2


def test_the_proof_is_of_the_images_that_the_run_reserved(toy_folder, capsys):
    Path("c.toml").write_text(CONDITIONS)
    save_splits(test_count=160)
    assert main(["run", *COMMON, "--method", "none", "--out", "old"]) == 0
    assert main(["repair", "old", "--out", "fixed", *SHORT]) in (0, 1, 4)
    names = hc.data.load("npz:toy.npz", split="test").id
    assert stored("fixed")["proof"]["images"] == int(reserved(names).sum())
    assert main(["repair", *COMMON[:6], "--out", "named", *SHORT]) in (0, 1, 4)
    assert stored("named")["proof"]["images"] == 160, "without a run nothing was shown"


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
    assert main([*words, "--conditions", "scanner", "--out", "old"]) == 0
    for setting, told in {"SHARP=30": "the model is not", "TILT=1": "differently"}.items():
        with monkeypatch.context() as other:
            other.setenv(*setting.split("="))
            capsys.readouterr()
            assert main(["repair", "old", "--out", "fixed", *SHORT]) == 2
            assert told in capsys.readouterr().err
    save_splits(test_seed=7)
    assert main(["repair", "old", "--out", "fixed", *SHORT]) == 2
    assert "measured images" in capsys.readouterr().err
    assert not Path("fixed").exists()
    save_splits()
    assert main(["repair", "old", "--model", "zoo:lenet5", *SHORT]) == 2
    words = ["repair", "old", "--out", "fixed", "--conditions", "handheld"]
    assert main([*words, *SHORT]) in (0, 1, 4), "other conditions than the run's may be asked"
    assert stored("fixed")["conditions"]["name"] == "handheld"


NET = """
import torch
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 320, 3, 16), torch.nn.ReLU(), torch.nn.Conv2d(320, 1280, 1),
        torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(1280, 2),
    )
"""


def test_an_unchanged_network_of_photographs_is_never_refused(tmp_path, monkeypatch, capsys):
    """A run prepares such networks otherwise than plain ones: in tiles, which change last bits."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    splits = {}
    for name, count in (("train", 40), ("test", 24)):
        labels = np.arange(count) % 2
        x = rng.integers(0, 120, (count, 96, 96, 3)) + 100 * labels[:, None, None, None]
        splits |= {f"x_{name}": x.astype(np.uint8), f"y_{name}": labels}
    np.savez("photos.npz", **splits)
    Path("net.py").write_text(NET)
    words = ["--model", "net.py:make", "--data", "npz:photos.npz", "--conditions", "c.toml"]
    Path("c.toml").write_text('[conditions]\nrotation = "±8 deg"\n')
    run = ["run", *words, "--method", "none", "--allow-low-accuracy", "--progress", "none", "-q"]
    assert main([*run, "--out", "old"]) == 0
    short = [*SHORT, "--batch", "8"]
    assert main(["repair", "old", "--out", "fixed", *short]) in (0, 1, 4)


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """A measured toy and its repair."""
    folder = tmp_path_factory.mktemp("gated")
    declared = {"shift": "±5 %", "exposure": "±1 stops"}
    test = toy_images(80, seed=2)
    how = {"method": "none", "conditions": declared, "judge": False}
    run = hc.run(toy_subject(), test, out=folder / "old", **how)
    done = hc.repair(
        toy_subject(),
        toy_images(80, seed=1),
        test=test,
        conditions=declared,
        recipe=hc.RepairRecipe(epochs=1, rate=1e-3),
        proof="quick:attack.images=4",
        margin=0.9,
        out=folder / "fixed",
    )
    return run, done


def test_the_projects_margin_counts_and_never_that_of_the_repair(gated):
    run, done = gated
    assert all(
        row.margin == 0.9 for row in done.proof.rows if row.decides and "rate" not in row.name
    )
    strict = repair_checks(done.folder, run, GateLimits.of({}, margin=0.0))
    assert [check.limit for check in strict if "unmodified" in check.name] == [0.0]
    planned = repair_checks(done.folder, run, GateLimits())
    error = next(row for row in done.proof.rows if "unmodified" in row.name)
    assert [check.limit for check in planned if "unmodified" in check.name] == [error.planned]


def test_a_repair_that_did_not_show_that_it_repairs_does_not_pass(gated):
    run, done = gated
    found = repair_checks(done.folder, run, GateLimits())
    primary = next(check for check in found if check.name.endswith("failure rate"))
    assert done.verdict != "repaired"
    assert primary.outcome != "pass"
    said = {"not repaired": "fail", "regressed elsewhere": "fail", "inconclusive": "inconclusive"}
    assert outcome(found) == said[done.verdict]


def test_a_gate_refuses_other_weights_other_networks_and_edited_proofs(gated, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    run, done = gated
    folder = tmp_path / "copy"
    shutil.copytree(done.folder, folder)
    assert StoredRepair.read(folder).record["weights"] == done.record["weights"]
    weights = folder / "weights.safetensors"
    save_file({name: 0 * one for name, one in load_file(weights).items()}, weights)
    with pytest.raises(HardcaseError, match="not the network that was proved"):
        repair_checks(folder, run, GateLimits())
    weights.unlink()
    with pytest.raises(HardcaseError, match="cannot be read"):
        repair_checks(folder, run, GateLimits())
    other = hc.run(
        hc.Subject(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)), name="other"),
        *(toy_images(24, seed=2),),
        method="none",
        conditions={"shift": "±5 %"},
        judge=False,
        allow_low_accuracy=True,
        out=tmp_path / "other",
    )
    with pytest.raises(HardcaseError, match="another network"):
        repair_checks(done.folder, other, GateLimits())
    elsewhere = hc.run(
        toy_subject(),
        toy_images(80, seed=2),
        method="none",
        conditions={"shift": "±4 %"},
        judge=False,
        out=tmp_path / "elsewhere",
    )
    with pytest.raises(HardcaseError, match="other conditions"):
        repair_checks(done.folder, elsewhere, GateLimits())
    text = (done.folder / "repair.json").read_text()
    shutil.copytree(done.folder, tmp_path / "edited")
    (tmp_path / "edited" / "repair.json").write_text(text.replace("0.0", "0.1", 1))
    with pytest.raises(HardcaseError, match="not what was written"):
        repair_checks(tmp_path / "edited", run, GateLimits())


def test_sizes_of_a_proof_are_checked_before_anything_is_loaded(command):
    wrong = {"huge": "size of a proof", "usual:restart=3": "restarts", "quick:images=0": "'0'"}
    for size, words in wrong.items():
        code, said = command(f"repair --model none.py:make --data folder:none --proof {size}")
        assert (code, words in said) == (2, True), said


def test_the_first_word_agrees_with_the_exit_code(toy_folder, capsys):
    Path("c.toml").write_text(CONDITIONS)
    code = main(["repair", *COMMON[:6], "--out", "fixed", *SHORT])
    told = capsys.readouterr().out
    words = {0: "REPAIRED", 4: "INCONCLUSIVE"}
    assert told.startswith(words.get(code, ("NOT REPAIRED", "REGRESSED ELSEWHERE")))
    assert len(told.strip().splitlines()) == 1, "one line with -q"
