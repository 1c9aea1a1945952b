"""What broke at commit f841173 when it was attacked, as programs that run with that code and with this.

``python tests/worst_day/old_attacks.py CHECKOUT [NAME ...]`` runs them with the code of a checkout
(``git worktree add --detach CHECKOUT f841173``) and prints what each finds there; what each found at f841173 stands
beside it. `test_old_attacks.py` runs them with the code of today. Some flags got other names between the two: a program
takes the one that there is.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MOST = 150.0
"""Seconds after which a program hangs."""
HUNG = "it does not end"


class Attack(NamedTuple):
    """A reproduction: its place on the page of findings, what it tries, and what it said at f841173.

    `program` returns what is wrong, and nothing where nothing is.
    """

    where: str
    program: object
    then: str


ATTACKS: dict[str, Attack] = {}


def attack(where, then):
    def put(program):
        ATTACKS[program.__name__] = Attack(where, program, then)
        return program

    return put


# --- the folder that every program begins in

MODELS = '''
import json, os, random, sys, time
import torch
from torch import nn
from hardcase.testing.toys import Quarters

class Net(Quarters):
    """The sight of the toy, `aside` by some columns: it errs elsewhere."""
    calls = 0
    def __init__(self, aside=0, scale=1.0):
        super().__init__()
        self.scale = scale
        turned = self.mean.weight.data.reshape(4, 8, 8).roll(aside, 2)
        self.mean.weight.data = turned.flatten(1).contiguous()
    def forward(self, x):
        return self.scale * super().forward(x)

def make(): return Net()
def weak(): return Net(2)
def fragile(): return Net(1)
def weak_small(): return Net(2, 1e-6)

class NoGrad(Net):
    def forward(self, x):
        with torch.no_grad(): return super().forward(x)
class Inference(Net):
    def forward(self, x):
        with torch.inference_mode(): return super().forward(x)
class Detached(Net):
    def forward(self, x): return super().forward(x).detach()
class Disabled(Net):
    def forward(self, x):
        torch.set_grad_enabled(False)
        return super().forward(x)
class Hooked(Net):
    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad: y.register_hook(torch.zeros_like)
        return y
class OneBuffer(Net):
    kept = None
    def forward(self, x):
        y = super().forward(x)
        if self.kept is None or self.kept.shape != y.shape: self.kept = torch.zeros(y.shape)
        self.kept.data.copy_(y)
        return self.kept
class Saturated(Net):
    def forward(self, x): return 1e4 * super().forward(x)
class Rounded(Net):
    def forward(self, x): return torch.log((super().forward(x).softmax(1) * 10).round().clamp_min(1e-3) / 10)
class Ties(Net):
    def forward(self, x):
        y = super().forward(x)
        return torch.minimum(y, y.topk(2, 1).values[:, 1:])
class Counter(Net):
    def forward(self, x):
        Net.calls += 1
        y = super().forward(x)
        return y.roll(1, 1) if Net.calls >= 40 else y
class Clock(Net):
    def forward(self, x): return super().forward(x) + 20 * (int(time.time() * 2) % 2) * torch.arange(4.0)
class Batch(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)
    def forward(self, x):
        y = super().forward(x)
        return y + 0.3 * self.norm(y)
class Generator(Net):
    def forward(self, x): raise GeneratorExit
class Leaves(Net):
    def forward(self, x):
        Net.calls += 1
        if Net.calls > 8: os._exit(0)
        return super().forward(x)
class Closes(Net):
    def forward(self, x):
        sys.stdout.close()
        return super().forward(x)
class Json(Net):
    def forward(self, x):
        json.JSONEncoder.item_separator = ";"
        return super().forward(x)
def meta():
    torch.set_default_device("meta")
    return Quarters()
'''
DECLARED = '[conditions]\nrotation = "±30 deg"\nshift = "±20 %"\n'
DRAW = "def draw(u):\n    return {'rotation': (u[:, 0]*2 - 1)*30, 'shift': (u[:, 1]*2 - 1)*20}\n"
EASY = "def draw(u):\n    return {'rotation': u[:, 0]*0, 'shift': u[:, 1]*0}\n"


def furnish():
    """Write models, images and declarations into the working folder."""
    import numpy as np

    from hardcase.testing.toys import toy_images

    Path("net.py").write_text(MODELS)
    images = toy_images(160)
    arrays = {"images": images.x.numpy(), "labels": images.y.numpy()}
    np.savez("toy.npz", **arrays, classes=np.array(images.classes))
    Path("c.toml").write_text(DECLARED)
    Path("lenient.toml").write_text("[limits]\nrisk_margin = 0.06\n")


def flag():
    try:
        import hardcase.request  # noqa: F401
    except ImportError:
        return "--seeds"
    return "--images"


def hardcase(line):
    """The exit code of a command in this process, and what it said."""
    from hardcase.cli.main import main

    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = main(line.replace("IMAGES", flag()).split())
    return code, told.getvalue()


def command(line, **how):
    """The exit code of a command in a process of its own, and what it said."""
    words = [sys.executable, "-m", "hardcase", *line.replace("IMAGES", flag()).split()]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    done = subprocess.run(words, text=True, check=False, **how)
    return done.returncode, (done.stdout or "") + (done.stderr or "")


MEASURE = "run --data npz:toy.npz?split=all --method none IMAGES 160 --seed 1 --progress none -q --allow-low-accuracy"
SEARCH = (
    "run --data npz:toy.npz --method pgd --gradients 4 IMAGES 24 --seed 1 --conditions none"
    " --set campaign.shard=4 --set judge=false --progress none --allow-low-accuracy"
)


def measure(model="make", out="old", conditions="c.toml", more=""):
    code, told = hardcase(
        f"{MEASURE} --model net.py:{model} --conditions {conditions} --out {out} {more}"
    )
    assert code == 0, told


def search(model="make", out="p", more=""):
    return hardcase(f"{SEARCH} --model net.py:{model} --out {out} {more}")


def passes(line):
    """What is wrong where a gate passes that must not."""
    code, told = hardcase(f"gate {line}")
    return f"exit {code}: {told.strip().splitlines()[0][:160]}" if code == 0 else ""


def not_told(code, told, *words):
    """What is wrong where a command succeeds, or fails without the words that name what did it."""
    said = [word for word in words if word in told]
    if code == 2 and said and "Traceback" not in told:
        return ""
    return f"exit {code}: {' '.join(told.split())[-200:]}"


def damage(run, name="seeds.parquet"):
    """Overwrite a file of a run and edit its record."""
    (Path(run) / name).write_text("x")
    record = json.loads((Path(run) / "run.json").read_text())
    record["complete"] = False
    (Path(run) / "run.json").write_text(json.dumps(record))


# --- lost work and silently wrong results


def default_run(verb):
    code, told = hardcase(
        "run --model net.py:fragile --data npz:toy.npz IMAGES 12 --gradients 20 --witness none --out d --progress none -q"
    )
    assert code == 0, told
    code, told = hardcase(f"{verb} d")
    return "" if code == 0 else f"exit {code}: {told[:120]}"


@attack("1", "exit 2: error: the settings (method parts.space is, ...")
def a_default_run_is_resumed():
    return default_run("resume")


@attack("1", "exit 2: error: the settings (method parts.space is, ...")
def a_default_run_is_shrunk():
    return default_run("shrink")


@attack("2", "exit 0: pass 78 usable seeds; at least 20 needed")
def small_logits_pass_the_gate():
    measure()
    measure("weak_small", "small")
    return passes("small --baseline old")


@attack("2", "risk 0.510, with small logits 0.000")
def small_logits_have_another_risk():
    measure("weak", "plain")
    measure("weak_small", "small")
    plain, small = (risk_of(name) for name in ("plain", "small"))
    return "" if abs(plain - small) < 0.01 else f"risk {plain:.3f}, with small logits {small:.3f}"


@attack("2", "exit 0: pass 79 usable seeds; at least 20 needed")
def ties_pass_the_gate():
    measure("Ties", "ties")
    return passes("ties --max-risk 0.1")


def risk_of(run):
    record = json.loads((Path(run) / "run.json").read_text())["risk"]
    return float(record["value"])


def two_conditions(kind, ending, first, second):
    Path("c.toml").write_text(DECLARED + f'{kind} = "t.{ending}"\n')
    file = Path("t." + ending.partition(":")[0])
    file.write_text(first)
    measure("make", "ca")
    file.write_text(second)
    measure("fragile", "cb")
    return passes("cb --baseline ca --config lenient.toml") or passes("cb --baseline ca")


@attack("3", "exit 0: pass 160 usable seeds; at least 20 needed")
def another_sampler_is_the_same():
    return two_conditions("sampler", "py:draw", DRAW, EASY)


@attack("3", "exit 0: pass 160 usable seeds; at least 20 needed")
def another_table_is_the_same():
    rows = "".join(f"{(i * 7) % 61 - 30},{(i * 5) % 41 - 20}\n" for i in range(64))
    easy = "0.0,0.0\n" * 63 + "0.01,0.01\n"
    return two_conditions("table", "csv", f"rotation,shift\n{rows}", f"rotation,shift\n{easy}")


@attack("4a", "exit 0: pass declared, error: 0.00% before, 0.00% after, ...")
def a_damaged_run_is_a_repaired_one():
    measure()
    shutil.copytree("old", "damaged")
    damage("damaged")
    return passes("damaged --repaired-from old --config lenient.toml") or passes(
        "damaged --repaired-from old"
    )


@attack("4b", "exit 0: pass declared, error: 0.00% before, 0.00% after, ...")
def limits_beside_a_repair_are_dropped():
    measure()
    measure("make", "again", more="--seed 1")
    return passes("again --repaired-from old --max-risk 0.0001") or passes(
        "again --repaired-from old --max-risk 0.0001 --config lenient.toml"
    )


@attack("4c", "exit 4: ???? declared, error: 0.00% before, 0.00% after, ...")
def a_repaired_run_of_other_samples_is_a_pair():
    measure()
    code, told = hardcase(
        f"{MEASURE.replace('--seed 1', '--seed 2')} --model net.py:make --conditions c.toml --out s2"
    )
    assert code == 0, told
    code, told = hardcase("gate s2 --repaired-from old")
    return "" if code == 2 else f"exit {code}: {told.splitlines()[0][:160]}"


def repaired():
    """The exit code of a repair with a margin of its own, of a run of other images than its proof."""
    import numpy as np

    from hardcase.testing.toys import toy_images

    sets = {name: toy_images(200, seed=i) for i, name in enumerate(("train", "test"))}
    arrays = {f"x_{name}": one.x.numpy() for name, one in sets.items()}
    np.savez("two.npz", **arrays, **{f"y_{name}": one.y.numpy() for name, one in sets.items()})
    line = MEASURE.replace("toy.npz?split=all", "two.npz").replace("IMAGES 160", "IMAGES 60")
    code, told = hardcase(f"{line} --model net.py:fragile --conditions c.toml --out old")
    assert code == 0, told
    new = flag() == "--images"
    proof = "quick" if new else "quick:seeds=60,attack.seeds=4"
    code, told = hardcase(
        f"repair old --epochs 1 --rate 1e-5 --margin 0.9 --out fixed -q --proof {proof}"
    )
    assert Path("fixed/repair.json").exists(), told
    return code


@attack("4d", "repair ended with 4, the gate with 0")
def a_repair_without_its_weights_passes():
    code = repaired()
    Path("fixed/weights.safetensors").unlink()
    found, _ = hardcase("gate fixed --repaired-from old")
    return "" if found == 2 else f"repair ended with {code}, the gate with {found}"


@attack("4e 4f", "repair ended with 4, the gate with 0, 0")
def a_repair_brings_its_margin_and_was_inconclusive():
    code = repaired()
    Path("strict.toml").write_text("[limits]\nrisk_margin = 0.0\n")
    found, _ = hardcase("gate fixed --repaired-from old --config strict.toml")
    plain, _ = hardcase("gate fixed --repaired-from old")
    if 0 in (found, plain) and code != 0:
        return f"repair ended with {code}, the gate with {found}, {plain}"
    return ""


@attack("5", "exit 0: note: damaged: run.json does not have the checksum of its content")
def a_damaged_baseline_is_taken():
    measure()
    measure("make", "again")
    shutil.copytree("old", "damaged")
    damage("damaged")
    return passes("again --baseline damaged --config lenient.toml") or passes(
        "again --baseline damaged"
    )


@attack("6", "NoGrad 0, Inference 0, Detached 0, Disabled 0, Hooked 0, OneBuffer 0")
def networks_without_gradients_are_searched_by_them():
    silent = []
    for model in ("NoGrad", "Inference", "Detached", "Disabled", "Hooked", "OneBuffer"):
        code, _ = search(model, model)
        if code != 2:
            silent.append(f"{model} {code}")
    return ", ".join(silent)


@attack("6", "Saturated: exit 0 without a word, Rounded: exit 0 without a word")
def saturated_and_rounded_outputs_are_not_told():
    silent = []
    for model, word in (("Saturated", "saturated"), ("Rounded", "rounded")):
        code, told = search(model, f"out-{model[0]}", "--progress plain")
        if f"outputs are {word}" not in told and code != 2:
            silent.append(f"{model}: exit {code} without a word")
    return ", ".join(silent)


@attack("7", "exit 0: ...")
def a_counter_changes_the_answers():
    return not_told(
        *search("Counter"), "with how often it was asked", "changes its answer", "differently"
    )


@attack("7", "exit 0: ...")
def the_clock_changes_the_answers():
    return not_told(*search("Clock"), "clock", "changes its answer", "differently")


@attack("8", "exit 0: ...")
def the_batch_changes_the_answers():
    return not_told(*search("Batch"), "other images of a call")


def refused(declaration, *words):
    Path("c.toml").write_text(f"[conditions]\n{declaration}\n")
    return not_told(*hardcase(f"{MEASURE} --model net.py:make --conditions c.toml --out o"), *words)


@attack("9", "exit 0: o")
def a_condition_is_declared_twice():
    return refused('rotation = "±30 deg"\nrotate = "±0.1 deg"', "rotate")


@attack("9", "exit 0: o")
def a_column_of_a_table_is_there_twice():
    Path("t.csv").write_text("rotation,rotation\n1,2\n2,3\n")
    return refused('rotation = "±30 deg"\ntable = "t.csv"', "rotation")


@attack("9", "exit 0: o")
def a_centre_is_absurd():
    return refused('rotation = "normal(500, 1) deg"', "rotation")


def sampled(source, *words):
    Path("s.py").write_text(f"def draw(u):\n    {source}\n")
    return refused('rotation = "±30 deg"\nsampler = "s.py:draw"', *words)


@attack("9", "exit 0: o")
def a_sampler_leaves_its_range():
    return sampled("return {'rotation': u[:, 0] * 1000}", "s.py:draw")


@attack("9", "exit 0: o")
def a_sampler_is_complex():
    return sampled("return {'rotation': u[:, 0] + 1j}", "s.py:draw")


@attack("9", "exit 0: o")
def a_sampler_draws_at_random():
    return sampled("import random; return {'rotation': u[:, 0] * random.random()}", "s.py:draw")


@attack("9", "pass 78 usable seeds; at least 20 needed pass risk 51.2 % (...), limit 90.0 %")
def the_gate_does_not_say_its_conditions():
    Path("tiny.toml").write_text('[conditions]\nname = "scanner"\nrotation = "±0.001 deg"\n')
    measure("weak", "tiny", "tiny.toml")
    _, told = hardcase("gate tiny --max-risk 0.9")
    return "" if "0.001" in told else " ".join(told.split())[:160]


@attack("10", "exit 0: o")
def a_sampler_gives_no_numbers():
    return sampled("return {'rotation': u[:, 0] * float('nan')}", "s.py:draw")


@attack("10", "exit 0: o")
def a_sampler_gives_too_few_rows():
    return sampled("return {'rotation': u[:3, 0]}", "s.py:draw")


@attack("10", "exit 0: o")
def a_sampler_gives_a_column_more():
    return sampled("return {'rotation': u[:, 0], 'shift': u[:, 0]}", "s.py:draw")


@attack("10", "exit 0, and the gate says that no conditions were declared")
def a_full_disk_takes_the_risk_away():
    """Everything that is written about the conditions fails."""
    import errno

    real = os.replace

    def full(old, new, **more):
        if Path(new).name == "conditions.json" or "measured" in str(new):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(old, new, **more)

    os.replace = full
    code, told = hardcase(f"{MEASURE} --model net.py:make --conditions c.toml --out o")
    os.replace = real
    _, gate = hardcase("gate o --max-risk 0.5")
    if "no conditions were declared" in told + gate or "without declared conditions" in told + gate:
        return f"exit {code}, and the gate says that no conditions were declared"
    return "" if code != 0 else "exit 0, no word"


@attack("11", "pytest ends with 1 without a word, replay ends with 0, export ends with 0")
def a_damaged_run_is_a_regression_test():
    code, told = search("make", "r")
    assert code == 0, told
    sorted(Path("r/findings").glob("part-*"))[0].unlink()
    wrong = []
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    line += ["r/run.json", "--hardcase-model", "net.py:make"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if "damaged" not in done.stdout + done.stderr:
        wrong.append(f"pytest ends with {done.returncode} without a word")
    for verb in ("replay r --model net.py:make", "export r --to csv --out x"):
        code, _ = hardcase(verb)
        if code == 0:
            wrong.append(f"{verb.split()[0]} ends with 0")
    return ", ".join(wrong)


@attack("12", "exit 2: error: No such option: --risk-margin")
def a_change_brings_its_own_margin():
    """Whoever owns the pipeline must be able to fix the margin."""
    measure()
    measure("weak", "new")
    Path("hardcase.toml").write_text("[limits]\nmargin = 1.0\n")
    code, told = hardcase("gate new --baseline old --risk-margin 0.01")
    return "" if code == 1 else f"exit {code}: {' '.join(told.split())[:120]}"


# --- crashes and hangs


@attack("crashes", "exit 3: error: internal error: ValueError: no ...")
def a_sampler_raises():
    return sampled("raise ValueError('no')", "s.py:draw")


@attack("crashes", "exit 3: error: internal error: SystemExit: 0 ...")
def a_sampler_exits():
    return sampled("import sys; sys.exit(0)", "s.py:draw")


@attack("crashes", "exit 3: AttributeError: 'NoneType' object has no attribute 'items' ...")
def a_sampler_returns_nothing():
    return sampled("return None", "s.py:draw")


@attack("crashes", "exit 3: AttributeError: 'list' object has no attribute 'items' ...")
def a_sampler_returns_a_list():
    return sampled("return [u[:, 0]]", "s.py:draw")


@attack("crashes", "exit 3: AttributeError: 'str' object has no attribute 'items' ...")
def a_sampler_returns_words():
    return sampled("return 'rotation'", "s.py:draw")


@attack("crashes", "exit 3: RecursionError: maximum recursion depth exceeded ...")
def a_declaration_is_nested_deeply():
    Path("c.toml").write_text("a=" + 5000 * "[")
    return not_told(
        *hardcase(f"{MEASURE} --model net.py:make --conditions c.toml --out o"), "c.toml"
    )


@attack("hangs", "it does not end")
def a_declaration_is_a_pipe():
    os.mkfifo("p.toml")
    return not_told(
        *hardcase(f"{MEASURE} --model net.py:make --conditions p.toml --out o"), "p.toml"
    )


@attack("hangs", "it does not end")
def a_declaration_never_ends():
    os.symlink("/dev/zero", "z.toml")
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
    return not_told(
        *hardcase(f"{MEASURE} --model net.py:make --conditions z.toml --out o"), "z.toml"
    )


@attack("hangs", "it does not end")
def far_more_workers_than_shards():
    line = SEARCH.replace("shard=4", "shard=24")
    code, told = command(f"{line} --model net.py:make --workers 100000 --out o", timeout=MOST - 20)
    return "" if code in (0, 2) else f"exit {code}: {told[-160:]}"


def plug_in(source):
    """A broken distribution beside others, of which nothing is used."""
    Path("lost.py").write_text(source)
    about = Path("lost-1.0.dist-info")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lost\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[hardcase.data]\nbroken = lost:made\n")
    place = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    code, told = command(
        "run --model zoo:lenet1 --data mnist5k --method pgd IMAGES 4 --conditions none --out o --progress none -q --dry-run",
        env={**os.environ, "PYTHONPATH": place},
    )
    return "" if code == 0 else f"exit {code}: {' '.join(told.split())[:160]}"


@attack(
    "crashes",
    "exit 2: error: data 'broken' of the entry point lost:made raised ImportError: no",
)
def a_plug_in_that_nobody_uses_raises():
    return plug_in("raise ImportError('no')")


@attack("crashes", "exit 2: error: data 'broken' of the entry point lost:made called sys.exit(0).")
def a_plug_in_that_nobody_uses_exits():
    return plug_in("raise SystemExit(0)")


@attack("crashes", "exit 3")
def an_import_switches_gradients_off():
    head = "import torch\ntorch.set_grad_enabled(False)\n"
    Path("net.py").write_text(head + MODELS)
    code, told = search()
    return "" if code == 0 or (code == 2 and "Traceback" not in told) else f"exit {code}"


@attack("crashes", "exit 3: ...")
def a_model_sets_the_device_meta():
    code, told = search("meta")
    return "" if code in (0, 2) and "Traceback" not in told else f"exit {code}: {told[-160:]}"


@attack("crashes", "exit 3: ...")
def the_device_is_meta():
    code, told = search(more="--device meta")
    return "" if code == 2 and "Traceback" not in told else f"exit {code}: {told[-160:]}"


@attack("crashes", "GeneratorExit:")
def a_forward_raises_generator_exit():
    return not_told(*search("Generator"), "GeneratorExit")


@attack("crashes", "exit 3: ValueError: I/O operation on closed file. ...")
def a_model_closes_the_output():
    code, told = command(f"{SEARCH} --model net.py:Closes --out o")
    return not_told(code, told, "closed sys.stdout")


@attack("crashes", "exit 3: ...")
def a_model_changes_how_json_is_written():
    code, told = command(f"{SEARCH} --model net.py:Json --out o")
    return "" if code in (0, 2) and "Traceback" not in told else f"exit {code}: {told[-160:]}"


@attack("crashes", "exit 3: ...")
def the_output_is_full():
    with open("/dev/full", "w") as full:
        code, told = command(f"{SEARCH} --model net.py:make --out o", stdout=full)
    sound = code == 2 and "Traceback" not in told and "cannot be written" in told
    return "" if sound else f"exit {code}: {told[-160:]}"


@attack("crashes", "exit 0:")
def a_forward_ends_the_process():
    code, told = command(f"{SEARCH} --model net.py:Leaves --out o")
    return "" if code == 2 else f"exit {code}: {told[-160:]}"


@attack("crashes", "FileNotFoundError")
def pytest_on_an_empty_record():
    Path("empty").mkdir()
    Path("empty/run.json").write_text("{}")
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    line += ["empty/run.json", "--hardcase-model", "net.py:make"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    return "FileNotFoundError" if "FileNotFoundError" in said else ""


@attack("crashes", "exit 2: error: 0 seeds were attempted by all searches; at least 4 are needed.")
def a_baseline_is_the_model_itself():
    code, told = hardcase(
        f"{MEASURE} --model net.py:make --baseline net.py:make --conditions c.toml --out o"
    )
    return "" if code == 0 or "same" in told else f"exit {code}: {told.strip()[-160:]}"


# --- the old campaigns


@attack("servers", "exit 0: ...")
def a_server_answers_booleans():
    """An ONNX network of true and false behind a server."""
    sys.path.append(str(Path(__file__).parents[2] / "teams" / "tests"))
    from serving import serving, write_onnx

    write_onnx(Path("toy.onnx"))
    with serving(Path("toy.onnx")) as server:
        real = server.packed
        server.packed = lambda array, *, binary: real(
            array > array.mean(1, keepdims=True), binary=binary
        )
        code, told = hardcase(
            "run --data npz:toy.npz --method natural-blackbox --queries 20 --witness none IMAGES 8 --seed 1"
            f" --conditions none --set judge=false --progress none --model {server.url} --out o"
            " --allow-low-accuracy"
        )
    return not_told(code, told, "BOOL", "bool", "true", "labels")


@attack("model files", "it does not end")
def an_onnx_loop_without_end():
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("image", TensorProto.FLOAT, [None, 1, 8, 8])
    y = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 64])
    most = helper.make_tensor("most", TensorProto.INT64, [], [2**62])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["before"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"], axis=1),
        helper.make_node("Constant", [], ["most"], value=most),
        helper.make_node("Constant", [], ["yes"], value=yes),
        helper.make_node("Loop", ["most", "yes", "flat"], ["scores"], body=body),
    ]
    graph = helper.make_graph(nodes, "endless", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, "endless.onnx")
    setting = "model.timeout" if flag() == "--images" else "subject.timeout"
    from hardcase.models import load

    load.LEAST_LOADING = 2.0  # a minute is kept for loading otherwise
    code, told = hardcase(
        f"{MEASURE} --model onnx:endless.onnx --conditions none --set {setting}=1 --out o"
    )
    return "" if code == 2 and "Traceback" not in told else f"exit {code}: {told[-160:]}"


@attack("CLI", "exit 3: ...")
def a_negative_seed_of_a_simulated_crowd():
    code, told = search("make", "r")
    assert code == 0, told
    code, told = hardcase("study new r --design label --out study")
    assert code == 0, told
    code, told = hardcase("study simulate study --seed -1")
    return "" if code == 2 and "--seed" in told else f"exit {code}: {told.strip()[-160:]}"


# --- running them


def outcome(name):
    """What a program says, in a process of its own that it may spoil as it likes."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.close(read)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            os.environ["HARDCASE_CACHE"] = f"{folder}/cache"
            try:
                furnish()
                said = ATTACKS[name].program() or ""
            except subprocess.TimeoutExpired:
                said = HUNG
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, " ".join(said.split())[:2000].encode() + b".")
            os.chdir("/")
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    with open(read, "rb") as pipe:
        said = _until(pipe, time.monotonic() + MOST)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said


def _until(pipe, end):
    import select

    ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
    if not ready:
        return HUNG
    said = os.read(pipe.fileno(), 4096).decode()
    return said[:-1] if said else "the process ended without a word"


def main(checkout="", *names):
    if checkout and os.environ.get("OLD_ATTACKS") != "inside":
        root = Path(checkout).absolute()
        paths = [root / "src", root / "teams/src", root / "study/src", root / "studies/src"]
        place = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OLD_ATTACKS": "inside"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **place})
    import torch

    import hardcase.context
    import hardcase.runs.start  # noqa: F401 - loaded once, for all programs

    torch.set_num_threads(1)
    for name in names or ATTACKS:
        print(f"{name} | {ATTACKS[name].where} | {outcome(name)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
