"""Four layers: core, parts, run, faces. Who may import whom, where every module belongs, and which need each other."""

import ast
import re
from functools import cache
from pathlib import Path

import hardcase

ROOT = Path(hardcase.__file__).parent
LAYERS = {
    "core": "environment state errors plain lazy types tensors randomness cache companions registry catalogue objectives "
    "oracles statistics graphs campaign wording",
    "parts": "imaging spaces conditions searches guides criteria methods models data training generators claims "
    "corruptions",
    "run": "config request tasks analysis splits context runs judges",
    "faces": "__init__ __main__ api attack report suite repair testing cli",
}
"""The rooms (folders and files of the package) of each layer, lowest first."""
ORDER = {room: i for i, rooms in enumerate(LAYERS.values()) for room in rooms.split()}
UPWARD = {
    "campaign -> claims": "boxes and masks move with their image; imported where a claim has a place",
    "wording -> suite": "types of figures, for type checkers alone",
    "catalogue -> testing": "needs and budgets are read from methods built on toys, when it is written",
}


CYCLES = 1
"""Groups of modules that import each other, inside of functions somewhere."""


@cache
def trees():
    """Every file of the package, parsed."""
    return {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports():
    """Every import of a room of ours: the file, its room, the room it names."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hardcase":
                inner = node.module.split(".")[1:]
                names = [inner[0]] if inner else [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name.split(".")[1] for a in node.names if a.name.startswith("hardcase.")]
            for name in names:
                yield path, room(path), name


def test_every_room_has_a_layer():
    rooms = {room(path) for path in trees()}
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


def decided_by_name(tree):
    """The comparisons of a part's name or of a task with texts; what a user asked for apart."""
    parts = re.compile(r"(part|method|recipe|self|context)\.(name|task)$")
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = any(parts.search(ast.unparse(one)) for one in sides)
            texts = [inner for one in sides for inner in ast.walk(one)]
            if named and any(isinstance(getattr(one, "value", None), str) for one in texts):
                yield ast.unparse(node)


def test_a_context_decides_nothing_by_the_name_of_a_part_or_a_task():
    """What differs is a fact of the part or a method of the task (`tasks.py`)."""
    planted = "part.name in ('natural', 'pgd') or self.task != 'classes'"
    assert len([*decided_by_name(ast.parse(planted))]) == 2
    rooms = ("context.py", "splits.py", "api.py", "runs/plan.py", "runs/phases.py", "runs/start.py")
    found = [one for room in rooms for one in decided_by_name(trees()[ROOT / room])]
    assert not found


def test_a_class_name_exists_once():
    places = {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice, twice


def test_the_architecture_page_shows_this_tree():
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "architecture.md").read_text(
        encoding="utf-8"
    )
    table = dict(re.findall(r"^\| (\w+) \| (`.*`) \|", page, re.M))
    shown = {layer: re.findall(r"`(\w+)/?`", rooms) for layer, rooms in table.items()}
    assert shown == {layer: rooms.split() for layer, rooms in LAYERS.items()}
    named = re.findall(r"`([\w/]+\.py)`", page)
    tests = Path(__file__).parents[2]
    gone = [name for name in named if not ((ROOT / name).exists() or (tests / name).exists())]
    assert not gone, gone


def imported(tree, known):
    """The modules of ours that a tree imports, outside of what only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def graph():
    """The modules that each module imports, inside of functions too."""
    names = {
        path: ".".join(("hardcase", *path.relative_to(ROOT).with_suffix("").parts))
        for path in trees()
    }
    known = {name.removesuffix(".__init__"): trees()[path] for path, name in names.items()}
    return {name: {*imported(tree, known)} & known.keys() for name, tree in known.items()}


def cycles(edges):
    """The strongly connected groups of more than one module."""
    reached = {}
    for start in edges:
        seen, waiting = set(), [start]
        while waiting:
            for other in edges[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        reached[start] = seen
    groups = {
        frozenset(one for one in reached[name] if name in reached[one])
        for name in edges
        if name in reached[name]
    }
    return sorted((sorted(group) for group in groups if len(group) > 1), key=len)


def test_few_modules_need_each_other():
    found = cycles(graph())
    assert len(found) <= CYCLES, "\n".join(" ".join(group) for group in found)
