"""Every ``@paper`` and ``@code`` form runs from the command line on a real network: LeNet-5 on 5,000 digits.

What a form needs (generators, discriminators, peers) is trained by its own recipe if the cache lacks it: half an hour on two
cores. `test_published_forms.py` runs the same in a world that trains in seconds.
"""

import pytest

import hardcase
from hardcase import registry

pytestmark = pytest.mark.long

FORMS = [name for name in registry.parts("method") if "@" in name]
SHORT = {
    "argus@paper": "--set method.queries=40",
    "deephunter@code": "--set method.queries=200",
    "maxplore@code": "--set method.walks=4",
    "maxplore@paper": "--set method.walks=4",
    "sinvad@code": "--set method.generations=20",
    "sinvad@paper": "--set method.generations=20",
    "sinvad-between@code": "--set method.generations=20",
    "sinvad-surprise@code": "--set method.passes=1",
    "sinvad-surprise@paper": "--set method.passes=1",
}
"""What keeps the search short; the others get twenty gradients. Networks and generators are whole."""
FINDERS = {
    "deepxplore@code", "dlfuzz@code", "adapt@paper", "maxplore@code", "feature-perturbation@paper",
    "sinvad@paper",
}  # fmt: skip
"""Forms that find something on two digits even so."""


@pytest.mark.parametrize("name", FORMS)
def test_a_published_form_runs_on_a_real_network(name, tmp_path):
    from hardcase.cli.main import main

    words = f"run --model zoo:lenet5 --data mnist5k --method {name} --images 2 --conditions none -q"
    words += f" {SHORT.get(name, '--set method.gradients=20')} --out {tmp_path / 'run'}"
    if registry.parts("method")[name].facts.get("peers") == "wanted":
        words += " --peer zoo:lenet1 --peer zoo:lenet4"
    assert main(words.split()) == 0
    run = hardcase.Run(tmp_path / "run")
    assert sum(run.seeds["queries"].to_pylist()) > 0
    assert len(run) > 0 or name not in FINDERS
