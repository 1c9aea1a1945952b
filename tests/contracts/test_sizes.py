"""What a reader of settings and of studies has to know: what is reached, and the goal beside it.

Each limit is what was reached when it was last lowered. One that has to be raised needs a reason in
the commit: what the feature replaces.
"""

import ast
from pathlib import Path

from hardcase.config import Config

STUDIES = Path(__file__).parents[2] / "studies/src"
SETTINGS = 64
"""Keys of the resolved configuration, options of methods apart; the goal is 60."""
NAMES = 316
"""Names of the core that the studies import; the goal is 90."""


def test_there_are_few_settings():
    sections = [getattr(one.annotation, "model_fields", None) for one in _fields(Config)]
    assert sum(1 if fields is None else len(fields) for fields in sections) <= SETTINGS


def _fields(model):
    return model.model_fields.values()


def test_studies_need_no_more_names_of_the_core():
    names = {
        (node.module, alias.name)
        for path in STUDIES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hardcase"
        for alias in node.names
    }
    assert len(names) <= NAMES
