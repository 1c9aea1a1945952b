"""Campaigns against black boxes: the methods that need no more than scores or labels, from Python and the command line."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from serving import serving, write_onnx

from hardcase import api, data, methods
from hardcase.errors import HardcaseError
from hardcase.methods.neurons import Profiles
from hardcase.models.adapters import Cached, ClientConfig, LabelOnly, Retrying
from hardcase.randomness import Rng, stream
from hardcase.runs.results import Run
from hardcase.spaces.latent import Grid, Latent, collect
from hardcase.tensors import from_bytes
from hardcase.testing.toys import SIZE, ToyAutoencoder, ToyQuantiser, toy_images, toy_subject
from hardcase_teams.http import Http
from hardcase_teams.onnx import Onnx

SEEDS = toy_images(6)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A slightly different network behind the same name, to disagree with."""
    import onnx
    from onnx import numpy_helper

    path = write_onnx(tmp_path_factory.mktemp("other") / "other.onnx")
    loaded = onnx.load(str(path))
    weights = numpy_helper.to_array(loaded.graph.initializer[0])
    noise = torch.randn(weights.shape, generator=stream(3, "peer")).numpy()
    loaded.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights + noise, "w"))
    onnx.save_model(loaded, str(path))
    return path


def recipe(name, subject):
    grid, others = Grid(ToyQuantiser()), toy_images(40, seed=2)
    partners = collect(
        others,
        lambda x: grid.encode(x, others.y[: len(x)], Rng.numbered(0, "space", len(x)))[0],
        device=torch.device("cpu"),
    )
    latent = Latent(ToyAutoencoder())
    return {
        "sinvad": lambda: methods.sinvad_code(space=latent, spread=1.5, generations=10),
        "argus": lambda: methods.argus(space=grid, partners=partners, mix=0.7),
        "argus-adaptive": lambda: methods.argus_adaptive(space=grid, partners=partners, rounds=1, halvings=3, blocks=()),
        "tensorfuzz": lambda: methods.tensorfuzz(
            subject=subject, peers=(subject,), profile=Profiles(from_bytes(SEEDS.x[:1]), lambda: toy_images(40, seed=1)),
            queries=100,
        ),
        "diffchaser": lambda: methods.diffchaser(peers=(subject,), population=10, generations=10),
    }[name]()  # fmt: skip


@pytest.mark.parametrize("name", ["sinvad", "argus", "argus-adaptive", "tensorfuzz", "diffchaser"])
def test_methods_work_against_a_server(tmp_path, model, other, name):
    with serving(model) as server:
        subject = Cached(Retrying(Http(server.url, 4, (1, SIZE, SIZE), "toy"), piece=32), 10_000)
        peers = (Onnx(other, 4, "other"),) if name in ("tensorfuzz", "diffchaser") else ()
        run = api.run(
            subject,
            SEEDS,
            method=recipe(name, subject),
            peers=peers,
            out=tmp_path / "run",
            execution=api.Execution(shard=3),
        )
        rows = server.seen["rows"]
    assert run.record["search_results"]["searched"] == 6
    assert len(run) > 0, "nothing was found"
    assert run.record["totals"]["queries"] > 0
    service = Counter(run.record["service"])
    assert service["rows"] + service["cached"] == run.record["totals"]["queries"], (
        "every answer is counted once"
    )
    assert service["rows"] <= rows
    assert service["unanswered"] == 0


def test_an_onnx_file_gives_the_findings_of_the_network(tmp_path, model):
    """Scores agree to the last bits or nearly so; a method that looks at labels alone then finds the same images."""
    method = methods.sinvad_code(space=Latent(ToyAutoencoder()), spread=1.5, generations=6)
    ours = api.run(toy_subject(), SEEDS, method=method, out=tmp_path / "a", seed=3)
    onnx = api.run(Onnx(model, 4, "onnx"), SEEDS, method=method, out=tmp_path / "b", seed=3)
    assert ours.findings["id"].to_pylist() == onnx.findings["id"].to_pylist()
    assert len(ours) > 2


def test_a_broken_input_is_a_finding_of_its_own_kind(tmp_path, model):
    """The server fails on pictures with one very bright corner: they are found, counted and kept as non-finite."""

    with serving(model) as server:
        subject = Retrying(
            Http(server.url, 4, (1, SIZE, SIZE), "toy", config=ClientConfig(retries=0)), piece=32
        )
        real = server.answer

        def answer(body, length):
            x = np.frombuffer(body[int(length) :], "<f4").reshape(-1, SIZE * SIZE)
            return (500, {}, b"too bright") if (x[:, 0] > 0.62).any() else real(body, length)

        method = methods.sinvad_code(
            space=Latent(ToyAutoencoder()), spread=1.5, population=20, elite=8, generations=2
        )
        server.answer = answer
        run = api.run(
            subject,
            SEEDS.first(3),
            method=method,
            out=tmp_path / "run",
            keep="all",
            conditions="none",
        )
    assert run.record["service"]["unanswered"] > 0
    assert run.record["kinds"]["non_finite"] == run.record["service"]["unanswered"]
    assert run.record["kinds"]["label"] > 0


