"""Retraining: the arms differ only in what is added, the subject stays as it is, and held-out images are held out."""

import torch

from hardcase.models.subject import Subject
from hardcase.repair.front import joined_images
from hardcase.training.cards import TrainingRecipe
from hardcase_studies.retraining import (
    AUGMENTED,
    BEFORE,
    FOUND,
    MORE,
    Retraining,
    accuracy,
    against_controls,
    compare,
    gain,
    helped,
    tuned,
)
from tiny import bars, global_state, weights

SHORT = TrainingRecipe(epochs=3, batch=16, lr=3e-3)


def thirds(seed=0):
    torch.manual_seed(seed)
    return Subject(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3)),
        classes=("0", "1", "2"),
        name="thirds",
    )


def test_every_arm_is_measured_on_every_set_and_the_subject_is_left_alone():
    subject, train, test = thirds(), bars(60), bars(30, seed=1)
    before, state = weights(subject), global_state()
    found = bars(20, seed=2)
    results = compare(
        subject,
        train,
        against_controls(train, found),
        {"test": test, "other": bars(12, seed=3)},
        Retraining(recipe=SHORT, repeats=2),
    )
    assert list(results) == [BEFORE, FOUND, AUGMENTED, MORE]
    assert all(arm["test"].shape == (2, 30) for arm in results.values())
    assert all(arm["other"].shape == (2, 12) for arm in results.values())
    assert accuracy(results[MORE]["test"]).value > accuracy(results[BEFORE]["test"]).value
    assert gain(results[MORE]["test"], results[BEFORE]["test"]).value > 0
    assert weights(subject) == before
    assert global_state() == state
    assert all(not p.requires_grad for p in subject.parameters())


def test_what_is_added_matters():
    """Tests that are all labelled wrongly must hurt, or nothing was learned from them."""
    from dataclasses import replace

    subject, train, test = thirds(), bars(30), bars(30, seed=1)
    wrong = replace(bars(300, seed=4), y=(bars(300, seed=4).y + 1) % 3)
    long = TrainingRecipe(epochs=8, batch=16, lr=1e-2)
    arms = against_controls(train, wrong)
    results = compare(subject, train, arms, {"test": test}, Retraining(recipe=long, repeats=2))
    assert accuracy(results[FOUND]["test"]).value < 20
    assert accuracy(results[MORE]["test"]).value > 80
    assert weights(tuned(subject, train, SHORT, seed=1)) == weights(
        tuned(subject, train, SHORT, seed=1)
    )
    both = joined_images(train, wrong)
    assert len(both) == len(set(both.id)) == 330


def test_only_what_exceeds_the_better_control_is_help():
    def arm(*shares):
        return {"images": torch.stack([torch.arange(200) < 200 * share for share in shares])}

    results = {
        BEFORE: arm(0.5, 0.5, 0.5),
        FOUND: arm(0.8, 0.9, 0.85),
        AUGMENTED: arm(0.6, 0.62, 0.61),
        MORE: arm(0.5, 0.55, 0.52),
    }
    assert helped(results).rows[0][-1] == "helped"
    results[MORE] = arm(0.97, 0.99, 0.98)
    assert helped(results).rows[0][-1] == "harmed"
    results[MORE] = arm(0.8, 0.9, 0.85)
    assert helped(results).rows[0][-1] == "inconclusive"


def test_three_images_of_a_thousand_are_no_difference_however_alike_the_repeats_are():
    one = torch.ones(5, 1000, dtype=torch.bool)
    other = one.clone()
    other[:, :3] = False
    assert gain(one, other).low <= 0, "the test set is a sample too"
    other[0, 3] = False
    assert gain(one, other).low < 0.1
