"""Freed memory stays with the process, where the C library can be told so."""

import subprocess
import sys

PROGRAM = """
from p2pswarm.node.serve import keep_freed_memory

kept = keep_freed_memory()

import resource

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

bytearray(16 << 20)
before = faults()
for _ in range(8):
    bytearray(16 << 20)
print(kept, faults() - before)
"""


def test_what_is_freed_is_taken_again_without_a_page_fault():
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)

    kept, faults = made.stdout.split()

    assert kept == b"False" or int(faults) < 100