def test_a_server_that_dies_leaves_a_run_that_goes_on(tmp_path, model):
    method = methods.sinvad_code(space=Latent(ToyAutoencoder()), spread=1.5, generations=5)
    how = api.Execution(shard=2)
    with serving(model) as server:
        whole = api.run(
            _remote(server), SEEDS, method=method, out=tmp_path / "whole", execution=how
        )
        server.seen.clear()
        real = server.answer

        def dying(body, length):
            if server.seen["rows"] > 700:
                server.always = "drop"
            return real(body, length)

        subject = _remote(server)
        server.answer = dying
        with pytest.raises(HardcaseError, match="does not answer any more"):
            api.run(subject, SEEDS, method=method, out=tmp_path / "run", execution=how)
        done = Run(tmp_path / "run").store.done()
        assert 0 < len(done) < 3
        server.always, server.answer = None, real
        from hardcase.campaign.record import Campaign, parse_keep
        from hardcase.runs.start import Plan, resume

        campaign = Campaign(subject=_remote(server), method=method, keep=parse_keep(method.keep))
        again = resume(Plan(source=lambda: campaign, images=SEEDS, shard=2), tmp_path / "run")
    assert again.findings.equals(whole.findings)


def _remote(server):
    return Retrying(
        Http(server.url, 4, (1, SIZE, SIZE), "toy", config=ClientConfig(retries=0, timeout=5)),
        piece=32,
    )


def test_label_only_hides_the_scores(tmp_path, model):
    subject = LabelOnly(Onnx(model, 4, "onnx"))
    with pytest.raises(HardcaseError, match='needs scores; model "onnx" offers label only'):
        api.run(
            subject,
            SEEDS,
            method=recipe("diffchaser", subject),
            peers=(subject,),
            out=tmp_path / "run",
        )
    run = api.run(subject, SEEDS, method=recipe("argus-adaptive", subject), out=tmp_path / "run")
    assert len(run) > 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path, monkeypatch, cache):
    """A folder with data; its small generator is trained once."""
    from hardcase import generators
    from hardcase.training.cards import folder_of

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(cache))
    images = toy_images(200)
    np.savez("toy.npz", images=images.x.numpy(), labels=images.y, classes=images.classes)
    train, test = (data.load("npz:toy.npz", split=split) for split in ("train", "test"))
    card = generators.trained_generator("vae", train, test, epochs=10)[1]
    return folder_of(card["kind"], card["name"], card["configuration"], card["data"])


def command(text, *words):
    from hardcase.cli.main import main

    return main([*text.split(), *map(str, words)])


TOY = "--data npz:toy.npz --method"


def test_from_the_command_line(place, model, capsys):
    how = f"{TOY} sinvad@code --generator vae:{place} --images 8 --queries 120 --progress none"
    small = (*how.split(), "--allow-low-accuracy")
    assert command(f"run --model onnx:{model} --out a", *small) == 0, capsys.readouterr().err
    with serving(model) as server:
        quick = ("--set", "batch_size=16", "model.concurrency=2", "model.timeout=10")
        code = command(f"run --model {server.url} --out b", *small, *quick)
        assert code == 0, capsys.readouterr().err
    a, b = Run("a"), Run("b")
    assert a.findings["id"].to_pylist() == b.findings["id"].to_pylist()
    assert b.record["service"]["rows"] > 0
    assert "timeout = 10" in Path("b/config.toml").read_text()


def test_what_a_black_box_cannot_do_is_told(place, model, capsys):
    assert command(f"run --model onnx:{model} {TOY} pgd --out x") == 2
    told = capsys.readouterr().err
    assert 'method "pgd" needs gradients' in told
    assert "methods that work here: argus" in told
    assert ", sinvad," in told
    assert not Path("x").exists()
    assert command(f"layers --model onnx:{model} --data npz:toy.npz") == 2
    assert "needs the layers of a network" in capsys.readouterr().err


def test_offline_means_this_machine_only(place, capsys):
    far = "http://models.example.org/v2/models/toy/infer"
    assert command(f"run --model {far} {TOY} sinvad --offline --out x") == 2
    assert "--offline forbids" in capsys.readouterr().err


def test_the_token_is_nowhere_in_the_run(place, model, monkeypatch, capsys):
    secret = "tok-1234567890"
    monkeypatch.setenv("HARDCASE_TOKEN", secret)
    with serving(model, token=secret) as server:
        how = f"{TOY} sinvad@code --generator vae:{place} --images 4 --queries 60 --out out -v"
        assert command(f"run --model {server.url} {how}") == 0
        assert command("report out") == 0
    told = capsys.readouterr()
    assert secret not in told.out + told.err
    for path in Path("out").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
