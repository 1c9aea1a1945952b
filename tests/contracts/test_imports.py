"""Who may import whom: parts never import upwards, nor each other."""

import ast
from pathlib import Path

import hardcase

ROOT = Path(hardcase.__file__).parent
ZERO = {"errors", "types", "tensors", "randomness", "cache", "memory", "png", "version"}
TWO = {"methods", "distribute", "results", "report", "suite", "measuring"}
THREE = {"config", "planning", "recipes", "models", "running", "api", "testing", "experiments", "judging"}
FOUR = {"cli", "__init__", "__main__", "pytest_plugin"}
NEIGHBOURS = {
    "zoo": {"training"},
    "generators": {"training"},
    "health": set(),
    "results": {"funnel", "store", "report", "suite"},
}


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def level(name):
    return 0 if name in ZERO else 2 if name in TWO else 3 if name in THREE else 4 if name in FOUR else 1


def imports():
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hardcase":
                inner = node.module.split(".")[1:]
                names = [inner[0]] if inner else [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name.split(".")[1] for a in node.names if a.name.startswith("hardcase.")]
            for name in names:
                yield path, room(path), name


def test_nobody_imports_upwards():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, own, name in imports()
        if own != name and level(name) > level(own)
    ]
    assert not wrong, wrong


def test_parts_do_not_import_each_other():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, own, name in imports()
        if own != name and level(own) == level(name) == 1 and name not in NEIGHBOURS.get(own, set())
    ]
    assert not wrong, wrong
