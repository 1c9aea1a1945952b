"""What is measured of each network, and how networks are attacked: the same for all of them."""

import numpy as np
import pytest
import torch

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.repair import measures
from hardcase.repair.measures import AttackSize, ProofSize, attack_all, proof_size, untrained
from tiny import bars, trained_bars

TINY = ProofSize(images=60, samples=4, alone=1)


def test_a_size_has_a_name_and_numbers_that_differ():
    size = proof_size("usual:images=200,attack.restarts=10")
    assert (size.images, size.attack.restarts, size.samples) == (200, 10, 4)
    assert proof_size(size) is size
    for wrong in ("huge", "usual:restart=3", "quick:images=0", "quick:attack.images=x"):
        with pytest.raises(HardcaseError):
            proof_size(wrong)


def test_the_queries_of_a_proof_are_counted_beforehand():
    class Counting:
        def __init__(self, subject):
            self.subject, self.rows = subject, 0

        def __getattr__(self, name):
            return getattr(self.subject, name)

        def __call__(self, x, taps=None):
            self.rows += len(x)
            return self.subject(x)

    images = bars(10, seed=5, split="test")
    model = Counting(trained_bars())
    measures.measure_values(model, images, BOX, TINY, seed=0)
    assert model.rows == 10 * measures.proof_queries(BOX, TINY)
    assert measures.seconds_per_query(model, images, BOX, seed=0) > 0


def test_what_was_not_trained_on_is_the_mean_of_conditions_and_families():
    one, two = np.array([0.0, 1.0]), np.array([1.0, 1.0])
    values = measures.ProofValues(
        np.zeros(2, int), one, one, elsewhere={"fog": one}, corruptions={"blur": two}
    )
    assert values.untrained.tolist() == [0.5, 1.0]
    assert measures.ProofValues(np.zeros(2, int), one, one).untrained is None


def test_conditions_that_were_not_declared_are_looked_at():
    declared = hc.Conditions({"rotation": "±8 deg", "noise": "0..10 levels"})
    found = untrained(declared, (1, 28, 28))
    assert {"fog", "defocus", "exposure", "shear"} <= set(found)
    assert not {"rotation", "noise", "temperature"} & set(found)
    assert "temperature" in untrained(declared, (3, 28, 28))


def test_values_depend_on_no_batch_and_no_order():
    subject = trained_bars()
    images = bars(24, seed=5, split="test")
    box = condition_box(hc.Conditions({"shift": "±12 %"}), images.shape)
    outside = {"others": bars(9, seed=6)}
    both = measures.measure_values(subject, images, box, TINY, seed=0, outside=outside)
    images = images.take(torch.arange(24).flip(0))
    turned = measures.measure_values(subject, images, box, TINY, seed=0)
    assert np.array_equal(both.risk, turned.risk[::-1])
    assert np.array_equal(both.corruptions["blur"], turned.corruptions["blur"][::-1])
    assert set(both.corruptions) == {"noise", "blur", "weather", "digital"}
    assert len(both.outside["others"]) == 9


# The attack: several searches joined, the same for all networks.

SMALL = AttackSize(restarts=2, gradients=6, queries=12, samples=8)
IMAGES = bars(20, seed=5, split="test")
BOX = condition_box(hc.Conditions({"shift": "±20 %", "exposure": "±2 stops"}), (1, 12, 12))


def constant():
    """A network that fails nowhere on class 0 and everywhere else."""

    class First(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[1.0, 0.0, 0.0]]) + 0 * x.mean((1, 2, 3))[:, None]

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
    few = AttackSize(restarts=2, gradients=6, queries=0, samples=1)
    alone = attack_all({"masked": masked}, IMAGES, BOX, few, seed=0)["masked"]
    both = attack_all({"open": open_, "masked": masked}, IMAGES, BOX, few, seed=0)
    assert int(alone.failing.sum()) < int(both["open"].failing.sum())
    missed = both["open"].failing & ~both["masked"].failing
    assert int(missed.sum()) <= 1, "but for a tie"


def test_the_second_half_is_counted():
    least = torch.tensor([0.5, 0.9, torch.inf, 0.2])
    found = measures.AttackResult(least, torch.tensor([True, False, False, True]))
    assert found.added == 0.25
