"""Every interval and every test of the core is made in one room, `hardcase.statistics`."""

import ast
from pathlib import Path

import hardcase

ROOT = Path(hardcase.__file__).parent
QUANTILES = {1.96, 1.959964, 1.645, 1.6449, 2.576, 2.5758}
"""Normal quantiles that only an interval needs."""
LAWS = {"stats", "stdtrit", "betaincinv", "betainc", "chdtri", "bdtr", "btdtri"}
"""Parts of scipy that only an interval or a test needs."""
ELSEWHERE = {
    "judges/rules.py": "the area under the ROC curve, until the label check takes the room's",
    "judges/asking.py": "a betting sequence whose state lives in the session that asks",
}
SHOWN = {
    "analysis/slices.py": "a property that hands on the room's",
    "judges/judge.py": "an interval in words",
    "models/mistakes.py": "whether scores lie in the unit interval",
}
"""Files with a function that bears the word and makes no interval."""


def interval_makers(tree: ast.Module) -> list[str]:
    """What in a file makes an interval or a test: its law, its quantile, or its name."""
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scipy"):
            names = {alias.name for alias in node.names} | set((node.module or "").split("."))
            found += [f"{line}: {name}" for name in names & LAWS]
        if isinstance(node, ast.Attribute) and node.attr in LAWS - {"stats"}:
            found.append(f"{line}: {node.attr}")
        if isinstance(node, ast.Constant) and node.value in QUANTILES:
            found.append(f"{line}: {node.value}")
        if isinstance(node, ast.FunctionDef) and "interval" in node.name.split("_"):
            found.append(f"{line}: {node.name}")
    return found


def test_intervals_and_tests_live_in_one_room():
    wrong = {}
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        found = interval_makers(ast.parse(path.read_text(encoding="utf-8")))
        if found and not place.startswith("statistics/") and place not in ELSEWHERE | SHOWN:
            wrong[place] = found
    assert not wrong, wrong


def test_a_planted_interval_is_found():
    assert interval_makers(ast.parse("from scipy.stats import t"))
    assert interval_makers(ast.parse("half = 1.96 * spread"))
    assert interval_makers(ast.parse("def mean_interval(values): ..."))
    assert interval_makers(ast.parse("scipy.special.stdtrit(3, 0.975)"))
    assert not interval_makers(ast.parse("def draw_integers(values): ..."))
