"""What the front ends know and show of a run, told step by step."""

import io
import signal
from collections import Counter
from time import monotonic

import pytest
import torch
from rich.console import Console

from hardcase.campaign.record import Counts
from hardcase.cli import progress
from hardcase.cli.options import Flags, ProgressStyle
from hardcase.cli.progress import Front, Lines, Screen, doubts, line
from hardcase.cli.run import make_progress
from hardcase.runs.progress import Progress, Stoppable
from hardcase.training.cards import TrainingProgress as Training

RECORD = {"method": "pgd", "model": "m", "data": "d", "images": 20, "budget": {"gradients": 40}}
RECORD |= {"classes": ["cat", "dog"]}


def total(seeds=0, failing=0, queries=0, confusions=()):
    return Progress(
        done=seeds // 4,
        shards=5,
        seeds=seeds,
        queries=queries,
        failing=failing,
        findings=failing,
        confusions=Counter(confusions),
    )


def counts(failing, queries=3):
    made = Counts.zeros(4, torch.device("cpu"))
    made.queries.fill_(queries)
    made.failing[:failing] = 2
    return made


@pytest.fixture
def told(monkeypatch):
    """A front in the middle of a run of 18 usable seeds: 8 done, 4 running, 2 of them failing."""

    def tell(screen):
        monkeypatch.setattr(progress, "OFTEN", 0)
        screen.begin(RECORD, 18, 4)
        screen.shard(total())
        screen.shard(total(8, 3, 100, ((0, 1), (0, 1), (1, 0))))
        screen.on_step(counts(2))
        return screen

    return tell


def test_counts_of_the_running_shard_are_added_and_replaced_by_the_finished_one(told):
    screen = told(Front())
    now = screen.standing()
    counts = (now.seeds, now.usable, now.done, now.running, now.waiting, now.skipped)
    assert counts == (20, 18, 8, 4, 6, 2)
    assert (now.failing, now.queries) == (5, 112)
    assert now.confusions == (("cat→dog", 2), ("dog→cat", 1))
    assert now.since_new is not None
    assert now.left > 0
    screen.shard(total(12, 5, 130))
    now = screen.standing()
    assert (now.failing, now.queries, now.done) == (5, 130, 12)


def test_a_resumed_run_counts_from_where_it_was():
    screen = Front()
    screen.begin(RECORD, 18, 4)
    screen.shard(total(8, 3, 1_000_000))
    screen.began -= 10
    now = screen.standing()
    assert now.speed == 0
    assert now.since_new is None
    assert now.left is None


def test_a_generator_that_loses_the_label_is_doubted():
    card = {"judge_accuracy": 0.98, "reconstruction_accuracy": 0.5}
    assert not doubts({**card, "reconstruction_accuracy": 0.97})
    assert not doubts({})
    screen = Front()
    screen.begin({**RECORD, "generator": card}, 18)
    assert "50 % of the images it gives back, against 98 % before" in screen.notes[0]


def test_pulses_are_looked_at_four_times_a_second_at_most():
    screen = Front()
    screen.begin(RECORD, 18)
    screen.on_step(counts(1))
    screen.on_step(counts(3))
    assert screen.current[2] == 1


def shown(screen, width):
    screen.console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with screen.console.capture() as got:
        screen.console.print(screen.render())
    return got.get()


def test_the_screen_fits_80_columns_and_says_it_all(told):
    screen = told(Screen(Console(file=io.StringIO())))
    screen.log("the model returns probabilities" + ", and this is a long note on that" * 3)
    text = shown(screen, 80)
    assert max(map(len, text.splitlines())) <= 80
    seeds = ("8 done · 4 running · 6 waiting · 2 skipped", "5 of 12 images", "not judged")
    spent = ("40 gradients", "112", "per second")
    for piece in ("pgd on m, d", *seeds, "cat→dog ×2", *spent, "probabilities", "Ctrl-C"):
        assert piece in text, piece
    screen.stops = 1
    assert "stopping" in shown(screen, 80)
    assert "again: stop at once" in shown(screen, 80)


def test_the_screen_shows_what_is_prepared_and_training():
    screen = Screen(Console(file=io.StringIO()))
    assert line(screen.standing()).endswith("preparing")
    screen.prepare("the model is asked about 20 images")
    assert "now        the model is asked about 20 images" in shown(screen, 80)
    assert line(screen.standing()).endswith("preparing: the model is asked about 20 images")
    for step in (30, 40):
        screen.train(Training(3, 10, step, 100, 0.25, what="lenet5 on mnist5k"))
    text = shown(screen, 80)
    assert "training lenet5 on mnist5k: epoch 3 of 10" in text
    assert text.count("about") == 1
    assert "networks that are ready are kept" in text


