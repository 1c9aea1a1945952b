"""The experiments about photographs, on bars: what they count, and that they go on where they stood."""

from functools import partialmethod

from hardcase.judges import panel, training
from hardcase.judges.networks import MemberConfig
from hardcase.judges.training_data import Shares
from hardcase.training.loop import TrainingRecipe
from hardcase_studies import photographs
from hardcase_studies.diffusion import Diffusion

SHORT = TrainingRecipe(epochs=1, batch=64, lr=3e-3)
QUICK = training.TrainConfig(
    ensemble=(MemberConfig(view="plain", width=12), MemberConfig(view="even", width=16, deep=True)),
    members=SHORT,
    density=SHORT,
    shares=Shares(easy=0.5),
    seen=0.9,
)


def test_the_judge_and_its_members_are_measured(bench, monkeypatch, written):
    monkeypatch.setattr(panel, "config_for", lambda *args, **options: QUICK)
    small = bench()
    outcome = photographs.judge(small)
    names = [row[0] for row in outcome.tables[0].rows]
    assert names == ["zoo:lenet1", "judge", "its member 1 alone", "its member 2 alone"]
    assert all(" of 90 = " in row[1] for row in outcome.tables[0].rows)
    assert "right" in written(outcome, small)


def test_reconstructions_are_counted(bench):
    table = photographs.reconstruction(bench(kinds="vae:linear", generator_epochs=2)).tables[0]
    assert [row[0] for row in table.rows] == ["vae:linear"]
    assert " of 90 = " in table.rows[0][1]


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
