"""The one evaluator: what it meters, what it rounds, what it records and when it closes."""

from dataclasses import dataclass

import pytest
import torch
from by_hand import MANY, evaluator, method

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, Limits
from hardcase.errors import HardcaseError
from hardcase.methods import pgd
from hardcase.models.subject import Subject
from hardcase.oracles import Anything
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import KINDS, Answer


def swapped(evaluate):
    """Every seed mirrored: the bright quarter is on the other side, so all fail."""
    return evaluate.seeds.x.flip(3)


def test_images_are_rounded_before_the_subject_sees_them():
    seen = []

    class Spy(Counting):
        def __call__(self, x, taps=None):
            seen.append(x)
            return super().__call__(x, taps)

    evaluate = evaluator(subject=Spy(toy_subject()))
    evaluate(evaluate.seeds.z + 0.001, torch.arange(5))
    assert torch.equal(seen[0] * 255, (seen[0] * 255).round())


def test_small_steps_add_up_although_images_are_rounded():
    evaluate = evaluator()
    z = evaluate.seeds.z
    for _ in range(4):
        z = evaluate(z + 0.4 / 255, torch.arange(5)).z
    assert torch.allclose(z, evaluate.seeds.z + 1.6 / 255, atol=1e-6)


def test_the_gradient_passes_through_rounding_and_clamping():
    evaluate = evaluator()
    _, gradient = evaluate.gradient(evaluate.seeds.z * 0 + 1.2, torch.arange(5))
    assert bool((gradient.flatten(1).abs().sum(1) > 0).all())


def test_finished_seeds_cost_nothing_and_score_minus_infinity():
    subject = Counting(toy_subject())
    evaluate = evaluator(subject=subject)
    evaluate.retire(torch.tensor([1, 3]))
    feedback = evaluate(evaluate.seeds.z, torch.arange(5))
    assert subject.rows == 3
    assert feedback.evaluated.tolist() == [True, False, True, False, True]
    assert feedback.score.isneginf().tolist() == [False, True, False, True, False]


def test_a_look_never_exceeds_what_a_seed_has_left():
    subject = Counting(toy_subject())
    evaluate = evaluator(queries=3, subject=subject)
    rows = torch.arange(5).repeat_interleave(2)
    for _ in range(3):
        evaluate(evaluate.seeds.z[rows], rows)
    assert evaluate.counts.queries.tolist() == [3] * 5
    assert subject.rows == 15
    assert not evaluate.live.any()


def test_when_gradients_are_spent_a_seed_gets_one_plain_look_and_ends():
    evaluate = evaluator(gradients=2)
    rows = torch.arange(5)
    slopes = [evaluate.gradient(evaluate.seeds.z, rows)[1].abs().sum().item() for _ in range(3)]
    assert slopes[0] > 0
    assert slopes[2] == 0
    assert evaluate.counts.gradients.tolist() == [2] * 5
    assert evaluate.counts.queries.tolist() == [3] * 5
    assert not evaluate.live.any()


def test_candidates_are_judged_against_their_own_seed():
    evaluate = evaluator()
    rows = torch.tensor([3, 0])
    feedback = evaluate(evaluate.seeds.x[[3, 3]], rows)
    assert feedback.failed.tolist() == [False, True]
    assert evaluate.recorder.findings().seed.tolist() == [0]
    assert evaluate.recorder.findings().expected.tolist() == [0]


def test_the_nearest_failing_candidate_is_kept_with_its_query_number():
    evaluate = evaluator()
    far, near = swapped(evaluate), 0.3 * evaluate.seeds.x + 0.7 * swapped(evaluate)
    for images in (far, near, far):
        evaluate(images, torch.arange(5))
    assert evaluate.recorder.findings().queries.tolist() == [2] * 5
    assert evaluate.counts.failing.tolist() == [3] * 5


def test_until_first_ends_a_seed_at_its_first_failure():
    evaluate = evaluator(until="first")
    evaluate(swapped(evaluate)[:2], torch.tensor([0, 1]))
    assert evaluate.live.tolist() == [False, False, True, True, True]


def test_a_lead_below_the_margin_is_no_failure():
    evaluate = evaluator()
    flat = torch.full_like(evaluate.seeds.x, 100 / 255)
    assert not evaluate(flat, torch.arange(5)).failed.any()


