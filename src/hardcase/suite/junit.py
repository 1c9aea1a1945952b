"""What continuous integration reads: JUnit files, and annotations on a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from hardcase.environment import one_line
from hardcase.statistics import Outcome

__all__ = ["JunitCase", "annotation", "junit"]

_ELEMENTS = {"fail": "failure", "inconclusive": "skipped"}
_LEVELS = {"pass": "notice", "fail": "error", "inconclusive": "warning"}


class JunitCase(NamedTuple):
    """A test case: its group and name, its outcome, and its message."""

    group: str
    name: str
    outcome: Outcome = "pass"
    message: str = ""


def junit(name: str, cases: Sequence[JunitCase]) -> bytes:
    """Return the cases as a JUnit file with a single suite `name`."""
    outcomes = [case.outcome for case in cases]
    root = ElementTree.Element("testsuites")
    counts: dict[str, Any] = {
        "tests": len(cases),
        "failures": outcomes.count("fail"),
        "skipped": outcomes.count("inconclusive"),
    }
    suite = ElementTree.SubElement(root, "testsuite", name=one_line(name))
    for key, value in counts.items():
        suite.set(key, str(value))
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=one_line(case.group), name=one_line(case.name)
        )
        if case.outcome in _ELEMENTS:
            kind = _ELEMENTS[case.outcome]
            ElementTree.SubElement(element, kind, message=case.message).text = case.message
        elif case.message:
            ElementTree.SubElement(element, "system-out").text = case.message
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def annotation(outcome: Outcome, text: str) -> str:
    """Return the workflow command by which GitHub shows a line next to a change."""
    escapes = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    return f"::{_LEVELS[outcome]} title=hardcase gate::{text.translate(escapes)}"
