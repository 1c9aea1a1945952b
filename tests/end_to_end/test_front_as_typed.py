"""The front as typed: what a user does first must work again afterwards, and every argument counts.

Each test fails on a front that resumes by other settings than it began with, or drops arguments.
"""

import json
import re
import shutil
import signal
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hardcase as hc
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.methods.appearance_search import natural
from hardcase.runs import phases, plan
from hardcase.testing.toys import Quarters, toy_images, toy_subject

WEAK = """
import torch
from hardcase.testing.toys import Quarters

def weak():
    net = Quarters()
    rng = torch.Generator().manual_seed(3)
    net.mean.weight.data += 0.1 * torch.randn(net.mean.weight.shape, generator=rng)
    return net
"""
DEFAULT = "run --model weak.py:weak --data npz:toy.npz --witness none --allow-low-accuracy -q"
SMALL = "--images 8 --gradients 6 --set campaign.shard=2"


@pytest.fixture
def typed(world):
    """A finished run of the default method, without a word about conditions."""
    Path("weak.py").write_text(WEAK)
    assert world(DEFAULT, SMALL, "--out out").code == 0
    assert world.record()["method"] == "natural"
    assert world.record()["conditions"]["name"] == "scanner"
    assert world.findings()
    return world


def test_a_finished_default_run_is_resumed_and_shrunk(typed):
    before = typed.findings()
    done = typed("resume out -q")
    assert done.code == 0, done.err
    assert typed.findings() == before
    done = typed("shrink out --out small -q")
    assert done.code == 0, done.err
    assert len(hc.Run("small")) == len(hc.Run("out"))


def test_the_stored_configuration_searches_the_same_space(typed):
    assert typed("run out/config.toml --out again -q").code == 0
    assert typed.findings("again") == typed.findings()
    assert typed.record("again")["space"] == typed.record()["space"]
    first, second = (hc.Run(name).store.measured_parts() for name in ("out", "again"))
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in second]


def test_a_damaged_shard_of_a_finished_default_run_is_searched_again(typed):
    before = typed.findings()
    sorted(Path("out/findings").glob("part-*"))[0].unlink()
    assert typed("resume out -q").code == 0
    assert typed.findings() == before


def test_settings_of_a_section_never_replace_each_other(tmp_path):
    given = {"method": "pgd", "judge": False, "images": 8}
    how = {"witnesses": hc.Witnesses(margin=9.0, models=()), "campaign": {"tile": 16}}
    run = hc.run(toy_subject(), toy_images(8), out=tmp_path / "a", **given, **how)
    assert run.record["complete"]
    context = _context(hc.Witnesses(margin=9.0, models=()), campaign={"tile": 16})
    assert (context.config.campaign.margin, context.config.campaign.tile) == (9.0, 16)
    context = _context(None, hc.Execution(shard=7), campaign={"margin": 1.0})
    assert (context.config.campaign.margin, context.config.campaign.shard) == (1.0, 7)


def _context(witnesses=None, execution=None, **settings):
    from hardcase import api

    how = {"witnesses": witnesses, "execution": execution}
    return api.context_of(toy_subject(), toy_images(8), settings, method="pgd", **how)


