"""JUnit files, which every CI server shows as test cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from hardcase.environment import one_line


class JunitCase(NamedTuple):
    """One test case: the group and the name it is shown under, how it ended, and what is said."""

    group: str
    name: str
    outcome: Literal["passed", "failure", "skipped"] = "passed"
    message: str = ""


def junit(name: str, cases: Sequence[JunitCase]) -> bytes:
    """Return the cases as a JUnit file with one suite called `name`."""
    outcomes = [case.outcome for case in cases]
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=one_line(name),
        tests=str(len(cases)),
        failures=str(outcomes.count("failure")),
        skipped=str(outcomes.count("skipped")),
    )
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=one_line(case.group), name=one_line(case.name)
        )
        if case.outcome != "passed":
            message = ElementTree.SubElement(element, case.outcome, message=case.message)
            message.text = case.message
        elif case.message:
            ElementTree.SubElement(element, "system-out").text = case.message
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
