"""What plugs in where: the table and its listing."""

import json
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from hardcase.cli.main import main
from hardcase_teams import plugins

ROOT = Path(__file__).parents[2]


def test_the_listing_says_what_is_installed(capsys):
    assert main(["list", "plugins", "--format", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == [plugin.name for plugin in plugins.PLUGINS]
    assert rows["pytest"]["needs"].startswith("installed, ")
    assert main(["list", "plugins"]) == 0


def test_a_program_without_its_adapter_is_not_said_to_be_installed(monkeypatch):
    def version(name):
        if name == plugins.TEAMS:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(plugins, "version", version)
    rows = {row["name"]: row["needs"] for row in plugins.rows()}
    assert rows["mlflow"] == "pip install 'hardcase[mlflow]'"
    assert rows["fiftyone"] == "installed, 1.0"


def test_every_plugin_has_a_page_and_its_extra_exists():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for plugin in plugins.PLUGINS:
        assert (ROOT / "docs" / plugin.page).is_file(), plugin.page
        named = plugin.install.partition("hardcase[")[2].partition("]")[0]
        assert not named or named in extras
