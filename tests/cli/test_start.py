"""The way in: a configuration for what is here, a page that opens, a cache that is looked after."""

import json
import tomllib

import pytest
from PIL import Image

import hardcase as hc
from hardcase.cli.main import main
from hardcase.cli.start import look
from hardcase.config import parse
from hardcase.testing.toys import toy_images, toy_subject
from tiny import furnish

NET = "from torch import nn\nclass Net(nn.Module): pass\ndef make():\n    return Net()\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "1.png")
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_a_configuration_that_run_reads_and_never_over_one(project, capsys):
    assert main(["init"]) == 0
    values = tomllib.loads((project / "hardcase.toml").read_text())
    assert (values["model"]["name"], values["data"]) == ("net.py:make", "folder:photos")
    assert parse({**values, "method": "pgd"}).limits.margin == 0.01
    said = capsys.readouterr()
    assert "next: hardcase doctor, then hardcase run" in said.out
    assert "2 images in 2 class folders" in said.err
    (project / "hardcase.toml").write_text("seed = 1\n")
    assert main(["init"]) == 2
    assert (project / "hardcase.toml").read_text() == "seed = 1\n"


def test_weights_and_models_of_hubs_are_recognised(project):
    (project / "net.pt").write_bytes(b"")
    assert look(project)["model"][0].endswith("net.pt@" + str(project / "net.py") + ":make")
    (project / "vit").mkdir()
    (project / "vit" / "config.json").write_text("{}")
    (project / "vit" / "model.safetensors").write_bytes(b"")
    assert look(project)["model"][0] == f"hf:{project / 'vit'}"


def test_an_empty_folder_is_told_of(tmp_path, capsys):
    assert main(["init", str(tmp_path)]) == 0
    assert "no model was found here" in capsys.readouterr().err


def test_open_writes_the_report_first_and_never_opens_a_page_of_others(tmp_path, capsys):
    run = hc.run(toy_subject(), toy_images(4), method="pgd", out=tmp_path / "run", judge=False)
    page = tmp_path / "run" / "report" / "index.html"
    page.parent.mkdir()
    page.write_text("<script>steal()</script>")
    assert main(["open", str(run.folder), "-q"]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert "steal" not in page.read_text()


def test_the_cache_is_listed_and_cleared(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    (tmp_path / "networks" / "model-lenet5-1").mkdir(parents=True)
    (tmp_path / "networks" / "model-lenet5-1" / "weights").write_bytes(bytes(1000))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").write_bytes(bytes(10))
    assert main(["cache", "--format", "json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    sizes = {one["name"]: one["size"] for one in entries}
    assert sizes == {"model-lenet5-1": 1000, "mnist.npz": 10}
    assert main(["cache", "--clear", "lenet5", "--yes"]) == 0
    assert not (tmp_path / "networks" / "model-lenet5-1").exists()
    assert (tmp_path / "data" / "mnist.npz").exists()
    assert main(["cache", "--clear", "nothing", "--yes"]) == 2


def test_a_dry_run_estimates_and_writes_nothing(tmp_path, monkeypatch, capsys):
    furnish(tmp_path, monkeypatch, count=12)
    words = "run --model model.py:make --data npz:toy.npz?split=all --method pgd --dry-run"
    assert main(words.split()) == 0
    said = capsys.readouterr().out
    assert "12 images, 4 samples each: " in said
    assert "pgd from about 12 of 12 images" in said
    assert "less than ten seconds" in said
    assert "epsilon 0.3" in said
    assert not (tmp_path / "runs").exists()
