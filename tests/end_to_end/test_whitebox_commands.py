"""Every method that follows gradients, neurons or mutations, and each of its presets, from the command line on mnist5k."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hardcase import data
from hardcase.cli.main import main
from hardcase.methods.catalogue import METHODS
from hardcase.methods.whitebox import ROWS
from hardcase.models import zoo
from tiny import weights

NAMES = ["pgd", "fgsm", "cw", *(row["name"] for row in ROWS)]
SURE = {"pgd", "deepxplore", "dlfuzz", "maxplore", "maxplore@code", "adapt"}
MODELS = """
from hardcase.models import zoo
def one(): return zoo.build_classifier("lenet1", channels=1, size=28, classes=10)
def four(): return zoo.build_classifier("lenet4", channels=1, size=28, classes=10)
"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Two networks that learnt for an epoch, as files."""
    folder = tmp_path_factory.mktemp("networks")
    train, test = (data.load("mnist5k", split=split) for split in ("train", "test"))
    (folder / "models.py").write_text(MODELS)
    for name, factory in (("lenet1", "one"), ("lenet4", "four")):
        net, _ = zoo.trained_classifier(name, train, test, epochs=1)
        (folder / f"{factory}.safetensors").write_bytes(weights(net))
    return {
        name: f"{folder}/{name}.safetensors@{folder}/models.py:{name}" for name in ("one", "four")
    }


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_mnist5k(name, networks, tmp_path, capsys):
    budget = (
        ["--gradients", "30"]
        if METHODS[name].needs == "gradients" and name != "fgsm"
        else ["--queries", "60"]
    )
    peers = ["--peer", networks["four"]] if METHODS[name].peers == "wanted" else []
    flags = [
        "--data",
        "mnist5k",
        "--seeds",
        "4",
        "--seed",
        "1",
        "--format",
        "json",
        "--progress",
        "none",
    ]
    code = main(
        [
            "run",
            "--model",
            networks["one"],
            "--method",
            name,
            "--out",
            str(tmp_path / "run"),
            *flags,
            *budget,
            *peers,
        ]
    )
    record = json.loads(capsys.readouterr().out)
    assert code == 0
    assert record["complete"]
    assert record["funnel"]["attempted"] > 0
    (part,) = Path(tmp_path / "run" / "findings").glob("part-*.parquet")
    found = pq.read_table(part).to_pylist()
    assert len(found) == record["findings"]["kept"]
    kinds = {"disagreement"} if METHODS[name].peers != "none" else {"label"}
    assert {row["kind"] for row in found} <= kinds | {"label", "non_finite"}
    if name in SURE:
        assert found, "these find something within 30 gradients, even from four seeds"
