"""Programs of others that find hardcase: what one gets there, and whether it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

TEAMS = "hardcase"


class Plugin(NamedTuple):
    """A program that finds hardcase, what one gets and types there, and how to install both.

    `needs` are distributions, the program's own first; `page` is one of the documentation.
    """

    name: str
    summary: str
    use: str
    install: str
    needs: Sequence[str]
    page: str


PLUGINS: Sequence[Plugin] = (
    Plugin(
        "pytest",
        "stored failures are test cases",
        "pytest RUN/run.json --hardcase-model MODEL",
        "pip install pytest 'hardcase[teams]'",
        ("pytest", TEAMS),
        "guides/ci.md",
    ),
    Plugin(
        "mlflow",
        "failure rate, worst case and report of a logged model; thresholds fail its release",
        'mlflow.models.evaluate(..., evaluators="hardcase")',
        "pip install 'hardcase[mlflow]'",
        ("mlflow", TEAMS),
        "teams/mlflow.md",
    ),
    Plugin(
        "lightning",
        "failure rate after validation, best checkpoint by it; harder training batches",
        "hardcase_teams.lightning.Robustness",
        "pip install 'hardcase[lightning]'",
        ("lightning", TEAMS),
        "teams/lightning.md",
    ),
    Plugin(
        "transformers",
        "failure rate after evaluation in a Trainer; networks and zero-shot classifiers as models",
        "hardcase_teams.huggingface.RobustnessCallback, --model hf:PATH?labels=a,b",
        "pip install 'hardcase[huggingface]'",
        ("transformers", TEAMS),
        "teams/huggingface.md",
    ),
    Plugin(
        "huggingface_hub",
        "model card with figures, intervals, conditions and limits",
        "hardcase card RUN --to DIR",
        "pip install 'hardcase[huggingface]'",
        ("huggingface_hub", TEAMS),
        "teams/huggingface.md",
    ),
    Plugin(
        "fiftyone",
        "find failures of a model on a view; load a run, image and failure grouped",
        "fiftyone plugins create",
        "pip install fiftyone, then teams/fiftyone of the repository",
        ("fiftyone",),
        "teams/fiftyone.md",
    ),
    Plugin(
        "maite",
        "classifiers, detectors and image sets in MAITE's protocols, found by CheckMAITE too",
        "hardcase_teams.maite",
        "pip install 'hardcase[maite]'",
        ("maite", TEAMS),
        "teams/maite.md",
    ),
    Plugin(
        "github",
        "a comment with pictures, figures beside the base branch's, the gate's reason",
        "action.yml",
        "uses: OWNER/hardcase@v0",
        (),
        "guides/ci.md",
    ),
)
"""In the order in which ``hardcase list plugins`` shows them."""


def rows() -> list[dict[str, Any]]:
    """The rows of ``hardcase list plugins``: what `Plugin` says, and whether it is installed."""
    return [
        {
            "name": plugin.name,
            "summary": plugin.summary,
            "needs": _installed(plugin),
            "paper": "",
            "laws": [],
            "use": plugin.use,
            "page": f"docs/{plugin.page}",
        }
        for plugin in PLUGINS
    ]


def _installed(plugin: Plugin) -> str:
    """The version that is installed, or how to install it."""
    try:
        versions = [version(name) for name in plugin.needs]
    except PackageNotFoundError:
        versions = []
    return f"installed, {versions[0]}" if versions else plugin.install
