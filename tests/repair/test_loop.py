"""Training on: it learns, is deterministic, goes on after a kill, and stops at the last good epoch."""

import os
import signal
from dataclasses import replace

import pytest
import torch

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.data.files import Stream
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.repair import loop
from hardcase.repair.front import joined_images
from hardcase.repair.loop import STATE, RepairRecipe, train_on
from tiny import bars, global_state, trained_bars, weights

SHIFTED = hc.Conditions({"shift": "±16 %", "exposure": "±2 stops"})
BOX = condition_box(SHIFTED, (1, 12, 12))
SHORT = RepairRecipe(epochs=3, batch=16, rate=3e-3)


def fitted(subject, recipe=SHORT, **how):
    return train_on(subject, bars(160), bars(40, seed=1), BOX, recipe, **how)


def test_training_with_the_worst_draws_lowers_their_loss_and_leaves_the_subject_alone():
    subject = trained_bars()
    before, state = weights(subject.net), global_state()
    done = fitted(subject, replace(SHORT, epochs=10))
    assert done.best > 0
    assert done.scores[done.best] < done.scores[0]
    test = bars(90, seed=7, split="test")
    x, y = test.x.float() / 255, test.y
    losses = []
    for net in (subject.net, done.net):
        hard = hc.WorstOfK(net, SHIFTED, draws=8, share=1.0)(x, y)
        losses.append(float(torch.nn.functional.cross_entropy(net(hard), y).detach()))
    assert losses[1] < 0.9 * losses[0], "draws that nobody trained with"
    assert weights(subject.net) == before
    assert global_state() == state
    again = fitted(Subject(done.net, classes=test.classes), replace(SHORT, epochs=1))
    assert len(again.losses) == 1, "what was repaired can be repaired"


@pytest.mark.parametrize("change", [{}, {"draws": 1, "steps": 3}, {"draws": 0}])
def test_the_same_seed_gives_the_same_weights(change):
    subject = trained_bars()
    recipe = replace(SHORT, epochs=2, **change)
    assert weights(fitted(subject, recipe).net) == weights(fitted(subject, recipe).net)
    other = fitted(subject, replace(recipe, seed=5))
    assert weights(other.net) != weights(fitted(subject, recipe).net)


def in_files(images, asked):
    class Noted(Stream):
        def images(self):
            asked.append(len(self))
            return super().images()

    rows, names = torch.arange(len(images)), images.id.__getitem__
    return Noted(lambda row: images.x[row, 0].numpy(), rows, images.y, images.classes, 1, names)


def test_images_in_files_give_the_same_weights_and_only_a_step_is_in_memory(monkeypatch):
    subject = trained_bars()
    asked = []
    train = in_files(bars(160), asked)
    assert train.hash == bars(160).hash
    asked.clear()
    monkeypatch.setattr(loop, "NUMBERS", 1)  # none is read ahead
    done = train_on(subject, train, bars(40, seed=1), BOX, SHORT)
    assert weights(done.net) == weights(fitted(subject).net)
    assert done.scores == fitted(subject).scores
    assert max(asked) == SHORT.batch


def test_findings_join_images_that_stay_in_their_files():
    few, added = bars(12), bars(5, seed=3)
    both, whole = joined_images(in_files(few, []), added), joined_images(few, added)
    assert both.id == whole.id
    assert both.hash == whole.hash
    some = joined_images(in_files(few, []).take(torch.tensor([7, 2])), added)
    assert torch.equal(some.images().x, torch.cat([few.x[[7, 2]], added.x]))


def test_a_stopped_training_goes_on_and_ends_with_the_same_weights(tmp_path, monkeypatch):
    subject = trained_bars()
    whole = fitted(subject)
    said = []
    epoch = loop._Work.epoch

    def stops(work, number, most=0):
        if number == 2:
            raise KeyboardInterrupt
        return epoch(work, number, most)

    monkeypatch.setattr(loop._Work, "epoch", stops)
    with pytest.raises(KeyboardInterrupt):
        fitted(subject, kept=tmp_path)
    monkeypatch.undo()
    done = fitted(subject, kept=tmp_path, log=said.append)
    assert weights(done.net) == weights(whole.net)
    assert done.scores == whole.scores
    assert any("goes on after epoch 2" in text for text in said)
    other = fitted(subject, replace(SHORT, epochs=1), kept=tmp_path)
    assert len(other.losses) == 1, "what another recipe left is not gone on with"


