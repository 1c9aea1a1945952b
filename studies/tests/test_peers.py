"""Studies that run what others wrote: the parts that need no library of others, and the rest where they are installed."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.peers import lines
from hardcase.errors import HardcaseError
from hardcase_studies import peers
from hardcase_studies.bench import Bench
from hardcase_studies.peers import attacks, networks, probability


def test_a_published_network_is_loaded_by_the_names_of_its_weights(tmp_path):
    torch.manual_seed(0)
    made = networks.CifarResNet(3)
    weights = {
        f"resnet20.{name}": value
        for name, value in made.state_dict().items()
        if name not in ("mean", "std") and not name.endswith("tracked")
    }
    save_file(weights, tmp_path / "w.safetensors")
    net = networks.resnet(tmp_path / "w.safetensors")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(net(x), made.eval()(x))
    with pytest.raises(HardcaseError, match="no weights of resnet56"):
        networks.resnet(tmp_path / "w.safetensors", "resnet56")
    del weights["resnet20.bn1.running_mean"]
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(HardcaseError, match=r"lacks bn1\.running_mean"):
        networks.resnet(tmp_path / "w.safetensors")


def test_a_library_that_is_missing_says_how_to_have_it():
    with pytest.raises(HardcaseError, match="cannot be imported") as problem:
        peers.library("no_such_library")
    assert problem.value.fix == "make peers"


class Threshold(torch.nn.Module):
    """Class 1 where the mean is above a half."""

    def forward(self, x):
        high = x.mean((1, 2, 3)) - 0.5
        return torch.stack([-high, high], 1)


def test_a_share_of_a_box_is_that_of_the_box():
    x = torch.full((6, 1, 1, 1), 0.45)
    y = torch.zeros(6, dtype=torch.int64)
    rng = torch.Generator().manual_seed(0)
    failed = probability._failing(Threshold(), x, y, 0.1, 2000, rng)
    assert float(failed.double().mean()) == pytest.approx(
        0.25, abs=0.02
    )  # of ±0.1 around 0.45 a quarter lies above 0.5
    assert not probability._failing(Threshold(), x, y, 0.04, 100, rng).any()


def test_queries_for_a_narrower_interval_are_more():
    each = torch.rand(20, 50, generator=torch.Generator().manual_seed(0)) < 0.3
    wide, narrow = (int(probability._needed(each, width).replace(",", "")) for width in (0.4, 0.1))
    assert 20 < wide < narrow


def test_stored_tables_are_printed_with_their_notes():
    rows = [{"table": "t", "row": "ours", "column": "success", "value": "3 of 4"}]
    printed = list(lines({"rows": rows, "notes": ["of four"]}))
    assert printed[-1].strip() == "of four"
    assert printed[-2].split("  ")[0] == "ours"


@pytest.mark.skipif(
    importlib.util.find_spec("attackbench") is None, reason="make peers installs AttackBenchLib"
)
def test_attackbench_counts_our_attack(tmp_path, monkeypatch):
    images = torch.rand(4, 1, 8, 8)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    labels = net(images).argmax(1)
    monkeypatch.setattr(
        attacks, "attacked", lambda bench, count: (net.eval(), images, labels, "a toy")
    )
    options = {"attacks": "fgsm", "libraries": "ours"}
    (table,) = attacks.run(Bench(out=tmp_path, options=options)).tables
    assert attacks.run(Bench(out=tmp_path, options=options)).tables[0].rows == table.rows  # kept
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["batch failures"] == row["box failures"] == 0
    assert float(row["backwards"]) == 1
    assert json.dumps(row)
