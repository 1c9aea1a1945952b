"""The verbs one after the other, as a person would use them."""

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from toy_world import installed_points

from hardcase import statistics


def test_a_run_from_flags_closes_with_the_funnel_the_files_and_the_next_command(world):
    done = world.run("--images", 12, "--seed", 7, "--progress", "plain")
    assert done.code == 0
    assert done.out.split()[0] == "MEASURED"
    assert all(len(line) <= 100 for line in done.out.splitlines())
    assert "pgd found a failing variant of 12 of 12 images" in done.out
    assert "hardcase open out" in done.out
    assert "searching with pgd on model.py:make, npz:toy.npz: 12 right of 12 images" in done.err
    record = world.record()
    assert record["complete"]
    assert record["seed"] == 7
    assert list(record["search_results"]) == list(statistics.STEPS)
    for name in ("config.toml", "status.json", "history.csv", "images.parquet"):
        assert (Path("out") / name).is_file(), name


def test_the_resolved_configuration_re_runs_the_run(world):
    settings = "--set method.epsilon=0.25 campaign.shard=3"
    assert world.run("--images 8 --seed 3", settings).code == 0
    assert len(world.findings()) == 3
    for number, more in enumerate(("", "--batch-size 3", "--batch-size auto")):
        assert world("run out/config.toml", more, f"--out again{number}").code == 0
        assert world.findings(f"again{number}") == world.findings("out")


def test_json_is_alone_on_standard_output(world):
    done = world.run("--images", 4, "--format", "json")
    record = json.loads(done.out)
    assert done.code == 0
    assert record["folder"] == "out"
    assert record["search_results"]["failing"] == 4
    assert record["findings"]["kept"] == 4
    done = world.run("--images 4 -q --out quiet")
    assert (done.code, done.out.count("\n"), done.err) == (0, 1, "")
    assert done.out.startswith("MEASURED  ")


def test_the_live_screen_leaves_its_last_frame_and_a_time_limit_is_not_deterministic(world):
    done = world.run("--images", 4, "--progress", "live", "--time", "20s")
    assert done.code == 0
    assert world.record()["deterministic"] is False
    assert "4 done · 0 running · 0 waiting · 0 skipped" in done.err
    assert "pgd on model.py:make" in done.err


def test_without_out_folders_are_numbered(world):
    for _ in range(3):
        done = world("run --model model.py:make --data npz:toy.npz --method fgsm --images 4 -q")
        assert done.code == 0
    names = ["fgsm-toy-0", "fgsm-toy-0-2", "fgsm-toy-0-3"]
    assert sorted(path.name for path in Path("runs").iterdir()) == names


@pytest.mark.parametrize(
    ("flag", "given", "limit"),
    [("queries", 3, 3), ("gradients", 2, 2), ("total-queries", 8, 2), ("total-gradients", 4, 1)],
)
def test_budgets_hold(world, flag, given, limit):
    flags = ("--set", "method.epsilon=0.01", f"--{flag}", given)
    assert world.run("--images", 4, *flags).code == 0
    spent = pq.read_table("out/images.parquet")[flag.removeprefix("total-")].to_pylist()
    assert max(spent) == limit


def test_a_findings_limit_ends_a_run_well(world):
    done = world.run("--images 12 --findings 2 --set campaign.shard=2 campaign.round=2")
    assert done.code == 0
    assert len(world.findings()) == 2
    assert "hardcase open out" in done.out


def test_a_target_class_is_reached(world):
    assert world.run("--images 8 --target south-east --set method.epsilon=0.5").code == 0
    found = pq.read_table("out/findings/part-00000.parquet")
    assert set(found["predicted"].to_pylist()) == {3}


def test_status_report_export_and_cite(world):
    world.run("--images", 6)
    status = world("status", "out")
    assert status.out.split()[0] == "MEASURED"
    assert "done" in status.out
    assert (
        json.loads(world("status", "out", "--format", "json").out)[0]["search_results"]["failing"]
        == 6
    )
    report = world("report", "out")
    assert report.out.strip() == "out/report/index.html"
    assert Path("out/report/report.json").is_file()
    assert world("export", "out", "--to", "npz", "--out", "found").code == 0
    assert any(Path("found").iterdir())
    cited = world("cite", "out")
    assert cited.out.startswith("@inproceedings{madry2018pgd")


def test_several_runs_share_one_report_beside_them(world):
    world.run("--images", 4, "--out", "runs/a")
    world.run("--images", 4, "--out", "runs/b", method="fgsm")
    done = world("report", "runs/a", "runs/b")
    assert done.code == 0
    assert Path(done.out.strip()) == Path("runs/report/index.html").absolute()
    assert world("cite", "runs/a", "runs/b").out.count("@inproceedings") == 2


def test_data_of_ones_own_is_described(world):
    done = world("data", "npz:toy.npz")
    assert done.code == 0
    assert all(word in done.out for word in ("160 images", "1 x 8 x 8", "north-west"))
    assert json.loads(world("data", "npz:toy.npz", "--format", "json").out)["data"] == "npz:toy.npz"
    assert "4,000 images" in world("data mnist5k --offline").out


def test_layers(world):
    done = world("layers --model model.py:make --data npz:toy.npz --format json")
    layers = [(row["name"], row["units"]) for row in json.loads(done.out)]
    assert layers == [("mean", 4), ("relu", 4), ("out", 4)]
    zoo = world("layers --model zoo:lenet1 --data npz:toy.npz")
    assert zoo.code == 0
    assert "conv" in zoo.out
    assert not list(Path("cache").glob("networks/*")), "looking at layers must not train"


