"""Boxes and masks that move with the image, against painting them and looking where they are."""

import torch

from hardcase.campaign.claims import CLAIM_KINDS, moved_claims
from hardcase.claims.boxes import moved_boxes
from hardcase.imaging.resample import centred_places, resample
from hardcase.spaces.appearance import appearance
from hardcase.types import Seeds

SIDE = 48


def spaces():
    return appearance("warp*camera", shape=(1, SIDE, SIDE))


def codes(space, count):
    luck = torch.Generator().manual_seed(0)
    return torch.rand(count, space.size, generator=luck) - 0.5


def boxes(count):
    luck = torch.Generator().manual_seed(1)
    corner = 8 + torch.rand(count, 2, generator=luck) * 12
    return torch.cat([corner, corner + 10 + torch.rand(count, 2, generator=luck) * 8], 1)


def painted(box):
    """The box as an image of 8 times the size would show it, averaged."""
    fine = torch.arange(SIDE * 8) / 8 + 1 / 16
    across = ((fine > box[0]) & (fine < box[2])).float()
    down = ((fine > box[1]) & (fine < box[3])).float()
    whole = down[:, None] * across[None]
    return whole.reshape(SIDE, 8, SIDE, 8).mean((1, 3))


def test_an_image_that_stays_keeps_its_boxes():
    box = torch.tensor([[0.0, 0, 48, 48], [0.3, 2.25, 9.5, 47.9], [10, 11, 20, 21]])
    still = centred_places(SIDE, SIDE, box).expand(3, -1, -1, -1)
    found, seen = moved_boxes(box, still)
    torch.testing.assert_close(found, box, atol=1e-4, rtol=0)
    torch.testing.assert_close(seen, torch.ones(3), atol=1e-3, rtol=0)


def test_moved_boxes_are_the_bounds_of_painted_ones():
    space = spaces()
    z, box = codes(space, 24), boxes(24)
    places = space.places(z)
    found, _ = moved_boxes(box, places)
    for row in range(len(z)):
        image = resample(painted(box[row])[None, None], places[row : row + 1])[0, 0]
        rows, columns = (image > 0.5).nonzero().T
        bounds = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        assert (found[row] - bounds).abs().max() <= 1.0  # half a pixel on each side, and corners


def test_the_share_that_is_seen_is_the_area_that_is_left():
    box = torch.tensor([[0.0, 10, 10, 20]]).repeat(6, 1)
    still = centred_places(SIDE, SIDE, box).repeat(6, 1, 1, 1)
    for row, shift in enumerate((0.0, 0.5, 1.0, 2.0, 5.0, 20.0)):
        still[row, 1] += shift  # the scene moves left by so much
    found, seen = moved_boxes(box, still)
    expected = torch.tensor([1.0, 0.95, 0.9, 0.8, 0.5, 0.0])
    torch.testing.assert_close(seen, expected, atol=0.01, rtol=0)
    torch.testing.assert_close(found[:5, 2], torch.tensor([10.0, 9.5, 9, 8, 5]), atol=1e-3, rtol=0)
    assert found[5].tolist() == [0, 0, 0, 0]


def seeds(z, kind, box, mask=None):
    count = len(box)
    claims = {
        "claim_kind": torch.full((count,), CLAIM_KINDS.index(kind)),
        "claim_box": box,
        "claim_mask": torch.zeros(count, 0, 0, dtype=torch.uint8) if mask is None else mask,
    }
    x = torch.zeros(count, 1, SIDE, SIDE)
    return Seeds(z, x, torch.zeros(count).long(), torch.arange(count), claims)


def test_what_leaves_the_frame_by_a_tenth_is_claimed_no_more():
    space = appearance("camera(shift=0.5)", shape=(1, SIDE, SIDE))
    z = torch.zeros(5, space.size)
    z[:, space.names.index("shift right")] = -torch.tensor([0.0, 0.02, 0.06, 0.2, 0.4])
    box = torch.tensor([[0.0, 10, 10, 20]]).repeat(5, 1)
    for kind, inside in (("at", [True, True, False, False, False]), ("has", [True] * 5)):
        assert moved_claims(space, z, seeds(z, kind, box)).inside.tolist() == inside


def test_masks_move_as_the_image_does():
    space = spaces()
    z, box = codes(space, 6), boxes(6)
    mask = torch.stack([(painted(one) > 0.5).byte() for one in box])
    moved = moved_claims(space, z, seeds(z, "covers", box, mask))
    image = resample(mask[:, None].float(), space.places(z))[:, 0]
    assert ((image > 0.5) == (moved.mask > 0)).float().mean() > 0.98
    assert moved.inside.all()


def test_spaces_that_move_nothing_leave_claims_where_they_are():
    box = boxes(3)
    for text in ("light", "sensor"):
        space = appearance(text, shape=(1, SIDE, SIDE))
        z = torch.zeros(3, space.size)
        assert torch.equal(moved_claims(space, z, seeds(z, "at", box)).box, box)
