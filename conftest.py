"""For the tests of all four distributions: strict arithmetic and checked shapes, before anything imports hardcase."""

import faulthandler
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import typechecks

typechecks.switch_on()

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(  # a busy machine is no failure
    "hardcase", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hardcase")

LATER = "needs Chromium, PostgreSQL or npm: make browser"
HANGS = 3600 if os.environ.get("HARDCASE_TORTURE") == "long" else 300
"""Seconds after which a test is ended; many times what any takes on two busy cores."""
LONG = "takes ten seconds or more: make torture"


def pytest_collection_modifyitems(items):
    """What needs more than Python and pip, or much time, is skipped unless it is asked for."""
    wanted = {
        "browser": (bool(os.environ.get("HARDCASE_BROWSER")), LATER),
        "long": (os.environ.get("HARDCASE_TORTURE") == "long", LONG),
    }
    for item in items:
        for name, (asked, reason) in wanted.items():
            if not asked and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    """Says how many these are."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(LATER in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests {LATER}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A test that hangs, even inside a library, ends its worker with a traceback, not the suite."""
    faulthandler.dump_traceback_later(HANGS, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def _the_timer_is_of_the_tests():
    """There is one such timer in a process: `HANGS` has it, not a command that a test calls."""
    from hardcase import errors

    none = {name: lambda *given, **how: None for name in vars(faulthandler) if "later" in name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "faulthandler", SimpleNamespace(**none))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tests share the cores between workers, not inside them."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _played_device():
    """With HARDCASE_PLAYED_DEVICE a device is played under every test, in new processes too."""
    from played_device import VARIABLE, PlayedDevice

    if not os.environ.get(VARIABLE):
        yield
        return
    new = [str(Path(__file__).parent / "tests" / "played"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(new)
    with PlayedDevice.from_text(os.environ[VARIABLE]):
        yield


@pytest.fixture(scope="session", autouse=True)
def _records_are_as_their_schema_says():
    """Whatever run a test makes: each new form of run.json is held against the shipped schema."""
    import json

    from hardcase.runs.folder import Store
    from hardcase.runs.schema import FILE
    from json_schema import differences

    schema = json.loads(FILE.read_text(encoding="utf-8"))
    known = set()
    write = Store.write

    def checked(store, name, data, **how):
        write(store, name, data, **how)
        record = json.loads(data) if name == "run.json" else {}
        form = _form(record)
        whole = {"behaviour", "identity"} <= record.keys()  # others are written by hand
        if whole and form not in known:
            wrong = list(differences(record, schema))
            assert not wrong, wrong[:3]
            known.add(form)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "write", checked)
        yield


def _form(value):
    """The names and types in a tree of JSON."""
    if isinstance(value, dict):
        return tuple(sorted((name, _form(one)) for name, one in value.items()))
    if isinstance(value, list):
        return ("list", *sorted({_form(one) for one in value}, key=repr))
    return type(value).__name__


@pytest.fixture(autouse=True)
def _own_tile():
    """No test leaves the tile of its campaign to the next, where a device is played."""
    if not os.environ.get("HARDCASE_PLAYED_DEVICE"):
        yield
        return
    from hardcase.tensors import tile_in_use, use_tile

    before = tile_in_use("cpu")
    yield
    use_tile("cpu", before)


@pytest.fixture
def fresh_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    from hardcase import registry

    known = {kind: registry.parts(kind) for kind in registry.ROOMS}
    monkeypatch.setattr(registry, "_parts", known)
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))


@pytest.fixture
def command(capsys):
    """The command line in this process: its exit code, and all that it said. Several words may stand in the first text."""
    from hardcase.cli.main import main

    def call(text, *words):
        capsys.readouterr()
        code = main([*text.split(), *map(str, words)])
        return code, "".join(capsys.readouterr())

    return call


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The folder of a user with a model and data: ``model.py``, ``toy.npz`` and a cache."""
    from tiny import furnish

    return furnish(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def _usual_log():
    """Commands say how much is told; every test begins as if none had been called before."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def no_folder_is_open():
    """A verb that a test calls without the frame around it leaves its guard to nobody."""
    yield
    from hardcase.errors import set_consent_check

    set_consent_check(None)
