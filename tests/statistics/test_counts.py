"""What a verdict comes to, and who counts as unsure."""

from hardcase.statistics import count, verdict_status


def test_an_image_with_one_accepted_failure_is_not_unsure():
    findings = [
        {"id": "a", "original": "1", "kind": "label", "witnessed": None},
        {"id": "b", "original": "1", "kind": "label", "witnessed": None},
        {"id": "c", "original": "2", "kind": "label", "witnessed": None},
    ]
    kept = {"verdict": "kept", "by": "judge"}
    unsure = {"verdict": "unsure", "by": "judge"}
    assert verdict_status(None) == verdict_status(unsure) == "unsure"
    funnel = count([], findings, {"a": kept, "b": unsure, "c": unsure})["search_results"]
    assert (funnel["accepted"], funnel["unsure"], funnel["confirmed"]) == (1, 1, None)
    asked = count([], findings, {"a": kept, "b": unsure, "c": {**kept, "by": "person"}})[
        "search_results"
    ]
    assert (asked["accepted"], asked["unsure"], asked["confirmed"]) == (2, 0, 1)
    nobody = count([], findings, None)["search_results"]
    assert (nobody["accepted"], nobody["unsure"]) == (None, None)
