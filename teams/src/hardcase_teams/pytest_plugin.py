"""A pytest plug-in: stored tests as test items.

``pytest runs/NAME/run.json --hardcase-model zoo:lenet5`` makes every stored test an item of its
own. In a test file, a function that asks for ``hardcase_test`` runs once for every stored test of
the run that its mark names::

    @pytest.mark.hardcase("runs/NAME")
    def test_stored(hardcase_test, model):
        assert model(hardcase_test.image[None]).argmax() == hardcase_test.expected

Nothing of hardcase is loaded before one of the two is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hardcase.runs.results import Run
    from hardcase.suite.replay import Stored
    from hardcase.types import Model


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hardcase", "stored tests of an image classifier")
    group.addoption(
        "--hardcase-model",
        metavar="MODEL",
        help="the model that stored tests (run.json files) are shown to",
    )
    group.addoption("--hardcase-run", metavar="RUN", help="the run of tests whose mark names none")
    group.addoption(
        "--hardcase-only",
        choices=("all", "accepted"),
        default="all",
        help="which stored tests; accepted needs a judge",
    )
    group.addoption(
        "--hardcase-allow-damaged",
        action="store_true",
        help="go on with the tests that are left of a damaged run",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "hardcase(run): run once for every stored test of this run (fixture hardcase_test)",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.name != "run.json" or parent.config.getoption("--hardcase-model") is None:
        return None
    return RunFile.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hardcase_test" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("hardcase")
    named = mark.args[0] if mark and mark.args else metafunc.config.getoption("--hardcase-run")
    if named is None:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: name the run, @pytest.mark.hardcase('runs/NAME') or"
            " --hardcase-run"
        )
    tests = _stored(_run(Path(named)), metafunc.config)
    metafunc.parametrize("hardcase_test", tests, ids=[test.name for test in tests])


class RunFile(pytest.File):
    """A run folder, collected by its run.json."""

    def collect(self) -> Iterator[pytest.Item]:
        run = _run(self.path.parent)
        for test in _stored(run, self.config):
            yield StoredItem.from_parent(self, name=test.name, test=test)

    @cached_property
    def failing(self) -> dict[str, tuple[int, bool]]:
        """What the model answers now and whether that fails, by test;
        asked once for the whole run.
        """
        from hardcase.suite.replay import replay

        run = _run(self.path.parent)
        allow = bool(self.config.getoption("--hardcase-allow-damaged"))
        found = replay(run, _model(run, self.config), allow_damaged=allow)
        return {row["id"]: (row["now"], row["failing"]) for row in found.rows()}


class StoredItem(pytest.Item):
    """One stored test; it passes if the model no longer leaves the original's label on it."""

    def __init__(self, *, test: Stored, **given: Any) -> None:
        super().__init__(**given)
        self.test = test

    def runtest(self) -> None:
        assert isinstance(self.parent, RunFile)
        now, failing = self.parent.failing[self.test.id]
        if failing:
            raise StillFails(
                f"expected {self.test.classes[self.test.expected]}, answered"
                f" {self.test.classes[now]}"
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, StillFails):
            return (
                f"{self.path.parent}: test {self.test.id} from seed {self.test.seed} still fails:"
                f" {excinfo.value}"
            )
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"stored test {self.name}"


class StillFails(Exception):  # noqa: N818 - what it says
    """The model still leaves the label."""


def _run(folder: Path) -> Run:
    from hardcase.errors import HardcaseError
    from hardcase.runs.results import Run

    try:
        return Run(folder)
    except HardcaseError as problem:
        raise pytest.UsageError(str(problem)) from problem


def _stored(run: Run, config: pytest.Config) -> list[Stored]:
    from hardcase.errors import HardcaseError
    from hardcase.suite.replay import stored

    try:
        return stored(
            run,
            accepted=config.getoption("--hardcase-only") == "accepted",
            allow_damaged=bool(config.getoption("--hardcase-allow-damaged")),
        )
    except HardcaseError as problem:
        raise pytest.UsageError(str(problem)) from problem


def _model(run: Run, config: pytest.Config) -> Model:
    from hardcase.config import parse
    from hardcase.context import Context
    from hardcase.runs.identity import require

    spec = str(config.getoption("--hardcase-model"))
    stored = run.store.settings()
    require({"data": stored.get("data")}, run.folder)
    settings = parse({**stored, "trust_pickle": False})
    other = settings.model.with_name(spec)
    return Context(settings.model_copy(update={"model": other})).subject
