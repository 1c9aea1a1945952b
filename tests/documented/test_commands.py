"""Every command of every page is done in a small world, or it is said where it is done instead."""

import re
import shlex

import pytest
from documented.blocks import SHELL, blocks, lines_of
from documented.world import DATA, MODEL, OTHER, call, clear, furnish, give_run

FORM = re.compile(r"…|\.\.\. |\.\.\.$|\||\[-|\[C|<")
"""What a line has that is a form to fill in, with parts left out."""
ELSEWHERE = {
    r"^demo\b": "minutes: contracts/test_readme.py, end_to_end/test_front_as_typed.py",
    r"^study serve": "waits for raters: study/tests",
    r"^study (new|analyse) .*(argus|sinvad)-study|--design (argus|sinvad)": "study/tests",
    r"^(reproduce|faults|yardstick|escape)\b": "minutes to hours: studies/tests",
    r"^train\b": "trains networks for minutes: tests/training, tests/generators",
    r"^judge (?!.*--judge norm)": "trains networks for minutes: tests/judges, tests/as_typed",
    r"^fetch\b": "asks the network: teams/tests/test_fetch.py",
    r"--method (sinvad|argus|latte|feature-pert|style-mix)|--generator": "trains a generator: tests/methods",
    r"--method diffchaser": "needs layers that can be rounded: tests/methods",
    r"--cluster|--workers": "new processes, Ray: tests/torture",
    r"--device cuda": "needs a GPU: make gpu",
    r"\b(hf|onnx|http|yolo|coco):|zoo:efficientdet": "a library, a server: teams/tests, tests/as_typed",
    r"^conditions fit": "minutes: tests/conditions",
    r"^list plugins": "looks for packages: teams/tests/test_plugins.py",
    r"^card .*(--benchmark|--record)|^card records": "teams/tests/test_card.py, test_record.py",
    r"models\.py:|^(run|gate) (--out )?runs/ship$": "photographs and networks of others: by hand",
}
"""Commands that are not done here, as a pattern, and why or where instead."""
ENDS = {"gate": {0, 1, 4}, "repair": {0, 1, 4}}
"""How a verb may end that decides; all others end with 0."""
TAKEN = {
    **{"--model": MODEL, "--data": DATA},
    **dict.fromkeys(("--peer", "--witness", "--baseline", "--retrained"), OTHER),
}
"""What stands for the values of these flags, unless they name a run or a word of the program."""
RUN = re.compile(r"^(runs/.+|RUN|fixed)$")
PROGRAM = ("none", "default", "auto")
LONG = {"docs/research/", "docs/concepts/whitebox.md", "examples/", "docs/guides/field.md"}
"""Pages whose commands take more than a few seconds: with `make torture`."""


def commands():
    """Whole lines that begin with ``hardcase``, by their page."""
    found = {}
    for block in blocks(*SHELL, ""):
        for line in lines_of(block):
            if line.startswith("hardcase ") and not FORM.search(line):
                found.setdefault(block.page, []).append(line)
    return found


def why_not(line):
    """Why a command is not done here; nothing if it is."""
    typed = line.removeprefix("hardcase ")
    return next((reason for pattern, reason in ELSEWHERE.items() if re.search(pattern, typed)), "")


def exchanged(words):
    """The words of a command, with the world's model and data in place of the page's."""
    result = list(words)
    for place, (flag, value) in enumerate(zip(words, words[1:]), start=1):
        if flag in TAKEN and value not in PROGRAM and not RUN.match(value):
            result[place] = TAKEN[flag]
    return result


def done(line, home):
    """Do a command in this folder; what is wrong with how it ended, in words."""
    words = exchanged(shlex.split(line)[1:])
    new = [value for flag, value in zip(words, words[1:]) if flag == "--out"]
    if words[:2] == ["study", "analyse"]:
        answer(words[2])
    for word in words:
        if RUN.match(word) and word not in new and not (home / word).exists():
            give_run(home / word.replace("*", "natural"), home)
    spread = [str(path) for word in words for path in (sorted(home.glob(word)) if "*" in word else [word])]  # fmt: skip
    code, out, err = call(*spread)
    ends = ENDS.get(words[0], {0})
    return "" if code in ends else f"{line}\n  ended with {code}: {out[-300:]} {err[-600:]}"


def answer(study):
    """Let a simulated crowd answer a study."""
    import hardcase_study

    hardcase_study.simulate(study)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    furnish(folder)
    return folder


@pytest.fixture(autouse=True)
def _in_the_world(home, monkeypatch, fresh_registry):
    monkeypatch.setenv("HARDCASE_CACHE", str(home / ".cache"))
    monkeypatch.setenv("BROWSER", "true")
    monkeypatch.chdir(home)
    clear(home)


def pages():
    for page, lines in commands().items():
        if not all(map(why_not, lines)):
            slow = any(page.startswith(name) for name in LONG)
            yield pytest.param(page, marks=pytest.mark.long if slow else ())


@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_can_be_done(page, home):
    wrong = [done(line, home) for line in commands()[page] if not why_not(line)]
    assert not any(wrong), "\n".join(wrong)
