"""``hardcase escape`` and ``hardcase reproduce sinvad-rq1 --ratings`` from the command line."""

import json
from pathlib import Path

TRAIN = (
    "train",
    "vae",
    "--data",
    "npz:toy.npz",
    "--latent",
    8,
    "--epochs",
    3,
    "--model",
    "model.py:make",
    "-q",
)


def test_escape_answers_in_words_and_in_numbers(world):
    generator = f"vae:{world(*TRAIN).out.strip()}"
    words = (
        "escape",
        "--model",
        "model.py:make",
        "--data",
        "npz:toy.npz",
        "--generator",
        generator,
        "--seeds",
        12,
    )
    done = world(*words, "--out", "out")
    assert done.code == 0, done.err
    assert "class pair" in done.out
    assert {"results.md", "escape.png", "examples.png"} <= {
        path.name for path in Path("out").iterdir()
    }
    told = json.loads(world(*words, "--out", "again", "--format", "json", "-q").out)
    assert len(told["escape"]) == len(told["confusion"]) == len(told["classes"]) == 4
    assert told["answer"]


def test_escape_in_pixels_needs_no_generator(world):
    done = world("escape", "--model", "model.py:make", "--data", "npz:toy.npz", "--generator", "pixels", "--seeds", 8, "--out", "out")  # fmt: skip
    assert done.code == 0, done.err


def test_ratings_are_analysed_from_a_file(world):
    rows = ["rater,item,source_score,target_score,seconds"]
    rows += [f"r{r},q{q:03d}-{m},{3 if m == 'sinvad' else 5},{3 if m == 'sinvad' else 1 + r},6" for r in range(3) for q in range(3) for m in ("real", "fgsm", "cw", "sinvad")]  # fmt: skip
    Path("ratings.csv").write_text("\n".join(rows))
    done = world("reproduce", "sinvad-rq1", "--ratings", "ratings.csv", "--out", "study")
    assert done.code == 0, done.err
    assert "What people saw" in done.out
    assert world("reproduce", "sinvad-rq1", "--ratings", "missing.csv", "--out", "other").code == 2
