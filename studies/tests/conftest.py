"""A world that is trained in seconds: bars on 12x12 pixels, a LeNet-1, a small VAE."""

import json

import numpy as np
import pytest
from toy_world import world  # noqa: F401 - a fixture

from hardcase.judges import panel
from hardcase.judges.networks import MemberConfig
from hardcase.training.cards import TrainingRecipe
from hardcase_studies.bench import Bench
from tiny import bars

SHORT = TrainingRecipe(epochs=4, batch=32, lr=3e-3)
QUICK = panel.TrainConfig(
    ensemble=(MemberConfig(view="plain", width=12),), members=SHORT, density=SHORT, passes=2
)


@pytest.fixture
def people(tmp_path):
    """Ninety bars by two generators; every third shows another class to both raters, some to one."""
    images = bars(90, seed=5)
    y = images.y.numpy().astype(np.int64)
    row = np.arange(90)
    first = np.where(row % 3 == 0, (y + 1) % 3, y)
    second = np.where(row % 10 == 1, -1, first)
    path = tmp_path / "people.npz"
    names = np.array(["a", "b"])[row % 2]
    np.savez(
        path, images=images.x[:, 0].numpy(), expected=y, predicted=(y + 1) % 3, generator=names,
        rater1=first, rater2=second,
    )  # fmt: skip
    return path


@pytest.fixture
def quick_judge(monkeypatch):
    """Judges of data are trained in seconds."""
    monkeypatch.setattr(panel, "config_for", lambda *args, **options: QUICK)


@pytest.fixture(scope="session")
def bars_file(tmp_path_factory):
    """The data as a file; what is trained on it is kept for the session."""
    folder = tmp_path_factory.mktemp("studies")
    train, test = bars(240, seed=1), bars(90, seed=2, split="test")
    arrays = {
        f"{key}_{part.split}": value.numpy()
        for part in (train, test)
        for key, value in (("x", part.x), ("y", part.y))
    }
    np.savez(folder / "bars.npz", **arrays)
    return folder / "bars.npz"


@pytest.fixture
def bench(bars_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(bars_file.parent / "cache"))

    def make(**options):
        small = {"model": "lenet1", "latent": 8, "epochs": 12, "vae_epochs": 12}
        return Bench(out=tmp_path / "out", data=f"npz:{bars_file}", options={**small, **options})

    return make


@pytest.fixture
def written():
    """Writes an outcome, checks its files and returns its text."""

    def write(outcome, bench):
        page = outcome.write(bench.out)
        for name in outcome.figures:
            assert (bench.out / name).stat().st_size > 500, name
        json.loads((bench.out / "results.json").read_text())
        return page.read_text()

    return write
