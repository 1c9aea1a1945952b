"""A panel from features: encoders, probes, textures, a store of features, and the panel as a whole."""

from functools import cache

import pytest
import torch
from judged import cache_of, network, photographs
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.judges import feature_panel, features
from hardcase.judges.feature_panel import DISAGREE, PanelPlan, Textures, fit, statistics
from hardcase.judges.features import FITS, Encoder, LogisticProbe, encoder, kept_features
from hardcase.judges.training_data import camera_processed
from hardcase.models.subject import Subject
from hardcase.statistics import auroc
from hardcase.tensors import fingerprints, from_bytes
from tiny import global_state

RNG = torch.Generator


def reader(images, classes=3):
    """An encoder of such images."""
    own = Subject(network(classes), name="small")
    return encoder(own, from_bytes(images.x[:1]), lineage="small")


@pytest.fixture(scope="module")
def unseen():
    """Photographs that no panel was fitted to, their pixels and labels."""
    images = photographs(60, seed=9, split="test")
    return from_bytes(images.x), images.y


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with cache_of(tmp_path_factory):
        train = photographs()
        own = reader(train)
        return own, train, fit([own], train)


def test_the_deepest_layer_of_each_resolution_is_read():
    net = Subject(network())
    x = torch.rand(2, 3, 32, 32)
    for layers in (("1", "5", "6", "7"), ("6", "7"), ("7",)):
        assert features.depths(net, x, count=len(layers)) == layers
    assert not any(module._forward_hooks for module in net.net.modules())
    pooled_last = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip
    found = features.depths(Subject(pooled_last), x)
    assert found == ("1", "2", "6"), "the last map is its mean, read once"


def test_pooling_knows_maps_tokens_and_rows():
    for shape, width in (((2, 5, 4, 4), 5), ((2, 7, 5), 10), ((2, 5), 5)):
        assert features.pooled(torch.rand(shape)).shape == (2, width)


def clouds(count=300, seed=0, classes=3):
    """Three clouds, long in one direction that tells nothing."""
    rng = RNG().manual_seed(seed)
    y = torch.arange(count) % classes
    x = torch.randn(count, 6, generator=rng)
    x[:, 0] *= 30
    x[torch.arange(count), 1 + y] += 6
    return x, y


def fitted(kind, x, y, classes):
    return FITS[kind](0, "", FITS[kind].fit(x, y, classes))


@pytest.mark.parametrize(
    ("kind", "share"), [("logistic", 0.97), ("mahalanobis", 0.97), ("nearest", 0.6)]
)
def test_probes_read_clouds_they_have_not_seen(kind, share):
    probe = fitted(kind, *clouds(), 3)
    x, y = clouds(seed=1)
    assert (probe.logits(x).argmax(1) == y).float().mean() > share


def test_two_classes_are_fitted_as_any_number_is():
    """The penalty of two opposite rows: by hand, as scikit-learn fits only their difference."""
    x, y = clouds(classes=2)
    found = LogisticProbe.fit(x, y, 2)
    inputs = ((x - found["centre"]) / found["width"]).double()

    def loss(weight, bias):
        scores = inputs @ weight + bias
        penalty = features.PENALTY * weight.square().sum() / 2
        return torch.nn.functional.cross_entropy(scores, y) + penalty

    weight, bias = (found[name].double().requires_grad_() for name in ("weight", "bias"))
    gradient = torch.autograd.grad(loss(weight, bias), (weight, bias))
    assert max(float(each.abs().max()) for each in gradient) < 1e-4


def test_mahalanobis_sees_what_a_plain_distance_does_not():
    x, y = clouds()
    probe = fitted("mahalanobis", x, y, 3)
    along, across = 40 * torch.eye(6)[[0, 5]].unsqueeze(1)
    assert probe.distances(across).amin() > 20 * probe.distances(along).amin()
    empty = fitted("mahalanobis", x, y, 4)
    assert empty.distances(x)[:, 3].isinf().all(), "a class without images"
    assert empty.logits(x).isfinite().all()


