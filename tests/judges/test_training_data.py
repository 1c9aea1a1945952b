"""Made images: in range, repeatable, and really what their names say."""

import pytest
import torch

from hardcase.judges import training_data as made_data
from hardcase.judges.judge import split_rows
from hardcase.judges.networks import Density
from hardcase.judges.training_data import Shares, corrupt, exam_of_digits, mirror, training_batch
from hardcase.tensors import from_bytes
from hardcase.training.loop import Bend, RowSampler, bend
from tiny import bars

SHAPES = [(1, 12), (3, 13)]
CODES = Density(channels=1, size=12)


def some(channels=1, size=12, count=26):
    return from_bytes(bars(count, size=size, channels=channels).x)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def one_hot(y, classes):
    return torch.nn.functional.one_hot(y, classes).float()


@pytest.mark.parametrize(("channels", "size"), SHAPES)
@pytest.mark.parametrize("kind", made_data.CORRUPTIONS)
def test_corruptions_stay_in_range_and_say_how_much_is_lost(kind, channels, size):
    x, codes = some(channels, size), Density(channels=channels, size=size)
    before = x.clone()
    made, lost = corrupt(x, codes, rng(), kind=kind)
    assert made.shape == x.shape
    assert lost.shape == (len(x),)
    for values in (made.detach(), lost):
        assert 0 <= float(values.min()) <= float(values.max()) <= 1
    assert torch.equal(x, before)
    assert torch.equal(made, corrupt(x, codes, rng(), kind=kind)[0])
    assert not torch.equal(made, x)


def test_the_tables_agree():
    named = {kind for family in made_data.FAMILIES.values() for kind in family.corruptions}
    assert {*made_data.OFTEN, *made_data.SHARED, *named} <= set(made_data.CORRUPTIONS)


def test_nothing_is_left_of_blank_images_and_all_of_untouched_ones():
    x = some()
    made, lost = corrupt(x, CODES, rng(), kind="blank")
    blank, before = made_data.content(made.detach()), made_data.content(x)
    assert float(blank.max()) < 0.35 * float(before.min())
    assert lost.tolist() == [1.0] * len(x)
    left = torch.stack([corrupt(x, CODES, rng(i), kind="erased")[1] for i in range(8)])
    assert float(left.min()) == 0.0
    assert float(left.max()) == 1.0


