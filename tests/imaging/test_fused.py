"""Kernels of a GPU against the plain functions: played on a CPU here, on the device where there is one."""

import ctypes
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from hardcase import tensors
from hardcase.conditions.box import condition_box
from hardcase.conditions.declared import PROFILES, Conditions
from hardcase.imaging import fused
from hardcase.randomness import Rng
from hardcase.tensors import to_bytes
from hardcase.types import Seeds
from tests.spaces.test_appearance import photographs

SHAPES = [(3, 40, 56), (1, 28, 28), (3, 33, 21)]
WAITING = ("content", "compress")
"""Kernels whose threads wait for each other."""
compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The kernels as functions of a shared library: ``play_NAME(across, rows, ...)``."""
    folder = tmp_path_factory.mktemp("kernels")
    source = files("hardcase.imaging").joinpath("kernels.cu").read_text("utf-8")
    head = Path(__file__).with_name("played_kernels.hpp").read_text("utf-8")
    played = []
    for name, given in re.findall(r"__global__ void (\w+)\(([^)]*)\)", source):
        names = ", ".join(one.split()[-1].lstrip("*") for one in given.split(","))
        waits = str(name in WAITING).lower()
        played.append(
            f'extern "C" void play_{name}(int blocks_x, int blocks_y, {given})'
            f"{{ play(blocks_x, blocks_y, {waits}, [&] {{ {name}({names}); }}); }}"
        )
    (folder / "played.cpp").write_text("\n".join([head, source, *played]), encoding="utf-8")
    built = folder / "played.so"
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["g++", *flags, folder / "played.cpp", "-o", built], check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture
def played(library, monkeypatch):
    """Kernels at work on a CPU; which were launched."""
    launched = []

    def launch(name, blocks, *given):
        launched.append(name)
        getattr(library, f"play_{name}")(*map(ctypes.c_int, blocks), *map(fused._argument, given))

    def usable(x, *others):
        return not fused._off and not any(one.requires_grad for one in (x, *others))

    monkeypatch.setattr(tensors, "_steady", set())  # this processor plays a device
    monkeypatch.setattr(fused, "_launch", launch)
    monkeypatch.setattr(fused, "usable", usable)
    return launched


def decoded(profile, shape, device="cpu", count=5):
    """Images under conditions by the kernels, and by the plain functions."""
    box = condition_box(Conditions.load(profile), shape)
    x = photographs(count, shape).to(device)
    place = torch.arange(count, device=device)
    drawn = box.draw(Rng(3, "conditions", place), place, 1)
    origin = Seeds(drawn.z[:, 0], x, place, place, {"pattern": drawn.pattern[:, 0]})
    with torch.no_grad():
        fast = box.decode(drawn.z[:, 0], origin)
        with fused.plainly():
            return fast, box.decode(drawn.z[:, 0], origin)


@compiler
@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=pytest.mark.long) if s[1] == 40 else s for s in SHAPES], ids=str
)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_played_kernel_makes_the_images_of_the_plain_functions(profile, shape, played):
    fast, plain = decoded(profile, shape)
    assert played
    steps = (to_bytes(fast).int() - to_bytes(plain).int()).abs()
    # a CPU divides by constants and has other last bits of powers: a rounding of JPEG may turn
    assert (steps == 0).float().mean() > 0.98
    assert (fast - plain).abs().median() < 1e-6


@compiler
def test_every_kernel_is_at_work_for_a_photograph_in_the_hand(played):
    decoded("handheld", (3, 40, 56))
    assert set(played) == set(fused.KERNELS)


@compiler
def test_a_gradient_is_left_to_the_plain_functions(played):
    box = condition_box(Conditions.load("handheld"), (3, 40, 56))
    x = photographs(2, (3, 40, 56))
    place = torch.arange(2)
    z = box.draw(Rng(3, "conditions", place), place, 1).z[:, 0].requires_grad_()
    image = box.decode(z, Seeds(z.detach(), x, place, place))
    (gradient,) = torch.autograd.grad(image.square().sum(), z)
    assert gradient.abs().sum() > 0


@gpu
@pytest.mark.parametrize("shape", [*SHAPES, (3, 224, 224)], ids=str)
@pytest.mark.parametrize("profile", PROFILES)
def test_kernels_of_a_device_make_the_same_bits(profile, shape):
    fast, plain = decoded(profile, shape, "cuda", count=64)
    assert fused.usable(fast)
    assert torch.equal(fast, plain)
