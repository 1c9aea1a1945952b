"""The table of pretrained networks: every row pinned, buildable, and honest about its licence."""

import re
import subprocess
import sys

import pytest

from hardcase.models.load import lineage_of
from hardcase.models.pretrained import PRETRAINED
from hardcase.models.witnesses import roles


@pytest.mark.parametrize("row", PRETRAINED.values(), ids=PRETRAINED.keys())
def test_every_row_is_pinned_and_says_its_licence(row):
    assert re.fullmatch(r"[0-9a-f]{64}", row.package.sha256)
    assert row.package.files
    assert row.licence
    assert row.licensed is (not row.licence.startswith("none stated"))
    assert len(row.mean) == len(row.std) == 3


LITE = ["efficientnet-lite0", "efficientnet-lite2"]


@pytest.mark.parametrize(
    ("subject", "present", "judge", "note"),
    [
        ("model.py:mine", ["efficientnet-lite2"], "efficientnet-lite2", "no other network"),
        ("zoo:efficientnet-lite0", ["efficientnet-lite1"], "", "fetch model resnet50-imagenet"),
        ("zoo:resnet50-imagenet", LITE, "efficientnet-lite0", "no other network"),
    ],
    ids=["one network judges", "a sibling alone does not", "the judge's model family is left out"],
)
def test_where_there_is_no_witness(subject, present, judge, note):
    found = roles(subject, present)
    assert (found.judge, found.witnesses) == (judge, ())
    assert note in found.note


def test_importing_the_catalogue_imports_no_torch():
    code = "import sys; from hardcase.models.pretrained import PRETRAINED; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_judge_is_of_another_lineage_than_subject_and_witnesses():
    every = [name for name, row in PRETRAINED.items() if row.accuracy is not None]
    found = roles("zoo:efficientnet-lite0", every)
    assert found.judge == "resnet50-imagenet"
    siblings = ("efficientnet-lite1", "efficientnet-lite2")
    assert found.witnesses == ("mobilenetv2-imagenet", *siblings)
    assert "own lineage" in found.note
    assert roles("model.py:mine", ["lpips-alexnet"]).judge == ""
    assert lineage_of("lpips-alexnet") == "torchvision-alexnet"
    assert lineage_of("model.py:mine") == ""
