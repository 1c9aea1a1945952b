"""Networks whose weights stay and whose answers change: between a stop and going on, and under way."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import world

import hardcase as hc
from hardcase.campaign.record import Campaign
from hardcase.errors import HardcaseError
from hardcase.methods import sinvad_code
from hardcase.models.adapters import Cached, LabelOnly, Retrying
from hardcase.models.subject import Subject
from hardcase.runs.start import Plan, Watcher, resume, start
from hardcase.runs.verify import Fingerprint, behaviour_of
from hardcase.spaces.latent import Latent
from hardcase.testing.toys import SIZE, Quarters, ToyAutoencoder, toy_images, toy_peer, toy_subject

SEEDS = toy_images(12)


class Switched(Quarters):
    """The same weights and source; what it answers hangs on a number that is no weight."""

    bias = 0.0

    def forward(self, x):
        return super().forward(x) + self.bias * torch.arange(4.0)


class SwitchedAutoencoder(ToyAutoencoder):
    shift = 0.0

    def decode(self, z):
        return super().decode(z + self.shift)


def switched(role):
    """A run in which the network of one role can be switched."""
    campaign = world.campaign()
    if role == "generator":
        method = sinvad_code(space=Latent(SwitchedAutoencoder()), generations=1)
        card = {"generator": {"weights": "00ff"}}
        return Campaign(subject=toy_subject(), method=replace(method, details=card))
    network = Subject(Switched(21.0), name="switched")
    return replace(campaign, **{f"{role}s" if role == "peer" else "witnesses": (network,)})


@pytest.mark.parametrize("role", ["peer", "witness", "generator"])
@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_another_behaviour_of_any_network_is_refused(tmp_path, monkeypatch, role, size):
    plan = world.plan(lambda: switched(role), seeds=8)
    start(plan, tmp_path / "run")
    resume(plan, tmp_path / "run")
    kind, name = (SwitchedAutoencoder, "shift") if role == "generator" else (Switched, "bias")
    monkeypatch.setattr(kind, name, max(size, 1e-4) if role == "generator" else size)
    told = role if role == "generator" else f"{role} 1"
    with pytest.raises(HardcaseError, match=rf"the {told} answers \d of \d images differently"):
        resume(plan, tmp_path / "run")


def test_a_fingerprint_reads_back_and_sees_any_output_change():
    answers = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    first = Fingerprint.of(answers)
    assert Fingerprint.from_json(json.loads(json.dumps(first.to_json()))).changed(first) == 0
    for changed in (answers.flip(1), answers * 1.0001, answers + 1e-5, -answers):
        assert first.changed(Fingerprint.of(changed)) == 5
    hurt = answers.clone()
    hurt[2, 3] = float("nan")
    assert first.changed(Fingerprint.of(hurt)) == 1
    assert Fingerprint.of(hurt).changed(Fingerprint.of(hurt)) == 0
    for other in (None, 3, [], {"values": "?"}, [0.5, 0.25]):
        assert Fingerprint.from_json(other) is None


def test_wrapped_models_are_asked_themselves():
    for model in (Cached(toy_subject(), 100), LabelOnly(Cached(toy_subject(), 100))):
        model(torch.rand(2, 1, SIZE, SIZE))
        before = behaviour_of({"model": model}, SEEDS)["model"]
        inner = model if isinstance(model, Cached) else model.model
        inner.model = toy_peer()
        changed = before.changed(behaviour_of({"model": model}, SEEDS)["model"])
        assert changed or isinstance(model, LabelOnly)


CHANGED = {
    "another model": lambda logits, count: logits * 0.5 + 1.0,
    "drift": lambda logits, count: logits + 0.02 * count,
    "a quarter of the replicas": lambda logits, count: logits - 3.0 * (count % 4 == 0),
    "permuted outputs": lambda logits, count: logits[:, [1, 0, 2, 3]],
    "not a number": lambda logits, count: np.full_like(logits, np.nan),
    "temperature": lambda logits, count: logits * np.float32(1.001),
    "always the same": lambda logits, count: np.broadcast_to(logits[:1], logits.shape).copy(),
}
"""What a server does to its answers after so many requests of a run."""


class Starting(Watcher):
    """Says when two shards are stored."""

    begun, count = False, 0

    def shard(self, progress):
        self.begun = progress.done >= 2


@pytest.mark.parametrize("how", CHANGED)
def test_a_server_that_changes_under_way_stops_the_run_at_the_last_good_shard(tmp_path, how):
    pytest.importorskip("onnxruntime")
    from serving import serving, write_onnx

    from hardcase_teams.http import Http

    method = sinvad_code(space=Latent(ToyAutoencoder()), spread=1.5, generations=3)

    def begin(server, folder, watcher=None):
        model = Cached(Retrying(Http(server.url, 4, (1, SIZE, SIZE), "toy"), piece=32), 10_000)
        campaign = Campaign(subject=model, method=method)
        start(Plan(source=lambda: campaign, images=SEEDS, shard=3), folder, watcher)

    with serving(write_onnx(tmp_path / "toy.onnx")) as server:
        begin(server, tmp_path / "whole")
        real, watcher = server.packed, Starting()

        def packed(array, *, binary):
            if watcher.begun:
                watcher.count += 1
                array = CHANGED[how](array, watcher.count).astype(np.float32)
            return real(array, binary=binary)

        server.packed = packed
        with pytest.raises(HardcaseError, match=r"differently|another order") as caught:
            begin(server, tmp_path / "run", watcher)
        assert caught.value.code == 2
    stored = sorted((tmp_path / "run/findings").glob("part-*.parquet"))
    assert 2 <= len(stored) < 4
    for path in stored:
        assert path.read_bytes() == (tmp_path / "whole/findings" / path.name).read_bytes()


JUDGE = """
import os
import hardcase as hc
def judge(pairs):
    return hc.Verdicts([("lost", "kept")[os.environ["MOOD"] == "mild"]] * len(pairs))
