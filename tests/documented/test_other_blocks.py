"""Blocks that are no Python: configurations are read, commands parse, output is what comes out."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from documented.blocks import CELL, ROOT, SHELL, Block, blocks, lines_of
from documented.world import call
from hardcase.config import limits_in, loads, parse

YAML = "needs PyYAML, which comes with datasets"
DRAWINGS = {
    "docs/concepts/architecture.md": "data set",
    "docs/research/scale.md": "seconds  =",
}
"""Blocks that are a drawing or a formula, by how they begin."""
OUTPUT = {
    "README.md": "1 measure",
    "docs/guides/repair.md": "REPAIRED",
    "docs/guides/ci.md": "PASS",
}
"""Blocks that show what a command prints, by how they begin."""
PROGRAMS = (
    "hardcase",
    "pip",
    "python",
    "python3.11",
    "pytest",
    "cp",
    "cd",
    "export",
    "/tmp/empty/",
)


def block_of(page, beginning):
    """The block of a page that begins so."""
    (found,) = [b for b in blocks() if b.page == page and b.text.startswith(beginning)]
    return found


def shown(block):
    """The lines of a block without what differs from one moment to the next."""
    return [" ".join(line.split()) for line in block.text.splitlines() if line.strip()]


def kind_of(block):
    """What holds a block: nothing is left out."""
    begins = {**DRAWINGS, **OUTPUT}.get(block.page)
    if block.language in ("python", CELL):
        return "Python"
    if block.language in ("toml", "yaml", "groovy"):
        return "configuration"
    if block.language.startswith(("{toctree}", "{image}")):
        return "site"
    if begins and block.text.startswith(begins):
        return "drawing or output"
    programs = {shlex.split(line)[0] for line in lines_of(block)}
    if block.language in (*SHELL, "") and all(name.startswith(PROGRAMS) for name in programs):
        return "commands"
    return ""


def test_every_block_is_held_by_something():
    assert not [block.name for block in blocks() if not kind_of(block)]
    assert not kind_of(Block("x.md", 1, "", "rm -rf folder"))


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.name)
def test_a_configuration_can_be_read(block):
    written = tomllib.loads(block.text)
    limits = limits_in(loads(block.text)).model_dump()
    assert {name: limits[name] for name in written["limits"]} == written["limits"]
    if "data" in written:
        config = parse({**loads(block.text), "method": "natural"})  # which a run chooses
        assert (config.model.name, config.images) == (written["model"]["name"], written["images"])


def test_inputs_of_the_action_exist():
    yaml = pytest.importorskip("yaml", reason=YAML)
    (text,) = [block.text for block in blocks("yaml") if "steps:" in block.text]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (used,) = [step for step in yaml.safe_load(text)["steps"] if "hardcase" in step["uses"]]
    assert set(used["with"]) <= set(inputs)
    needed = {name for name, about in inputs.items() if about.get("required")}
    assert needed <= set(used["with"])


def test_commands_of_other_files_parse():
    yaml = pytest.importorskip("yaml", reason=YAML)
    from contracts.test_documented_commands import parsed

    (gitlab,) = [block.text for block in blocks("yaml") if "script:" in block.text]
    job = yaml.safe_load(gitlab)["robustness"]
    lines = [*job["script"], *job["after_script"]]
    lines += re.findall(r"script: '(.*?)'", blocks("groovy")[0].text)
    typed = [shlex.split(line)[1:] for line in lines if line.startswith("hardcase ")]
    assert len(typed) == 5
    assert all(parsed(words) is not None for words in typed)
    assert job["allow_failure"]["exit_codes"] == [4]


def test_other_programs_are_called_with_files_and_flags_that_exist():
    held = [block for block in blocks(*SHELL, "") if kind_of(block) == "commands"]
    lines = [line for block in held for line in lines_of(block)]
    others = [line for line in lines if not line.startswith(("hardcase", "cd ", "export "))]
    for line in others:
        words = shlex.split(line)
        if words[0].endswith("pip"):
            assert words[1] == "install", line
        elif words[0] == "python":
            text = next(ROOT.glob(f"examples/*/{words[1]}")).read_text()
            assert all(f'"{word}"' in text for word in words if word.startswith("--")), line
        elif words[0] == "pytest":
            plugin = (ROOT / "teams/src/hardcase_teams/pytest_plugin.py").read_text()
            assert all(word in plugin for word in words if word.startswith("--")), line
        elif words[0] == "cp":
            assert (ROOT / words[2]).is_dir(), line


def test_the_guide_of_repair_shows_the_demo():
    """README's block is compared with what the demo prints; the guide has the same figures."""
    demo = shown(block_of("README.md", OUTPUT["README.md"]))
    guide = shown(block_of("docs/guides/repair.md", OUTPUT["docs/guides/repair.md"]))
    decision = " ".join(demo[1:3]).removeprefix("2 repair ")
    assert guide[0] == decision
    table = demo.index(next(line for line in demo if line.startswith("503 images")))
    assert guide[1:5] == demo[table : table + 4]


@pytest.mark.long
def test_the_guide_of_the_gate_shows_what_the_gate_prints(tmp_path, monkeypatch):
    """LeNet-5 against LeNet-1 on the bundled digits; numbers, decisions and conditions."""
    monkeypatch.chdir(tmp_path)
    for name, model in (("new", "zoo:lenet5"), ("released", "zoo:lenet1")):
        words = ("--model", model, "--data", "mnist5k", "--method", "none", "--progress", "none")
        code, out, err = call("run", *words, "--out", f"runs/{name}")
        assert code == 0, out + err
    code, out, _ = call("gate", "runs/new", "--baseline", "runs/released")
    page = block_of("docs/guides/ci.md", OUTPUT["docs/guides/ci.md"]).text.removesuffix("...")
    assert code == 0
    assert " ".join(out.split()).startswith(" ".join(page.split()))


def test_the_gate_prints_in_the_form_that_its_guide_shows(tmp_path, monkeypatch):
    """The same in a moment: numbers, names and conditions of another world."""
    import hardcase as hc
    from hardcase.testing.toys import toy_images, toy_subject

    monkeypatch.chdir(tmp_path)
    declared = {"name": "scanner", "shift": "±5 %"}
    for name, sharpness in (("new", 20.0), ("old", 15.0)):
        given = {"conditions": declared, "out": Path("runs") / name, "judge": False}
        hc.run(toy_subject(sharpness), toy_images(400), method="none", **given)
    _, out, _ = call("gate", "runs/new", "--baseline", "runs/old")
    page = block_of("docs/guides/ci.md", OUTPUT["docs/guides/ci.md"]).text
    assert form(out)[:2] == form(page)[:2]
    assert [line.split()[0] for line in out.splitlines()] == ["PASS", "pass", "conditions"]


def form(text):
    """The lines of an output with every number as one, without the name of the model, and whether
    it fails less often or only no more often.
    """
    bare = re.sub(r"(zoo:)?lenet5|toy", "MODEL", text).replace("no more often", "less often")
    return [re.sub(r"[-+±]?\d[\d.,]*", "1", " ".join(line.split())) for line in bare.splitlines()]
