"""Four layers: core, parts, run, faces. Who may import whom, and where every module belongs."""

import ast
import re
from pathlib import Path

import hardcase

ROOT = Path(hardcase.__file__).parent
LAYERS = {
    "core": "environment errors lazy types tensors randomness cache usercode companions registry catalogue objectives "
    "oracles statistics inference graphs campaign",
    "parts": "imaging spaces conditions searches guides criteria methods models data training generators claims "
    "corruptions",
    "run": "config analysis splits context plan runs judges",
    "faces": "__init__ __main__ api report suite repair testing cli plugins pytest_plugin",
}
"""The rooms (folders and files of the package) of each layer, lowest first."""
ORDER = {room: i for i, rooms in enumerate(LAYERS.values()) for room in rooms.split()}
UPWARD = {
    "catalogue -> testing": "needs and budgets are read from methods built on toys, when it is written",
    "runs -> report": "`Run.report()` is imported when it is called",
    "runs -> suite": "`Run.export()` is imported when it is called",
}


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports():
    """Every import of a room of ours: the file, its room, the room it names."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hardcase":
                inner = node.module.split(".")[1:]
                names = [inner[0]] if inner else [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name.split(".")[1] for a in node.names if a.name.startswith("hardcase.")]
            for name in names:
                yield path, room(path), name


def test_every_room_has_a_layer():
    rooms = {room(path) for path in ROOT.rglob("*.py")}
    assert rooms == set(ORDER), "a new room or module belongs into a layer; a gone one out of it"


def test_nobody_imports_upwards():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, own, name in imports()
        if ORDER.get(name, 0) > ORDER[own] and f"{own} -> {name}" not in UPWARD
    ]
    assert not wrong, wrong


def test_parts_never_import_a_method():
    wrong = [
        str(path.relative_to(ROOT))
        for path, own, name in imports()
        if name == "methods" and own != "methods" and ORDER[own] <= ORDER["methods"]
    ]
    assert not wrong, wrong


def test_a_class_name_exists_once():
    places = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice, twice


def test_the_architecture_page_shows_this_tree():
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (\w+) \| (`.*`) \|", page, re.M))
    shown = {layer: re.findall(r"`(\w+)/?`", rooms) for layer, rooms in table.items()}
    assert shown == {layer: rooms.split() for layer, rooms in LAYERS.items()}
    named = re.findall(r"`([\w/]+\.py)`", page)
    tests = Path(__file__).parents[2]
    gone = [name for name in named if not ((ROOT / name).exists() or (tests / name).exists())]
    assert not gone, gone
