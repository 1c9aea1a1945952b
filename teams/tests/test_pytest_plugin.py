"""The pytest plug-in, run inside pytest: stored tests as items."""

from importlib.metadata import entry_points

import pytest
from aftermath import verdict, write_run, write_world

import hardcase.suite.replay  # noqa: F401 - inner runs share the modules that are loaded, as they must share their classes
from hardcase.runs.files import checked_json
from hardcase.runs.folder import BEGUN, Store

pytest_plugins = ["pytester"]


@pytest.fixture
def world(pytester):
    """Three stored tests; the run's data are pictures in an npz file."""
    write_run(
        pytester.path / "run", levels=[10, 60, 100], found={0: [140], 1: [150], 2: [220]},
        verdicts=[verdict(), verdict("lost"), verdict()],
    )  # fmt: skip
    write_world(pytester.path)
    settings = f'model = "x"\ndata = "npz:{pytester.path / "greys.npz"}"\n[method]\nname = "pgd"\n'
    (pytester.path / "run/config.toml").write_text(settings)
    store = Store.open(pytester.path / "run")
    store.write(BEGUN, checked_json({"record": store.begun()["record"], "config": settings}))
    return pytester


INSTALLED = "hardcase_teams.pytest_plugin" in {
    point.value for point in entry_points(group="pytest11")
}
PLUGIN = ("-p", "no:cacheprovider", *(() if INSTALLED else ("-p", "hardcase_teams.pytest_plugin")))


def run(world, *words):
    return world.runpytest_inprocess(*PLUGIN, *words)


def test_every_stored_test_is_an_item(world):
    result = world.runpytest_subprocess(
        *PLUGIN, "run/run.json", "--hardcase-model", "models.py:new", "-q"
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*from seed s2 still fails: expected dark, answered light*"])


@pytest.mark.parametrize(("only", "count"), [("all", 3), ("accepted", 2)])
def test_only_accepted_ones(world, only, count):
    given = ("--hardcase-model", "models.py:new", "--hardcase-only", only, "--collect-only", "-q")
    assert run(world, "run/run.json", *given).stdout.str().count("dark-light-") == count


def test_what_is_left_of_a_damaged_run_is_no_regression_test(world):
    (world.path / "run/findings/part-00000.parquet").unlink()
    given = ("run/run.json", "--hardcase-model", "models.py:new", "-q")
    result = run(world, *given)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "is damaged" in result.stdout.str()
    assert "is damaged" not in run(world, *given, "--hardcase-allow-damaged").stdout.str()


@pytest.mark.parametrize("content", ["{}", "[]", "", '{"schema": 1}'])
def test_a_run_without_anything_in_it_is_no_success(world, content):
    empty = world.path / "empty"
    empty.mkdir()
    (empty / "run.json").write_text(content)
    result = run(world, "empty/run.json", "--hardcase-model", "models.py:new", "-q")
    readable = content.startswith("{")
    expected = pytest.ExitCode.NO_TESTS_COLLECTED if readable else pytest.ExitCode.INTERRUPTED
    assert result.ret == expected
    assert "Traceback" not in result.stdout.str()
    assert ("UsageError" in result.stdout.str()) is not readable


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
