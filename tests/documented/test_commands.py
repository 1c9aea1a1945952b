"""Every command of every page is done in a small world, or it is said where it is done instead."""

import itertools
import re
import shlex
from glob import glob

import pytest

from documented.blocks import SHELL, blocks, lines_of
from documented.world import DATA, LONG, MODEL, OTHER, call, clear, furnish, give_run

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
    r"^conditions fit|--conditions field.toml": "minutes: tests/conditions",
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
SLOW = r"^(repair|curve|gate fixed) |--map|--method (dlfuzz|adapt|tensorfuzz|maxplore)"
"""Commands of more than a second or two, and those for which the images are too few: with `make torture`."""


SEARCHED = "--data folder:photos --out runs/first"
"""Of runs that search by default this one alone is done without `make torture`: start.md's."""


def searches(words):
    """Whether a command is a run with a search that it chooses by itself."""
    return words[0] == "run" and "--method" not in words


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
    if not LONG and re.search(SLOW, typed):
        return "takes long: make torture"
    return next((reason for pattern, reason in ELSEWHERE.items() if re.search(pattern, typed)), "")


def exchanged(words):
    """The words of a command, with the world's model and data in place of the page's."""
    result = list(words)
    for place, (flag, value) in enumerate(itertools.pairwise(words), start=1):
        if flag in TAKEN and value not in PROGRAM and not RUN.match(value):
            result[place] = TAKEN[flag]
    return result


def done(line, home):
    """Do a command in this folder; what is wrong with how it ended, in words."""
    words = exchanged(shlex.split(line)[1:])
    if searches(words) and not LONG and not line.endswith(SEARCHED):
        return ""
    new = [value for flag, value in itertools.pairwise(words) if flag == "--out"]
    if words[:2] == ["study", "analyse"]:
        answer(words[2])
    for word in words:
        if RUN.match(word) and word not in new and not glob(word):
            give_run(home / word.replace("*", "natural"), home)
    whole = [path for word in words for path in (sorted(glob(word)) if "*" in word else [word])]
    code, out, err = call(*whole)
    ends = ENDS.get(words[0], {0})
    return "" if code in ends else f"{line}\n  ended with {code}: {out[-300:]} {err[-600:]}"


def answer(study):
    """Let a simulated crowd answer a study."""
    import hardcase_study
    from hardcase_study.bundle import Study

    hardcase_study.simulate(Study.open(study))


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
    """Pages of which something is done here."""
    typed = commands().items()
    return [
        page
        for page, lines in typed
        if not all(map(why_not, lines)) and (LONG or page != "README.md")  # tests/as_typed
    ]


@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page_can_be_done(page, home):
    wrong = [done(line, home) for line in commands()[page] if not why_not(line)]
    assert not any(wrong), "\n".join(wrong)


def test_every_run_of_a_page_names_its_model_and_its_data():
    """Or the page shows the configuration file that does."""
    lines = [line for page in commands().values() for line in page]
    runs = [line for line in lines if line.startswith("hardcase run ")]
    bare = [line for line in runs if not {"--model", "--data"} <= {*line.split()}]
    assert [line for line in bare if line != "hardcase run --out runs/ship"] == []


def test_what_is_done_elsewhere_is_still_on_a_page():
    lines = [line.removeprefix("hardcase ") for page in commands().values() for line in page]
    unused = [
        pattern for pattern in ELSEWHERE if not any(re.search(pattern, line) for line in lines)
    ]
    assert not unused
