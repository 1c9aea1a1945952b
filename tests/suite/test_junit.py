"""JUnit files and annotations: what is inconclusive is skipped, and what is shown is one line."""

from xml.etree import ElementTree

from hardcase.suite.junit import JunitCase, annotation, junit


def test_each_outcome_has_its_element():
    cases = [
        JunitCase("run", "held"),
        JunitCase("run", "broken", "fail", "too often"),
        JunitCase("run", "open", "inconclusive", "more images"),
        JunitCase("run", "told", "pass", "so often"),
    ]
    (suite,) = ElementTree.fromstring(junit("a\nname", cases))
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["4", "1", "1"]
    assert [[child.tag for child in case] for case in suite] == [
        [],
        ["failure"],
        ["skipped"],
        ["system-out"],
    ]
    assert "\n" not in suite.get("name")


def test_an_annotation_is_one_line_with_its_level():
    assert annotation("fail", "5 %\nmore") == "::error title=hardcase gate::5 %25%0Amore"
    assert annotation("inconclusive", "a").startswith("::warning")
    assert annotation("pass", "a").startswith("::notice")