def test_more_features_than_images_are_no_trouble():
    rng = RNG().manual_seed(0)
    x, y = torch.randn(30, 200, generator=rng), torch.arange(30) % 3
    assert fitted("mahalanobis", x, y, 3).distances(x).isfinite().all()
    assert (fitted("logistic", x, y, 3).logits(x).argmax(1) == y).all()


def test_tempering_finds_the_scale_of_honest_scores():
    rng = RNG().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=rng)
    y = torch.multinomial(logits.softmax(1), 1, generator=rng).squeeze(1)
    assert features.temperature(10 * logits, y) == pytest.approx(0.1, rel=0.2)


def scenes(count=60, seed=0):
    """Pictures with the energy of photographs: noise that falls with frequency, in colour."""
    rng = RNG().manual_seed(seed)
    fy, fx = torch.fft.fftfreq(64)[:, None], torch.fft.rfftfreq(64)[None]
    fall = 1 / (fy.square() + fx.square()).sqrt().clamp_min(1 / 64)
    drawn = torch.fft.irfft2(torch.fft.rfft2(torch.randn(count, 3, 64, 64, generator=rng)) * fall)
    light = drawn.mean(1, keepdim=True) * 2 + 0.4 * drawn
    flat = light.flatten(1)
    low, high = flat.amin(1)[:, None, None, None], flat.amax(1)[:, None, None, None]
    return (light - low) / (high - low)


def test_statistics_are_finite_for_any_picture():
    odd = [torch.zeros(1, 3, 64, 64), torch.ones(1, 3, 64, 64), torch.rand(1, 3, 64, 64)]
    assert statistics(torch.cat(odd)).shape == (3, feature_panel.COUNT)
    assert statistics(torch.cat(odd)).isfinite().all()
    assert statistics(torch.rand(2, 1, 28, 28)).shape == (2, feature_panel.COUNT)


def test_handling_alone_does_not_make_a_picture_unlike():
    textures = Textures()
    textures.fit_to(scenes(120), RNG().manual_seed(1))
    fresh = scenes(40, seed=7)
    real = textures.likeness(fresh)
    handled_ones = textures.likeness(camera_processed(fresh, RNG().manual_seed(3)))
    ruined = textures.likeness(torch.rand(40, 3, 64, 64, generator=RNG().manual_seed(2)))
    assert real.median() > -2
    assert handled_ones.median() > -3
    assert float(auroc(torch.cat([handled_ones, ruined]), torch.arange(80) < 40)) > 0.95


def test_features_are_computed_once_and_go_on_where_they_stopped(monkeypatch):
    monkeypatch.setattr(features, "PART", 8)
    images = photographs(32)
    own = reader(images)
    asked = []
    ask = Encoder.ask

    def counting(self, x, **more):
        asked.append(len(x))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(self, x, **more)

    monkeypatch.setattr(Encoder, "ask", counting)
    with pytest.raises(KeyboardInterrupt):
        kept_features(own, images.x)
    told = []
    seen = kept_features(own, images.x, on_progress=lambda done, total: told.append((done, total)))
    assert asked == [8, 8, 8, 8, 8]
    assert told == [(24, 32), (32, 32)]
    kept_features(own, images.x.flip(0))
    assert len(asked) == 5
    direct = ask(own, from_bytes(images.x))
    torch.testing.assert_close(seen.activations["7"], direct.activations["7"])
    torch.testing.assert_close(seen.logits, direct.logits)
    plain, flipped = (features.features_folder(own, view) for view in ("plain", "flipped"))
    assert plain != flipped
    next(plain.glob("*.safetensors")).write_bytes(b"x" * 20)
    with pytest.raises(HardcaseError, match="cannot be used"):
        kept_features(own, images.x)


def test_the_panel_reads_images_it_has_not_seen_in_any_batch(world, unseen):
    _, _, panel = world
    x, y = unseen
    [signals], [wrong] = panel.ask(x, y), panel.ask(x, (y + 1) % 3)
    assert (signals.seen == y).float().mean() > 0.95
    assert (signals.classifiers > wrong.classifiers).float().mean() > 0.95
    assert (signals.neighbours > wrong.neighbours).float().mean() > 0.95
    [ruined] = panel.ask(torch.rand(x.shape, generator=RNG().manual_seed(0)), y)
    for name in ("nearness", "likeness"):
        both = torch.cat([getattr(signals, name), getattr(ruined, name)])
        assert float(auroc(both, torch.arange(120) < 60)) > 0.9, name
    x, y = (part[:20] for part in unseen)
    [together], [alone] = panel.ask(x, y), panel.ask(x, y, batch=3)
    for name in ("classifiers", "neighbours", "something", "nearness", "likeness"):
        pair = (getattr(signals, name) for signals in (alone, together))
        torch.testing.assert_close(*pair, rtol=1e-3, atol=5e-3)


