"""A GPU played on the CPU: runs have the same bytes there, whatever is cut, lost or full.

``HARDCASE_PLAYED_DEVICE="tile=16" pytest ...`` plays it under any tests, in new processes too;
``make torture`` does so with all tests of campaigns.
"""

import os
import re
import threading
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from played_device import VARIABLE, PlayedDevice, Waits

import hardcase as hc
from hardcase.campaign import device
from hardcase.campaign.in_memory import search_campaign
from hardcase.campaign.record import Campaign
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.models.health import check
from hardcase.registry import parts
from hardcase.runs.plan import plan_of
from hardcase.runs.start import resume as go_on, start
from hardcase.runs.tiles import largest_tile
from hardcase.suite import coverage
from hardcase.tensors import length, steady, tile_rows, total
from hardcase.testing.methods import MethodTrial, check_deterministic, check_neighbours, toy_method
from hardcase.testing.toys import toy_images, toy_subject, toy_world

METHODS = parts("method")
SHORT = {
    "argus-adaptive": check_neighbours,
    "fgsm": check_deterministic,
    "sinvad": check_neighbours,
}
"""Some methods under some laws; `make torture` plays a device under all of them."""
HERE = torch.device("cpu")


def run(out, *, workers=1, batch="auto", resume=False, **campaign):
    how = {"workers": workers, "batch_size": batch, "campaign": campaign}
    context = Context.of(toy_subject(), toy_images(40), "pgd", **how)
    done = (go_on if resume else start)(plan_of(context), out)
    rows = sorted(done.findings.to_pylist(), key=lambda row: (row["original"], row["queries"]))
    return done, [{**row, "id": None} for row in rows]


def asked(images, rows):
    """The toy model's answers in calls of so many rows."""
    return torch.cat([toy_subject().net(part) for part in images.split(rows)])


@pytest.mark.parametrize(("name", "law"), SHORT.items())
def test_methods_obey_the_laws_of_bytes_there(name, law):
    method, world = METHODS[name], toy_world()
    with PlayedDevice(tile=32):
        law(MethodTrial(lambda: toy_method(method), world.peers(method), world.seeds(method)))


def test_bits_depend_on_the_shape_of_a_call_as_on_a_device():
    x = toy_images(64).x.float() / 255
    usual = asked(x, 64)
    assert torch.equal(asked(x, 16), usual)
    with PlayedDevice():
        assert torch.equal(asked(x, 16), asked(x.flip(0), 16).flip(0))
        assert not torch.equal(asked(x, 16), asked(x, 64))
    with PlayedDevice(mixing=64):
        assert largest_tile([(lambda x: toy_subject().net(x), x)]) == 64
    assert torch.equal(asked(x, 16), usual)
    assert steady(HERE)


