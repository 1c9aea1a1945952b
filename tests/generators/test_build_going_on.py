"""A generator whose training was stopped goes on by the same call and ends as if it had not been."""

import pytest
import torch

from hardcase import generators
from hardcase.training import loop
from hardcase.types import Images
from tiny import StopError, stop_at


def squares(count: int, *, channels: int = 1) -> Images:
    """Bright squares that grow with the class, on noise."""
    y = torch.arange(count) % 3
    x = torch.randint(
        0,
        40,
        (count, channels, 16, 16),
        generator=torch.Generator().manual_seed(0),
        dtype=torch.uint8,
    )
    for row, label in enumerate(y.tolist()):
        x[row, :, 4 : 8 + 2 * label, 4 : 8 + 2 * label] = 230
    return Images(x, y, tuple(map(str, range(count))), ("a", "b", "c"), "squares")


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("vae", {"kind": "linear", "latent": 4}),
        ("vqvae", {"kind": "ema", "latent": 8}),
        ("vqvae", {"kind": "gradient", "latent": 8, "mix": 0.2}),
    ],
)
def test_the_same_call_goes_on_and_ends_with_the_same_bytes(family, options, tmp_path, monkeypatch):
    images = squares(48)
    monkeypatch.setattr("hardcase.training.loop.EVERY", 2)
    monkeypatch.setattr(
        "hardcase.generators.vqvae.healthy", lambda net, images: None
    )  # so few steps teach it little
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "whole"))
    whole, card = generators.trained_generator(
        family, images, images, epochs=4, batch=16, **options
    )
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "stopped"))
    monkeypatch.setattr(loop, "SECONDS", 0.0)
    told = []
    with pytest.raises(StopError):
        generators.trained_generator(
            family, images, images, epochs=4, batch=16, progress=stop_at(7), **options
        )
    again, same = generators.trained_generator(
        family, images, images, epochs=4, batch=16, progress=told.append, **options
    )
    assert any("goes on after step" in report.warning for report in told)
    assert same["weights"] == card["weights"]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values())
    )
    assert not list((tmp_path / "stopped" / "networks").glob("*.unfinished"))
