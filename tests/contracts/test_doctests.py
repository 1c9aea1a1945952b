"""The examples in docstrings run, all of them, and show what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import hardcase

ROOT = Path(hardcase.__file__).parent


def modules():
    """Every module that has an example."""
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text():
            yield ".".join(["hardcase", *path.relative_to(ROOT).with_suffix("").parts])


@pytest.mark.parametrize("name", modules())
def test_examples_run(name, tmp_path, monkeypatch, fresh_registry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    module = import_module(name.removesuffix(".__init__"))
    done = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert done.attempted
    assert not done.failed
