"""Samples of a diffusion model, on bars: what is counted."""

from functools import partialmethod

from hardcase.judges import panel
from hardcase.judges.networks import MemberConfig
from hardcase.judges.training_data import Shares
from hardcase.training.cards import TrainingRecipe
from hardcase_studies import photographs
from hardcase_studies.diffusion import Diffusion

SHORT = TrainingRecipe(epochs=1, batch=64, lr=3e-3)
QUICK = panel.TrainConfig(
    ensemble=(MemberConfig(view="plain", width=12), MemberConfig(view="even", width=16, deep=True)),
    members=SHORT,
    density=SHORT,
    shares=Shares(easy=0.5),
    seen=0.9,
)


def test_samples_are_counted_at_the_guidance_that_the_judge_prefers(bench, monkeypatch, written):
    monkeypatch.setattr(panel, "config_for", lambda *args, **options: QUICK)
    monkeypatch.setattr(Diffusion, "draw", partialmethod(Diffusion.draw, rounds=2))
    small = bench(generator_epochs=1, width=4, tried=6, samples=9, guidance=[0.0, 0.5])
    outcome = photographs.diffusion(small)
    rows = outcome.tables[0].rows
    assert [row[0] for row in rows] == [0.0, 0.5]
    assert all(" of 6 = " in row[1] for row in rows)
    shares = [int(row[1].split()[0]) for row in rows]
    assert [row[2] is not None for row in rows] == [shares[0] >= shares[1], shares[0] < shares[1]]
    assert "weights, trained for" in written(outcome, small)
