"""What the command line does works from Python with live objects: generated seeds, resuming."""

import pytest

import hardcase as hc
from hardcase.runs.start import Watcher
from hardcase.testing.toys import toy_images, toy_subject

PAINTER = """
import torch
from torch import nn

class Painter(nn.Module):
    latent = 16
    layers = ("spread",)

    def __init__(self):
        super().__init__()
        self.spread = nn.Identity()

    def forward(self, z, y):
        h = self.spread(z).reshape(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
        half = torch.arange(8) // 4
        quarter = half[:, None] * 2 + half[None]
        bright = quarter[None, None] == y[:, None, None, None]
        return (h * 0.03 + 0.4 + 0.15 * bright).clamp(0, 1)
"""


@pytest.fixture
def generator(tmp_path):
    (tmp_path / "painter.py").write_text(PAINTER)
    return f"{tmp_path / 'painter.py'}:Painter"


def test_a_method_whose_generator_makes_the_seeds_works_from_python(generator, tmp_path):
    given = {"method": "feature-perturbation", "generator": generator, "budget": hc.Budget(time=30)}
    given["witnesses"] = ()  # nobody is trained to check the painter
    run = hc.run(toy_subject(), toy_images(6), out=tmp_path / "run", judge=False, **given)
    assert run.record["complete"]
    assert len(run.seeds) == 6
    assert len(run)
    found = hc.search(toy_subject(), toy_images(6), **given)
    assert len(found) == len(run)


def test_a_run_started_from_python_is_resumed_from_python(tmp_path):
    class Impatient(Watcher):
        """Asks to stop as soon as something is stored."""

        def stopped(self):
            return (tmp_path / "run" / "state" / "ledger.jsonl").is_file()

    given = {"method": "pgd", "judge": False}
    how = hc.Execution(shard=2, rounds=1)
    whole = hc.run(toy_subject(), toy_images(8), out=tmp_path / "whole", execution=how, **given)
    watched = hc.Execution(shard=2, rounds=1, watcher=Impatient())
    part = hc.run(toy_subject(), toy_images(8), out=tmp_path / "run", execution=watched, **given)
    assert not part.record["complete"]
    with pytest.raises(hc.Problem, match="started from Python"):
        hc.resume(tmp_path / "run")
    done = hc.resume(tmp_path / "run", toy_subject(), toy_images(8), execution=how, **given)
    assert done.record["complete"]
    assert done.stored_images() == whole.stored_images()
