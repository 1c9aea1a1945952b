"""A CPU computes one shard after the other, and loads nothing that only a device needs."""

import subprocess
import sys

from hardcase.campaign.executor import SerialExecutor, executor_of
from hardcase.campaign.record import Campaign
from hardcase.methods import pgd
from hardcase.testing.toys import toy_subject

RUN = """
import sys
from hardcase.cli.main import main
code = main("run --model zoo:lenet5 --data mnist5k --images 6 --measure 40 --out run".split())
assert code == 0, code
print(*(name for name in sys.modules if name.startswith("hardcase.")))
"""
DEVICE = {"hardcase.graphs", "hardcase.campaign.device", "hardcase.runs.tiles"}


def test_a_default_run_on_a_cpu_loads_nothing_of_a_device(tmp_path):
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n")[-2].split())
    assert "hardcase.campaign.executor" in loaded
    assert not loaded & DEVICE


def test_the_device_of_the_model_chooses_what_computes():
    from played_device import PlayedDevice

    from hardcase.campaign.device import DeviceExecutor

    campaign = Campaign(subject=toy_subject(), method=pgd())
    assert isinstance(executor_of(campaign), SerialExecutor)
    with PlayedDevice(tile=16):
        assert isinstance(executor_of(campaign), DeviceExecutor)