@pytest.mark.parametrize(
    "settings",
    [
        {"witnesses": hc.Witnesses(margin=9.0, models=()), "campaign": {"margin": 2.0}},
        {"execution": hc.Execution(shard=7), "campaign": {"shard": 3}},
    ],
)
def test_an_argument_that_contradicts_another_is_an_error_that_names_both(tmp_path, settings):
    with pytest.raises(HardcaseError, match="given twice"):
        hc.run(toy_subject(), toy_images(8), method="pgd", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_names_and_objects_mix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weak.py").write_text(WEAK)
    images = toy_images(12)
    given = {"method": "pgd", "images": 6, "judge": False, "allow_low_accuracy": True}
    run = hc.run("weak.py:weak", images, train=toy_images(24, seed=1), out="mixed", **given)
    assert run.record["model"] == "weak.py:weak"
    assert run.record["risk"]["images"] == 12
    other = Quarters(30.0)
    run = hc.run(
        toy_subject(),
        images,
        peers=[other],
        witnesses=[Quarters(25.0)],
        baseline=[Quarters(20.0)],
        out="modules",
        **given,
    )
    assert len(run.record["hashes"]["peers"]) > 0
    assert len(run.record["hashes"]["witnesses"]) == 1
    assert run.record["risk"]["baselines"][0]["difference"]["value"] == 0


def test_training_images_count_where_model_and_data_are_names(world):
    train = toy_images(24, seed=1)
    from hardcase import api

    context = api.context_of("model.py:make", "npz:toy.npz", method="pgd", train=train)
    assert context.train.id == train.id


def test_declared_conditions_bound_a_method_by_any_name(caplog):
    declared = {"rotation": "±40 deg", "exposure": "0..1 stops"}
    built = replace(natural(shape=(1, 8, 8)), name="somebody's own")
    before = built.space
    context = Context.of(toy_subject(), toy_images(6), built, conditions=declared)
    assert set(context.method.space.conditions.ranges) == {"rotation", "exposure"}
    assert built.space is before
    assert "somebody's own" in caplog.text


@pytest.mark.parametrize(
    "unused",
    [
        {"judge": False},
        {"criteria": "nc"},
        {"limits": {"risk": 0.1}},
        {"metrics": "m.prom"},
        {"cluster": "auto"},
        {"rare": True},
        {"baseline": "zoo:lenet1"},
        {"references": "none"},
        {"execution": hc.Execution(workers=2)},
    ],
)
def test_a_search_in_memory_refuses_what_it_does_not_use(unused):
    with pytest.raises((HardcaseError, TypeError)) as caught:
        hc.search(toy_subject(), toy_images(4), method="pgd", **unused)
    assert next(iter(unused)) in str(caught.value) or "workers" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"images": 0}, "images"),
        ({"target": "none such"}, "none such"),
        ({"options": {"criterion": "nc"}}, "criterion"),
        ({"method": "pgdd"}, "pgd"),
        ({"keep": "some"}, "keep"),
        ({"options": {"epsilon": -1}}, "epsilon"),
    ],
)
def test_messages_of_python_name_arguments_of_python(arguments, name):
    given = {"method": "pgd", **arguments}
    with pytest.raises(HardcaseError) as caught:
        hc.search(toy_subject(), toy_images(8), **given)
    told = str(caught.value)
    assert name in told
    assert not re.search(r"(?<!\w)--[a-z]", told), told
    assert "count" not in told


def test_no_query_is_made_for_a_forecast(tmp_path, monkeypatch):
    """The model is asked about every image and sample once, beside what is checked about it."""
    counted = {"rows": 0}

    class Counted(Quarters):
        def forward(self, x):
            counted["rows"] += len(x)
            return super().forward(x)

    subject = hc.Subject(Counted(), classes=toy_subject().class_names, name="counted")
    monkeypatch.setattr("hardcase.runs.phases.EFFECT_QUERIES", 1e9)  # there is no time for them
    given = {"method": "none", "judge": False}
    few = _rows(counted, lambda: hc.run(subject, toy_images(40), out=tmp_path / "few", **given))
    many = _rows(
        counted, lambda: hc.run(subject, toy_images(40), out=tmp_path / "many", samples=64, **given)
    )
    assert 0 <= many - few - 40 * 60 <= 64, "one image warms up each, in a call of its own"


def _rows(counted, work):
    before = counted["rows"]
    work()
    return counted["rows"] - before


def test_run_json_is_written_once_when_it_begins_and_once_a_phase(tmp_path, judged, monkeypatch):
    from hardcase.runs import folder

    counts = Counter()
    write, read = folder.Store.write, folder.read_plain

    def writing(store, name, data, **how):
        counts["written"] += name == "run.json"
        return write(store, name, data, **how)

    def reading(path, **how):
        counts["read"] += path.name == "run.json"
        return read(path, **how)

    monkeypatch.setattr(folder.Store, "write", writing)
    monkeypatch.setattr(folder, "read_plain", reading)
    run = hc.run(toy_subject(), toy_images(24), method="pgd", out=tmp_path / "run")
    assert run.record["complete"]
    assert run.verdicts is not None
    assert run.record["risk"]["value"] >= 0
    assert counts["written"] == 1 + len(phases.PHASES)
    assert counts["read"] <= 2 * len(phases.PHASES)


def test_documents_name_no_room_that_companions_do_not_use():
    page = (Path(__file__).parents[2] / "docs/concepts/architecture.md").read_text(encoding="utf-8")
    assert "imported by nothing in the wheel" not in page


class Interrupted:
    """Raises Ctrl-C at the n-th call of a function."""

    def __init__(self, work, after):
        self.work, self.after = work, after

    def __call__(self, *given, **more):
        self.after -= 1
        if self.after < 0:
            signal.raise_signal(signal.SIGINT)
        return self.work(*given, **more)


