"""Every ``@paper`` and ``@code`` form runs from the command line, on networks that were trained.

Toys hide what only real networks have: weights that ask for gradients, layers of several shapes.
"""

from dataclasses import replace

import pytest

import hardcase
from hardcase import registry
from tiny import save_bars

DATA = "npz:bars.npz"
WORDS = {
    "argus@paper": "--set method.mix=0.6",
    "deephunter@code": "--set method.queries=60",
    "feature-perturbation@paper": "--set method.gradients=12 --witness none",
    "maxplore@code": "--set method.steps=2",
    "maxplore@paper": "--set method.steps=2",
    "sinvad@code": "--set method.generations=2 --set method.spread=3",
    "sinvad@paper": "--set method.generations=2 --set method.spread=3",
    "sinvad-between@code": "--set method.generations=2",
    "sinvad-surprise@code": "--set method.passes=1",
    "sinvad-surprise@paper": "--set method.passes=1",
}
"""What keeps a form short; the others get twelve gradients."""
HARDER = {"epochs": 14, "lr": 0.002, "schedule": "cosine"}
"""Training of the quantising generator, which eight epochs leave useless."""
FINDERS = ("sinvad@code", "sinvad@paper", "argus@paper", "deepxplore@paper")
"""Forms that find something on these images even so; what is found has to be stored, too."""
FORMS = [name for name in registry.parts("method") if "@" in name]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """``hardcase run`` on three images in a world whose networks train in seconds."""
    from hardcase.cli.main import main

    folder = tmp_path_factory.mktemp("world")

    def command(method, *words):
        out = f"{method}-run"
        asked = f"run --model zoo:lenet1 --data {DATA} --method {method} --images 3 -q"
        assert main([*asked.split(), "--allow-low-accuracy", *words, "--out", out]) == 0
        return hardcase.Run(out)

    with pytest.MonkeyPatch.context() as patch:
        recipes = {}
        for kind in ("generator", "model"):
            rows = registry.parts(kind).items()
            recipes[kind] = [name for name, part in rows if "recipe" in part.facts]
        save_bars(folder, patch, recipes, epochs=8)
        facts = registry.parts("generator")["vqvae-gradient"].facts
        patch.setitem(facts, "recipe", replace(facts["recipe"], **HARDER))
        yield command


@pytest.mark.parametrize("name", FORMS)
def test_a_published_form_runs(run, name):
    words = WORDS.get(name, "--set method.gradients=12").split()
    if registry.parts("method")[name].facts.get("peers") == "wanted":
        words += ["--peer", "zoo:lenet4"]
    result = run(name, *words)
    assert len(result) > 0 or name not in FINDERS
    assert sum(result.seeds["queries"].to_pylist()) > 0
