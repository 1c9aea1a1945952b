"""Where other programs find hardcase: what plugs in, into what, and whether that is installed.

Nothing here imports torch: some of these programs load what is below in every process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

__all__ = [
    *("CHECKMAITE_API", "PLUGINS", "Plugin", "lightning_callbacks", "maite_detection_exports"),
    *("maite_exports", "rows"),
]

CHECKMAITE_API = "1.0.0"
"""The version of CheckMAITE's plug-ins that is spoken here."""


class Plugin(NamedTuple):
    """A program that finds hardcase.

    Args:
        name: Of the program.
        distribution: What pip calls it; empty where it is none.
        install: What installs it, with what hardcase needs there.
        summary: What one gets there.
        use: What one types there.
        page: Of the documentation.
    """

    name: str
    distribution: str
    install: str
    summary: str
    use: str
    page: str


PLUGINS: Sequence[Plugin] = (
    Plugin(
        "pytest",
        "pytest",
        "pip install pytest",
        "stored findings are test cases",
        "pytest RUN/run.json --hardcase-model MODEL",
        "howto/ci.md",
    ),
    Plugin(
        "mlflow",
        "mlflow",
        "pip install 'hardcase[mlflow]'",
        "risk, worst case and report of a logged model; thresholds fail its release",
        'mlflow.models.evaluate(..., evaluators="hardcase")',
        "teams/mlflow.md",
    ),
    Plugin(
        "lightning",
        "lightning",
        "pip install 'hardcase[lightning]'",
        "risk after validation, best checkpoint by it; harder training batches",
        "hardcase.lightning.Robustness",
        "teams/lightning.md",
    ),
    Plugin(
        "transformers",
        "transformers",
        "pip install 'hardcase[huggingface]'",
        "risk after evaluation in a Trainer; networks and zero-shot classifiers as models",
        "hardcase.huggingface.RobustnessCallback, --model hf:PATH?labels=a,b",
        "teams/huggingface.md",
    ),
    Plugin(
        "huggingface_hub",
        "huggingface_hub",
        "pip install 'hardcase[huggingface]'",
        "model card with figures, intervals, conditions and limits",
        "hardcase card RUN --to DIR",
        "teams/huggingface.md",
    ),
    Plugin(
        "fiftyone",
        "fiftyone",
        "pip install fiftyone, then plugins/fiftyone of the repository",
        "find failures of a model on a view; load a run, seed and finding grouped",
        "fiftyone plugins create",
        "teams/fiftyone.md",
    ),
    Plugin(
        "maite",
        "maite",
        "pip install 'hardcase[maite]'",
        "classifiers, detectors and image sets in MAITE's protocols, found by CheckMAITE too",
        "hardcase.suite.maite",
        "teams/maite.md",
    ),
    Plugin(
        "github",
        "",
        "uses: OWNER/hardcase@v0",
        "a comment with pictures, figures beside the base branch's, the gate's reason",
        "action.yml",
        "howto/ci.md",
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
    if not plugin.distribution:
        return plugin.install
    try:
        return f"installed, {version(plugin.distribution)}"
    except PackageNotFoundError:
        return plugin.install


def lightning_callbacks() -> list[Any]:
    """Callbacks that Lightning attaches to every Trainer: none unless the environment asks.

    ``HARDCASE_LIGHTNING`` names the conditions, ``HARDCASE_LIGHTNING_EVERY`` how often.
    """
    conditions = os.environ.get("HARDCASE_LIGHTNING")
    if not conditions:
        return []
    from hardcase.lightning import Robustness

    return [Robustness(conditions, every=int(os.environ.get("HARDCASE_LIGHTNING_EVERY", "5")))]


def maite_exports() -> dict[str, Any]:
    """What CheckMAITE finds for classification: classes by name, and the version they follow."""
    from hardcase.suite.maite import MaiteDataset, MaiteModel

    return {
        "__plugin_api_version__": CHECKMAITE_API,
        "HardcaseModel": MaiteModel,
        "HardcaseDataset": MaiteDataset,
    }


def maite_detection_exports() -> dict[str, Any]:
    """What CheckMAITE finds for object detection, likewise."""
    from hardcase.suite.maite import MaiteDetectionDataset, MaiteDetectionModel

    return {
        "__plugin_api_version__": CHECKMAITE_API,
        "HardcaseModel": MaiteDetectionModel,
        "HardcaseDataset": MaiteDetectionDataset,
    }