def test_an_answer_that_is_no_number_is_a_finding_of_its_own_kind_and_harms_no_neighbour():
    class Sick(Counting):
        def __call__(self, x, taps=None):
            answer = super().__call__(x, taps)
            bad = (x[:, :, 0, 0] > 0.99).squeeze(1)
            return Answer(torch.where(bad[:, None], torch.nan, answer.logits), answer.activations)

    evaluate = evaluator(subject=Sick(toy_subject()))
    z = evaluate.seeds.z.clone()
    z[2, 0, 0, 0] = 1.0
    feedback, gradient = evaluate.gradient(z, torch.arange(5))
    assert feedback.score.isneginf().tolist() == [False, False, True, False, False]
    assert gradient.isfinite().all()
    found = evaluate.recorder.findings()
    assert [KINDS[kind] for kind in found.kind.tolist()] == ["non_finite"]
    assert found.seed.tolist() == [2]


def test_memory_that_runs_out_halves_the_calls_and_changes_no_answer():
    class Small(Counting):
        def __call__(self, x, taps=None):
            if len(x) > 20:
                raise torch.OutOfMemoryError("no room")
            return super().__call__(x, taps)

    images = toy_images(60)
    plain, tight = evaluator(images), evaluator(images, subject=Small(toy_subject()))
    rows = torch.arange(60)
    assert torch.equal(plain(plain.seeds.z, rows).score, tight(tight.seeds.z, rows).score)
    assert tight.query.batch == 16


def test_a_time_limit_stops_between_steps_and_says_who_was_cut_off():
    class Walk:
        def init(self, seeds, rng):
            return {"z": seeds.z}

        def step(self, state, evaluate, rng):
            evaluate(state["z"], torch.arange(5))
            return state

    campaign = Campaign(subject=toy_subject(), method=method(search=Walk()))
    calls = iter([False, False, True])
    bounds = Limits(torch.full((5,), MANY), torch.full((5,), MANY))
    shard = run_shard(campaign, toy_images(), bounds, stop=lambda counts: next(calls))
    assert shard.counts.queries.tolist() == [2] * 5
    assert shard.unfinished.all()


def test_a_method_that_needs_more_than_the_subject_offers_is_refused():
    with pytest.raises(HardcaseError, match="needs gradients"):
        Campaign(subject=Counting(toy_subject(), offers="scores"), method=pgd())
    mistyped = pgd()
    object.__setattr__(mistyped, "needs", "score")
    with pytest.raises(HardcaseError, match="try: scores"):
        Campaign(subject=toy_subject(), method=mistyped)


@dataclass
class Tilted:
    """A decoder that loses the label of every second seed."""

    name: str = "tilted"
    keeps_code: bool = True

    def encode(self, x, y, rng):
        return x.clone(), {"lost": y % 2 == 1}

    def decode(self, z, origin):
        return torch.where(origin.context["lost"][:, None, None, None], z.flip(3), z)

    def project(self, z, origin):
        return z

    def distance(self, z, origin):
        return (z - origin.z).flatten(1).abs().sum(1)


def test_a_seed_whose_reconstruction_is_already_wrong_is_set_aside_and_its_check_is_paid():
    evaluate = evaluator(toy_images(4), space=Tilted())
    evaluate.reconstruct()
    assert evaluate.counts.lost.tolist() == [False, True, False, True]
    assert evaluate.counts.queries.tolist() == [1] * 4
    assert evaluate.live.tolist() == [True, False, True, False]
    assert not len(evaluate.recorder.findings())


def test_the_subject_is_a_copy():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
    subject, x = Subject(net), torch.rand(3, 1, 8, 8)
    before = subject(x).logits
    net[1].weight.data.zero_()
    assert torch.equal(subject(x).logits, before)


def test_an_oracle_that_counts_everything_keeps_all_images_and_failing_ones_as_failing():
    evaluate = evaluator(oracle=Anything())
    evaluate(evaluate.seeds.z, torch.arange(5))
    evaluate(swapped(evaluate), torch.arange(5))
    found = evaluate.recorder.findings()
    kinds = [KINDS[kind] for kind in found.kind.tolist()]
    assert kinds.count("label") == 5
    assert kinds.count("surprise") == 5
    assert (found.predicted[found.kind == KINDS.index("surprise")] == evaluate.seeds.y).all()