def test_sums_along_rows_do_not_depend_on_the_rows_there():
    x = torch.randn(40, 3, 77, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with PlayedDevice():
        assert not torch.equal(x.sum(2)[:7], x[:7].sum(2))
        for along in (1, 2):
            for add in (total, length):
                assert torch.equal(add(x, along)[:7], add(x[:7], along))
        torch.testing.assert_close(total(x, 2), x.detach().sum(2), rtol=1e-4, atol=1e-4)
        flat = length(torch.zeros(2, 3, requires_grad=True))
    torch.testing.assert_close(length(x, 2), x.square().sum(2).sqrt())
    assert flat.tolist() == [0, 0]
    assert total(x[:, :, :0], 2).eq(0).all()


def test_searches_and_objectives_add_along_rows_by_total_and_length():
    home = Path(hc.__file__).parent
    own = re.compile(r"\.(sum|mean|norm)\((dim=)?[12]\b")
    fine = ("(levels > 0).sum(1)", ">>> ")  # a count is exact in any order; an example
    for path in (*home.glob("searches/*.py"), home / "objectives.py"):
        found = [line.strip() for line in path.read_text().splitlines() if own.search(line)]
        assert [line for line in found if not any(word in line for word in fine)] == [], path.name


def test_a_model_is_not_called_fickle_because_its_last_bits_depend_on_the_batch():
    with PlayedDevice():
        health = check(toy_subject(), toy_images(300))
    assert health.accuracy == 1
    assert not health.bitwise
    assert check(toy_subject(), toy_images(300)).bitwise


def test_shards_batches_and_memory_change_no_finding(tmp_path):
    with PlayedDevice(mixing=64):
        first, usual = run(tmp_path / "a")
        assert first.record["tile"] == 64
        assert len(usual) > 20, "nothing to compare"
        assert run(tmp_path / "b", shard=7)[1] == usual
        assert run(tmp_path / "c", batch=64)[1] == usual
    with PlayedDevice(memory=60_000):
        small, full = run(tmp_path / "d", tile=16)
    with PlayedDevice():
        assert run(tmp_path / "e", tile=16, shard=9)[1] == full
    assert small.record["tile"] == 16
    assert full != usual, "another tile has other last bits, or nothing was played"


def test_a_tile_that_does_not_fit_is_an_error_that_says_what_to_do(tmp_path):
    with (
        PlayedDevice(memory=60_000),
        pytest.raises(HardcaseError, match="one tile of rows") as caught,
    ):
        run(tmp_path / "run")
    assert "campaign.tile=64" in str(caught.value)


def test_a_lost_device_is_told_and_the_run_goes_on_to_the_same_findings(tmp_path):
    with PlayedDevice(mixing=64) as whole:
        _, usual = run(tmp_path / "whole", shard=8)
    failing = PlayedDevice(mixing=64, fails=whole.calls * 3 // 4)
    with failing, pytest.raises(HardcaseError, match="the GPU failed in shard"):
        run(tmp_path / "lost", shard=8)
    with PlayedDevice(mixing=64):
        assert run(tmp_path / "lost", shard=8, resume=True)[1] == usual
    assert bool(torch.ones(1)), "the patched methods are back"


def test_worker_processes_play_it_too(tmp_path, monkeypatch):
    here = str(Path(__file__).parents[1] / "played")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv(VARIABLE, "mixing=64")
    with PlayedDevice(mixing=64):
        _, usual = run(tmp_path / "one", shard=8)
        _, spread = run(tmp_path / "two", shard=8, workers=2)
    assert spread == usual
    _, plain = run(tmp_path / "cpu", shard=8)
    assert plain != usual, "nothing was played"


def test_the_tile_is_gone_with_the_device():
    with PlayedDevice.from_text("tile=64"):
        assert tile_rows(HERE) == 64
        assert not steady(HERE)
    assert tile_rows(HERE) == 16


OWN = """
import torch
from torch import nn
class Stretched(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_code = nn.Conv2d(1, 1, 1)
        self.to_image = nn.Conv2d(1, 1, 1)
        with torch.no_grad():
            for layer, weight, bias in ((self.to_code, 6, -3), (self.to_image, 1 / 6, 0.5)):
                layer.weight.fill_(weight)
                layer.bias.fill_(bias)
    def encode(self, x):
        return self.to_code(x), None
    def decode(self, z):
        return self.to_image(z)
"""


def test_codes_of_partners_do_not_depend_on_the_tile_that_was_in_use_before(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    images = toy_images(24)

    def codes(before):
        with PlayedDevice(mixing=64, tile=before):
            own = {"train": images, "generator": f"{tmp_path / 'own.py'}:Stretched"}
            ready = Context.of(toy_subject(), images.first(4), "sinvad", **own)
            return ready.partners.codes[:].clone()

    usual = codes(None)
    assert all(torch.equal(usual, codes(before)) for before in (16, 256))


def test_a_step_waits_for_a_device_a_few_times_only():
    def waited(gradients):
        with PlayedDevice(), Waits() as waits:
            options = {"gradients": gradients, "epsilon": 1e-9}
            hc.search(toy_subject(), toy_images(40), method="pgd", options=options)
        return waits.count

    assert (waited(30) - waited(20)) / 10 <= 4


def test_six_criteria_do_not_wait_for_a_device_and_say_the_same():
    specs = coverage.specs_of("nc,kmnc:k=10,nbc,snac,tknc,tknp,tknc:k=6")
    images = toy_images(64)
    subject = toy_subject()
    graph = coverage.layer_graph(subject, images)
    profile = coverage.profile_for(subject, images.first(20), specs)

    def measured():
        measures = [coverage.build_criteria(spec, graph, profile) for spec in specs]
        coverage.observe(subject, images.first(32), measures, batch=16)
        with Waits() as waits:
            coverage.observe(subject, images, measures, batch=16)
        return [measure.result() for measure in measures], waits.count

    usual, _ = measured()
    with PlayedDevice(drift=0):
        there, waits = measured()
    assert there == usual
    assert waits == 0


def together(monkeypatch, method, *, apart):
    """What a method finds from shards side by side or `apart`, and the rows that were computed."""
    computed, subject = [], toy_subject()
    subject.net.register_forward_pre_hook(lambda net, x: computed.append(len(x[0])))
    campaign = Campaign(subject=subject, method=toy_method(METHODS[method]), batch=64, tile=16)
    with PlayedDevice(tile=16), monkeypatch.context() as patched:
        if apart:
            patched.setattr(device, "shares_tiles", lambda *_: False)
        found = search_campaign(campaign, toy_world().seeds(METHODS[method])(72), shard=12)
    return found, sum(computed)


@pytest.mark.parametrize("method", ["pgd", "feature-perturbation", "natural", "sinvad"])
def test_shards_side_by_side_find_the_same_in_fewer_tiles(monkeypatch, method):
    usual, rows = together(monkeypatch, method, apart=True)
    found, fewer = together(monkeypatch, method, apart=False)
    assert torch.equal(found.queries, usual.queries)
    for f in fields(usual.findings):
        assert torch.equal(getattr(found.findings, f.name), getattr(usual.findings, f.name))
    assert int(found.queries.sum()) <= fewer <= rows
    assert fewer < rows or method == "sinvad"  # whose populations are whole tiles here


def test_a_model_that_fails_ends_all_shards_side_by_side():
    class Failing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = toy_subject().net
            self.left = 12

        def forward(self, x):
            self.left -= 1
            if not self.left:
                raise RuntimeError("no more")
            return self.net(x)

    before = threading.active_count()
    method = toy_method(METHODS["pgd"])
    campaign = Campaign(subject=hc.Subject(Failing()), method=method, batch=64, tile=16)
    with PlayedDevice(tile=16), pytest.raises(Exception, match="no more"):
        search_campaign(campaign, toy_images(72), shard=4)
    assert threading.active_count() == before


def test_random_conditions_are_asked_in_captured_tiles_and_fail_as_one_by_one(monkeypatch):
    from hardcase.conditions import condition_box, measure_risk, risk
    from hardcase.graphs import CapturedCall

    box = condition_box(hc.Conditions({"shift": "±45 %", "noise": "0..40 levels"}), (1, 8, 8))
    rows = []
    answer = CapturedCall.answer
    monkeypatch.setattr(
        CapturedCall,
        "answer",
        lambda call, *given: rows.append(len(given[0])) or answer(call, *given),
    )

    def failing():
        return measure_risk(toy_subject(), toy_images(12), box, samples=8)

    with PlayedDevice(tile=16):
        at_once = failing()
        assert sum(rows) >= 12 * 8
        monkeypatch.setattr(risk, "DEVICE_SEEDS", 1)
        one_by_one = failing()
    assert 0 < at_once.value < 1
    assert torch.equal(at_once.failing, one_by_one.failing)
    assert torch.equal(at_once.shown_z, one_by_one.shown_z)
