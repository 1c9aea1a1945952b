"""What a verdict comes to, and who counts as undecided."""

from hardcase.statistics import undecided, verdict_status


def test_an_image_with_one_accepted_failure_is_not_undecided():
    findings = [
        {"id": "a", "seed": "1", "kind": "label"},
        {"id": "b", "seed": "1", "kind": "label"},
        {"id": "c", "seed": "2", "kind": "label"},
    ]
    yes = {"valid": True, "label_kept": True}
    unsure = {"valid": True, "label_kept": None}
    assert verdict_status(None) == verdict_status(unsure) == "open"
    assert undecided(findings, {"a": yes, "b": unsure, "c": unsure}) == 1
    assert undecided(findings, None) is None
