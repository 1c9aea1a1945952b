"""Whatever is wrong with the input: a clear error in the agreed form, the right exit code, and nothing written."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

ONE = ("--images", "8")


def refused(done, *pieces, code=2):
    """The error is told in the agreed form, and no run folder is left behind."""
    assert done.code == code, done.err
    assert done.err.splitlines()[-1] != ""
    told = done.err[done.err.index("error: ") :]
    assert "Traceback" not in done.err
    assert "unforeseen" not in done.err
    assert not done.out
    for piece in pieces:
        assert piece in told, f"{piece!r} is not in:\n{told}"
    assert not Path("out/run.json").exists()
    return told


# ---------------------------------------------------------------- files


VERBS = ("resume", "status", "report", "cite", "export")
FILES = {
    "bad.toml": "model = \n",
    "misspelt.toml": 'modle = "a"\ndata = "b"\nmethod = "pgd"\n',
    "bad.py": "import nothing_of_that_name\n\n\ndef make(): ...\n",
    "bad.safetensors": "not weights at all",
}


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        ("run nowhere.toml", ("nowhere.toml", "no configuration file")),
        ("run bad.toml", ("bad.toml", "TOML", "line 1")),
        ("run misspelt.toml", ("modle", "try: model")),
        ("run", ("model and data are not given", "--model ... --data ...")),
        *[(f"{verb} nowhere", ("nowhere", "not a run folder")) for verb in VERBS],
    ],
)
def test_a_file_or_a_run_that_is_none(world, words, pieces):
    for name, text in FILES.items():
        Path(name).write_text(text)
    refused(world(words), *pieces)


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        ("--model nowhere.py:make", ("nowhere.py", "zoo:NAME")),
        ("--model nonsense", ("'nonsense'", "file.py:factory")),
        ("--model zoo:lenet55", ("lenet55", "lenet5", "try: ")),
        ("--model bad.py:make", ("bad.py cannot be imported", "nothing_of_that_name")),
        ("--model none.safetensors@model.py:make", ("there is no file none.safetensors",)),
        ("--model bad.safetensors@model.py:make", ("not a safetensors file",)),
        ("--model model.py:nan", ("NaN or infinity on all of the 40 images",)),
        ("--model model.py:narrow", ("3 outputs", "4 classes")),
        ("--model model.py:flat", ("1 outputs", "4 classes")),
        ("--model model.py:fickle", ("changes its answer", "dropout")),
        ("--model model.py:missing", ("no function 'missing'", "make")),
        ("--model model.py:constant", ("no function 'constant'",)),
        ("--model model.py:broken", ("RuntimeError: no weights here",)),
        ("--model model.py:number", ("returned int", "torch.nn.Module")),
        ("--data npz:nowhere.npz", ("nowhere.npz does not exist", "Looked from")),
        ("--data mnist5", ("mnist5", "mnist5k", "try: ")),
        ("--offline --data cifar10", ("cifar10", "--offline", "hardcase data cifar10")),
        ("--method pdg", ("no method 'pdg'", "try: pgd")),
        ("--set sed=3", ("no setting 'sed'", "try: seed")),
        ("--set model.maen=1", ("'model.maen'", "try: model.mean")),
        ("--set method.epsilom=1", ("option of pgd 'epsilom'", "try: epsilon")),
        ("--set method.epsilon=big", ("method.epsilon is 'big'", "a number")),
        ("--set method.epsilon=-1", ("epsilon is -1", "above 0")),
        ("--set nonsense", ("--set 'nonsense' has no value", "key=value")),
        ("--set workers=none", ("workers is 'none'", "a whole number")),
        ("--queries 0", ("budget.queries is 0",)),
        ("--gradients 0", ("budget.gradients is 0",)),
        ("--total-queries 0", ("budget.total_queries is 0",)),
        ("--findings 0", ("budget.findings is 0",)),
        ("--time 0s", ("0s",)),
        ("--time soon", ("'soon' is not a duration",)),
        ("--images 0", ("images is 0",)),
        ("--workers 0", ("workers is 0",)),
        ("--batch-size 0", ("batch_size is '0'",)),
        ("--target up", ("no class 'up'", "north-west")),
        ("--keep some", ("some", "best")),
        ("--device tpu", ("'tpu'", "--device cpu")),
        ("--device gpu", ("'gpu'", "known: auto, cpu, cuda, mps, xpu")),
        ("--set conditions.draws=16", ("no condition 'draws'", "--set samples=N")),
        ("--generator vae", ("takes no generator",)),
        ("--oracle luck", ("oracle is 'luck'", "disagreement")),
        ("--split all", ("--split",)),
    ],
)
def test_a_name_a_setting_or_a_flag_that_cannot_be_followed(world, words, pieces):
    for name, text in FILES.items():
        Path(name).write_text(text)
    refused(world.run(*ONE, words), *pieces)


def test_weights_of_another_model(world):
    from safetensors.torch import save_file

    save_file({"other.weight": torch.zeros(3)}, "other.safetensors")
    done = world.run(*ONE, model="other.safetensors@model.py:make")
    refused(done, "other.safetensors lacks", "mean.weight", "factory of the network")


# ---------------------------------------------------------------- images and labels


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, (200, *shape), np.uint8)


NINE = np.where(np.arange(200) == 7, 9, np.arange(200) % 4)
EMPTY = {"images": np.zeros((0, 1, 8, 8), np.uint8), "labels": np.zeros(0, int)}


@pytest.mark.parametrize(
    ("arrays", "pieces"),
    [
        ({"images": noise(1, 12, 12)}, ("1 x 12 x 12", "size")),
        ({"images": noise(3, 8, 8)}, ("3 x 8 x 8", "channels")),
        ({"labels": NINE}, ("1 of 200 labels", "label 9", "0 to 3")),
        ({"labels": np.arange(50) % 4}, ("200 images, but 50 labels",)),
        (EMPTY, ("odd.npz", "no images")),
    ],
)
def test_images_and_labels_that_do_not_fit(world, arrays, pieces):
    refused(world.run(*ONE, data=world.save("odd.npz", **arrays)), *pieces)


def test_one_class_alone_is_accepted_and_said(world):
    with np.load("toy.npz") as file:
        keep = file["labels"] == 1
        data = world.save("one.npz", images=file["images"][keep], labels=file["labels"][keep])
    done = world.run(*ONE, data=data)
    assert done.code == 0
    assert "note: all images show one class" in done.err


# ---------------------------------------------------------------- what the model answers


def test_a_model_near_chance(world):
    near = ("accuracy 0.0 % (n = 40)", "chance is 25 %", "the classes have another order")
    mended = ("(100 % right then)", "--set model.classes=", "--allow-low-accuracy")
    refused(world.run(*ONE, model="model.py:shuffled"), *near, *mended)
    done = world.run(*ONE, "--allow-low-accuracy", model="model.py:shuffled")
    assert done.code == 0, "what was measured stands"
    assert "none of the 8" in done.err


# ---------------------------------------------------------------- where it goes


def test_an_out_folder_that_is_a_run_offers_to_resume(world):
    assert world.run(*ONE).code == 0
    before = world.findings()
    done = world.run(*ONE)
    assert done.code == 2
    assert "hardcase resume out" in done.err
    assert world.findings() == before


def test_an_out_folder_that_cannot_be_made(world):
    Path("file").touch()
    given = "run --model model.py:make --data npz:toy.npz --method pgd --out file/run"
    refused(world(given, *ONE), "cannot write file/run", "writable folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may write everywhere")
def test_a_read_only_folder(world):
    Path("fixed").mkdir(mode=0o555)
    refused(world.run(*ONE, "--out", "fixed/run"), "cannot write fixed/run", "Permission denied")


def test_a_disk_that_fills_up_keeps_what_was_found_and_the_run_goes_on(world, monkeypatch):
    """The third shard does not fit any more; with room again the run ends as if nothing had happened."""
    shards = ("--images", 16, "--set", "campaign.shard=4")
    assert world.run(*shards, "--out", "whole").code == 0
    real = os.replace

    def full(written, path, **where):
        if "part-00002" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(written, path, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        done = world.run(*shards)
    assert done.code == 2
    for piece in ("cannot write", "No space left on device", "free some space"):
        assert piece in done.err
    assert "hardcase resume out" in done.err
    assert len(world.findings()) == 2
    assert world("resume", "out").code == 0
    assert world.findings() == world.findings("whole")


@pytest.mark.parametrize("words", ["open NAME", "run --model zoo:lenet1 --data mnist5k --out NAME"])
def test_a_name_that_is_too_long_is_the_users_error(world, words):
    told = refused(world(*words.replace("NAME", "a" * 300).split()), "File name too long")
    assert len(told) < 120
