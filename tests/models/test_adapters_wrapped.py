"""Patience with models of this process: an input on which one hangs is found, the rest goes on."""

import time

import pytest
import torch

from hardcase.errors import Problem
from hardcase.models.adapters import LabelOnly, Retrying
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject

LIMIT = 0.15


def hanging(on, *, seconds=5.0):
    """The toy subject, but it sleeps when it sees one of the images `on`."""
    subject = toy_subject()

    def wait(module, args):
        same = (args[0][:, None] - on[None]).abs().flatten(2).amax(2) < 1e-6
        if same.any():
            time.sleep(seconds)

    subject.net.register_forward_pre_hook(wait)
    return subject


def test_the_inputs_on_which_a_model_hangs_are_found():
    x = from_bytes(toy_images(9).x)
    right = toy_subject()(x).logits
    subject = Retrying(hanging(x[[4]]), LIMIT)
    subject(x[:1])
    begun = time.monotonic()
    logits = subject(x).logits
    assert time.monotonic() - begun < 4
    assert logits.isnan().all(1).nonzero().flatten().tolist() == [4]
    assert torch.equal(logits[[0, 1, 2, 3, 5, 6, 7, 8]], right[[0, 1, 2, 3, 5, 6, 7, 8]])
    assert subject.tally["unanswered"] == 1


def test_a_model_that_hangs_on_everything_stops_the_search():
    x = from_bytes(toy_images(3).x)
    subject = Retrying(hanging(x), LIMIT)
    with pytest.raises(Problem, match=r"does not answer any more: no answer within 0.15 s"):
        subject(x)


def test_a_timer_is_left_as_it_was():
    import signal

    Retrying(toy_subject(), 5.0)(from_bytes(toy_images(2).x))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_gradients_pass_through():
    x = from_bytes(toy_images(2).x).requires_grad_()
    (slope,) = torch.autograd.grad(Retrying(toy_subject(), 5.0)(x).logits.sum(), x)
    assert slope.abs().sum() > 0


def test_labels_alone_offer_labels_and_keep_nan():
    class Odd:
        name, hash, offers, device = "odd", "0", "scores", torch.device("cpu")

        def __call__(self, x, taps=None):
            answer = toy_subject()(x)
            answer.logits[0] = torch.nan
            return answer

    logits = LabelOnly(Odd())(from_bytes(toy_images(3).x)).logits
    assert logits[0].isnan().all()
    assert set(logits[1:].flatten().tolist()) == {0.0, 30.0}
