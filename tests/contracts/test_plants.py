"""Every planted defect still finds the line that it spoils and the tests that must notice."""

import shlex

import pytest

from plant_defects import DEFECTS, ROOT


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_can_be_planted(defect):
    source = (ROOT / "src/hardcase" / defect.file).read_text()
    assert defect.right in source, f"{defect.file} no longer has the line that would be spoiled"
    assert source.replace(defect.right, defect.wrong) != source
    paths = [word for word in shlex.split(defect.tests) if word.startswith("tests/")]
    assert paths
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing, missing


def test_defects_have_names_of_their_own():
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names)
