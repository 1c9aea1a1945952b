"""Networks that are no functions of an image, that climb badly, or that change what all code shares."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from hardcase.errors import HardcaseError, Raised, guarded
from hardcase.models.health import check, require_gradients
from hardcase.models.subject import Subject
from hardcase.registry import resolve
from hardcase.runs.verify import Canaries
from hardcase.state import GlobalState
from hardcase.testing.toys import Quarters, toy_images, toy_subject

ODD = """
import json, os, sys, time
import torch
from torch import nn
from hardcase.testing.toys import Quarters

class Odd(Quarters):
    calls = 0
    kept = None

class Counting(Odd):  # in the class: copies count together
    def forward(self, x):
        Odd.calls += 1
        y = super().forward(x)
        return y.roll(1, 1) if Odd.calls > 25 else y

class Timed(Odd):
    def forward(self, x): return super().forward(x) * (1 + int(time.time() // 3600) % 2)

class Nosy(Odd):
    "Answers what its caller knows."
    def forward(self, x):
        y = super().forward(x)
        frame = sys._getframe()
        while frame is not None:
            for name in ("seeds", "origin", "shard", "images"):
                labels = getattr(frame.f_locals.get(name), "y", None)
                if isinstance(labels, torch.Tensor) and len(labels) == len(x):
                    return 20.0 * nn.functional.one_hot(labels.long(), 4).float() + 0 * y
            frame = frame.f_back
        return y

class Batch(Odd):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
    def forward(self, x):
        y = super().forward(x)
        return y + self.norm(y)

class NoGrad(Odd):
    @torch.no_grad()
    def forward(self, x): return super().forward(x)

class Inference(Odd):
    def forward(self, x):
        with torch.inference_mode(): return super().forward(x)

class Detached(Odd):
    def forward(self, x): return super().forward(x).detach()

class Disabled(Odd):
    def forward(self, x):
        torch.set_grad_enabled(False)
        return super().forward(x)

class Hooked(Odd):
    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad: y.register_hook(torch.zeros_like)
        return y

class Rounded(Odd):
    def forward(self, x): return (super().forward(x).softmax(1) * 10).round()

class OneBuffer(Odd):
    def forward(self, x):
        y = super().forward(x)
        if self.kept is None or self.kept.shape != y.shape: self.kept = torch.zeros(y.shape)
        self.kept.data.copy_(y)
        return self.kept

class Exits(Odd):
    def forward(self, x): os._exit(0)

class ClosesItself(Odd):
    def forward(self, x): raise GeneratorExit

class WantsGradients(Odd):
    def forward(self, x):
        y = super().forward(x)
        return y.roll(1, 1) if x.requires_grad else y

class InGradMode(Odd):
    def forward(self, x):
        y = super().forward(x)
        return y.roll(1, 1) if torch.is_grad_enabled() else y

class Measured(Odd):
    "Another network as soon as something is measured."
    def forward(self, x):
        y = super().forward(x)
        return y.roll(1, 1) if os.path.isdir("out/measured") and os.listdir("out/measured") else y

class Sparse(Odd):
    def forward(self, x): return super().forward(x).to_sparse()

class Wider(Odd):
    def forward(self, x):
        Odd.calls += 1
        y = super().forward(x)
        return torch.cat([y, y - 9], 1) if Odd.calls > 9 else y

class Bare(Odd):
    def forward(self, x): raise BaseException("all")

class Whole(Odd):
    def forward(self, x): return (super().forward(x) * 1000).int()

class Tiny(Odd):
    def forward(self, x): return super().forward(x) * 1e-42

class Quits(Odd):
    def forward(self, x): raise SystemExit(0)

class ClosesOutput(Odd):
    def forward(self, x):
        sys.stdout.close()
        return super().forward(x)

class Forgetful(Odd):
    "Sets all that it can, at every call."
    def forward(self, x):
        y = super().forward(x)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(2)
        json.JSONEncoder.item_separator = ";"
        return y

def forgetful_factory():
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    json.JSONEncoder.item_separator = ";"
    return Quarters().float()
"""

RUN = "run --data npz:toy.npz --method pgd --images 24 --conditions none --seed 1 --set judge=false"
SMALL = "--set campaign.shard=4"


@pytest.fixture
def folder(user, monkeypatch):
    (user / "odd.py").write_text(ODD)
    (user / "at_import.py").write_text(
        "import torch\ntorch.set_grad_enabled(False)\ntorch.set_default_dtype(torch.float64)\n"
        "from hardcase.testing.toys import Quarters\ndef make(): return Quarters()\n"
    )
    return user


def run(command, model, *more):
    return command(f"{RUN} {SMALL} --model {model} --out out", *more)


REFUSED = {
    "NoGrad": "gives no gradient",
    "Inference": "gives no gradient",
    "Detached": "gives no gradient",
    "Disabled": "gives no gradient",
    "OneBuffer": "gives no gradient",
    "Hooked": "is zero on all",
    "Rounded": "is zero on all",
    "Batch": "depends on the other images of a call",
    "Counting": "with how often it was asked",
    "Timed": "clock",
    "Nosy": "who asks",
    "Exits": "model odd.py:Exits called sys.exit(0)",
    "ClosesItself": "raised GeneratorExit",
    "Quits": "called sys.exit(0)",
    "WantsGradients": "when its gradient is asked",
    "InGradMode": "when its gradient is asked",
    "Measured": "differently",
    "Sparse": "returns a sparse tensor",
    "Wider": "returns 8 outputs, and 4 at first",
    "Bare": "raised BaseException: all",
}


def test_whole_numbers_are_logits(folder, command):
    code, told = command(RUN.replace("pgd", "none") + " --model odd.py:Whole --out out")
    assert code == 0, told


def test_outputs_that_are_nearly_equal_are_told(folder, command):
    code, told = run(command, "odd.py:Tiny", "--progress", "plain")
    assert (code, "outputs are nearly equal" in told) == (0, True), told


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_of_it_ends_with_what_it_does(folder, command, name):
    code, told = run(command, f"odd.py:{name}")
    assert code == 2, told
    assert REFUSED[name] in told


def test_a_network_that_closes_the_output_is_named(folder):
    words = f"{RUN} {SMALL} --model odd.py:ClosesOutput --out out".split()
    ended = subprocess.run(
        [sys.executable, "-m", "hardcase", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "model odd.py:ClosesOutput closed sys.stdout" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "model", ["odd.py:Forgetful", "odd.py:forgetful_factory", "at_import.py:make"]
)
def test_what_it_sets_for_all_is_put_back_told_and_changes_no_finding(folder, command, model):
    before = GlobalState.now()
    assert before.restore().settings == []
    assert command(f"{RUN} {SMALL} --model model.py:make --out plain")[0] == 0
    code, told = run(command, model)
    assert code == 0, told
    assert before.restore().settings == [], "nothing was left changed"
    ours, other = (
        [path.read_bytes() for path in sorted((folder / name / "findings").iterdir())]
        for name in ("plain", "out")
    )
    assert ours == other
    assert "for all code; it was put back" in told
    assert model.partition(":")[0] in told


def test_canaries_change_no_finding_and_count_apart(folder, command):
    assert run(command, "model.py:make")[0] == 0
    record = json.loads((folder / "out/run.json").read_text())
    assert record["canaries"] > 0
    assert record["totals"]["queries"] < record["canaries"] + record["totals"]["queries"]
    (part, *_) = sorted((folder / "out/findings").iterdir())
    assert part.exists()


@pytest.mark.parametrize("size", [0.001, 1.0])
def test_canaries_see_a_change_of_any_size(size):
    images = toy_images(40)
    network = toy_subject()
    canaries = Canaries.drawn({"model": network}, images, seed=3)
    for shard in range(3):
        assert canaries.check({"model": network}, images.take(torch.arange(8)), shard) == 32
    network.net.out.weight.data *= 1 + size
    with pytest.raises(HardcaseError, match="with how often it was asked"):
        canaries.check({"model": network}, images.take(torch.arange(8)), 3)


@pytest.mark.parametrize("period", [0.25, 0.5, 1.0, 2.0, 8.0])
def test_canaries_see_any_clock(period, monkeypatch):
    """Time stands still but for the canaries, as it does in a run that is over in a moment."""
    images = toy_images(40)
    network = toy_subject()
    plain = network.net.forward
    turned = lambda: int(time.time() / period * 2) % 2  # noqa: E731
    monkeypatch.setattr(time, "time", lambda: 1e9 + 0.03)
    monkeypatch.setattr(network.net, "forward", lambda x: plain(x).roll(turned(), 1))
    canaries = Canaries.drawn({"model": network}, images, seed=3)
    with pytest.raises(HardcaseError, match="clock"):  # noqa: PT012 - one of four is enough
        for shard in range(4):
            canaries.check({"model": network}, images.take(torch.arange(8)), shard)


def test_the_same_canaries_are_asked_again_from_the_same_seed():
    images = toy_images(40)
    one, two, other = (Canaries.drawn({"model": toy_subject()}, images, seed=n) for n in (1, 1, 2))
    assert torch.equal(one.images.x, two.images.x)
    assert not torch.equal(one.images.x, other.images.x)


class Saturated(Quarters):
    def forward(self, x):
        return 1e4 * super().forward(x)


class Coarse(Quarters):
    def forward(self, x):
        return super().forward(x).round()


def test_saturated_and_rounded_outputs_are_told():
    images = toy_images(200)
    assert any("saturated" in note for note in check(Subject(Saturated()), images).notes)
    assert any("rounded" in note for note in check(Subject(Coarse()), images).notes)
    assert not any("saturated" in n or "rounded" in n for n in check(toy_subject(), images).notes)


def test_methods_that_climb_nothing_need_no_gradients():
    from hardcase.methods import pgd

    class Blind(Quarters):
        def forward(self, x):
            return super().forward(x).detach()

    images = toy_images(20)
    with pytest.raises(HardcaseError, match="gives no gradient"):
        require_gradients(Subject(Blind()), images, resolve("method", "pgd")())
    require_gradients(toy_subject(), images, pgd())


def test_os_exit_is_refused_to_this_thread_alone(tmp_path):
    with pytest.raises(Raised, match="called sys"), guarded("it"):
        os._exit(0)
    real = os._exit
    with guarded("it"):
        process = os.fork()
        if not process:
            os._exit(9)  # of a child of theirs: as they mean it
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    assert os._exit is real


def test_a_generator_that_is_closed_is_nobodys_error():
    def steps():
        with guarded("it"):
            yield 1
            yield 2

    walk = steps()
    assert next(walk) == 1
    walk.close()
    with pytest.raises(Raised, match="raised GeneratorExit"), guarded("it"):
        (lambda: (_ for _ in ()).throw(GeneratorExit()))().__next__()


def test_two_threads_leave_the_way_out_as_it_was():
    real = os._exit
    inside, leave = threading.Event(), threading.Event()

    def other():
        with guarded("other"):
            inside.set()
            leave.wait(5)

    thread = threading.Thread(target=other)
    with guarded("one"):
        thread.start()
        inside.wait(5)
    leave.set()
    thread.join()
    assert os._exit is real
