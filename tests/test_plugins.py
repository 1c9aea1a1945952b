"""What plugs in where: the table, the listing, the entry points; and that nothing of it costs an import."""

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from hardcase import plugins
from hardcase.cli.main import main

ROOT = Path(__file__).parents[1]
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


def test_the_listing_says_what_is_installed(capsys):
    assert main(["list", "plugins", "--format", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [plugin.name for plugin in plugins.PLUGINS]
    assert rows["pytest"]["needs"].startswith("installed, ")
    assert main(["list", "plugins"]) == 0


def test_every_plugin_has_a_page_and_its_extra_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for plugin in plugins.PLUGINS:
        assert (ROOT / "docs" / plugin.page).is_file(), plugin.page
        named = plugin.install.partition("hardcase[")[2].partition("]")[0]
        assert not named or named in extras


@pytest.mark.parametrize(
    ("group", "point"),
    [(group, point) for group, rows in POINTS.items() for point in rows.values()],
)
def test_entry_points_lead_somewhere(group, point):
    module, _, member = point.partition(":")
    if group.startswith("mlflow"):
        pytest.importorskip("mlflow.models.evaluation", reason="an extra: hardcase[mlflow]")
    assert member == "" or hasattr(import_module(module), member)


def test_what_every_process_of_others_loads_imports_no_torch():
    code = "import sys, hardcase.plugins as p; p.lightning_callbacks(); p.rows(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("found", [plugins.maite_exports, plugins.maite_detection_exports])
def test_checkmaite_is_given_classes_and_a_version(found):
    exports = found()
    assert exports.pop("__plugin_api_version__") == plugins.CHECKMAITE_API
    assert all(isinstance(one, type) for one in exports.values())
