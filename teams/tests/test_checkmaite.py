"""The capability for CheckMAITE, on a stand-in for the base classes that it extends: the package itself brings 185 others."""

import sys
import types
from enum import Enum

import pytest
from pydantic import BaseModel

from hardcase.conditions import Conditions, condition_box, measure_risk
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_teams.maite import MaiteDataset, MaiteModel


class Number(Enum):
    ZERO = 0
    ONE = 1


class Capability:
    """What CheckMAITE's `run` does, less its cache."""

    def run(self, models, datasets, config=None):
        config = config or self._create_config()
        assert (len(models), len(datasets)) == (
            self.supports_models.value,
            self.supports_datasets.value,
        )
        outputs = self._run(models, datasets, [], config, use_prediction_and_evaluation_cache=False)
        return self._RUN_TYPE(config=config, outputs=outputs)


@pytest.fixture
def capability(monkeypatch):
    core = types.ModuleType("checkmaite.core.capability_core")
    core.Capability = Capability
    core.Number = Number
    for name in ("CapabilityConfigBase", "CapabilityOutputsBase", "CapabilityRunBase"):
        setattr(core, name, BaseModel)
    for name in ("checkmaite", "checkmaite.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, core.__name__, core)
    monkeypatch.delitem(sys.modules, "hardcase_teams.checkmaite", raising=False)
    from hardcase_teams import checkmaite

    yield checkmaite
    sys.modules.pop("hardcase_teams.checkmaite", None)


def test_a_capability_tells_the_rate_that_is_measured_here(capability):
    images = toy_images(12)
    config = capability.FailureRateConfig(conditions="scanner", samples=2)
    run = capability.FailureRate().run(
        [MaiteModel(toy_subject(), images.classes)], [MaiteDataset(images)], config
    )
    box = condition_box(Conditions.load("scanner"), images.shape)
    ours = measure_risk(toy_subject(), images, box, samples=2).to_json()
    assert run.outputs.rate["value"] == ours["value"]
    assert run.outputs.rate["low"] <= run.outputs.rate["value"] <= run.outputs.rate["high"]
    assert run.outputs.conditions["name"] == "scanner"
    assert run.config == config


def test_without_checkmaite_models_and_data_sets_are_offered_alone():
    from hardcase_teams.entry_points import maite_exports

    assert "HardcaseFailureRate" not in maite_exports()
