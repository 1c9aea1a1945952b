"""Modules that need each other: counted over all imports, those inside functions too."""

import ast
from pathlib import Path

import hardcase

ROOT = Path(hardcase.__file__).parent
CYCLES = 2
"""Groups of modules that import each other, lazily somewhere."""


def modules():
    return {
        ".".join(("hardcase", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in ROOT.rglob("*.py")
    }


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported(tree, known):
    """The modules of ours that a tree imports, outside of what only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if is_type_checking(node):
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
    known = modules()
    return {
        name: {other for other in imported(ast.parse(path.read_text()), known) if other in known}
        for name, path in known.items()
    }


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