def left(folder):
    """What must be the same in the end: bytes of every part, and run.json but for times."""
    folder = Path(folder)
    parts = {
        str(path.relative_to(folder)): path.read_bytes()
        for kind in ("measured", "findings", "verdicts")
        for path in sorted((folder / kind).glob("part-*"))
    }
    record = json.loads((folder / "run.json").read_text())
    times = ("created", "finished", "elapsed", "argv", "checksum")
    return parts, _without(record, times)


def _without(value, names):
    if isinstance(value, dict):
        return {key: _without(one, names) for key, one in value.items() if key not in names}
    return value


@pytest.fixture
def judged(monkeypatch):
    """Findings are judged at once, and the measurement has several shards."""
    from hardcase import api
    from hardcase.judges.verdicts import judge_run

    def trusting(pairs):
        return hc.Verdicts(["kept"] * len(pairs))

    monkeypatch.setattr(api, "finish", lambda run, **how: judge_run(run, trusting))
    monkeypatch.setattr(plan, "_measured_at_once", lambda *of: 8)


CUT = {
    "measure": ("hardcase.runs.measured.Measurement.tables", 3),
    "search": ("hardcase.campaign.evaluator.ShardEvaluator.gradient", 4),
    "check": ("hardcase.api.finish", 0),
}


@pytest.mark.parametrize("phase", CUT)
def test_an_interrupt_in_any_phase_says_so_and_resumes_to_the_same_bytes(
    world, judged, monkeypatch, phase
):
    Path("weak.py").write_text(WEAK)
    assert world(DEFAULT, SMALL, "--out whole").code == 0
    where, after = CUT[phase]
    with monkeypatch.context() as patch:
        owner, _, name = where.rpartition(".")
        found = _resolve(owner)
        patch.setattr(where, _method(Interrupted(getattr(found, name), after)))
        done = world(DEFAULT, SMALL, "--out out")
    assert done.code == 130, done.err
    record = world.record()
    assert not record["complete"]
    assert [record["phases"][one]["status"] for one in _before(phase)] == ["done"] * len(
        _before(phase)
    )
    assert record["phases"][phase]["status"] in ("running", "not begun")
    assert "hardcase resume out" in world("status out").out
    assert world("gate out --max-risk 1").code == 2
    assert world("resume out -q").code == 0
    assert left("out") == left("whole")


def _before(phase):
    return phases.PHASES[: phases.PHASES.index(phase)]


def _resolve(name):
    from pkgutil import resolve_name

    return resolve_name(name)


def _method(work):
    return lambda *given, **more: work(*given, **more)


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        ("hardcase.runs.measured.Measurement.tables", "measure"),
        ("hardcase.runs.start.asked_seeds", "search"),
        ("hardcase.api.finish", "check"),
    ],
)
def test_a_phase_that_fails_is_told_on_the_first_line(world, judged, monkeypatch, where, phase):
    Path("weak.py").write_text(WEAK)
    assert world(DEFAULT, SMALL, "--out whole").code == 0

    def fails(*given, **more):
        raise HardcaseError("there is no space left.")

    with monkeypatch.context() as patch:
        patch.setattr(where, fails)
        done = world(DEFAULT, SMALL, "--out out")
    assert done.code == 2
    assert done.out.splitlines()[0].startswith("FAILED")
    assert world("status out").out.startswith("FAILED")
    said = world.record()["phases"][phase]
    assert (said["status"], said["why"]) == ("failed", "there is no space left.")
    assert world("resume out -q").code == 0
    assert left("out") == left("whole")


def test_limits_of_flags_and_files_have_one_order(world):
    file = 'model = "model.py:make"\ndata = "npz:toy.npz"\nmethod = "pgd"\nimages = 4\nseed = 5\n'
    Path("hardcase.toml").write_text(file)
    assert world("run --seed 6 --out out -q").code == 0
    record = world.record()
    assert (record["seed"], record["given"]["seed"]) == (6, "flag")
    assert record["given"]["images"] == "hardcase.toml"
    stored = tomllib.loads(Path("out/config.toml").read_text())
    assert (stored["seed"], stored["images"]) == (6, 4)
    done = world("run --seed 6 --set seed=7 --out two -q")
    assert done.code == 2
    assert "--seed" in done.err
    assert "--set seed" in done.err
    shutil.rmtree("out")


def test_the_default_number_of_images_is_sixty_and_half_of_many_is_reserved():
    context = Context.of(toy_subject(), toy_images(300), "pgd", some=True)
    assert len(context.seeds) == 60
    rows = set(context.seeds.id)
    reserved = context.measurement.reserve
    assert reserved
    from hardcase.randomness import reserved as held

    names = context.all_images.id
    kept = {name for name, is_held in zip(names, held(names).tolist()) if is_held}
    assert not rows & kept
    assert torch.is_tensor(held(names))
