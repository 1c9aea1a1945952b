"""Runs of the small run that nothing disturbed, one that was stopped on its way, and copies of them."""

import shutil

import pytest
import world

from hardcase.runs.folder import Store
from hardcase.runs.start import start


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(world.plan(), folder)
    return folder


@pytest.fixture(scope="session")
def half(tmp_path_factory):
    """Stopped after three of its six shards."""
    folder = tmp_path_factory.mktemp("half") / "run"
    start(world.plan(), folder, world.Impatient(3))
    assert Store.open(folder).done() == {0, 1, 2}
    return folder


@pytest.fixture
def stopped(tmp_path, half):
    """A copy of that one."""
    return shutil.copytree(half, tmp_path / "run")


@pytest.fixture
def finished(tmp_path, whole):
    """A copy of the whole one; of the file's own, where it has another campaign."""
    return shutil.copytree(whole, tmp_path / "run")
