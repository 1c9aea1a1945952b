"""Freed memory is kept: taking and giving back the same large block costs no new pages."""

import resource
import subprocess
import sys

import pytest

LOOP = """
import resource
import torch
from hardcase.memory import keep_freed
assert keep_freed()
for _ in range(3):
    blocks = [torch.ones(2**20) for _ in range(12)]
    del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks = [torch.ones(2**20) for _ in range(12)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


ROUNDS, BLOCKS, PAGES = 20, 12, 4 * 2**20 // 4096


@pytest.mark.skipif(sys.platform != "linux" or resource.getpagesize() != 4096, reason="counts pages of Linux")
def test_freed_memory_is_kept():
    """Handed back every time, the blocks would cost a fault for each of their pages in each round."""
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.01 * ROUNDS * BLOCKS * PAGES
