"""What is uploaded is what is used: wheel and sdist are complete, and work in an empty environment.

The second half installs torch anew: ``make dist`` runs it, for any Python with ``PYTHON=python3.13``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "hardcase": "src",
    "hardcase_teams": "teams/src",
    "hardcase_study": "study/src",
    "hardcase_studies": "studies/src",
}
"""The import packages of the one distribution, and where each lies."""
BUILD = """
import sys
from setuptools import build_meta

out = sys.argv[1]  # building changes the arguments
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""
NET = """
import torch

def make():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 2, bias=False))
    red, _, blue = torch.eye(3)[:, :, None, None].expand(3, 3, 16, 16).reshape(3, -1) / 16
    net[1].weight.data = torch.stack([red, blue])
    return net
"""
PHOTOS = """
from pathlib import Path
import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
for place, name in ((0, "0 red"), (2, "1 blue")):
    folder = Path("photos") / name
    folder.mkdir(parents=True)
    for i in range(15):
        image = rng.integers(90, 130, (16, 16, 3), dtype=np.uint8)
        image[..., place] += 40
        Image.fromarray(image).save(folder / f"{i}.png")
"""


def build(source, out):
    words = [sys.executable, "-c", BUILD, str(out)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)


def said(*words, cwd, env, code=(0,)):
    """What a command prints in a process of its own, which ends with one of these codes."""
    words = list(map(str, words))
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("setuptools", reason="building needs setuptools")
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES.values(), "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout: what belongs to the package is not known")
    for name in listed.stdout.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    build(source, out)
    return out, [name for name in listed.stdout.splitlines() if "src/hardcase" in name]


def test_wheel_and_sdist_hold_every_file_of_the_four_packages(built):
    out, files = built
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("src/")[2] for name in files} <= inside
    packages = {name.partition("/")[0] for name in inside if ".dist-info/" not in name}
    assert packages == set(PACKAGES)
    stem = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        packed = set(archive.getnames())
    assert {f"{stem}/{name}" for name in [*files, "README.md", "LICENSE"]} <= packed