def test_a_panel_is_built_again_from_its_card(world, unseen):
    own, train, panel = world
    assert panel.hashes()["encoder 1"] == own.hash
    assert torch.isin(fingerprints(train.x), panel.learned).all()
    assert panel.read(from_bytes(train.x[:4]), train.y[:4])[1].shape == (4, 144)
    again = feature_panel.build([own], panel.described, learned=len(train))
    again.load_state_dict(panel.state_dict())
    first, second = (each.ask(*unseen)[0] for each in (panel, again))
    assert torch.equal(first.classifiers, second.classifiers)
    assert torch.equal(first.nearness, second.nearness)
    assert not any("subject" in name for name in panel.state_dict())


def test_fitting_is_repeatable_and_moves_no_global_randomness(world):
    own, train, panel = world
    before = global_state()
    again = fit([own], train)
    assert global_state() == before
    for name, value in panel.state_dict().items():
        torch.testing.assert_close(value, again.state_dict()[name])
    again.double()
    assert again.encoders[0].subject.mean.dtype == torch.float64, "moved with its encoders"
    again.float()
    assert again.encoders[0].subject.mean.dtype == torch.float32


@cache
def taught():
    """`network` with a head that knows the bars, as a pretrained classifier does."""
    net, images = network(), photographs()
    with torch.no_grad():
        x = net[:-1](from_bytes(images.x))
        fitted = LogisticProbe.fit(x, images.y, 3)
        weight = 100 * fitted["weight"]
        net[-1].weight.copy_((weight / fitted["width"][:, None]).T)
        net[-1].bias.copy_(100 * fitted["bias"] - (fitted["centre"] / fitted["width"]) @ weight)
    return Subject(net)


def of_heads(heads=(), names=("",)):
    """A panel of such networks, of the model families given, with one image of each class."""
    few = photographs(3)
    own = [encoder(taught(), from_bytes(few.x[:1]), lineage=name) for name in names]
    plan = PanelPlan(views=("plain",), held_out=0.5)
    return fit(own, few, heads=heads, plan=plan)


def test_with_one_image_a_class_the_head_is_the_probe(unseen):
    x, y = unseen
    panel = of_heads()
    assert [probe.kind for probe in panel.classifiers] == ["head"]
    [signals] = panel.ask(x, y)
    assert (signals.seen == y).float().mean() > 0.95
    assert (signals.neighbours > 0).float().mean() > 0.95
    order = torch.tensor([2, 0, 1])  # outputs may mean the classes in another order
    turned = of_heads([order]).ask(x, y)[0].seen
    assert (order[turned] == y).float().mean() > 0.9


def test_each_lineage_has_one_vote_and_disagreement_is_told(unseen):
    plain, turned = torch.arange(3), torch.tensor([2, 0, 1])
    x, y = unseen
    for names in (("a", "a"), ("a", "b")):
        panel = of_heads((plain, plain), names)
        assert len(panel.votes([[each(x)] for each in panel.encoders])) == len(set(names))
        assert (panel.ask(x, y)[0].seen == y).float().mean() > 0.9
    split = of_heads((plain, turned), ("a", "b"))
    for probe in split.classifiers:  # the turned one reads its images wrongly, and still votes
        probe.weight.fill_(1.0)
    assert (split.ask(x, y)[0].seen == DISAGREE).float().mean() > 0.8


def test_a_head_of_another_size_cannot_be_the_probe():
    few = photographs(3)
    with pytest.raises(HardcaseError, match="5 outputs for 3 classes"):
        fit([reader(few, classes=5)], few)
    with pytest.raises(HardcaseError, match="needs a network that classifies"):
        fit([], few)
