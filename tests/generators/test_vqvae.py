"""The VQ-VAE: shapes, its loss written out, collapse as an error, and training with two discriminators."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.generators import build, vqvae
from hardcase.generators.build import GeneratorSelection, build_generator
from hardcase.generators.quality import sheet
from hardcase.generators.vqvae import Codebook, VqVae, healthy, own_loss, train_jointly
from hardcase.randomness import named_randomness, stream
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_subject
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import Player, fit, train_adversarially
from tiny import bars, global_state, weights

IMAGES = bars(64, size=12)
BRIEF = TrainingRecipe(epochs=1, batch=32, lr=1e-3)


def small(seed=0, **options):
    with named_randomness(seed, "small"):
        return VqVae(1, 12, width=16, code=8, book=32, **options)


def taught(**options):
    net = small(**options)
    recipe = TrainingRecipe(epochs=40, batch=16, lr=3e-3)
    fit(net, IMAGES, vqvae.reconstruct(IMAGES), recipe, seed=0)
    return net


@pytest.fixture(scope="module")
def net():
    return taught()


@pytest.mark.parametrize("kind", ["ema", "gradient"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 64)])
def test_shapes_and_range(kind, channels, size):
    sizes = {"channels": channels, "size": size, "classes": 3, "latent": 16}
    net = build_generator("vqvae", kind=kind, **sizes).eval()
    x = torch.rand(2, channels, size, size)
    z = net.encode(x)
    side = size // (2 if (channels, size) == (3, 32) else 4)
    assert z.shape == (2, *net.code_shape) == (2, 16, side, side)
    image = net.decode(z * 100)
    assert image.shape == x.shape
    assert image.min() >= 0
    assert image.max() <= 1
    assert torch.equal(net(x), net.decode(z))
    for judge, seen in ((vqvae.latent_discriminator, z), (vqvae.image_discriminator, x)):
        assert judge(net)(seen).shape == (2, 1)


def test_images_that_cannot_be_halved_are_refused():
    with pytest.raises(HardcaseError, match="30x30 pixels cannot be halved"):
        VqVae(1, 30)


@pytest.mark.parametrize("learned", ["ema", "gradient"])
def test_the_loss_is_the_papers_without_the_codebook_term_where_codes_follow_their_users(learned):
    net, x = small(learned=learned).eval(), from_bytes(IMAGES.x[:8])
    z = net.encode(x)
    q = net.book.embed(net.book.nearest(z))
    expected = functional.mse_loss(net.render(q), x) + 0.25 * (z - q).square().mean()
    expected = expected + (0.75 * (z - q).square().mean() if learned == "gradient" else 0)
    torch.testing.assert_close(own_loss(net, x, stream(0)), expected)


def test_sums_are_squared_norms_of_pixels_and_codes():
    net = VqVae(1, 12, width=8, code=4, book=16, learned="gradient").eval()
    x = from_bytes(IMAGES.x[:5])
    z = net.encode(x).detach()
    q = net.book.embed(net.book.nearest(z)).detach()
    apart = ((net.render(q) - x).detach(), z - q)  # .25 and .75 make 1
    expected = sum(float(one.flatten(1).norm(dim=1).square().mean()) for one in apart)
    summed = own_loss(net, x, stream(0), reduction="sum").detach()
    assert float(summed) == pytest.approx(expected, rel=1e-4)


def test_both_sides_of_joint_training_see_clamped_images(net, monkeypatch):
    """A discriminator that saw the range would know its images by it."""
    seen = []

    class Watched(torch.nn.Linear):
        def forward(self, x):
            seen.append((float(x.min()), float(x.max())))
            return super().forward(x.flatten(1))

    monkeypatch.setattr(vqvae, "image_discriminator", lambda net: Watched(144, 1))
    other = taught_copy(net)
    with torch.no_grad():
        list(other.decoder.parameters())[-1].add_(3.0)  # paints far above 1
    train_jointly(other, IMAGES, BRIEF, mix=0.3)
    assert len(seen) >= 3
    assert all(0 <= low <= high <= 1 for low, high in seen)


def test_it_learns_to_give_images_back_and_is_healthy(net):
    x = from_bytes(IMAGES.x)
    assert (net(x) - x).square().mean() < 0.5 * (x - x.mean(0)).square().mean()
    healthy(net, IMAGES)


def test_a_collapsed_codebook_and_black_pictures_are_errors(net):
    one_code, black = taught_copy(net), taught_copy(net)
    one_code.book.codes.copy_(one_code.book.codes[:1].expand_as(one_code.book.codes))
    with pytest.raises(HardcaseError, match="collapsed: 1 of 32 codes in use"):
        healthy(one_code, IMAGES)
    black.decoder.pixels.weight.data.zero_()
    with pytest.raises(HardcaseError, match="reconstructions vary by 0 "):
        healthy(black, IMAGES)


def taught_copy(net):
    other = small()
    other.load_state_dict(net.state_dict())
    return other.eval()


def test_partners_are_of_another_class_where_there_is_one():
    y = torch.tensor([0, 0, 1, 2, 2, 0])
    for seed in range(20):
        assert bool((y[vqvae._partners(y, stream(seed))] != y).all())
    assert vqvae._partners(torch.zeros(3, dtype=torch.int64), stream(0)).shape == (3,)


def test_joint_training_learns_is_repeatable_and_touches_no_global_state(net):
    made, before = [], global_state()
    for seed in (0, 0, 1):
        other = taught_copy(net)
        history = train_jointly(other, IMAGES, replace(BRIEF, epochs=2), mix=0.3, seed=seed)
        assert history.steps == 4
        assert not other.training
        made.append(weights(other))
    assert global_state() == before
    assert made[0] == made[1] != made[2]
    assert made[0] != weights(net)


def test_weight_of_the_discriminators_matters_and_zero_leaves_the_plain_loss(net):
    def joint(*given):
        other = taught_copy(net)
        train_jointly(other, IMAGES, BRIEF, mix=0.3, weights=given)
        return weights(other)

    assert len({joint(0.0, 0.0), joint(0.1, 0.0), joint(0.0, 0.1)}) == 3


def test_a_duel_moves_each_players_own_networks_only():
    one, two = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    start = [net.weight.detach().clone() for net in (one, two)]
    seen = []

    def pull(net, goal):
        def loss(x, y, noise):
            gap = (net(x.mean((1, 2, 3))[:, None]) - goal).square().mean()
            return gap + 0 * (one.weight + two.weight).sum()

        return loss

    given = ((one, 1.0, 0.05), (two, -1.0, 0.0001))
    players = tuple(Player(nets=[net], loss=pull(net, goal), lr=lr) for net, goal, lr in given)
    recipe = replace(BRIEF, epochs=30, lr=1, schedule="constant")
    history = train_adversarially(players, IMAGES, recipe, seed=0, on_step=seen.append)
    assert seen == list(range(1, 61))
    assert history.loss[-1] < history.loss[0] * 0.2, "the first player's loss is reported"
    assert (one.weight - start[0]).abs() > 0.1
    assert (two.weight - start[1]).abs() < 0.02, "each player has its own rate"


def test_a_sheet_shows_every_image_in_its_place():
    rows = [IMAGES.x[:3], IMAGES.x[3:5]]
    drawn = sheet(rows, zoom=1)
    assert drawn.shape == (1, 28, 42)
    assert torch.equal(drawn[:, 14:26, 14:26], IMAGES.x[4])
    assert torch.equal(sheet(rows, zoom=3)[:, ::3, ::3], drawn)


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
    distances = (z[:, None] - codes.codes[None, :, :, None, None]).square().sum(2)
    assert torch.equal(index, distances.argmin(1))
    assert torch.equal(codes.embed(index)[1, :, 0, 1], codes.codes[index[1, 0, 1]])


@pytest.mark.parametrize("training", [True, False])
def test_quantising_gives_codes_and_passes_gradients_straight_through(training):
    codes, z = book().train(training), grid().requires_grad_()
    q = codes.quantise(z)
    torch.testing.assert_close(q, codes.embed(codes.nearest(z)))
    gradient = torch.randn(q.shape, generator=stream(3, "slope"))
    q.backward(gradient)
    assert torch.equal(z.grad, gradient)


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
    codes.learn(z, stream(0))
    assert tuple(codes.codes[4].tolist()) in rows_of(z)
    assert bool((codes.count >= 0.01).all())
    assert int((codes.codes.abs() > 1e3).sum()) == 0


def test_every_codebook_of_a_hierarchy_quantises_what_is_left():
    rng = torch.Generator().manual_seed(0)
    with named_randomness(0, "books"):
        books = vqvae.Codebooks(3, 16, 4)
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


@pytest.mark.parametrize(
    ("named", "own", "channels", "made"),
    [
        ("vae", "vqvae", 3, ("vqvae", "hierarchical")),
        (None, "vqvae", 3, ("vqvae", "hierarchical")),
        ("vae", "vqvae", 1, ("vae", None)),
        ("gan", "vae", 3, ("gan", None)),
        (None, "gan", 3, ("vqvae", "hierarchical")),
        (None, "gan", 1, ("gan", None)),
    ],
)
def test_in_colour_a_name_without_a_kind_stands_for_one_that_fits(
    named, own, channels, made, monkeypatch
):
    trained = lambda *images, kind, **how: (torch.nn.Identity(), {"kind": kind})  # noqa: E731
    monkeypatch.setattr(build, "trained_generator", trained)
    images = bars(channels=channels)
    given = {"method": "own", "perturbs": False, "subject": toy_subject(), "example": images}
    choice = GeneratorSelection(**given, images=lambda split: images, data="bars")
    found = choice.make(named, own)
    assert (found.family, found.card["kind"]) == made


@pytest.mark.parametrize(("size", "side"), [(28, 14), (32, 16), (64, 16), (96, 24), (224, 28)])
def test_a_hierarchy_fits_photographs_of_any_size(size, side):
    sizes = {"channels": 3, "size": size, "classes": 10, "latent": 32}
    net = build_generator("vqvae", kind="hierarchical", **sizes)
    assert net.code_shape == (32, side, side)
    assert sum(parameter.numel() for parameter in net.parameters()) < 1e6


def test_a_joint_training_that_takes_too_long_is_refused_before_the_first_one(monkeypatch):
    """The generator it goes on from would be trained for minutes, and then the rest refused."""
    from hardcase.errors import HardcaseError
    from hardcase.generators import build, vqvae
    from hardcase.training.cards import patient_for

    clock = iter(range(10_000))
    monkeypatch.setattr(vqvae.time, "monotonic", lambda: 60.0 * next(clock))  # a minute a step
    trained = []
    monkeypatch.setattr(vqvae, "fit", lambda *args, **how: trained.append(args))
    with patient_for(600), pytest.raises(HardcaseError, match="would take about"):
        build.trained_generator("vqvae", IMAGES, IMAGES, kind="gradient", mix=0.3, epochs=40)
    assert not trained
