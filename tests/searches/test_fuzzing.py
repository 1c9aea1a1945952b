"""Mutation operators: geometry against torch's own, and what each may change."""

import pytest
import torch

from hardcase.randomness import Rng, stream
from hardcase.searches import fuzzing
from hardcase.searches.fuzzing import Metamorphic
from hardcase.tensors import to_grid

X = to_grid(torch.rand(6, 2, 9, 9, generator=stream(0, "pictures")))
ROWS = torch.arange(6)
ONE = (ROWS[:1], Rng.numbered(0, "one", 1))


def level(value):
    return torch.full((len(X),), float(value))


def applied(operator, value):
    return operator(X, level(value), ROWS, Rng.numbered(1, "noise", 6))


def test_translation_moves_down_and_right_and_fills_with_black():
    moved, back = applied(fuzzing.translate, 2), applied(fuzzing.translate, -3)
    assert torch.allclose(moved[:, :, 2:, 2:], X[:, :, :-2, :-2], atol=1e-5)
    assert moved[:, :, :2].abs().max() < 1e-5
    assert torch.allclose(back[:, :, :-3, :-3], X[:, :, 3:, 3:], atol=1e-5)


def test_nothing_happens_at_the_neutral_level_and_a_quarter_turn_is_one():
    for operator in (fuzzing.translate, fuzzing.scale, fuzzing.shear, fuzzing.rotate):
        still = applied(operator, operator is fuzzing.scale)
        assert torch.allclose(still, X, atol=1e-4)
    turned = [torch.rot90(X, k, (2, 3)) for k in (1, 3)]
    ours = applied(fuzzing.rotate, 90)
    assert any(torch.allclose(ours, one, atol=1e-4) for one in turned)


def test_rotation_of_a_wide_picture_keeps_shapes():
    x = torch.zeros(1, 1, 11, 21)
    x[:, :, 5, 10 - 4 : 10 + 5] = 1  # a line of nine pixels through the centre
    turned = fuzzing.rotate(x, torch.tensor([90.0]), *ONE)
    assert torch.allclose(turned[0, 0, 1:10, 10], torch.ones(9), atol=1e-4)
    assert abs(float(turned.sum()) - 9) < 1e-3


def test_scaling_up_shows_the_middle_and_shear_shifts_rows_apart():
    dot = torch.zeros(1, 1, 9, 9)
    dot[..., 4, 4] = 1
    assert fuzzing.scale(dot, torch.tensor([1.1]), *ONE).sum() > dot.sum()
    assert fuzzing.scale(dot, torch.tensor([0.7]), *ONE).sum() < dot.sum()
    line = torch.eye(9)[4].expand(1, 1, 9, 9)
    leaning = fuzzing.shear(line, torch.tensor([0.5]), *ONE)[0, 0]
    top, middle, bottom = (int(leaning[row].argmax()) for row in (0, 4, 8))
    assert middle == 4
    assert (top - 4) * (bottom - 4) < 0


def test_values_change_by_as_much_as_light_noises_and_pixels_say():
    assert torch.allclose(applied(fuzzing.contrast, 0.5), X / 2)
    assert torch.allclose(applied(fuzzing.brightness, -20), X - 20 / 255)
    for count in (1, 5, 9):
        changed = (applied(fuzzing.pixels, count) != X).flatten(1).sum(1)
        assert bool((changed <= count).all())
        assert bool((changed >= max(1, count - 3)).all())
    gauss, salt, speckle = (applied(fuzzing.noise, kind) - X for kind in range(3))
    assert 0.04 < float(gauss.std()) < 0.06
    assert float((salt != 0).float().mean()) < 0.02
    assert float(speckle[X < 0.1].abs().max()) < 0.05


@pytest.mark.parametrize("kind", range(9))
def test_blur_keeps_a_flat_picture_and_narrows_a_rough_one(kind):
    flat = torch.full((1, 1, 9, 9), 0.4)
    assert torch.allclose(fuzzing.blur(flat, level(kind)[:1], *ONE), flat, atol=1e-5)
    blurred = applied(fuzzing.blur, kind)
    assert blurred.std() < X.std()
    if kind == 6:
        assert torch.allclose(blurred[:, :, 4, 4], X[:, :, 3:6, 3:6].flatten(2).median(2).values)


def test_every_row_gets_its_own_operator():
    operators = (*fuzzing.AFFINE, *fuzzing.LIGHT)
    chosen = torch.arange(6)
    levels = torch.tensor([2.0, 0.8, 0.3, 30.0, 0.5, 10.0])
    together = fuzzing.mutate(X, chosen, levels, operators, ROWS, Rng.numbered(0, "changes", 6))
    for i, one in enumerate(chosen.split(1)):
        rng = Rng.numbered(0, "changes", 6)
        alone = to_grid(operators[i].apply(X[one], levels[one], ROWS[one], rng))
        assert torch.allclose(together[one], alone, atol=1 / 255 + 1e-6)


def test_levels_are_those_of_the_code():
    ranges = {operator.name: (min(operator.levels), max(operator.levels), len(operator.levels)) for operator in (*fuzzing.AFFINE, *fuzzing.LIGHT, fuzzing.PIXELS)}  # fmt: skip
    assert ranges == {
        "translate": (-3, 2, 6), "scale": (0.7, 1.1, 5), "shear": (-0.6, 0.5, 12), "rotate": (-50, 49, 100),
        "contrast": (0.5, 1.2, 8), "brightness": (-20, 19, 40), "blur": (0, 8, 9), "pixels": (1, 9, 9),
    }  # fmt: skip


def generation(mutator, z, columns, times, rng):
    for _ in range(times):
        z, columns, good = mutator(z, columns, torch.arange(len(z)), rng)
        z, columns = z[good], {name: value[good] for name, value in columns.items()}
    return z, columns


def test_an_affine_change_comes_once_and_carries_what_changed_before():
    mutator, x = Metamorphic(), to_grid(torch.rand(64, 1, 12, 12, generator=stream(3)))
    one, first = generation(mutator, x, mutator.start(x), 1, Rng.numbered(4, "mutants", 64))
    two, second = generation(mutator, one, first, 1, Rng.numbered(5, "mutants", 64))
    turned = first["turned"]
    assert 10 < int(turned.sum()) < 54
    assert bool((first["changed"][turned] == 0).all()), "nothing had changed before the first"
    assert len(two) == len(one)
    assert torch.equal(second["reference"][turned], first["reference"][turned]), "turned twice"
    newly = second["turned"] & ~turned
    levels = ((one - x) * 255).round().abs().flatten(1)
    assert torch.equal(second["changed"][newly], (levels[newly] > 0).sum(1).float())
    assert torch.equal(second["largest"][newly], levels[newly].amax(1))


def test_what_can_never_be_accepted_is_given_up():
    x = to_grid(torch.rand(8, 1, 12, 12, generator=stream(3)))
    mutator = Metamorphic(affine=(), alpha=0.0, beta=0.0, tries=3)
    child, _, good = mutator(x, mutator.start(x), torch.arange(8), Rng.numbered(0, "mutants", 8))
    assert not good.any()
    assert torch.equal(child, x)


def test_colour_pictures_are_mirrored_at_their_border():
    white = torch.ones(1, 3, 8, 8)
    levels = {"translate": 3.0, "rotate": 40.0, "scale": 0.7, "shear": 0.5}
    for name, value in levels.items():
        moved = getattr(fuzzing, name)(white, torch.tensor([value]), *ONE)
        assert float(moved.min()) > 0.99, name