def test_a_killed_process_loses_at_most_an_epoch(tmp_path):
    """kill -9 after the first epoch was kept; the training then goes on with the second."""
    save, process = loop._save, os.fork()
    if process == 0:
        loop._save = lambda *given: (save(*given), os.kill(os.getpid(), signal.SIGKILL))
        try:
            fitted(trained_bars(), kept=tmp_path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / STATE).is_file()
    said = []
    again = fitted(trained_bars(), kept=tmp_path, log=said.append)
    assert any("goes on after epoch 1" in text for text in said)
    assert weights(again.net) == weights(fitted(trained_bars()).net)


def test_damaged_state_is_told_and_not_used(tmp_path, caplog):
    (tmp_path / STATE).write_bytes(b"no safetensors")
    assert len(fitted(trained_bars(), kept=tmp_path).losses) == 3
    assert "begins anew" in caplog.text


def test_time_and_memory_are_told_before_the_first_epoch():
    said = []
    fitted(trained_bars(), replace(SHORT, rate=None, epochs=1), log=said.append)
    starts = (
        "scoring",
        "training takes about",
        *["trying"] * 3,
        "validation score",
        "epoch 1 of 1",
    )
    assert [text.startswith(start) for text, start in zip(said, starts)] == [True] * 7
    assert "GB of memory" in said[1]


def test_training_stops_early_and_keeps_the_best_epoch():
    wrong = replace(bars(160), y=(bars(160).y + 1) % 3)
    recipe = replace(SHORT, epochs=9, patience=2)
    done = train_on(trained_bars(), wrong, bars(40, seed=1), BOX, recipe)
    assert done.best == 0, "wrong labels make every epoch worse"
    assert len(done.losses) == 3
    assert weights(done.net) == weights(trained_bars().net)


class Bursting(torch.nn.Module):
    """Answers that are no numbers from some call in training on."""

    def __init__(self, net, after):
        super().__init__()
        self.net = net
        self.after = after
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return self.net(x) * (torch.nan if self.calls > self.after else 1.0)


def bursting(after):
    inner = trained_bars()
    return Subject(Bursting(inner.net.requires_grad_(True), after), classes=inner.class_names)


def test_a_loss_that_is_no_number_stops_at_the_last_good_epoch(caplog):
    # four steps tell the time, ten are an epoch
    done = fitted(bursting(after=4 + 20), replace(SHORT, epochs=6))
    assert len(done.losses) == 2
    assert done.best in (1, 2)
    assert "epoch 3" in done.notes[0]
    assert "were kept" in caplog.text
    assert all(bool(weight.isfinite().all()) for weight in done.net.parameters())


def test_a_loss_that_is_no_number_at_once_is_a_problem():
    subject = bursting(after=0)
    with pytest.raises(HardcaseError, match=r"first epoch at rate 0\.003"):
        fitted(subject)
    with pytest.raises(HardcaseError, match="at any of the rates"):
        fitted(subject, replace(SHORT, rate=None))


def test_frozen_weights_stay_and_a_frozen_network_is_refused():
    inner = trained_bars().net.requires_grad_(True)
    inner[1].requires_grad_(False)
    subject = Subject(inner, classes=("0", "1", "2"))
    done = fitted(subject, replace(SHORT, epochs=6))
    assert torch.equal(done.net[1].weight, inner[1].weight)
    assert done.best > 0
    assert not torch.equal(done.net[3].weight, inner[3].weight)
    with pytest.raises(HardcaseError, match="frozen"):
        fitted(Subject(inner.requires_grad_(False), classes=("0", "1", "2")))


def test_batch_normalisation_needs_more_than_one_image():
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(144, 3))
    subject = Subject(net, classes=("0", "1", "2"))
    with pytest.raises(HardcaseError, match="batches of one"):
        fitted(subject, replace(SHORT, batch=1))
    done = fitted(subject, replace(SHORT, epochs=1))
    assert not torch.equal(done.net[0].running_mean, net[0].running_mean)


def test_recipes_that_train_nothing_are_refused():
    for wrong in ({"epochs": 0}, {"rate": -1.0}, {"share": 0.0}, {"validation": 1.0}):
        with pytest.raises(HardcaseError, match="nothing can be trained"):
            RepairRecipe(**wrong)
