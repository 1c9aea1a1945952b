"""docs/configuration.md is what the model of the configuration says."""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_of_all_keys_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import make_tables

    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == make_tables.configuration()
    sys.modules.pop("make_tables")
