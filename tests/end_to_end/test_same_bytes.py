"""Findings do not depend on the batch, the threads or the processes: shown with LeNet-5 and the VAE, not with a toy."""

import pytest
import torch

from hardcase import api, data, generators
from hardcase.methods import pgd, sinvad
from hardcase.methods.sinvad import sinvad_paper
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
    return Subject(net, name="lenet5"), Latent(vae), codes, test.sample(count=24, seed=1)


def parts(folder):
    return [path.read_bytes() for path in sorted((folder / "findings").glob("part-*.parquet"))]


def run(world, out, name, **how):
    subject, space, codes, seeds = world
    methods = {
        "sinvad": lambda: sinvad(space=space, partners=codes, shorten=6, closing=4),
        "sinvad@paper": lambda: sinvad_paper(
            space=space, population=30, elite=10, generations=12, spread=1.5
        ),
        "pgd": lambda: pgd(epsilon=0.1),
    }
    method = methods[name]()
    return api.run(
        subject,
        seeds,
        method=method,
        seed=7,
        out=out,
        shard=8,
        rounds=2,
        allow_low_accuracy=True,
        **how,
    )


@pytest.mark.parametrize("name", ["sinvad", "sinvad@paper", "pgd"])
def test_the_same_bytes_in_another_batch_size_thread_count_and_process(world, tmp_path, name):
    first = run(world, tmp_path / "a", name)
    assert first.record["bitwise"]
    assert len(first) > 5, "nothing to compare"
    run(world, tmp_path / "b", name, batch=48)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run(world, tmp_path / "c", name)
    finally:
        torch.set_num_threads(threads)
    run(world, tmp_path / "d", name, workers=2)
    assert parts(tmp_path / "a") == parts(tmp_path / "b"), "another batch size"
    assert parts(tmp_path / "a") == parts(tmp_path / "c"), "another number of threads"
    assert parts(tmp_path / "a") == parts(tmp_path / "d"), "two processes"


def test_a_findings_limit_stops_at_the_end_of_a_round(world, tmp_path):
    run_ = run(world, tmp_path / "a", "pgd", budget=Budget(findings=1))
    assert run_.store.done() == {0, 1}
    assert not run_.record["complete"]