def test_shuffled_squares_hold_the_same_pixels():
    x = some(size=84 // 7)
    made = next(
        corrupt(x, CODES, rng(i), kind="shuffle")[0] for i in range(50) if RowSampler(1, rng(i)).one_of(4) == 2
    )  # fmt: skip
    assert torch.equal(made.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_changes_stay_in_range_and_are_repeatable(channels, size):
    x = some(channels, size)
    for change in (bend, made_data.retouch, mirror):
        made = change(x, rng())
        assert made.shape == x.shape
        assert 0 <= float(made.min()) <= float(made.max()) <= 1
        assert torch.equal(made, change(x, rng()))


def test_bending_by_nothing_changes_nothing_and_grey_images_are_never_mirrored():
    x = some()
    still = Bend(turn=0, stretch=0, shear=0, move=0, wave=0)
    assert torch.allclose(bend(x, rng(), still), x, atol=1e-5)
    assert not torch.allclose(bend(x, rng()), x, atol=1e-2)
    grey, colour = some(1), some(3)
    assert torch.equal(mirror(grey, rng()), grey)
    flipped = (mirror(colour, rng()) == colour.flip(3)).flatten(1).all(1)
    assert 0 < int(flipped.sum()) < len(colour)


def test_shades_are_those_of_the_model_in_the_order_of_the_image():
    x, model = torch.rand(3, 2, 4, 4, generator=rng()), torch.rand(3, 2, 4, 4, generator=rng(1))
    made = made_data.with_shades_of(x, model)
    assert torch.equal(made.flatten(2).sort(2).values, model.flatten(2).sort(2).values)
    assert torch.equal(made.flatten(2).argsort(2), x.flatten(2).argsort(2))


def test_an_interpolation_says_which_image_it_is():
    assert made_data.towards(torch.tensor([0.0, 0.5, 1.0])).tolist() == [0.0, 0.5, 1.0]
    assert made_data.towards(torch.tensor([0.7])).item() > 0.7
    x = torch.zeros(400, 1, 8, 8)
    x[::2] = 1.0
    made, share = made_data.interpolate(x, 1 - x, Density(channels=1, size=8), rng())
    assert made.shape == x.shape
    light = made.detach().flatten(1).mean(1)
    first, second = (light[::2], share[::2]), (1 - light[1::2], share[1::2])
    for brightness, mine in (first, second):
        assert float(torch.corrcoef(torch.stack([brightness, mine]))[0, 1]) > 0.5


def test_an_exam_knows_its_answers_and_leaves_families_out():
    images = bars(48, size=12)
    exam = exam_of_digits(images, CODES, rng())
    count = len(images)
    assert exam.x.shape == (4 * count, 1, 12, 12)
    assert exam.domain[:count].tolist() == [1] * count
    assert exam.label_kept[:count].tolist() == [1] * count
    assert exam.expected[:count].tolist() == images.y.tolist()
    for truth in (exam.domain, exam.label_kept):
        assert set(truth.tolist()) == {-1, 0, 1}
    assert bool((exam.domain[count : 2 * count] != 0).all())
    assert bool((exam.label_kept[count : 2 * count] == 0).any())
    for held_out, same in ((("bending", "retouching"), True), (("retouching",), False)):
        exam = exam_of_digits(images, CODES, rng(), held_out=held_out)
        assert torch.equal(exam.x[:48], from_bytes(images.x)) == same


@pytest.mark.parametrize(
    "given",
    [{}, {"interpolated": 0.0}, {"corrupted": 0.0}, {"interpolated": 0.5, "corrupted": 0.5}],
)
def test_targets_are_shares_and_nothing_is_only_said_of_corrupted_images(given):
    images, shares = bars(64), Shares(**given)
    x, y = from_bytes(images.x), images.y
    made, target = training_batch(x, one_hot(y, 4), CODES, rng(), shares)
    assert made.shape == x.shape
    assert torch.allclose(target.sum(1), torch.ones(64), atol=1e-5)
    corrupted, interpolated = int(64 * shares.corrupted), int(64 * shares.interpolated)
    plain = 64 - corrupted - interpolated
    assert torch.equal(target[:plain], one_hot(y[:plain], 4))
    assert not target[: 64 - corrupted, 3].any()
    assert not made.requires_grad


def test_a_batch_may_leave_out_a_family_of_changes():
    images = bars(64)
    x, y = from_bytes(images.x), images.y
    shares = Shares(interpolated=0.0, corrupted=0.0)
    for left_out, same in ((("bending", "retouching"), True), (("bending",), False)):
        made, _ = training_batch(x, one_hot(y, 4), CODES, rng(), shares, left_out)
        assert torch.equal(made, x) == same


def test_easy_images_are_only_moved_mirrored_and_covered_in_one_place():
    images = bars(64, channels=3)
    x = from_bytes(images.x)
    shares = Shares(interpolated=0.0, corrupted=0.25, easy=0.5)
    made, _ = training_batch(x, one_hot(images.y, 4), Density(channels=3, size=12), rng(), shares)
    for image, given in zip(made[:24], x[:24], strict=True):
        known = torch.cat([torch.zeros(1), given.unique()])
        strange = ~torch.isin(image, known).all(0)
        down, right = strange.any(1).nonzero(), strange.any(0).nonzero()
        if len(down):  # all of it lies in one small rectangle
            assert int(down.max() - down.min()) < 6
            assert int(right.max() - right.min()) < 6


def test_splits_balance_the_classes_in_what_is_held_out():
    images = bars(160, size=12)
    fitted, held_out = split_rows(images.y, images.id, 0.1)
    assert sorted([*fitted.tolist(), *held_out.tolist()]) == list(range(160))
    counts = images.y[held_out].bincount()
    assert len(held_out) == 16
    assert counts.max() - counts.min() <= 1
