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


def test_a_missing_configuration(world):
    refused(world("run", "nowhere.toml"), "nowhere.toml", "no configuration file")


def test_a_configuration_that_is_not_toml(world):
    Path("bad.toml").write_text("model = \n")
    refused(world("run", "bad.toml"), "bad.toml", "TOML", "line 1")


def test_nothing_given(world):
    refused(
        world("run"), "model, data and method are not given", "--model ... --data ... --method ..."
    )


def test_a_missing_model_file(world):
    refused(world.run(*ONE, model="nowhere.py:make"), "nowhere.py", "zoo:NAME")


def test_a_model_that_is_no_model(world):
    refused(world.run(*ONE, model="nonsense"), "'nonsense'", "file.py:factory")


def test_an_unknown_zoo_model(world):
    refused(world.run(*ONE, model="zoo:lenet55"), "lenet55", "lenet5", "try: ")


def test_a_model_file_that_does_not_import(world):
    Path("bad.py").write_text("import nothing_of_that_name\n")
    refused(
        world.run(*ONE, model="bad.py:make"), "bad.py cannot be imported", "nothing_of_that_name"
    )


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


def test_missing_and_corrupt_weights(world):
    refused(
        world.run(*ONE, model="none.safetensors@model.py:make"), "there is no file none.safetensors"
    )
    Path("bad.safetensors").write_bytes(b"not weights at all")
    refused(
        world.run(*ONE, model="bad.safetensors@model.py:make"),
        "bad.safetensors",
        "not a safetensors file",
    )


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


def test_missing_data(world):
    refused(world.run(*ONE, data="npz:nowhere.npz"), "nowhere.npz does not exist", "Looked from")


def test_an_unknown_data_set(world):
    refused(world.run(*ONE, data="mnist5"), "mnist5", "mnist5k", "try: ")


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


def test_a_run_that_is_none(world):
    for verb in ("resume", "status", "report", "cite", "export"):
        refused(world(verb, "nowhere"), "nowhere", "not a run folder")


# ---------------------------------------------------------------- images and labels


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, (200, *shape), np.uint8)


def test_images_of_another_size(world):
    data = world.save("big.npz", images=noise(1, 12, 12))
    refused(world.run(*ONE, data=data), "1 x 12 x 12", "size")


def test_images_with_other_channels(world):
    data = world.save("colour.npz", images=noise(3, 8, 8))
    refused(world.run(*ONE, data=data), "3 x 8 x 8", "channels")


def test_labels_outside_the_classes(world):
    labels = np.arange(200) % 4
    labels[7] = 9
    refused(
        world.run(*ONE, data=world.save("odd.npz", labels=labels)),
        "1 of 200 labels",
        "label 9",
        "0 to 3",
    )


def test_more_images_than_labels(world):
    refused(
        world.run(*ONE, data=world.save("few.npz", labels=np.arange(50) % 4)),
        "200 images, but 50 labels",
    )


def test_no_images(world):
    data = world.save("none.npz", images=np.zeros((0, 1, 8, 8), np.uint8), labels=np.zeros(0, int))
    refused(world.run(*ONE, data=data), "none.npz", "no images")


def test_one_class_alone_is_accepted_and_said(world):
    with np.load("toy.npz") as file:
        keep = file["labels"] == 1
        data = world.save("one.npz", images=file["images"][keep], labels=file["labels"][keep])
    done = world.run(*ONE, data=data)
    assert done.code == 0
    assert "note: all images show one class" in done.err


# ---------------------------------------------------------------- what the model answers


def test_a_model_that_returns_nan(world):
    refused(world.run(*ONE, model="model.py:nan"), "NaN or infinity on all of the 8 images")


def test_a_model_that_is_too_narrow(world):
    refused(world.run(*ONE, model="model.py:narrow"), "3 outputs", "4 classes")


def test_a_model_that_is_wider_than_the_data_is_accepted_and_said(world):
    done = world.run(*ONE, model="model.py:wide")
    assert done.code == 0
    assert "2 outputs more than the data has classes" in done.err


def test_probabilities_are_accepted_and_said(world):
    done = world.run(*ONE, model="model.py:probabilities")
    assert done.code == 0
    assert "the model returns probabilities" in done.err
    assert json.loads(Path("out/run.json").read_text())["funnel"]["failing"] == 8


def test_a_model_that_changes_its_answer(world):
    refused(world.run(*ONE, model="model.py:fickle"), "changes its answer", "dropout")


@pytest.mark.parametrize(("factory", "said"), [("flat", "1 outputs")])
def test_a_model_that_returns_something_else(world, factory, said):
    refused(world.run(*ONE, model=f"model.py:{factory}"), said, "4 classes")


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


def test_an_unknown_method(world):
    refused(world.run(*ONE, method="pdg"), "no method 'pdg'", "sinvad", "try: pgd")


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


def test_a_misspelt_key_in_a_file(world):
    Path("c.toml").write_text('modle = "a"\ndata = "b"\nmethod = "pgd"\n')
    refused(world("run", "c.toml"), "modle", "try: model")


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
    done = world(
        "run",
        "--model",
        "model.py:make",
        "--data",
        "npz:toy.npz",
        "--method",
        "pgd",
        *ONE,
        "--out",
        "file/run",
    )
    refused(done, "cannot write file/run", "writable folder")


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
