"""A panel from features: encoders, probes, textures, a store of features, and the panel as a whole."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.errors import Problem
from hardcase.judges import features
from hardcase.judges.feature_panel import (
    COUNT,
    DISAGREE,
    FeaturePanel,
    PanelPlan,
    Textures,
    build,
    fit,
    statistics,
)
from hardcase.judges.features import (
    FITS,
    Encoder,
    FeatureStore,
    LogisticProbe,
    depths,
    encoder,
    pooled,
    temperature,
)
from hardcase.judges.judge import where_agreed
from hardcase.judges.rules import auroc, rules_from_exam
from hardcase.judges.training_data import camera_processed, exam_of_photographs
from hardcase.models.subject import Subject
from hardcase.tensors import fingerprints, from_bytes
from tiny import bars, global_state

RNG = torch.Generator


def network(classes=3, channels=3):
    """A small encoder with random weights: three resolutions and a head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(144, classes),
    ).eval()


def photographs(count=240, seed=0, split="train"):
    """Rows of light, so that a mirror changes no label."""
    images = bars(count, size=32, channels=3, classes=3, seed=seed, split=split)
    return replace(images, x=images.x.transpose(2, 3).contiguous())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    train = photographs()
    own = encoder(Subject(network(), name="small"), from_bytes(train.x[:1]), lineage="small")
    store = FeatureStore(tmp_path_factory.mktemp("features"))
    return own, train, store, fit([own], train, store=store)


def test_the_deepest_layer_of_each_resolution_is_read():
    net = Subject(network())
    x = torch.rand(2, 3, 32, 32)
    assert depths(net, x, count=4) == ("1", "5", "6", "7")
    assert depths(net, x, count=2) == ("6", "7")
    assert depths(net, x, count=1) == ("7",)
    assert not any(module._forward_hooks for module in net.net.modules())


def test_pooling_knows_maps_tokens_and_rows():
    assert pooled(torch.rand(2, 5, 4, 4)).shape == (2, 5)
    assert pooled(torch.rand(2, 7, 5)).shape == (2, 10)
    assert pooled(torch.rand(2, 5)).shape == (2, 5)


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
    slope = torch.autograd.grad(loss(weight, bias), (weight, bias))
    assert max(float(each.abs().max()) for each in slope) < 1e-4


def test_mahalanobis_sees_what_a_plain_distance_does_not():
    x, y = clouds()
    probe = fitted("mahalanobis", x, y, 3)
    along, across = torch.zeros(1, 6), torch.zeros(1, 6)
    along[0, 0] = 40
    across[0, 5] = 40
    assert probe.distances(across).amin() > 20 * probe.distances(along).amin()


def test_a_class_without_images_is_infinitely_far():
    x, y = clouds()
    probe = fitted("mahalanobis", x, y, 4)
    assert probe.distances(x)[:, 3].isinf().all()
    assert probe.logits(x).isfinite().all()


def test_more_features_than_images_are_no_trouble():
    rng = RNG().manual_seed(0)
    x, y = torch.randn(30, 200, generator=rng), torch.arange(30) % 3
    assert fitted("mahalanobis", x, y, 3).distances(x).isfinite().all()
    assert (fitted("logistic", x, y, 3).logits(x).argmax(1) == y).all()


def test_tempering_finds_the_scale_of_honest_scores():
    rng = RNG().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=rng)
    y = torch.multinomial(logits.softmax(1), 1, generator=rng).squeeze(1)
    assert temperature(10 * logits, y) == pytest.approx(0.1, rel=0.2)


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
    assert statistics(torch.cat(odd)).shape == (3, COUNT)
    assert statistics(torch.cat(odd)).isfinite().all()
    assert statistics(torch.rand(2, 1, 28, 28)).shape == (2, COUNT)


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


def test_features_are_computed_once_and_go_on_where_they_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "PART", 8)
    images = photographs(32)
    own = encoder(Subject(network()), from_bytes(images.x[:1]))
    asked = []
    ask = Encoder.ask

    def counting(self, x, **more):
        asked.append(len(x))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(self, x, **more)

    monkeypatch.setattr(Encoder, "ask", counting)
    store = FeatureStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.features(own, images.x)
    told = []
    seen = store.features(own, images.x, tell=lambda done, total: told.append((done, total)))
    assert asked == [8, 8, 8, 8, 8]
    assert told == [(24, 32), (32, 32)]
    store.features(own, images.x.flip(0))
    assert len(asked) == 5
    direct = ask(own, from_bytes(images.x))
    torch.testing.assert_close(seen.features["7"], direct.features["7"])
    torch.testing.assert_close(seen.logits, direct.logits)
    assert store.folder(own, "plain") != store.folder(own, "flipped")


