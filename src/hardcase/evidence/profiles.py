"""Topics that documents ask evidence for, in our words: not their text, and never a verdict on
them.

Titles are those under which the documents are published; topics follow what their publishers and
authors say of them in public (the catalogue entries of ISO/IEC TS 42119-2:2025 and ISO/PAS
8800:2024, https://www.assuringautonomy.com/amlas, the text of Regulation (EU) 2024/1689). Which
clause asks for what is for an assessor to say; only articles of the regulation and stages of AMLAS
are numbered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of a profile: `part` is the part of the folder that can show it, empty where none
    can."""

    id: str
    text: str
    part: str


_DOCUMENTS = (
    Topic("test plan", "what was tested, against what, with which budget and which limits", "plan"),
    Topic("test data", "which images were used, and how they can be identified again", "log"),
    Topic("test environment", "versions, device and arithmetic under which tests ran", "log"),
    Topic("test execution log", "what was executed, when, and whether it ended", "log"),
    Topic("test incident reports", "each distinct failure with how to reproduce it", "incidents"),
    Topic(
        "test completion report",
        "results with denominators and uncertainty, and what was left out",
        "completion",
    ),
)
PROFILES: Mapping[str, tuple[str, tuple[Topic, ...]]] = {
    "42119": (
        "ISO/IEC TS 42119-2:2025, testing of AI, overview of testing AI systems (applies the "
        "documents of the ISO/IEC/IEEE 29119 series)",
        (
            *_DOCUMENTS,
            Topic(
                "oracle",
                "how it is decided that an output is wrong, and how often that is wrong itself",
                "tool",
            ),
            Topic(
                "independence", "that what judges took no part in what it judges", "independence"
            ),
            Topic("requirements", "results held against the stated requirements", "requirements"),
        ),
    ),
    "8800": (
        "ISO/PAS 8800:2024, road vehicles, safety and artificial intelligence",
        (
            Topic(
                "safety requirements",
                "results held against the stated requirements of the AI element",
                "requirements",
            ),
            Topic(
                "verification and validation", "a plan, its execution and its results", "completion"
            ),
            Topic(
                "output insufficiencies",
                "each distinct group of confirmed wrong outputs that was found",
                "incidents",
            ),
            Topic(
                "data",
                "identity of the data on which the element was tested; not its quality",
                "log",
            ),
            Topic(
                "confidence in tools", "what the tools miss and what they report wrongly", "tool"
            ),
            Topic(
                "independence",
                "independence of what confirms from what is confirmed",
                "independence",
            ),
            Topic("after deployment", "measures and monitoring in the field", ""),
        ),
    ),
    "amlas": (
        "AMLAS, assurance of machine learning for use in autonomous systems",
        (
            Topic(
                "stage 1, scoping", "the system, its environment and the role of the component", ""
            ),
            Topic(
                "stage 2, requirements",
                "results held against the stated requirements",
                "requirements",
            ),
            Topic("stage 3, data management", "identity of the verification data", "log"),
            Topic(
                "stage 4, model learning", "identity of the model; not how it was developed", "plan"
            ),
            Topic("stage 5, verification", "verification plan, log and results", "completion"),
            Topic(
                "stage 5, erroneous behaviour", "each distinct failure that was found", "incidents"
            ),
            Topic(
                "stage 5, independence",
                "verification independent of development and search",
                "independence",
            ),
            Topic("stage 6, deployment", "integration and behaviour in operation", ""),
        ),
    ),
    "ai-act": (
        "Regulation (EU) 2024/1689, high-risk systems",
        (
            Topic(
                "Article 9, risk management: testing",
                "tests against metrics and thresholds that were set before",
                "requirements",
            ),
            Topic(
                "Article 10, data and data governance",
                "identity of the testing data; not its governance",
                "log",
            ),
            Topic(
                "Article 11 and Annex IV, technical documentation: testing",
                "procedures, data, metrics, logs and reports of these tests; not the whole file",
                "completion",
            ),
            Topic("Article 12, record-keeping", "logs of the system in operation", ""),
            Topic("Article 14, human oversight", "how people oversee the system", ""),
            Topic("Article 15, accuracy", "accuracy on the data that was tested", "completion"),
            Topic(
                "Article 15, robustness", "failures under changes that keep the label", "incidents"
            ),
            Topic("Article 15, cybersecurity", "resistance to attacks on the system", ""),
            Topic("trust in the tests", "errors of the tools that tested", "tool"),
        ),
    ),
}
"""Title and topics of each profile."""
