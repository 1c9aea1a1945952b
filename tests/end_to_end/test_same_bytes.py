"""Findings do not depend on the batch, the threads, the processes or the other seeds: shown with LeNet-5 and the VAE, not with
a toy."""

import pytest
import torch

from hardcase import api, data, generators
from hardcase.methods import pgd, sinvad
from hardcase.methods.sinvad import sinvad_code
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.spaces.latent import Latent, collect
from hardcase.types import Budget


@pytest.fixture(scope="module")
def world():
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    net, _ = zoo.trained_classifier("lenet5", train, test, epochs=2)
    vae, _ = generators.trained_generator("vae", train, test, epochs=2)
    codes = collect(train, lambda x: vae.encode(x)[0], device=torch.device("cpu"), limit=1000)
    return Subject(net, name="lenet5"), Latent(vae), codes, test.sample(count=16, seed=1)


def parts(folder):
    return [path.read_bytes() for path in sorted((folder / "findings").glob("part-*.parquet"))]


def of_each_seed(run):
    """All that is stored of each seed's findings, in order."""
    found = {}
    for row in run.findings.to_pylist():
        found.setdefault(row["original"], []).append(row)
    return found


def run(world, out, name, rows=None, budget=None, **how):
    subject, space, codes, seeds = world
    seeds = seeds if rows is None else seeds.take(torch.tensor(rows))
    small = {"population": 30, "elite": 10, "generations": 12, "spread": 1.5}
    methods = {
        "sinvad": lambda: sinvad(space=space, partners=codes, shorten=3, closing=2),
        "sinvad@code": lambda: sinvad_code(space=space, **small),
        "pgd": lambda: pgd(epsilon=0.2),
    }
    given = {"seed": 7, "out": out, "allow_low_accuracy": True, "budget": budget}
    given["conditions"] = "none"  # the risk is no finding
    how = api.Execution(**{"shard": 4, "rounds": 2, **how})
    return api.run(subject, seeds, method=methods[name](), execution=how, **given)


EACH = pytest.mark.parametrize(
    "name", ["sinvad", pytest.param("sinvad@code", marks=pytest.mark.long), "pgd"]
)


@EACH
def test_the_same_bytes_in_another_batch_size_thread_count_and_process(world, tmp_path, name):
    first = run(world, tmp_path / "a", name)
    assert first.record["bitwise"]
    assert len(first) > 2, "nothing to compare"
    run(world, tmp_path / "b", name, batch=48)
    assert parts(tmp_path / "a") == parts(tmp_path / "b"), "another batch size"
    run(world, tmp_path / "c", name, workers=2)
    assert parts(tmp_path / "a") == parts(tmp_path / "c"), "two processes"
    whole = of_each_seed(first)
    rows = [world[3].id.index(seed) for seed in list(whole)[:4]]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        some = of_each_seed(run(world, tmp_path / "d", name, rows=rows))
    finally:
        torch.set_num_threads(threads)
    assert some == {seed: whole[seed] for seed in list(whole)[:4]}, "two threads"


@EACH
def test_a_seed_has_the_same_findings_in_any_shard_order_and_company(world, tmp_path, name):
    whole = of_each_seed(run(world, tmp_path / "whole", name))
    assert len(whole) > 2, "nothing to compare"
    small = run(world, tmp_path / "small", name, shard=5)
    assert of_each_seed(small) == whole, "another shard size"
    rows = list(range(14, 1, -2))
    ids = {world[3].id[row] for row in rows}
    some = run(world, tmp_path / "some", name, rows=rows)
    assert of_each_seed(some) == {seed: whole[seed] for seed in ids & set(whole)}, "some, reversed"
    lone = next(row for row in range(16) if world[3].id[row] in whole)
    alone = run(world, tmp_path / "alone", name, rows=[lone])
    assert of_each_seed(alone) == {world[3].id[lone]: whole[world[3].id[lone]]}, "alone"


def test_a_findings_limit_stops_at_the_end_of_a_round(world, tmp_path):
    run_ = run(world, tmp_path / "a", "pgd", budget=Budget(findings=1))
    assert run_.store.done() == {0, 1}
    assert not run_.record["complete"]
