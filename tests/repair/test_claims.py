"""A detector that is trained on by claims, proved, written and loaded again."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hardcase as hc
from claims.toys import CLASSES, LEVEL, Windows, scenes
from hardcase.campaign.claims import Claims
from hardcase.claims.load import claim_model, claim_seeds
from hardcase.claims.subjects import Detections
from hardcase.conditions import condition_box, measure_risk
from hardcase.models.health import answers
from hardcase.repair.claims import train_on_claims
from hardcase.repair.measures import AttackSize, ProofSize

DIMMED = {"exposure": "-0.5..0 stops"}
SHORT = AttackSize(images=6, restarts=2, gradients=3, queries=4, samples=4)


class Adjustable(Windows):
    """Windows whose levels can be learned; at first bright objects must be very bright."""

    def __init__(self, least=0.85):
        super().__init__()
        self.least = nn.Parameter(torch.tensor(least))
        self.sharpness.requires_grad_(False)
        self.shift.requires_grad_(False)

    def scores(self, x):
        mean = self.means(x).flatten(1)
        near = torch.stack([0.1 - (mean - LEVEL[0]).abs(), mean - self.least], 2)
        return self.sharpness * near


@pytest.fixture(scope="module")
def seeds():
    made = [claim_seeds(*scenes(count, seed=seed), "boxes") for count, seed in ((40, 1), (16, 2))]
    return [one.take((one.y == 1).nonzero().squeeze(1)) for one in made]


def test_a_threshold_that_loses_dimmed_objects_is_learned(seeds):
    train, test = seeds
    model = claim_model(Adjustable(), "boxes", CLASSES)
    assert (answers(model, test).argmax(1) == test.y).all()
    box = condition_box(hc.Conditions.load(DIMMED), test.shape)
    recipe = hc.RepairRecipe(epochs=4, batch=8, rate=2e-2, draws=3)
    trained = train_on_claims(model, train, test, box, recipe)
    assert trained.best == 4
    assert trained.scores[1] < trained.scores[0]
    after = model.around(hc.Subject(trained.net, name="after"))
    risks = [measure_risk(one, test, box, samples=64).value for one in (model, after)]
    assert risks[0] > 0.3 > 0.1 > risks[1]
    assert (answers(model, test).argmax(1) == test.y).all()  # the network before stays as it was


def test_what_nobody_claims_is_not_learned_to_be_said(seeds):
    train, _ = seeds
    model = claim_model(Adjustable(least=0.3), "boxes", CLASSES)  # sees bright objects in dim ones
    box = condition_box(hc.Conditions.load(DIMMED), train.shape)
    recipe = hc.RepairRecipe(epochs=4, batch=8, rate=2e-2, draws=0)
    trained = train_on_claims(model, train, train, box, recipe)
    learned = trained.net.net.net if hasattr(trained.net.net, "net") else trained.net.net
    assert trained.best
    assert learned.least.item() > 0.35


def test_a_repair_of_claims_is_proved_and_its_weights_are_read_back(seeds, tmp_path):
    train, test = seeds
    size = ProofSize(images=12, samples=4, alone=1, attack=SHORT)
    how = {"recipe": hc.RepairRecipe(epochs=3, batch=8, rate=2e-2, draws=2), "proof": size}
    given = {"test": test, "conditions": DIMMED, "out": tmp_path / "repair"}
    done = hc.repair(Adjustable(), train, **given, **how)
    rows = {row.name: row for row in done.proof.rows if row.group == "declared"}
    assert rows["failure rate"].after < rows["failure rate"].before
    assert (tmp_path / "repair" / "weights.safetensors").is_file()
    net = Adjustable()
    net.load_state_dict(load_file(tmp_path / "repair" / "weights.safetensors"))
    again = claim_model(net, "boxes", CLASSES)
    claims = Claims.of(test)
    x = test.x.float() / 255
    own = claim_model(Adjustable(), "boxes", CLASSES).around(done.subject)
    assert torch.equal(again.about(x, claims=claims).logits, own.about(x, claims=claims).logits)
    assert isinstance(net(x), Detections)
