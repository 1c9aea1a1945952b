"""What a search was and found: options as people write them, kinds as they are counted."""

from hardcase.wording.search import kinds_in_words, settings_in_words


def test_grey_levels_are_parts_of_255_and_switches_are_on_or_off():
    said = settings_in_words({"epsilon": 8 / 255, "step_size": 0.25, "jitter": True, "norm": ""})
    assert said == "epsilon 8/255, step size 0.25, jitter on"


def test_only_what_leaves_its_label_is_failing():
    assert (
        kinds_in_words({"label": 3, "disagreement": 1}) == "4 findings: 3 failing, 1 disagreement"
    )
    assert kinds_in_words({}) == "0 findings"
