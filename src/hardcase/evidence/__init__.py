"""A folder for an assessor: what runs show for a list of topics, row by row, with files and their
hashes.

Every row is *shown*, *not shown* or *not applicable*, and says why. Whether a document is satisfied
is for the assessor to say; this room never says so.
"""

from __future__ import annotations

from hardcase.evidence.folder import EvidenceRow, write_evidence
from hardcase.evidence.profiles import PROFILES
from hardcase.evidence.requirements import Requirement, read_requirements

__all__ = ["PROFILES", "EvidenceRow", "Requirement", "read_requirements", "write_evidence"]