def test_coverage(world):
    words = "coverage --model model.py:make --data npz:toy.npz --criteria nc,kmnc:k=10"
    rows = json.loads(world(words, "--format", "json").out)
    assert [row["criterion"] for row in rows] == ["nc", "kmnc:k=10"]
    keys = {"criterion", "value", "covered", "total", "convention", "profile", "seconds"}
    assert keys <= set(rows[0])
    assert "kmnc" in world(words).out
    world.run("--images", 6)  # what it found is profiled by its data
    done = world("coverage --model model.py:make --data run:out --criteria nbc --format json")
    assert done.code == 0
    assert "npz:toy.npz" in done.err
    assert json.loads(done.out)[0]["profile"].startswith("npz:toy.npz/train, 160 images")


def test_training_prints_the_card_and_is_kept(world):
    words = "train classifier --model zoo:lenet1 --data npz:toy.npz --epochs 12"
    first = world(words, "--format", "json")
    assert first.code == 0
    assert "training lenet1 on npz:toy.npz" in first.err
    card = json.loads(first.out)
    assert (Path(card["folder"]) / "card.json").is_file()
    again = world(words)
    assert "training" not in again.err
    assert f"{100 * card['accuracy']:.1f} %" in again.out
    assert card["folder"] in again.out


def test_a_vae_is_measured_and_serves_a_latent_method(world):
    words = "train vae --data npz:toy.npz --latent 4 --epochs 2 --model model.py:make"
    card = json.loads(world(words, "--format", "json").out)
    assert card["configuration"]["latent"] == 4
    assert 0 <= card["reconstruction_accuracy"] <= 1
    assert "reconstruction accuracy" in world(words).out
    assert world(words, "-q").out.strip() == card["folder"]
    generator = f"--generator vae:{card['folder']} --allow-low-accuracy"
    done = world.run("--images 8 --queries 60", generator, method="sinvad")
    assert done.code == 0, done.err
    assert world.record()["generator"]["configuration"]["latent"] == 4


def test_doctor_finds_everything_in_order(world):
    done = world("doctor --model model.py:make --data npz:toy.npz")
    assert done.code == 0
    assert "everything is in order" in done.out
    ours = ("versions", "arithmetic", "devices", "cache")
    for what in (*ours, "accuracy", "normalisation", "repeatable", "smoke"):
        assert what in done.out
    assert not Path("runs").exists()


def test_doctor_names_the_problem_and_the_remedy(world):
    done = world("doctor --model model.py:nan --data npz:toy.npz --format json")
    assert done.code == 2
    (bad,) = (row for row in json.loads(done.out) if row["state"] == "problem")
    assert "NaN" in bad["detail"]


def test_demo_measures_repairs_and_measures_again(world, monkeypatch):
    from hardcase.cli import start
    from hardcase.repair import measures

    declared = {"exposure": "±1 stops", "name": "dusk"}
    toy = {"model": "model.py:make", "data": "npz:toy.npz", "conditions": declared}
    monkeypatch.setattr(start, "WORLD", toy)
    monkeypatch.setattr(start, "RECIPE", {"epochs": 1, "rate": 1e-3})
    size = measures.proof_size("quick:attack.images=4")
    monkeypatch.setitem(measures.SIZES, "quick", size)
    done = world("demo")
    assert done.code == 0, done.err
    steps = [line.split(maxsplit=2)[:2] for line in done.out.splitlines() if line[:1].isdigit()]
    assert steps[:3] == [["1", "measure"], ["2", "repair"], ["3", "measure"]]
    assert Path("runs/demo/repair/report.html").is_file()
    assert "runs/demo/repair/report.html" in done.out
    said = json.loads(world("demo", "--format", "json").out)
    words = {"PASS", "FAIL", "INCONCLUSIVE"}
    assert set(said["decisions"]) == {"before", "after"}
    assert set(said["decisions"].values()) <= words
    weights = "runs/demo-2/repair/weights.safetensors@model.py:make"
    assert said["after"]["model"] == said["repair"]["model"] == weights
    assert len(world("demo", "-q").out.strip().splitlines()) == 3


COMPANIONS = {
    "studies": ("reproduce argus-table1", "list experiments", "faults --full", "escape", "rank"),
    "study": ("study serve STUDY",),
    "teams": ("card RUN", "fetch model resnet50-imagenet"),
}


@pytest.mark.parametrize(
    ("extra", "words"), [(extra, words) for extra, every in COMPANIONS.items() for words in every]
)
def test_without_a_companion_its_verbs_name_what_to_install(world, monkeypatch, words, extra):
    installed_points(monkeypatch)
    done = world(words)
    assert done.code == 2
    assert f"pip install 'hardcase[{extra}]'" in done.err
    assert "reproduce" in world("--help").out, "help names what could be installed"


def test_verbs_of_others_are_found_and_help_imports_none_of_them(world, monkeypatch):
    def greet(name: str) -> None:
        print(f"hello {name}")

    installed_points(monkeypatch, EntryPoint("greet", "verbs_of_others:greet", "hardcase.verbs"))
    assert "greet" in world("--help").out
    monkeypatch.setitem(sys.modules, "verbs_of_others", SimpleNamespace(greet=greet))
    assert world("greet", "you").out == "hello you\n"
