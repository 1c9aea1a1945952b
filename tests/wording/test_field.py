"""What a fit says, by what it found."""

import pytest

from hardcase.wording.field import accuracy_sentence, field_headline, field_sentences

NOISE = {
    **{"condition": "noise", "unit": "levels", "declared": "normal(12, 4) levels"},
    **{"width": 12.6, "low": 11.0, "high": 14.0, "p": 0.01, "instead": [["defocus"]]},
}


def record(**changes):
    return {
        **{"images": 600, "field_images": 1000, "conditions": [], "not_needed": [], "together": []},
        **{"classes": {}, "distance": 0.1, "unexplained": 0.004, "explained": True},
        **{"least_explained": ["a.png", "b.png"], "accuracy": None, "notes": []},
        **changes,
    }


@pytest.mark.parametrize(
    ("conditions", "explained", "word"),
    [
        ([], True, "NOTHING FOUND"),
        ([], False, "UNEXPLAINED"),
        ([NOISE], True, "FITTED"),
        ([NOISE], False, "PARTLY FITTED"),
    ],
)
def test_the_first_word_says_what_was_found(conditions, explained, word):
    said = field_headline(record(conditions=conditions, explained=explained))
    assert said.startswith(f"{word}  ")


def test_what_cannot_be_said_follows():
    wide = {"condition": "shift", "unit": "%", "detectable": None}
    small = {"condition": "rotation", "unit": "deg", "detectable": 1.26}
    lines = field_sentences(record(conditions=[NOISE], not_needed=[small, wide], explained=False))
    text = "\n".join(lines)
    assert "noise: 13 levels on average (11 to 14)." in text
    assert "defocus explain" in text
    assert "rotation 1.3 deg, shift at no width" in text
    assert "a.png" in text


def test_an_accuracy_is_said_or_refused():
    sure = {"value": 0.95, "low": 0.93, "high": 0.97, "unmodified": 0.98, "fitted": 0.94}
    assert "95.0 % (93.0 to 97.0)" in accuracy_sentence(sure)
    refused = {"refused": "no synthetic field looks like this one"}
    said = accuracy_sentence({**refused, "unmodified": 0.98, "fitted": 0.94})
    assert said.startswith("No accuracy is expected")
