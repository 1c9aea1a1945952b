"""Every command in the pages is one that the command line understands, and every name in their Python exists."""

import ast
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import hardcase as hc
from hardcase.cli.main import build, main, spread

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    ROOT / "studies/README.md",
    ROOT / "study/README.md",
    ROOT / "teams/README.md",
]
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.M | re.S)
STORED = re.compile(r"<!-- sources:.*?<!-- end -->", re.S)
"""Commands that made stored results, as their version understood them."""
PLACEHOLDER = re.compile(r"…|\.\.\.|\||\[-|\[C|<")
"""A line that has such is a form to fill in, not a command."""


def fences(page, *languages):
    """The text of every fenced block in one of these languages."""
    text = page.read_text(encoding="utf-8")
    return [body for head, body in FENCE.findall(text) if head.strip() in languages]


def commands(page):
    """What a reader may type, and whether it is whole: lines of blocks are, running text only names."""
    lines = "\n".join(fences(page, "", "sh", "bash", "console")).replace("\\\n", " ").splitlines()
    text = STORED.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    named = re.findall(r"`(hardcase [^`\n]+)`", text)
    for line, whole in [*((line, True) for line in lines), *((line, False) for line in named)]:
        line = re.sub(r"\s#.*", "", line).strip().removeprefix("$ ")
        if " ... " in line:  # what stands there may be left out, so the rest is parsed alone
            line, whole = line.replace(" ... ", " "), False
        if line.startswith("hardcase ") and not PLACEHOLDER.search(line):
            yield line, whole


def documented():
    return sorted({found for page in PAGES for found in commands(page)})


def parsed(words):
    """What the command line makes of `words`, without doing it."""
    rest = spread(words)
    command = get_command(build(rest))
    while hasattr(command, "commands"):
        if not rest:
            return command  # a group of verbs is a name too
        if rest[0] not in command.commands:
            raise ValueError(f"there is no verb {rest[0]}")
        command = command.commands[rest.pop(0)]
    return command.make_context("hardcase", rest)


@pytest.mark.parametrize(("line", "whole"), documented())
def test_the_command_line_understands_it(line, whole):
    words = [re.sub(r"^(N|SECONDS)$", "5", word) for word in shlex.split(line)[1:]]
    if set(words) <= {"--help", "--version", "-h"}:
        return
    try:
        assert parsed(words) is not None
    except Exception as error:
        bare = type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError")
        if whole or not (bare or "requires an argument" in str(error)):
            raise


def test_what_does_not_exist_is_noticed():
    """The test above can fail."""
    for line in ("run --modle x", "judeg RUN", "gate", "run --images many"):
        with pytest.raises(Exception, match=r"."):
            parsed(line.split())


def test_make_targets_and_extras_exist():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for line in re.findall(r"`make ([a-z ]+)[`\n]", text) for word in line.split()}
    assert named <= targets, named - targets
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set(",".join(re.findall(r"hardcase\[([\w,]+)\]", text)).split(","))
    assert wanted <= set(project["optional-dependencies"])


def needing_no_extra(name):
    """The module, or a reason to skip: those that plug into a package need it."""
    try:
        return import_module(name)
    except hc.HardcaseError as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_python_exist(page):
    """Blocks parse; what they import from hardcase, and every `hc.a.b`, is there."""
    for body in fences(page, "python", "{code-cell} ipython3"):
        lines = [line for line in body.splitlines() if not line.startswith(("!", "%", ":tags"))]
        text = "\n".join(lines)
        if ">>> " in text:
            continue  # run by doctest
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hardcase"):
                module = needing_no_extra(node.module)
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert not missing, f"{node.module} has no {missing}"
        for path in re.findall(r"\bhc((?:\.[A-Za-z_]\w*)+)", text):
            value = hc
            for name in path.strip(".").split("."):
                assert hasattr(value, name), f"hc{path}"
                value = getattr(value, name)
                if not hasattr(value, "__all__") and not hasattr(value, "__path__"):
                    break


@pytest.mark.parametrize("words", ["--version", "--help", "list methods pgd", "run --help"])
def test_short_ones_run(words, capsys):
    assert main(words.split()) == 0
    assert capsys.readouterr().out


def test_readme_is_one_page_and_every_page_is_on_the_site():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^([\w/-]+)$", index, re.M))
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}  # fmt: skip
    assert pages - {"index"} <= named, pages - named
