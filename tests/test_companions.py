"""What other distributions bring is named with its install where it is missing."""

import pytest

from hardcase import companions
from hardcase.claims.annotations import load_annotations
from hardcase.errors import USAGE, HardcaseError
from hardcase.models import fetching
from hardcase.models.load import loader

NEEDS = {
    "plug-ins": (companions.plugin_rows, "hardcase[teams]"),
    "annotations of other tools": (lambda: load_annotations("coco:x.json"), "hardcase[teams]"),
    "servers": (lambda: loader("http"), "hardcase[http]"),
    "networks": (lambda: fetching.fetch("resnet50-imagenet", offline=True), "hardcase[teams]"),
}


@pytest.mark.parametrize("what", NEEDS)
def test_without_hardcase_teams_the_install_is_named(monkeypatch, tmp_path, what):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    monkeypatch.setattr(companions, "import_module", missing)
    ask, extra = NEEDS[what]
    with pytest.raises(HardcaseError) as told:
        ask()
    assert extra in told.value.fix
    assert told.value.code == USAGE
