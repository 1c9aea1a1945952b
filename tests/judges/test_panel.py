"""Members of a panel and their training: any size, attacks that stay near, work that goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.judges import panel
from hardcase.judges.calibration import PeopleCounts
from hardcase.judges.networks import FEATURES, VIEWS, Member, MemberConfig, even
from hardcase.judges.panel import TrainConfig, attacked
from hardcase.tensors import fingerprints, from_bytes
from hardcase.training.cards import TrainingRecipe
from tiny import bars


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("size", [4, 12, 13])
@pytest.mark.parametrize("view", VIEWS)
def test_members_take_any_size_and_see_through_their_view(size, view):
    net = Member(MemberConfig(view=view, kernel=3), channels=2, size=size, classes=5).eval()
    x = torch.rand(6, 2, size, size, generator=rng())
    assert net(x).shape == (6, 6)
    assert net.features(x).shape == (6, FEATURES)
    alone = torch.cat([net(one[None]) for one in x])
    assert torch.allclose(net(x), alone, atol=1e-4)


def test_even_images_do_not_depend_on_light_and_contrast():
    x = from_bytes(bars(20).x)
    assert torch.allclose(even(0.3 * x + 0.4), even(x), atol=1e-4)
    faint = even(0.02 * x)
    assert float(faint.max()) < 0.25


def test_attacks_raise_the_loss_and_stay_in_their_ball():
    images = bars(30)
    x = from_bytes(images.x)
    net = Member(MemberConfig(view="plain"), channels=1, size=12, classes=3).eval()
    target = torch.nn.functional.one_hot(images.y, 4).float()
    moved = attacked(net, x, target, 0.7, rng())
    length = (moved - x).flatten(1).norm(dim=1)
    assert float(length.max()) <= 0.7 + 1e-4
    assert float(length.min()) > 0.1
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        assert float(loss(net(moved), target)) > float(loss(net(x), target))


def test_a_deep_member_reads_an_image_and_its_mirror_image_alike():
    config = MemberConfig(view="plain", width=4, deep=True)
    net = Member(config, channels=3, size=16, classes=5).eval()
    x = torch.rand(4, 3, 16, 16, generator=rng())
    assert torch.allclose(net(x), net(x.flip(3)), atol=1e-5)
    assert net.features(x).shape == (4, FEATURES)


SHORT = TrainingRecipe(epochs=1, batch=32, lr=3e-3)
TWO = tuple(MemberConfig(view=view, width=12) for view in ("plain", "even"))
QUICK = TrainConfig(ensemble=TWO, members=SHORT, density=SHORT, seen=0.8)


@pytest.fixture
def splits(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    monkeypatch.setattr(panel, "config_for", lambda *_, **__: QUICK)
    return bars(96), bars(30, seed=1, split="test")


def test_a_stopped_judge_goes_on_after_the_members_that_are_finished(splits, tmp_path, monkeypatch):
    train, test = splits
    trained = []

    def stop(progress):
        trained.append(progress.what)
        if "member 2" in progress.what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        panel.trained(train, test, progress=stop)
    assert any("member 1" in what for what in trained)
    later = []
    judge = panel.trained(train, test, progress=later.append)
    assert not [one for one in later if "member 1" in one.what or "density" in one.what]
    assert [one.what for one in later if "member 2" in one.what]
    assert judge.card["measured_images"] == 30
    assert not list(tmp_path.rglob("*.unfinished"))
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "other"))
    assert panel.trained(train, test).card["weights"] == judge.card["weights"]


def counted(folder, x, votes):
    """A file of images and how many people named each class; the last count is none of them."""
    place = folder / "counts.npz"
    np.savez(place, images=x.squeeze(1).numpy(), counts=np.array(votes))
    return place


def test_counts_of_people_are_the_targets_of_their_images(splits, tmp_path):
    train, test = splits
    config = replace(QUICK, members=replace(SHORT, steps=60))
    twos = train.take((train.y == 2).nonzero().squeeze(1))
    others = bars(6, seed=5)
    votes = [[0, 9, 1, 0]] * len(twos) + [[0, 0, 0, 5]] * len(others)
    people = counted(tmp_path, torch.cat([twos.x, others.x]), votes)
    usual = panel.trained(train, test, config=config)
    asked = panel.trained(train, test, config=config, people=people)
    assert usual.card["configuration"] != asked.card["configuration"]
    assert len(asked.panel.learned) == len(train) + len(others)
    assert bool(torch.isin(fingerprints(others.x), asked.panel.learned).all())
    seen = from_bytes(test.x[test.y == 2])
    ones, none = torch.full((len(seen),), 1), torch.full((len(seen),), 2)
    for label, higher in ((ones, asked), (none, usual)):
        lower = asked if higher is usual else usual
        better = higher.panel.ask(seen, label)[0].classifiers.mean()
        assert float(better) > float(lower.panel.ask(seen, label)[0].classifiers.mean()) + 0.3


def test_counts_that_fit_no_judge_are_refused(tmp_path):
    wrong = {"3 classes": [[1, 0]] * 6, "no answer": [[0, 0, 0]] * 6, "6 images": [[1, 0, 0]] * 5}
    for words, votes in wrong.items():
        with pytest.raises(HardcaseError, match=words):
            PeopleCounts.read(counted(tmp_path, bars(6).x, votes), (1, 12, 12), 3)


def test_counts_of_people_are_named_on_the_command_line(splits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train, test = splits
    np.savez("bars.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    people = counted(tmp_path, train.x[:9], [[4, 1, 0]] * 9)
    words = ["train", "judge", "--data", "npz:bars.npz", "--format", "json", "--progress", "none"]
    cards = []
    for more in ([], ["--people", str(people)]):
        assert main([*words, *more]) == 0
        cards.append(json.loads(capsys.readouterr().out))
    assert "people" not in cards[0]["configuration"]
    assert cards[1]["configuration"]["people"] == PeopleCounts.read(people, (1, 12, 12), 3).hash
    assert cards[0]["weights"] != cards[1]["weights"]
    assert main(["train", "vae", "--people", str(people)]) == 2
