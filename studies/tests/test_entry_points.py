"""Every entry point is a study with a line in the list, and listing them needs no torch."""

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import hardcase
from hardcase.companions import find, studies
from hardcase_studies import STUDIES

GROUP = "hardcase.studies"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
DECLARED = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][GROUP]


def test_every_declared_study_has_a_line_and_the_other_way_round():
    assert set(DECLARED) == set(STUDIES)
    assert all(study.summary and study.paper for study in STUDIES.values())


@pytest.mark.parametrize("name", DECLARED)
def test_every_entry_point_leads_to_a_function(name):
    module, _, function = DECLARED[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_installed_studies_are_found_by_name():
    if not entry_points(group=GROUP):
        pytest.skip("the studies are on the path but not installed: pip install ./study ./studies")
    if {point.name for point in entry_points(group=GROUP)} < set(DECLARED):
        pytest.skip("the installed studies are older than these: pip install ./study ./studies")
    assert {name: study for name, study in studies().items() if name in STUDIES} == STUDIES
    assert find("severity-crossings") is import_module("hardcase_studies.severity").run


def test_the_list_needs_no_torch():
    code = "import sys, hardcase_studies; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_core_imports_no_companion():
    package = Path(hardcase.__file__).parent
    wrong = [path for path in package.rglob("*.py") if "hardcase_stud" in path.read_text()]
    assert not wrong
