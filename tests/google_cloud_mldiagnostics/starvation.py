"""Measure how long an idle program waits for the processor, so that a test can subtract it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from types import TracebackType

# Sleep and compute in turns, until the other end closes the pipe. The time beyond the requested seconds
# is spent waiting: for the timer, and for a CPU in the middle of the computation.
_CONTROL = """
import select, sys, time
SLEEP_SECONDS, CPU_SECONDS = 0.1, 0.01
late_seconds = 0.0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    started, cpu_until = time.monotonic(), time.process_time() + CPU_SECONDS
    time.sleep(SLEEP_SECONDS)
    while time.process_time() < cpu_until:
        pass
    late_seconds += max(0.0, time.monotonic() - started - SLEEP_SECONDS - CPU_SECONDS)
print(late_seconds)
"""


class Starvation:
    """Measure, while the block runs, by how much a plain Python process beside it is late."""

    seconds = 0.0
    """Return the sum, after the block."""

    def __enter__(self) -> Starvation:
        self._control = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CONTROL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._control.stdout is not None
        assert self._control.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        output, _ = self._control.communicate(timeout=60)
        self.seconds = float(output)


def seconds_to_death(process: subprocess.Popen[str], number: int, timeout_seconds: float = 30.0) -> float:
    """Send a signal; return how long the process then lived, less what the machine kept it waiting.

    Not the time until its pipes are closed: a process that it has started may hold them for longer.
    """
    death = os.pidfd_open(process.pid)
    try:
        with Starvation() as starvation:
            started = time.monotonic()
            process.send_signal(number)
            is_dead = bool(select.select([death], [], [], timeout_seconds)[0])
            lived_seconds = time.monotonic() - started
    finally:
        os.close(death)
    if not is_dead:
        process.kill()
    assert is_dead, f"alive {timeout_seconds} s after signal {number}"
    return lived_seconds - starvation.seconds
