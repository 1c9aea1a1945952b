"""``hardcase reproduce`` and ``hardcase escape`` from the command line."""

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

from toy_world import installed_points

from hardcase import companions
from hardcase.suite.tables import Outcome, Table

ESCAPE = "escape --model model.py:make --data npz:toy.npz"


def test_escape_answers_in_words_and_in_numbers(world):
    train = "train vae --data npz:toy.npz --latent 8 --epochs 3 --model model.py:make -q"
    words = f"{ESCAPE} --generator vae:{world(train).out.strip()} --images 12 --allow-low-accuracy"
    done = world(words, "--out out")
    assert done.code == 0, done.err
    assert "class pair" in done.out
    files = {path.name for path in Path("out").iterdir()}
    assert {"results.md", "escape.png", "examples.png"} <= files
    told = json.loads(world(words, "--out again --format json -q").out)
    assert len(told["escape"]) == len(told["confusion"]) == len(told["classes"]) == 4
    assert told["answer"]


def test_escape_in_pixels_needs_no_generator(world):
    done = world(ESCAPE, "--generator pixels --images 8 --out out")
    assert done.code == 0, done.err


def test_reproduce_lists_and_runs_experiments(world, monkeypatch):
    def run(bench):
        bench.say("working")
        rows = [["repeats", bench.repeats], ["k", bench.options["k"]]]
        return Outcome("toy", [Table("Table 1", ["what", "ours"], rows, ["a note"])])

    listed = {"toy": companions.PaperStudy(name="toy", summary="a toy")}
    toys = SimpleNamespace(run=run, STUDIES=listed)
    monkeypatch.setitem(sys.modules, "toys_of_others", toys)
    points = [
        EntryPoint("toy", "toys_of_others:run", "hardcase.studies"),
        EntryPoint("reproduce", "hardcase_studies.commands:reproduce", "hardcase.verbs"),
    ]
    installed_points(monkeypatch, *points)
    assert "a toy" in world("reproduce").out
    done = world("reproduce", "toy", "--repeats", 3, "--set", "k=17", "--out", "res")
    assert done.code == 0, done.err
    assert all(word in done.out for word in ("Table 1", "17", "a note"))
    assert "working" in done.err
    assert Path("res/results.md").is_file()
    again = ("reproduce", "toy", "--repeats", 3, "--set")
    missing = world(*again, "k=17", "--check")
    assert missing.code == 2
    assert "--keep results" in missing.err
    assert world(*again, "k=17", "--keep", "results").code == 0
    assert "toy agrees: 0 of 2 cells" in world(*again, "k=17", "--check").out
    assert "toy" in world("reproduce").out
    wrong = world("reproduce", "tyo")
    assert wrong.code == 2
    assert "toy" in wrong.err


def test_repeats_are_refused_where_a_study_cannot_repeat(world):
    for name in ("sinvad-feasibility", "features-rq3", "decides"):
        done = world("reproduce", name, "--repeats", 5, "--out", "res")
        assert done.code == 2
        assert "--repeats 5" in done.err
    assert not Path("res").exists()