"""


def test_a_judge_that_says_something_else_than_before_is_refused(user, monkeypatch, command):
    (user / "judge.py").write_text(JUDGE)
    monkeypatch.setenv("MOOD", "mild")
    hc.run(toy_subject(), toy_images(6), method="pgd", out="out", judge=False)
    words = "judge out --judge judge.py:judge -q"
    assert command(words)[0] == command(words)[0] == 0
    kept = (user / "out/run.json").read_bytes()
    monkeypatch.setenv("MOOD", "strict")
    code, said = command(words)
    assert (code, "something else of 6 of 6 failures" in said) == (2, True)
    assert (user / "out/run.json").read_bytes() == kept
    assert command(f"{words} --allow-changes")[0] == 0
    assert json.loads((user / "out/run.json").read_text())["judge"]["moved"] == 6
    assert command(words)[0] == 0, "it says what it said last"
    monkeypatch.setenv("MOOD", "mild")
    monkeypatch.setenv("MKL_CBWR", "AUTO")
    code, said = command(words)
    assert code == 0, "bits are not promised: it is marked and said"
    assert "something else of 6 of 6 failures" in said


SHARP = """
import os
from hardcase.testing.toys import Quarters
def make(): return Quarters(float(os.environ["SHARP"]))
"""


def test_curves_are_not_those_of_another_model(user, monkeypatch, command):
    (user / "model.py").write_text(SHARP)
    monkeypatch.setenv("SHARP", "20")
    words = "run --model model.py:make --data npz:toy.npz --method pgd --images 6 --out out -q"
    curve = "curve out --corruptions brightness --conditions none --count 2 -q"
    assert command(words)[0] == command(curve)[0] == 0
    monkeypatch.setenv("SHARP", "30")
    for verb in (curve, "shrink out -q"):
        code, said = command(verb)
        assert code == 2
        assert "the model is not the one this run began with" in said
