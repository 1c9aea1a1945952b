"""The class-conditional GAN: its shapes, its critics, and that a training which was stopped ends as one that was not."""

import pytest
import torch
from torch.nn import functional

from hardcase.generators import gan
from hardcase.randomness import stream
from hardcase.training import loop
from hardcase.training.loop import TrainingRecipe
from hardcase.types import Images
from tiny import StopError, bars, stop_at

SHORT = TrainingRecipe(epochs=3, batch=16, lr=1e-3)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(gan, "BATCHES", 4)


def colours(count=64, size=8):
    """Bars of three classes, each in a colour of its own."""
    grey = bars(count)
    x = functional.interpolate(grey.x.float(), size=(size, size)).repeat(1, 3, 1, 1)
    x *= torch.eye(3)[grey.y][:, :, None, None] * 0.5 + 0.5
    return Images(x.to(torch.uint8), grey.y, grey.id, grey.classes)


def deep(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return gan.xavier(
            gan.Gan(3, 8, 3, latent=4, widths=(16, 16), doubles=(0, 1), thorough=True)
        )


def plain(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return gan.Gan(1, 12, 3, latent=4, widths=(8, 8, 8))


def test_colour_grows_from_an_eighth_and_grey_as_before():
    colour, grey = gan.conditional(3, 32, 10, 64), gan.conditional(1, 28, 10, 64)
    assert colour.thorough
    assert colour.stages[0].shape == (256, 4, 4)
    assert (
        sum(value.numel() * value.element_size() for value in colour.state_dict().values())
        < 16 * 2**20
    )
    assert not grey.thorough
    assert grey.stages[0].shape == (128, 7, 7)
    _, x = colour.eval().sample(torch.arange(3), stream(0, "test"))
    assert x.shape == (3, 3, 32, 32)
    assert float(x.detach().amin()) >= 0
    assert float(x.detach().amax()) <= 1


def test_spectral_bounds_hold_and_are_single_precision_in_half():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = gan.ResidualCritic(3, 16, 3, width=16)
    x, y = torch.rand(8, 3, 16, 16, generator=stream(0, "test")), torch.arange(8) % 3
    for _ in range(50):
        net.judge(x, y)
    for layer in net.modules():
        if hasattr(layer, "parametrizations"):
            assert float(
                torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
            ) == pytest.approx(1, abs=0.05)
    exact = net.eval().judge(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = net.judge(x, y)
    assert [value.dtype for value in rough] == [torch.float32] * 2
    assert torch.allclose(rough[0], exact[0], atol=0.05)
    assert not torch.equal(rough[0], exact[0])


def test_the_thorough_critic_learns_classes_and_its_generator_hears_of_them():
    images, net = colours(), deep()
    history = gan.train_gan(net, images, TrainingRecipe(epochs=25, batch=16, lr=4e-3))
    assert history.loss[-1] < history.loss[0] / 2
    y = torch.arange(60) % 3
    with torch.no_grad():
        made = net.sample(y, stream(0, "test"))[1]
    brightest = made.mean((2, 3)).argmax(1)
    assert float((brightest == y).float().mean()) > 0.8
    norms = [layer for layer in net.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    assert {int(norm.num_batches_tracked) for norm in norms} == {gan.BATCHES}
    assert {norm.momentum for norm in norms} == {0.1}


@pytest.mark.parametrize("make", [plain, deep])
@pytest.mark.parametrize("after", [1, 3, 7])
def test_a_stopped_training_goes_on_and_ends_with_the_same_bytes(
    make, after, tmp_path, monkeypatch
):
    images = bars(64) if make is plain else colours()
    whole, told = make(), []
    expected = gan.train_gan(whole, images, SHORT, seed=3)
    monkeypatch.setattr(loop, "SECONDS", 0.0)
    monkeypatch.setattr("hardcase.training.loop.EVERY", 2)
    with pytest.raises(StopError):
        gan.train_gan(
            make(), images, SHORT, seed=3, progress=stop_at(after), kept=tmp_path / "kept"
        )
    if after > 1:
        assert (tmp_path / "kept" / loop.STATE).exists()
        assert (tmp_path / "kept" / "samples.png").read_bytes().startswith(b"\x89PNG")
    again = make(seed=9 if after > 1 else 0)
    history = gan.train_gan(
        again, images, SHORT, seed=3, progress=told.append, kept=tmp_path / "kept"
    )
    assert history.loss == expected.loss
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values())
    )
    assert [report.warning for report in told if report.warning] == (
        [f"goes on after step {told[0].step}, where it was stopped"] if after > 1 else []
    )


@pytest.mark.parametrize("damage", ["truncated", "another network", "another device"])
def test_what_cannot_be_gone_on_from_is_begun_anew(damage, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SECONDS", 0.0)
    images, kept, told = bars(64), tmp_path / "kept", []
    first = (
        gan.Gan(1, 12, 3, latent=5, widths=(8, 8, 8)) if damage == "another network" else plain()
    )
    gan.train_gan(first, images, SHORT, kept=kept)
    state = kept / loop.STATE
    if damage == "truncated":
        state.write_bytes(state.read_bytes()[:-100])
    if damage == "another device":
        torch.save({**torch.load(state), "place": "cuda"}, state)
    net, fresh = plain(), plain()
    gan.train_gan(net, images, SHORT, kept=kept, progress=told.append)
    gan.train_gan(fresh, images, SHORT)
    assert "begins anew" in told[0].warning
    assert all(
        torch.equal(a, b) for a, b in zip(net.state_dict().values(), fresh.state_dict().values())
    )
