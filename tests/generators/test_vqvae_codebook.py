"""The codebook against definitions written out: nearest code, straight-through, moving averages, restarts."""

import pytest
import torch

from hardcase.generators.vqvae import Codebook
from hardcase.randomness import stream


def book(size=6, width=3, **options):
    made = Codebook(size, width, **options)
    made.codes.data = torch.randn(size, width, generator=stream(1, "codes"))
    made.total.copy_(made.codes.data)
    made.started.fill_(True)
    return made


def grid(count=4, width=3, side=2, seed=2):
    return torch.randn(count, width, side, side, generator=stream(seed, "grid"))


def test_nearest_is_the_code_at_the_least_distance():
    codes, z = book(), grid()
    index = codes.nearest(z)
    for m in range(4):
        for i in range(2):
            for j in range(2):
                distances = [
                    (float((z[m, :, i, j] - code).square().sum()), k)
                    for k, code in enumerate(codes.codes)
                ]
                assert int(index[m, i, j]) == min(distances)[1]
    assert torch.equal(codes.embed(index)[1, :, 0, 1], codes.codes[index[1, 0, 1]])


@pytest.mark.parametrize("training", [True, False])
def test_quantising_gives_codes_and_passes_gradients_straight_through(training):
    codes, z = book().train(training), grid().requires_grad_()
    q = codes.quantise(z)
    torch.testing.assert_close(q, codes.embed(codes.nearest(z)))
    slope = torch.randn(q.shape, generator=stream(3, "slope"))
    q.backward(slope)
    assert torch.equal(z.grad, slope)


def test_moving_averages_follow_the_users_of_each_code():
    codes, z = book(decay=0.9), grid()
    index, flat = codes.nearest(z).reshape(-1), z.movedim(1, -1).reshape(-1, 3)
    count, total = codes.count.clone(), codes.total.clone()
    codes.learn(z, stream(0))
    for k in range(6):
        users = flat[index == k]
        expected = (0.9 * total[k] + 0.1 * users.sum(0)) / (0.9 * count[k] + 0.1 * len(users))
        torch.testing.assert_close(codes.codes[k], expected)


def test_a_codebook_learned_by_gradient_is_moved_by_the_loss_alone():
    codes = book(learned="gradient")
    before = codes.codes.detach().clone()
    codes.learn(grid(), stream(0))
    assert torch.equal(codes.codes, before)
    assert isinstance(codes.codes, torch.nn.Parameter)
    codes.embed(codes.nearest(grid())).sum().backward()
    assert codes.codes.grad.abs().sum() > 0


def rows_of(z):
    return {tuple(row.tolist()) for row in z.movedim(1, -1).reshape(-1, z.shape[1])}


@pytest.mark.parametrize("learned", ["ema", "gradient"])
def test_codes_start_from_what_the_encoder_says(learned):
    codes, z = Codebook(5, 3, learned=learned, decay=1.0), grid() * 100
    codes.learn(z, stream(0))
    assert {tuple(code.tolist()) for code in codes.codes} <= rows_of(z)
    assert bool(codes.started)
    again = codes.codes.detach().clone()
    codes.learn(grid(seed=9), stream(1))
    assert torch.equal(codes.codes, again), "codes start once"


def test_a_code_that_nobody_uses_starts_again_from_the_encoder():
    codes, z = book(decay=0.99), grid()
    codes.codes[4], codes.total[4], codes.count[4] = 1e6, 1e4, 0.0099
    assert codes.usage() == pytest.approx(5 / 6)
    codes.learn(z, stream(0))
    assert tuple(codes.codes[4].tolist()) in rows_of(z)
    assert codes.usage() == 1
    assert int((codes.codes.abs() > 1e3).sum()) == 0


def test_learning_follows_from_the_generator_given_to_it_alone():
    made = []
    torch.manual_seed(4)
    kept = torch.get_rng_state()
    for seed in (0, 0, 1):
        torch.set_rng_state(kept)
        codes = Codebook(5, 3)
        moved = torch.get_rng_state()
        codes.learn(grid(), stream(seed))
        assert torch.equal(torch.get_rng_state(), moved), "learning drew from global randomness"
        made.append(codes.codes.clone())
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_every_codebook_of_a_hierarchy_quantises_what_is_left():
    from hardcase.generators.vqvae import Codebooks

    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        books = Codebooks(3, 16, 4)
    z = torch.randn(8, 4, 5, 5, generator=rng)
    for _ in range(30):
        books.learn(z, rng)
    left = [z]
    for book in books.levels:
        left.append(left[-1] - book.embed(book.nearest(left[-1])))
    errors = [float(part.square().mean()) for part in left]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[1]
    torch.testing.assert_close(books.embed(books.nearest(z)), z - left[-1])
    given = z.clone().requires_grad_()
    books.quantise(given).sum().backward()
    assert torch.equal(given.grad, torch.ones_like(z))


@pytest.mark.parametrize(("size", "side"), [(28, 14), (32, 16), (64, 16), (96, 24), (224, 28)])
def test_a_hierarchy_fits_photographs_of_any_size(size, side):
    from hardcase.generators.build import build_generator, usual_generator

    assert usual_generator("vae", 3) == usual_generator("vqvae", 3) == "vqvae:hierarchical"
    assert usual_generator("vae", 1) == "vae"
    assert usual_generator("gan", 3) == "gan"
    sizes = {"channels": 3, "size": size, "classes": 10, "latent": 32}
    net = build_generator("vqvae", kind="hierarchical", **sizes)
    assert net.code_shape == (32, side, side)
    assert sum(parameter.numel() for parameter in net.parameters()) < 1e6
