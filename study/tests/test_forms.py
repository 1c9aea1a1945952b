import pytest

from hardcase.errors import HardcaseError
from hardcase_study.forms import FORMS, Item, checked, questions

ITEMS = {
    "label": Item("i", "label", ("a",), labels=("3", "5")),
    "scale": Item("i", "scale", ("a",)),
    "resemble": Item("i", "resemble", ("a",), labels=("3", "5")),
    "rank": Item("i", "rank", ("a", "b", "c"), reference="o"),
    "grade": Item("i", "grade", ("a", "b"), reference="o"),
    "choose": Item("i", "choose", ("a", "b"), reference="o"),
    "same": Item("i", "same", ("a",), reference="o"),
    "change": Item("i", "change", ("a",), reference="o"),
}


def some_answer(item):
    return {
        q.name: list(q.options)[::-1] if q.kind == "order" else q.options[-1]
        for q in questions(item)
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_its_own_answers_and_no_others(form):
    item = ITEMS[form]
    answer = some_answer(item)
    assert checked(item, answer) == answer
    for name in answer:
        with pytest.raises(HardcaseError, match="is no answer"):
            checked(item, {**answer, name: "something else"})
        with pytest.raises(HardcaseError, match="is no answer"):
            checked(item, {k: v for k, v in answer.items() if k != name})


def test_none_and_cannot_tell_are_answers_and_no_classes():
    (question,) = questions(ITEMS["label"])
    assert question.options == ("3", "5", "none", "unsure")


def test_an_order_names_every_image_once():
    for wrong in (["a", "b"], ["a", "a", "b"], ["a", "b", "c", "c"], "a b c"):
        with pytest.raises(HardcaseError, match="is no answer"):
            checked(ITEMS["rank"], {"order": wrong})


def test_answers_that_nobody_asked_for_are_not_stored():
    assert checked(ITEMS["same"], {"same": "yes", "method": "sinvad"}) == {"same": "yes"}


def test_a_fault_is_asked_about_by_its_name():
    (question,) = questions(ITEMS["change"], "the sky")
    assert question.thing == "the sky"
