"""Whatever is wrong with the input: a clear error in the agreed form, the right exit code, and nothing written."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

ONE = ("--seeds", "8")


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


FILES = {
    "bad.toml": "model = \n",
    "misspelt.toml": 'modle = "a"\ndata = "b"\nmethod = "pgd"\n',
    "bad.py": "import nothing_of_that_name\n",
    "bad.safetensors": "not weights at all",
    "file": "",
}


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        ("run nowhere.toml", ("nowhere.toml", "no configuration file")),
        ("run bad.toml", ("bad.toml", "TOML", "line 1")),
        ("run misspelt.toml", ("modle", "try: model")),
        ("run", ("model, data and method are not given", "--model ... --data ... --method ...")),
        *(
            (f"{verb} nowhere", ("nowhere", "not a run folder"))
            for verb in ("resume", "status", "report", "cite", "export")
        ),
    ],
)
def test_a_file_or_a_run_that_is_none(world, words, pieces):
    for name, text in FILES.items():
        Path(name).write_text(text)
    refused(world(words), *pieces)


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        ({"model": "nowhere.py:make"}, ("nowhere.py", "zoo:NAME")),
        ({"model": "nonsense"}, ("'nonsense'", "file.py:factory")),
        ({"model": "zoo:lenet55"}, ("lenet55", "lenet5", "try: ")),
        ({"model": "bad.py:make"}, ("bad.py cannot be imported", "nothing_of_that_name")),
        ({"model": "none.safetensors@model.py:make"}, ("there is no file none.safetensors",)),
        ({"model": "bad.safetensors@model.py:make"}, ("bad.safetensors", "not a safetensors file")),
        ({"model": "model.py:nan"}, ("NaN or infinity on all of the 8 images",)),
        ({"model": "model.py:narrow"}, ("3 outputs", "4 classes")),
        ({"model": "model.py:flat"}, ("1 outputs", "4 classes")),
        ({"model": "model.py:fickle"}, ("changes its answer", "dropout")),
        ({"data": "npz:nowhere.npz"}, ("nowhere.npz does not exist", "Looked from")),
        ({"data": "mnist5"}, ("mnist5", "mnist5k", "try: ")),
        ({"method": "pdg"}, ("no method 'pdg'", "sinvad", "try: pgd")),
    ],
)
def test_names_that_name_nothing_usable(world, given, pieces):
    for name, text in FILES.items():
        Path(name).write_text(text)
    refused(world.run(*ONE, **given), *pieces)


@pytest.mark.parametrize(
    ("factory", "pieces"),
    [
        ("missing", ("no function 'missing'", "make")),
        ("constant", ("no function 'constant'",)),
        ("broken", ("RuntimeError: no weights here",)),
        ("number", ("returned int", "torch.nn.Module")),
    ],
)
def test_a_factory_that_makes_no_model(world, factory, pieces):
    refused(world.run(*ONE, model=f"model.py:{factory}"), *pieces)


def test_weights_of_another_model(world):
    from safetensors.torch import save_file

    save_file({"other.weight": torch.zeros(3)}, "other.safetensors")
    refused(
        world.run(*ONE, model="other.safetensors@model.py:make"),
        "other.safetensors lacks",
        "mean.weight",
        "factory of the network",
    )


class Evil:
    def __reduce__(self):
        return (open, ("broken_into", "w"))


def test_weights_that_need_unpickling_are_not_loaded(world):
    from hardcase.testing.toys import Quarters

    torch.save({"state": Evil()}, "evil.pt")
    refused(
        world.run(*ONE, model="evil.pt@model.py:make"), "evil.pt needs unpickling", "--trust-pickle"
    )
    assert not Path("broken_into").exists()
    torch.save(Quarters().state_dict(), "good.pt")
    assert world.run(*ONE, model="good.pt@model.py:make").code == 0


def test_corrupt_data(world):
    whole = Path("toy.npz").read_bytes()
    Path("half.npz").write_bytes(whole[: len(whole) // 2])
    refused(world.run(*ONE, data="npz:half.npz"), "half.npz")


def test_data_that_is_offline_and_absent(world):
    refused(
        world.run(*ONE, "--offline", data="cifar10"),
        "cifar10",
        "--offline",
        "hardcase data cifar10",
    )


# ---------------------------------------------------------------- images and labels


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, (200, *shape), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "pieces"),
    [
        ({"images": noise(1, 12, 12)}, ("1 x 12 x 12", "size")),
        ({"images": noise(3, 8, 8)}, ("3 x 8 x 8", "channels")),
        (
            {"labels": np.where(np.arange(200) == 7, 9, np.arange(200) % 4)},
            ("1 of 200 labels", "label 9", "0 to 3"),
        ),
        ({"labels": np.arange(50) % 4}, ("200 images, but 50 labels",)),
        (
            {"images": np.zeros((0, 1, 8, 8), np.uint8), "labels": np.zeros(0, int)},
            ("odd.npz", "no images"),
        ),
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


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("wide", "2 outputs more than the data has classes"),
        ("probabilities", "the model returns probabilities"),
    ],
)
def test_what_can_be_used_is_accepted_and_said(world, factory, said):
    done = world.run(*ONE, model=f"model.py:{factory}")
    assert done.code == 0
    assert said in done.err
    assert json.loads(Path("out/run.json").read_text())["funnel"]["failing"] == 8


def test_a_model_near_chance(world):
    told = refused(
        world.run(*ONE, model="model.py:shuffled"),
        "gets 0.0 % of the 8 seeds right",
        "chance is 25 %",
    )
    assert "the classes have another order" in told
    assert "(100 % right then)" in told
    assert "--set subject.classes=" in told
    assert "--allow-low-accuracy" in told
    refused(
        world.run(*ONE, "--allow-low-accuracy", model="model.py:shuffled"),
        "none of the 8 seeds",
        code=5,
    )


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("setting", "pieces"),
    [
        ("sed=3", ("no setting 'sed'", "try: seed")),
        ("subject.maen=1", ("'subject.maen'", "try: subject.mean")),
        ("method.epsilom=1", ("option of pgd 'epsilom'", "try: epsilon")),
        ("method.epsilon=big", ("method.epsilon is 'big'", "a number")),
        ("method.epsilon=-1", ("epsilon is -1", "above 0")),
        ("nonsense", ("--set 'nonsense' has no value", "key=value")),
        ("seeds=none", ("seeds is 'none'", "a whole number")),
    ],
)
def test_a_misspelt_or_impossible_setting(world, setting, pieces):
    refused(world.run("--set", setting), *pieces)


@pytest.mark.parametrize(
    ("flags", "piece"),
    [
        (("--queries", 0), "budget.queries is 0"),
        (("--gradients", 0), "budget.gradients is 0"),
        (("--total-queries", 0), "budget.total_queries is 0"),
        (("--findings", 0), "budget.findings is 0"),
        (("--time", "0s"), "0s"),
        (("--time", "soon"), "'soon' is not a duration"),
        (("--seeds", 0), "seeds is 0"),
        (("--workers", 0), "workers is 0"),
        (("--batch-size", 0), "batch_size is '0'"),
    ],
)
def test_nothing_to_spend(world, flags, piece):
    refused(world.run(*flags), piece)


@pytest.mark.parametrize(
    ("flags", "pieces"),
    [
        (("--target", "up"), ("no class 'up'", "north-west")),
        (("--keep", "some"), ("some", "best")),
        (("--device", "tpu"), ("'tpu'", "--device cpu")),
        (("--generator", "vae"), ("takes no generator",)),
        (("--oracle", "luck"), ("oracle is 'luck'", "disagreement")),
        (("--split", "all"), ("--split",)),
    ],
)
def test_a_flag_that_cannot_be_followed(world, flags, pieces):
    refused(world.run(*flags), *pieces)


# ---------------------------------------------------------------- where it goes


def test_an_out_folder_with_something_in_it(world):
    Path("out").mkdir()
    Path("out/mine.txt").write_text("precious")
    refused(world.run(*ONE), "out exists and is not empty", "another --out")
    assert Path("out/mine.txt").read_text() == "precious"


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
    shards = ("--seeds", 16, "--set", "campaign.shard=4")
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
    assert "cannot write" in done.err
    assert "No space left on device" in done.err
    assert "free some space" in done.err
    assert "hardcase resume out" in done.err
    assert len(world.findings()) == 2
    assert world("resume", "out").code == 0
    assert world.findings() == world.findings("whole")
