"""Tests mirror sources: whoever changes a file finds its tests by its name, and the other way round.

``src/hardcase/ROOM/FILE.py`` is tested by ``tests/ROOM/test_FILE.py``, and by ``test_FILE_*.py``
where one file of tests would be too long.
"""

from pathlib import Path

import hardcase

SOURCES = Path(hardcase.__file__).parent
TESTS = Path(__file__).parents[1]
ACROSS = {"cheating", "contracts", "end_to_end", "fuzz", "golden", "played", "reference"}
ACROSS |= {"as_typed", "documented", "tools", "torture", "worst_day"}
"""Folders of tests about the whole: contracts, references, whole runs, crashes."""
ELSEWHERE = {
    "contracts/test_methods.py": "every method of the registry under the laws: "
    "methods/dlfuzz methods/pgd methods/neurons testing/toys "
    "searches/interpolation",
    "conditions/fitting/test_fit.py": "whole fits: conditions/fitting/accuracy "
    "conditions/fitting/coordinates conditions/fitting/embedding conditions/fitting/files "
    "conditions/fitting/search conditions/fitting/traits",
    "contracts/test_path_of_a_seed.py": "one whole run: runs/workers",
    "contracts/test_doctests.py": "their examples: lazy",
    "torture/test_ingredients.py": "a run whose ingredients were swapped: runs/identity",
    "torture/test_hostile_folders.py": "folders of others: runs/files",
    "torture/test_flips.py": "flipped bits: runs/verify",
    "criteria/test_criterion_laws.py": "every criterion of the registry under its laws: "
    "criteria/mcdc criteria/memory criteria/neuron "
    "criteria/trace criteria/surprise_coverage",
    "end_to_end/test_commands.py": "config",
    "fuzz/test_store_files.py": "damaged files: runs/results runs/progress",
    "guides/test_units.py": "guides/adapt guides/corpus",
    "judges/test_features.py": "judges/feature_panel",
    "judges/test_panel.py": "judges/networks",
    "judges/test_verdicts.py": "judges/controls judges/samples judges/visible testing/judges",
    "methods/test_generative_features.py": "spaces/activations",
    "played/test_played_device.py": "a device that is played: campaign/device",
    "runs/test_folder.py": "runs/tables",
    "worst_day/test_environment.py": "poor surroundings: plain state",
    "test_context.py": "what a run is made of: splits tasks",
    "test_objectives.py": "oracles",
    "models/test_subject.py": "tensors",
    "training/test_loop.py": "training/cards training/monitor",
}
"""Files without tests of their own name, and which tests run them instead."""


def sources():
    """Every module by its path without the ending; packages and the entry point hold no code."""
    paths = (path.relative_to(SOURCES) for path in SOURCES.rglob("*.py"))
    return {str(path.with_suffix("")) for path in paths if not path.name.startswith("__")}


def files_of_tests():
    """Every file of tests that is about files: its room and the name it bears."""
    for path in sorted(TESTS.rglob("test_*.py")):
        inside = path.relative_to(TESTS)
        if inside.parts[0] not in ACROSS:
            yield inside, inside.parent / path.stem.removeprefix("test_")


def bears(name, source):
    """Whether a file of tests called `name` is about `source`."""
    return str(name) == source or str(name).startswith(f"{source}_")


def listed():
    return [word for text in ELSEWHERE.values() for word in text.split(": ")[-1].split()]


def test_every_source_has_tests():
    named = [name for _, name in files_of_tests()]
    alone = {source for source in sources() if not any(bears(name, source) for name in named)}
    assert alone == set(listed()), alone.symmetric_difference(listed())


def test_every_file_of_tests_names_a_source():
    known = sources()
    for path, name in files_of_tests():
        assert any(bears(name, one) for one in known), path
    missing = [name for name in ELSEWHERE if not (TESTS / name).is_file()]
    assert not missing, missing
    assert len(set(listed())) == len(listed())