def test_a_damaged_part_is_told(tmp_path):
    images = photographs(4)
    own = encoder(Subject(network()), from_bytes(images.x[:1]))
    store = FeatureStore(tmp_path)
    store.features(own, images.x)
    next(store.folder(own, "plain").glob("*.safetensors")).write_bytes(b"x" * 20)
    with pytest.raises(Problem, match="cannot be used"):
        store.features(own, images.x)


def test_the_panel_reads_images_it_has_not_seen(world):
    _, _, _, panel = world
    test = photographs(60, seed=9, split="test")
    signals = panel.ask(from_bytes(test.x), test.y)
    assert (signals.seen == test.y).float().mean() > 0.95
    wrong = panel.ask(from_bytes(test.x), (test.y + 1) % 3)
    assert (signals.classifiers > wrong.classifiers).float().mean() > 0.95
    assert (signals.neighbours > wrong.neighbours).float().mean() > 0.95


def test_ruined_images_are_less_near(world):
    _, _, _, panel = world
    test = photographs(40, seed=9, split="test")
    rng = RNG().manual_seed(0)
    x = from_bytes(test.x)
    ruined = torch.rand(x.shape, generator=rng)
    real, other = (panel.ask(each, test.y) for each in (x, ruined))
    truth = torch.arange(80) < 40
    for name in ("nearness", "likeness"):
        both = torch.cat([getattr(real, name), getattr(other, name)])
        assert float(auroc(both, truth)) > 0.9, name


def test_rows_do_not_depend_on_their_batch(world):
    _, _, _, panel = world
    test = photographs(20, seed=3, split="test")
    together = panel.ask(from_bytes(test.x), test.y)
    alone = panel.ask(from_bytes(test.x), test.y, batch=3)
    for name in ("classifiers", "neighbours", "something", "nearness", "likeness"):
        torch.testing.assert_close(
            getattr(alone, name), getattr(together, name), rtol=1e-3, atol=1e-4
        )


def test_a_panel_is_built_again_from_its_card(world):
    own, train, _, panel = world
    again = build([own], panel.described, learned=len(train))
    again.load_state_dict(panel.state_dict())
    test = photographs(20, seed=3, split="test")
    first, second = (each.ask(from_bytes(test.x), test.y) for each in (panel, again))
    assert torch.equal(first.classifiers, second.classifiers)
    assert torch.equal(first.nearness, second.nearness)
    assert not any("subject" in name for name in panel.state_dict())


def test_the_panel_names_its_networks_and_what_it_learned_from(world):
    own, train, _, panel = world
    assert panel.hashes()["encoder 1"] == own.hash
    assert torch.isin(fingerprints(train.x), panel.learned).all()
    assert panel.read(from_bytes(train.x[:4]), train.y[:4])[1].shape == (4, 144)


def test_fitting_is_repeatable_and_moves_no_global_randomness(world, tmp_path):
    own, train, _, panel = world
    before = global_state()
    again = fit([own], train, store=FeatureStore(tmp_path))
    assert global_state() == before
    for name, value in panel.state_dict().items():
        torch.testing.assert_close(value, again.state_dict()[name])


def taught(images):
    """`network` with a head that knows the bars, as a pretrained classifier does."""
    net = network()
    with torch.no_grad():
        x = net[:-1](from_bytes(images.x))
        fitted = LogisticProbe.fit(x, images.y, 3)
        weight = 100 * fitted["weight"]
        net[-1].weight.copy_((weight / fitted["width"][:, None]).T)
        net[-1].bias.copy_(100 * fitted["bias"] - (fitted["centre"] / fitted["width"]) @ weight)
    return net


