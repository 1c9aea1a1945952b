"""Freed memory is kept: taking and giving back the same large block costs no new pages."""

import resource
import subprocess
import sys

import pytest

LOOP = """
import resource, sys

from hardcase.environment import keep_freed
if sys.argv[1] == "kept":
    assert keep_freed()
for _ in range(10):
    b"x" * (40 * 2**20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    b"x" * (40 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 20 * 40 * 2**20 // 4096
"""What twenty blocks of 40 MB take: beyond 32 MB, glibc hands every block back unless it is told otherwise."""


def faults(how):
    return int(subprocess.check_output([sys.executable, "-c", LOOP, how], text=True))


@pytest.mark.skipif(
    sys.platform != "linux" or resource.getpagesize() != 4096, reason="counts pages of Linux"
)
def test_freed_memory_is_kept():
    if faults("as it comes") < 0.9 * PAGES:
        pytest.skip("this system keeps large blocks, or gives larger pages, without being asked")
    assert faults("kept") < 0.5 * PAGES
