"""``hardcase escape`` from the command line."""

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
        "--allow-low-accuracy",
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
