"""The judge of bars, trained once for the tests of a file."""

import pytest
from judged import cache_of, quick_judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with cache_of(tmp_path_factory):
        yield quick_judge()
