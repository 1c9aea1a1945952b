"""Every block of Python on every page runs: in a small world, with what its page takes as given."""

import ast
import doctest
import re
import sys
import types

import pytest

from documented.blocks import CELL, ROOT, blocks
from documented.world import LONG, call, clear, furnish, give_run
from hardcase.errors import HardcaseError

EXCHANGED = {
    '"zoo:lenet5"': '"net.py:make"',
    '"mnist5k"': '"folder:photos"',
    '"cifar10"': '"folder:photos"',
    '"timm:resnet18"': '"net.py:make"',
    ".sample(per_class=20": ".sample(per_class=2",
    "mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26)": "mean=(0.5,), std=(0.5,)",
}
"""What a page writes, and what stands for it in the world."""
WORLD = """
import torch
from torch import nn
import hardcase as hc
from net import make
net = model = make()
dataset = "folder:photos"
found = hc.data.load("folder:photos", split="test")
images, labels = found.x[:4].float() / 255, found.y[:4]
"""
"""What every page may take as given."""
TOYS = """
import torch
from torch import nn
import hardcase as hc
from hardcase.testing.toys import ToyAutoencoder, toy_images, toy_subject
subject, train, seeds, vae = toy_subject(), toy_images(40, seed=1), toy_images(4), ToyAutoencoder()
x = seeds.x.float() / 255
"""
"""The same where it must be small."""
GIVEN = {
    "README.md": WORLD,
    "docs/concepts/criteria.md": TOYS,
    "docs/concepts/generators.md": WORLD,
    "docs/concepts/whitebox.md": WORLD,
    "docs/guides/cookbook.md": WORLD,
    "docs/guides/data.md": WORLD,
    "docs/guides/own-model.md": WORLD,
    "docs/guides/people.md": WORLD,
    "docs/guides/repair.md": f"{WORLD}\nloader = [(images, labels)]",
    "docs/guides/weaknesses.md": f"""{WORLD}
x, severity, keys = images, torch.full((4,), 2.0), torch.arange(4)
cameras, patient = ["a", "b", "a", "b"], torch.arange(4)
failing, label = torch.tensor([True, False, True, False]), labels
""",
    "docs/research/features.md": f"{WORLD}\nseed_images = test_images = images",
    "docs/research/sinvad.md": TOYS,
    "docs/results/peers.md": WORLD,
}
"""What a page takes as given."""
RUNS = {"docs/guides/people.md": ["runs/sinvad"], "docs/guides/weaknesses.md": ["runs/demo"]}
"""Runs that a page takes as given."""
ELSEWHERE = {
    "CONTRIBUTING.md": "tests/contracts/test_contributing.py writes its files down and uses them",
    "docs/teams/huggingface.md": "transformers: make teams",
    "docs/teams/lightning.md": "Lightning: make teams",
    "docs/teams/maite.md": "somebody's model and data set: teams/tests/test_maite.py",
    "docs/teams/mlflow.md": "MLflow: make teams",
}
"""Pages whose blocks need what is not installed here."""
WITH_PROMPT = sorted({block.page for block in blocks("python") if ">>> " in block.text})
PLAIN = sorted({block.page for block in blocks("python")} - {*WITH_PROMPT, *ELSEWHERE})
NOTEBOOKS = sorted({block.page for block in blocks(CELL)})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    furnish(folder)
    return folder


@pytest.fixture(autouse=True)
def _in_the_world(home, monkeypatch, fresh_registry):
    monkeypatch.setenv("HARDCASE_CACHE", str(home / ".cache"))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.chdir(home)
    clear(home)


def run_blocks(page, language, given):
    """Run the blocks of a page one after the other, in one namespace."""
    names = {"__name__": page}
    exec(compile(given, "given", "exec"), names)
    for block in blocks(language):
        if block.page == page:
            text = block.text
            for old, new in EXCHANGED.items():
                text = text.replace(old, new)
            exec(compile(text, block.name, "exec"), names)
    return names


@pytest.mark.parametrize("page", PLAIN)
def test_blocks_run_with_what_their_page_takes_as_given(page, home):
    for place in RUNS.get(page, ()):
        give_run(home / place, home)
    run_blocks(page, "python", GIVEN[page])


@pytest.mark.parametrize("page", WITH_PROMPT)
def test_blocks_with_prompts_print_what_they_show(page):
    done = doctest.testfile(str(ROOT / page), module_relative=False)
    assert done.attempted
    assert not done.failed


@pytest.mark.parametrize("page", ELSEWHERE)
def test_blocks_for_other_libraries_name_what_is_there(page):
    """They parse, and every argument that they give to a name of ours is one that it takes."""
    import inspect
    from importlib import import_module

    for block in blocks("python"):
        if block.page != page:
            continue
        tree = ast.parse(block.text)
        ours = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hardcase_teams"):
                try:
                    module = import_module(node.module)
                except (HardcaseError, ModuleNotFoundError) as error:
                    pytest.skip(str(error))
                ours |= {name.name: getattr(module, name.name) for name in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ours:
                taken = inspect.signature(ours[node.func.id]).parameters.values()
                if all(one.kind is not one.VAR_KEYWORD for one in taken):
                    names = {one.name for one in taken}
                    assert {word.arg for word in node.keywords} <= names, node.func.id


# ---- notebooks ---------------------------------------------------------------------------------


def as_script(text):
    """A cell without marks and magic, its shell lines as calls of the command line."""
    lines = []
    for line in text.splitlines():
        command = re.match(r"!hardcase ([^;]*)", line)
        if command:
            lines.append(f"command_line({command[1].split()!r})")
        elif not line.startswith((":tags", "%", "os.chdir")):
            lines.append(line)
    return "\n".join(lines)


def command_line(words):
    code, out, err = call(*words)
    assert code in (0, 1, 2, 4), out + err  # the page shows the code


def small_digits(monkeypatch, home):
    """Let bars stand for the digits, and the world's network for the one that is trained on them."""
    import hardcase as hc

    load = hc.data.load

    def loaded(spec, **how):
        return load(f"folder:{home}/photos" if spec == "mnist5k" else spec, **how)

    def trained(name, train, test):
        sys.modules.pop("net", None)
        from net import make

        return make(), {}

    monkeypatch.setattr(hc.data, "load", loaded)
    monkeypatch.setattr(hc.models, "trained_classifier", trained)


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_a_notebook_runs_from_its_first_cell_to_its_last(page, home, monkeypatch, tmp_path):
    """With the bundled digits (`make torture`), else with bars in their place."""
    if page == "docs/guides/field.md" and not LONG:
        pytest.skip("fits a field for minutes: make torture")
    if not LONG:
        small_digits(monkeypatch, home)
    display = types.ModuleType("IPython.display")
    display.Image = str
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page, "command_line": command_line}
    for block in blocks(CELL):
        if block.page == page:
            exec(compile(as_script(block.text), block.name, "exec"), names)


def test_no_page_is_left_out():
    assert set(PLAIN) == set(GIVEN)
    assert {block.page for block in blocks("python")} == {*PLAIN, *WITH_PROMPT, *ELSEWHERE}
