"""A generator whose training was stopped goes on by the same call and ends as if it had not been."""

from functools import partial

import pytest

from hardcase import generators
from hardcase.training import monitor
from tiny import StopError, bars, stop_at, weights


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("vae", {"kind": "linear", "latent": 4}),
        ("vqvae", {"kind": "ema", "latent": 8}),
        ("vqvae", {"kind": "gradient", "latent": 8, "mix": 0.2}),
    ],
)
def test_the_same_call_goes_on_and_ends_with_the_same_bytes(family, options, tmp_path, monkeypatch):
    images = bars(48, size=16)
    train = partial(
        generators.trained_generator, family, images, images, epochs=4, batch=16, **options
    )
    monkeypatch.setattr("hardcase.training.monitor.EVERY", 2)
    monkeypatch.setattr(
        "hardcase.generators.vqvae.healthy", lambda net, images: None
    )  # so few steps teach it little
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "whole"))
    whole, card = train()
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "stopped"))
    monkeypatch.setattr(monitor, "SECONDS", 0.0)
    told = []
    with pytest.raises(StopError):
        train(progress=stop_at(7))
    again, same = train(progress=told.append)
    assert any("goes on after step" in report.warning for report in told)
    assert same["weights"] == card["weights"]
    assert weights(again) == weights(whole)
    assert not list((tmp_path / "stopped" / "networks").glob("*.unfinished"))