def test_with_one_image_a_class_the_head_is_the_probe(tmp_path):
    few = photographs(3)
    own = encoder(Subject(taught(photographs())), from_bytes(few.x[:1]))
    panel = fit(
        [own], few, store=FeatureStore(tmp_path), plan=PanelPlan(views=("plain",), held_out=0.5)
    )
    assert [probe.kind for probe in panel.classifiers] == ["head"]
    test = photographs(60, seed=9, split="test")
    signals = panel.ask(from_bytes(test.x), test.y)
    assert (signals.seen == test.y).float().mean() > 0.95
    assert (signals.neighbours > 0).float().mean() > 0.95


def test_outputs_of_a_head_can_mean_classes_in_another_order(tmp_path):
    few = photographs(3)
    own = encoder(Subject(taught(photographs())), from_bytes(few.x[:1]))
    turned = few.take(torch.arange(3))
    order = torch.tensor([2, 0, 1])
    panel = fit(
        [own], turned, heads=[order], store=FeatureStore(tmp_path), plan=PanelPlan(held_out=0.5)
    )
    test = photographs(30, seed=9, split="test")
    seen = panel.ask(from_bytes(test.x), test.y).seen
    assert (order[seen] == test.y).float().mean() > 0.9


def lineages(names, tmp_path, heads):
    """A panel of heads that were turned on purpose, of the lineages given."""
    few = photographs(3)
    net = Subject(taught(photographs()))
    own = [encoder(net, from_bytes(few.x[:1]), lineage=name) for name in names]
    plan = PanelPlan(views=("plain",), held_out=0.5)
    return fit(own, few, heads=heads, store=FeatureStore(tmp_path), plan=plan)


def test_each_lineage_has_one_vote_and_disagreement_is_told(tmp_path):
    plain, turned = torch.arange(3), torch.tensor([2, 0, 1])
    test = photographs(30, seed=9, split="test")
    x = from_bytes(test.x)
    for names, heads in ((("a", "a"), (plain, plain)), (("a", "b"), (plain, plain))):
        panel = lineages(names, tmp_path / "-".join(names), heads)
        seen = [[each(x)] for each in panel.encoders]
        assert len(panel.votes(seen)) == len(set(names))
        assert (panel.ask(x, test.y).seen == test.y).float().mean() > 0.9
    split = lineages(("a", "b"), tmp_path / "split", (plain, turned))
    for probe in split.classifiers:  # the turned one reads its images wrongly, and still votes
        probe.weight.fill_(1.0)
    assert (split.ask(x, test.y).seen == DISAGREE).float().mean() > 0.8


def test_answers_are_left_open_where_lineages_disagree():
    assert where_agreed([True, False, True], [3, DISAGREE, 2]) == [True, None, True]


def test_a_head_of_another_size_cannot_be_the_probe(tmp_path):
    few = photographs(3)
    own = encoder(Subject(network(classes=5)), from_bytes(few.x[:1]))
    with pytest.raises(Problem, match="5 outputs for 3 classes"):
        fit([own], few, store=FeatureStore(tmp_path))
    with pytest.raises(Problem, match="needs a network that classifies"):
        fit([], few)


def test_the_exam_tells_good_from_bad_and_rules_follow_it(world):
    _, _, _, panel = world
    exam = exam_of_photographs(photographs(90, seed=5), RNG().manual_seed(0))
    assert len(exam.x) == 4 * 90
    assert 0 <= float(exam.x.min()) <= float(exam.x.max()) <= 1
    for truth in (exam.valid, exam.label_kept):
        assert set(truth.tolist()) == {-1, 0, 1}
    signals = panel.ask(exam.x, exam.expected)
    votes = {"label_kept": {"classifiers": 1.0, "neighbours": 0.5}}
    rule = rules_from_exam(signals, exam, votes, thresholds=False)["label_kept"]
    known = exam.label_kept >= 0
    assert float(auroc(rule.evidence(signals[known]), exam.label_kept[known] > 0)) > 0.85


def test_a_panel_is_moved_with_its_encoders(world):
    own, train, store, _ = world
    panel = fit([own], train, store=store)
    assert isinstance(panel.double(), FeaturePanel)
    assert panel.encoders[0].subject.mean.dtype == torch.float64
    panel.float()
    assert panel.encoders[0].subject.mean.dtype == torch.float32


def test_a_map_whose_mean_is_the_layer_before_the_head_is_read_once():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip
    assert depths(Subject(net), torch.rand(1, 3, 32, 32), count=3) == ("1", "2", "6")
