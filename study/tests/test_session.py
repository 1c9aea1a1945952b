import pytest

from hardcase.errors import HardcaseError
from hardcase_study.answers import Answers, rater_id
from hardcase_study.forms import Item, questions
from hardcase_study.session import Session, decided


def started(study, token="t", **options):
    session = Session(study, Answers(study.folder, durable=False), **options)
    return session, session.enter(token, "en")


def answer(session, rater, position, pick=0):
    item = session.item(rater, position)
    value = {q.name: q.options[pick] for q in questions(item)}
    session.save(rater, item.id, value, key=f"{rater.id}{position}")
    return item


def test_a_rater_goes_through_the_list_once_and_is_then_done(make):
    study = make()
    session, rater = started(study)
    seen = [answer(session, rater, p).id for p in range(1, 34)]
    assert seen == list(study.assignments[rater.slot])
    assert session.item(rater, 34) is None
    assert session.store.rater(rater.id).finished is not None


def test_an_item_stands_where_it_stood(make):
    session, rater = started(make())
    first = session.item(rater, 1)
    assert session.item(rater, 1) == first
    assert Session(session.study, session.store).item(rater, 1) == first


def test_only_shown_items_take_answers_and_only_their_own(make):
    session, rater = started(make())
    other = next(n for n in session.study.main if n != session.item(rater, 1).id)
    with pytest.raises(HardcaseError, match="was not shown"):
        session.save(rater, other, {"label": "3"}, key="k")
    with pytest.raises(HardcaseError, match="is no answer"):
        session.save(rater, session.item(rater, 1).id, {"label": "fish"}, key="k")


def test_numbers_from_a_browser_are_bounded(make):
    session, rater = started(make())
    item = session.item(rater, 1)
    value = {q.name: q.options[0] for q in questions(item)}
    session.save(rater, item.id, value, key="k", seconds="nonsense", hidden=-5, lost=float("nan"))
    (row,) = session.store.all()
    assert (row.seconds, row.hidden, row.lost) == (0.0, 0.0, 0)


def test_the_study_closes_when_it_has_everybody(make):
    study = make(raters=2, per_rater=6, checks=1, repeats=0)
    session, rater = started(study)
    for name in ("t", "u"):
        rater = session.enter(name, "en")
        for position in range(1, 7):
            answer(session, rater, position)
        assert session.item(rater, 7) is None
    assert session.enter("v", "en") is None


def test_someone_who_gave_up_does_not_block_the_study(make):
    study = make(raters=2, per_rater=6, checks=1, repeats=0)
    session, _ = started(study)
    raters = [session.enter(name, "en") for name in "abcdef"]
    assert [one.slot for one in raters] == [1, 2, 3, 4, 5, 6]
    assert session.plan(raters[-1]) == study.assignments[6 % 4]


def test_a_trial_run_is_marked(make):
    session, rater = started(make(), pilot=True)
    assert session.store.rater(rater_id("t")).kind == "pilot"
    assert rater.kind == "pilot"


def test_votes_end_an_item_only_where_they_agree():
    item = Item("i", "label", ("x",), labels=tuple("0123456789"))
    vote = [{"label": word} for word in ("3", "3", "5", "unsure", "none")]
    assert not decided(vote[:1], item)
    assert decided(vote[:2], item)
    assert not decided(vote[1:3], item)
    assert not decided([vote[3]] * 5, item)
    assert decided([vote[4]] * 2, item)


def test_stopping_spends_answers_where_they_are_needed(make):
    """Items that are sure get no more answers, those of the fixed subset their whole number."""
    study = make(stop=True, raters=8, per_rater=20, votes=5)
    session = Session(study, Answers(study.folder, durable=False))
    hard = sorted(n for n, item in study.main.items() if not item.fixed)[:2]
    for number in range(8):
        rater = session.enter(f"t{number}", "en")
        position = 1
        while (item := session.item(rater, position)) is not None:
            truth = study.classes[study.stimuli[item.stimuli[0]].expected]
            word = study.classes[number % 10] if item.id in hard else truth
            session.save(rater, item.id, {"label": word}, key=f"{number}-{position}")
            position += 1
    votes = session.store.votes()
    loose = [n for n, item in study.main.items() if not item.fixed]
    easy = [len(votes.get(n, ())) for n in loose if n not in hard]
    assert max(easy) <= 3
    assert min(len(votes[n]) for n in hard) > 5
    fixed = [len(votes[n]) for n, item in study.main.items() if item.fixed]
    assert max(fixed) - min(fixed) <= 2
    for rater in session.store.raters():
        shown = session.store.shown(rater.id)
        assert len(set(shown)) == len(shown) <= 20
