"""The pytest plug-in, run inside pytest: stored tests as items."""

from importlib.metadata import entry_points

import pytest
from aftermath import verdict, write_run

import hardcase.suite.replay  # noqa: F401 - inner runs share the modules that are loaded, as they must share their classes

pytest_plugins = ["pytester"]

MODEL = """
import torch
from torch import nn

class Brightness(nn.Module):
    def __init__(self, edge):
        super().__init__()
        self.edge = edge
    def forward(self, x):
        gap = 40 * (x.mean((1, 2, 3)) - self.edge)
        return torch.stack([torch.zeros_like(gap), gap], 1)

def old():
    return Brightness(0.5)

def new():
    return Brightness(0.65)
"""


@pytest.fixture
def world(pytester):
    """Three stored tests; the run's data are pictures in an npz file."""
    import numpy as np

    write_run(
        pytester.path / "run", levels=[10, 60, 100], found={0: [140], 1: [150], 2: [220]},
        verdicts=[verdict(), verdict(kept=False), verdict()],
    )  # fmt: skip
    x = np.arange(40, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2) * 6
    np.savez(pytester.path / "greys.npz", images=x, labels=(x[:, 0, 0] >= 128).astype(np.int64))
    (pytester.path / "run/config.toml").write_text(
        f'model = "x"\ndata = "npz:{pytester.path / "greys.npz"}"\n[method]\nname = "pgd"\n'
    )
    (pytester.path / "models.py").write_text(MODEL)
    return pytester


INSTALLED = "hardcase.pytest_plugin" in {point.value for point in entry_points(group="pytest11")}
PLUGIN = ("-p", "no:cacheprovider", *(() if INSTALLED else ("-p", "hardcase.pytest_plugin")))


def run(world, *words):
    return world.runpytest_inprocess(*PLUGIN, *words)


def test_every_stored_test_is_an_item(world):
    result = world.runpytest_subprocess(
        *PLUGIN, "run/run.json", "--hardcase-model", "models.py:new", "-q"
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*from seed s2 still fails: expected dark, answered light*"])


@pytest.mark.parametrize(("only", "count"), [("all", 3), ("confirmed", 2)])
def test_only_confirmed_ones(world, only, count):
    given = ("--hardcase-model", "models.py:new", "--hardcase-only", only, "--collect-only", "-q")
    assert run(world, "run/run.json", *given).stdout.str().count("dark-light-") == count


def test_runs_are_left_alone_without_a_model(world):
    run(world).assert_outcomes()


def test_the_fixture_runs_a_test_for_each(world):
    world.makepyfile(
        """
        import pytest

        @pytest.mark.hardcase("run")
        def test_stored(hardcase_test):
            assert hardcase_test.image.shape == (1, 2, 2)
            assert hardcase_test.expected == 0
            assert hardcase_test.image.mean() < 0.8
        """
    )
    result = run(world, "--strict-markers", "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*test_stored?dark-light-*"])


def test_a_run_that_is_not_named_is_a_usage_error(world):
    world.makepyfile("def test_stored(hardcase_test): pass")
    assert run(world).ret != 0
    assert run(world, "--hardcase-run", "run").ret == 0
