"""The judge of bars, trained once for the tests of a file."""

import pytest
from judged import quick_judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDCASE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield quick_judge()
