"""The heap of the server."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import threading
from ml_diagnostics_console._web.allocator import use_one_arena

use_one_arena()
gate = threading.Barrier(4)

def work():
    blocks = [bytearray(100_000) for _ in range(50)]
    gate.wait()
    del blocks

threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sizes = []
for line in open("/proc/self/maps"):
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    sizes.append((start % 2**26, end - start))
print(sum(start == 0 and size < 2**26 for start, size in sizes))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc has arenas")
def test_threads_have_no_heaps_of_their_own() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == 0  # A heap of a thread is at a multiple of 64 MiB.
