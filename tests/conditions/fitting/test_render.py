"""Images under candidates: the same numbers for each, and the distribution that is declared."""

import pytest
import torch

from hardcase.conditions import condition_box
from hardcase.conditions.box import samples_of
from hardcase.conditions.fitting.coordinates import FIGURES, Spread, conditions_of
from hardcase.conditions.fitting.render import Candidate, Renderer, physical_values
from hardcase.types import Images


def images(count=400):
    x = torch.randint(0, 256, (count, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    names = tuple(f"image {i}" for i in range(count))
    return Images(x.byte(), torch.zeros(count).long(), names, ("a",), "images")


def test_no_conditions_leave_every_image_as_it_is():
    some = images(3)
    assert torch.equal(Renderer(some)(Candidate()).mul(255).round().byte(), some.x)


def test_a_coordinate_has_the_same_numbers_beside_any_other():
    some = Renderer(images())
    noise = Spread(8.0, 3.0)
    alone = some.values(Candidate({"noise": noise}))["noise"]
    beside = some.values(
        Candidate({"rotation": Spread(0, 5), "noise": noise, "bend": Spread(2, 1)})
    )
    assert torch.allclose(alone, beside["noise"])


@pytest.mark.parametrize("name", sorted(FIGURES))
@pytest.mark.parametrize("even", [True, False])
def test_what_is_rendered_is_what_the_declaration_draws(name, even):
    row = FIGURES[name]
    spread = Spread.of(row, 0.0 if row.centred else 0.7, 0.5, even)
    some = images()
    rendered = Renderer(some).values(Candidate({name: spread}))[name]
    box = condition_box(conditions_of({name: spread}), some.shape)
    drawn = physical_values(box, samples_of(box, some.id, 1, seed=5).z[:, 0])[name]
    size = abs(row.size)
    assert abs(float(rendered.mean() - drawn.mean())) < 0.1 * size
    assert abs(float(rendered.std() - drawn.std())) < 0.1 * size
    assert float(rendered.min()) >= box.conditions.ranges[name].low - 1e-4 * size
    assert float(rendered.max()) <= box.conditions.ranges[name].high + 1e-4 * size


def test_two_coordinates_can_go_together():
    spreads = {"fading": Spread(40, 8), "noise": Spread(24, 4)}
    values = Renderer(images()).values(Candidate(spreads, {("fading", "noise"): 0.8}))
    both = torch.stack([values["fading"], values["noise"]])
    assert float(torch.corrcoef(both)[0, 1]) == pytest.approx(0.8, abs=0.06)
    assert float(values["noise"].std()) == pytest.approx(4, rel=0.1)
