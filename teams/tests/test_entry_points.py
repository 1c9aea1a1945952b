"""Entry points lead somewhere, and what every process of others loads costs no import."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from hardcase_teams import entry_points

OWN = Path(__file__).parents[2] / "pyproject.toml"
POINTS = [
    (group, point)
    for group, rows in tomllib.loads(OWN.read_text())["project"]["entry-points"].items()
    for point in rows.values()
    if point.startswith("hardcase_teams")
]


@pytest.mark.parametrize(("group", "point"), POINTS)
def test_entry_points_lead_somewhere(group, point):
    module, _, member = point.partition(":")
    if group.startswith("mlflow"):
        pytest.importorskip("mlflow.models.evaluation", reason="an extra: hardcase[mlflow]")
    assert member == "" or hasattr(import_module(module), member)


def test_what_every_process_of_others_loads_imports_no_torch():
    code = (
        "import sys, hardcase.companions as p, hardcase_teams.entry_points as e;"
        " e.lightning_callbacks(); p.plugin_rows(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "found", [entry_points.maite_exports, entry_points.maite_detection_exports]
)
def test_checkmaite_is_given_classes_and_a_version(found):
    exports = found()
    assert exports.pop("__plugin_api_version__") == entry_points.CHECKMAITE_API
    assert all(isinstance(one, type) for one in exports.values())
