"""The heap of the server."""

from __future__ import annotations

import subprocess
import sys

import pytest

_THREADS = """
import threading
from ml_diagnostics_console._web.allocator import keep_little

keep_little()
gate = threading.Barrier(4)

def work():
    blocks = [bytearray(100_000) for _ in range(50)]
    gate.wait()
    del blocks

threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
found, before = 0, (0, 0, "")
for line in open("/proc/self/maps"):
    addresses, access = line.split()[:2]
    start, end = (int(part, 16) for part in addresses.split("-"))
    if access == "---p" and end == before[0] + 2**26 and start == before[1] and before[2] == "rw-p":
        found += 1  # A heap of a thread: 64 MiB, of which the first part is in use.
    before = start, end, access
print(found)
"""


_ARRAYS = """
import os
from ml_diagnostics_console._web.allocator import keep_little

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keep_little()
behind = []
before = resident()
bytearray(30_000_000)  # From now on glibc would take arrays of this size into its heap.
for size in range(2_000_000, 20_000_000, 1_000_000):  # A column that grows, as values arrive between.
    array = bytearray(size)
    behind.append(bytearray(50_000))
    del array
print(resident() - before)
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has these settings")


def test_threads_have_no_heaps_of_their_own() -> None:
    assert _printed(_THREADS) == 0


def test_arrays_that_are_freed_leave_no_holes_in_the_heap() -> None:
    assert _printed(_ARRAYS) < 3_000_000


def _printed(script: str) -> int:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)