def test_an_extra_names_libraries_of_others_alone(built):
    """So that it installs from a clone and from a folder of wheels, before anything is published."""
    out, _ = built
    (wheel,) = out.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    lines = archive.read(metadata).decode().splitlines()
    needed = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    ours = [one for one in needed if one.startswith("hardcase") and one[8:9] != "["]
    assert needed
    assert not ours
    (points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    stated = archive.read(points).decode()
    assert all(f"{package}." in stated for package in PACKAGES)


def test_an_empty_environment_runs_it(built, tmp_path):
    """Install, doctor, run, report, export, gate: with nothing of this checkout in sight."""
    if not os.environ.get("HARDCASE_DIST"):
        pytest.skip("installs torch anew; make dist")
    out, _ = built
    python = os.environ.get("HARDCASE_DIST_PYTHON", sys.executable)
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    places = {"HOME": str(home), "HARDCASE_CACHE": str(tmp_path / "cache")}
    clean = {"PATH": os.environ["PATH"], **places, **kept}
    say = partial(said, cwd=tmp_path, env=clean)
    say(python, "-m", "venv", "env")
    (wheel,) = out.glob("*.whl")
    pip = [tmp_path / "env/bin/python", "-m", "pip", "install", "-q"]
    lowest = os.environ.get("HARDCASE_DIST_LOWEST")
    limits = lowest.split() if lowest else ["-c", ROOT / "constraints.txt"]
    say(*pip, *limits, wheel)
    tool = tmp_path / "env/bin/hardcase"
    (tmp_path / "net.py").write_text(NET)
    say(tmp_path / "env/bin/python", "-c", PHOTOS)
    assert say(tool, "--version").startswith("hardcase ")
    assert "pgd" in say(tool, "list", "methods")
    given = ["--model", "net.py:make", "--data", "folder:photos?split=all"]
    say(tool, "doctor", *given)
    wide = ["--method", "pgd", "--set", "method.epsilon=0.2"]  # the classes lie 0.16 apart
    say(tool, "run", *given, *wide, "--out", "first", "--progress", "none")
    page = Path(say(tool, "report", "first").strip())
    assert "<html" in (tmp_path / page).read_text()[:500]
    say(tool, "export", "first", "--to", "csv", "--out", "found.csv")
    assert (tmp_path / "found.csv").read_text().count("\n") > 10
    say(tool, "gate", "first", "--max-accepted-rate", "0.1", code=(2,))


def test_an_extra_installs_from_a_clone(tmp_path):
    """`pip install './clone[teams,http]'`, as README says; a model behind an address then loads."""
    if not os.environ.get("HARDCASE_DIST"):
        pytest.skip("installs torch anew; make dist")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    python = os.environ.get("HARDCASE_DIST_PYTHON", sys.executable)
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    own = tmp_path / "env/bin/python"
    pip = [own, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "torch==2.13.0"]
    subprocess.run([*pip, "./clone[teams,http]"], cwd=tmp_path, check=True)
    places = {"HOME": str(tmp_path), "HARDCASE_CACHE": str(tmp_path / "cache")}
    say = partial(
        said, own, "-m", "hardcase", cwd=tmp_path, env={"PATH": "/usr/bin:/bin", **places}
    )
    assert "everything is in order" in say("doctor")
    assert say("fetch", "--help")
    assert json.loads(say("list", "plugins", "--format", "json"))


def test_everything_installs_from_a_folder_as_index(tmp_path):
    """With every extra, in an empty environment; each plug-in is there."""
    if not os.environ.get("HARDCASE_DIST"):
        pytest.skip("installs torch and all extras anew; make dist")
    copy = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    given = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(["./release.sh", "build"], cwd=copy, env=given, check=True)
    source = (copy / "src/hardcase/environment.py").read_text()
    (version,) = re.findall(r'^VERSION = "(.*)"', source, re.M)
    python = os.environ.get("HARDCASE_DIST_PYTHON", sys.executable)
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    own = tmp_path / "env/bin/python"
    pip = [own, "-m", "pip", "install", "-q", "--find-links", copy / "dist", "torch==2.13.0"]
    subprocess.run([*pip, f"hardcase[all]=={version}"], check=True)
    places = {"HOME": str(tmp_path), "HARDCASE_CACHE": str(tmp_path / "cache")}
    clean = {"PATH": os.environ["PATH"], **places}
    say = partial(said, own, "-m", "hardcase", cwd=tmp_path, env=clean)
    plugins = json.loads(say("list", "plugins", "--format", "json"))
    rows = {row["name"]: row["needs"] for row in plugins}
    for name in ("mlflow", "lightning", "transformers", "huggingface_hub", "maite"):
        assert rows[name].startswith("installed"), rows[name]
    assert "sinvad" in say("list", "experiments")
    assert say("study", "--help")


def test_the_commands_of_the_readme_work(tmp_path):
    """As they stand there, one after the other, with a small model and photographs."""
    if not os.environ.get("HARDCASE_DIST"):
        pytest.skip("trains three small witnesses; make dist")
    (tmp_path / "net.py").write_text(NET)
    many = PHOTOS.replace("range(15)", "range(400)")  # some are left to prove a repair on
    subprocess.run([sys.executable, "-c", many], cwd=tmp_path, check=True)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S))
    lines = re.findall(r"^hardcase ((?!demo).*?)(?:\s+#.*)?$", blocks, re.M)
    assert len(lines) == 5
    given = {**os.environ, "HARDCASE_CACHE": str(tmp_path / "cache"), "BROWSER": "true"}
    for line in lines:
        if line.startswith("gate"):  # the next version is the same one here
            shutil.copytree(tmp_path / "runs/first", tmp_path / "runs/next")
        allowed = (0, 1, 4) if line.startswith(("gate", "repair")) else (0,)
        words = (sys.executable, "-m", "hardcase", *line.split())
        said(*words, cwd=tmp_path, env=given, code=allowed)


def test_the_lowest_versions_are_those_that_are_promised():
    with (ROOT / "pyproject.toml").open("rb") as file:
        promised = tomllib.load(file)["project"]["dependencies"]
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    used = dict(line.split("==") for line in lines if "==" in line)
    for name, bound in (words.split(">=") for words in promised):
        assert name == "torch" or used[name] == bound or used[name].startswith(f"{bound}.")


def test_the_version_is_the_same_everywhere():
    """As `./release.sh VERSION` writes it."""
    others = [".zenodo.json", "CITATION.cff", "teams/fiftyone/fiftyone.yml"]
    pattern = r'^(?:VERSION = |version = |version: |  *"version": )"?([^",\n]*)'
    found = {}
    for name in ("src/hardcase/environment.py", *others):
        (found[name],) = re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.M)
    assert len(set(found.values())) == 1, found
    assert json.loads((ROOT / ".zenodo.json").read_text())["license"] == "MIT"