def test_there_is_one_bar_whatever_is_trained():
    screen = Screen(Console(file=io.StringIO()))
    for name in ("lenet5", "witness 1 of 3", "witness 2 of 3"):
        screen.train(Training(1, 2, 10, 20, 0.25, what=name))
        screen.train(Training(2, 2, 20, 20, 0.25, what=name))
    screen.train(Training(1, 2, 5, 20, 0.25, what="witness 3 of 3"))
    text = shown(screen, 80)
    assert sum("━" in row for row in text.splitlines()) == 1
    assert "loss" not in text
    assert screen.share() == 0.25


def test_plain_lines_tell_beginnings_ends_and_notes(told, capsys):
    with Lines() as screen:
        screen.train(Training(1, 2, 1, 10, 0.5, what="net on data"))
        screen.train(Training(2, 2, 10, 10, 0.1, what="net on data"))
        told(screen)
        screen.log("mind this")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "training net on data: 10 steps"
    assert said[1].startswith("trained net on data in 0:0")
    assert said[2] == "searching with pgd on m, d: 18 right of 20 images"
    assert said[3] == "note: mind this"
    assert "8 of 18 images done, 3 with a failure so far; 100 queries" in said[4]
    assert len(said) == 5


@pytest.fixture
def impatient(monkeypatch):
    """Plain lines in hundredths of the usual seconds."""
    for name in ("SILENCE", "EVERY"):
        monkeypatch.setattr(progress, name, 0.02)
    monkeypatch.setattr(progress, "TICK", 0.005)


def test_plain_lines_come_at_intervals(told, capsys, impatient):
    with Lines() as screen:
        told(screen)
        screen.over.wait(0.2)
    assert capsys.readouterr().err.count("searching: 8 of 18") >= 2


def test_a_silence_ends_with_what_is_being_measured_and_how_long_it_takes(capsys, impatient):
    with Lines() as screen:
        screen.enter("measure", RECORD)
        screen.advance(32, 128, 5)  # of an earlier process
        screen.over.wait(0.1)
        screen.began -= 10
        screen.advance(64, 128, 9)
        screen.over.wait(0.1)
        screen.prepare("working out the failure rate")
    said = capsys.readouterr().err
    assert said.startswith("measuring; the first images say how long it takes\n")
    assert "measuring: 32 of 128 images\n" in said
    assert "measuring: 64 of 128 images, 9 failing samples; about 0:00:20 left\n" in said
    assert "working out the failure rate\n" in said


def test_silences_grow_so_that_a_log_stays_short(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    screen = Lines()
    screen.over.wait = lambda seconds: now.__setitem__(0, now[0] + seconds) or now[0] > 200
    screen.enter("check", RECORD)
    screen._tick()
    times = [row.split()[0] for row in capsys.readouterr().err.splitlines()[1:]]
    assert times == [
        "0:00:03",
        "0:00:09",
        "0:00:21",
        "0:00:45",
        "0:01:15",
        "0:01:45",
        "0:02:15",
        "0:02:45",
        "0:03:15",
    ]


def test_the_screen_shows_what_is_measured():
    screen = Screen(Console(file=io.StringIO()))
    screen.enter("measure", RECORD)
    screen.advance(0, 128, 0)
    screen.advance(32, 128, 5)
    text = shown(screen, 80)
    for piece in (
        "pgd on m, d",
        "measuring",
        "32 of 128 measured",
        "5 samples",
        "finish this shard",
    ):
        assert piece in text, piece
    assert "budget" not in text
    assert screen.share() == 0.25
    screen.stops = 1
    assert "stopping after this shard" in line(screen.standing())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_handlers_come_back(told, number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Front():  # nothing is searched yet
        signal.raise_signal(number)
    with told(Front()) as screen:
        assert not screen.stopped()
        signal.raise_signal(number)
        assert screen.stopped()
        assert screen.standing().phase == "stopping after this shard"
    assert screen.phase == "stopped"
    assert signal.getsignal(number) is before


def test_the_second_ctrl_c_stops_at_once_and_a_second_sigterm_does_not(told):
    with told(Front()) as screen:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert screen.stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_front_end_that_was_asked_for():
    for asked, kind in {"none": Stoppable, "plain": Lines, "live": Screen, "auto": Lines}.items():
        assert type(make_progress(Flags(progress=ProgressStyle(asked)))) is kind
    assert type(make_progress(Flags(progress=ProgressStyle.live, quiet=True))) is Stoppable


def test_before_a_shard_is_done_the_budget_says_how_long_it_takes_at_most(monkeypatch):
    monkeypatch.setattr(progress, "OFTEN", 0)
    screen = Front()
    screen.begin({**RECORD, "budget": {"queries": 100}}, 10, 4)
    screen.shard(total())
    screen.on_step(counts(2, queries=50))
    screen.began = monotonic() - 10
    now = screen.standing()
    assert now.left is None
    assert now.most == pytest.approx((1000 - 200) / 20, rel=0.05)
    assert "; at most 0:00:" in line(now)
