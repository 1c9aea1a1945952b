"""The attack: several searches joined, the same for all networks."""

import torch

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.models.subject import Subject
from hardcase.repair.attack import AttackResult, AttackSize, attack_all
from tiny import bars, trained_bars

SMALL = AttackSize(restarts=2, gradients=6, queries=12, draws=8)
IMAGES = bars(20, seed=5, split="test")
BOX = condition_box(hc.Conditions({"shift": "±20 %", "exposure": "±2 stops"}), (1, 12, 12))


def constant():
    """A network that fails nowhere on class 0 and everywhere else."""

    class First(torch.nn.Module):
        def forward(self, x):
            return (
                torch.tensor([[1.0, 0.0, 0.0]]).expand(len(x), -1) + 0 * x.mean((1, 2, 3))[:, None]
            )

    return Subject(First(), classes=IMAGES.classes)


def test_what_must_fail_fails_and_what_cannot_does_not():
    found = attack_all({"one": constant()}, IMAGES, BOX, SMALL, seed=0)["one"]
    assert torch.equal(found.failing, IMAGES.y != 0)
    assert bool((found.least[IMAGES.y != 0] == 0).all()), "misread as they are"
    assert found.added == 0


def test_networks_are_attacked_with_what_breaks_the_others():
    """A network whose gradients say nothing fails where the other one does."""
    open_ = trained_bars()

    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = open_.net

        def forward(self, x):
            return (self.net(x) * 8).round() / 8  # no gradient anywhere

    masked = Subject(Masked(), classes=IMAGES.classes)
    few = AttackSize(restarts=2, gradients=6, queries=0, draws=1)
    alone = attack_all({"masked": masked}, IMAGES, BOX, few, seed=0)["masked"]
    both = attack_all({"open": open_, "masked": masked}, IMAGES, BOX, few, seed=0)
    assert int(alone.failing.sum()) < int(both["open"].failing.sum())
    missed = both["open"].failing & ~both["masked"].failing
    assert int(missed.sum()) <= 1, "but for a tie"


def test_the_second_half_is_counted():
    least = torch.tensor([0.5, 0.9, torch.inf, 0.2])
    found = AttackResult(least, torch.tensor([True, False, False, True]))
    assert found.added == 0.25
