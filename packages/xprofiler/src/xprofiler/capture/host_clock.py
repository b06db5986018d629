"""The clock of the hosts: a laptop's clock may be wrong, while those of the hosts agree."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.command.errors import CommandError

from xprofiler.capture.targets import Target
from xprofiler.programs.processes import Process, Programs

__all__ = ["HostClock", "ahead_seconds", "read_host_clock"]

_PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class HostClock:
    """A running request for a host's time.

    Attributes:
        name: The host's name.
        programs: Runs the request.
        process: The process that requests the time.
        asked: When it was started, in seconds since 1970 by this machine's clock.
    """

    name: str
    programs: Programs
    process: Process
    asked: float

    def ahead_seconds(self) -> float:
        """Return how far the host's clock may be ahead at most; 0 if the clocks may agree, or if there is no answer."""
        try:
            output, _ = self.process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            output = b""
        finally:
            self.programs.end(self.process)
        return ahead_seconds(output, self.asked, time.time())


def read_host_clock(targets: Sequence[Target], programs: Programs) -> HostClock | None:
    """Request the time of the first host that we can run programs on; do not wait for the answer.

    Args:
        targets: The hosts. A single host needs no common start time, so the result is None.
        programs: Runs the request.
    """
    accesses = [(target.name, target.access) for target in targets if target.access is not None]
    if len(targets) < 2 or not accesses:
        return None
    name, access = accesses[0]
    asked = time.time()
    try:
        process = programs.start(access.execute(["date", "+%s"]), stderr=subprocess.DEVNULL)
    except CommandError:
        return None  # Opening the tunnel will fail too, and report the reason.
    return HostClock(name, programs, process, asked)


def ahead_seconds(output: bytes, asked: float, answered: float) -> float:
    """Return how far a clock is ahead, from the output of `date +%s` and the interval in which it ran.

    Args:
        output: The command's output, in whole seconds.
        asked: The earliest time at which it can have run, by this machine's clock.
        answered: The latest.

    Returns:
        The largest possible lead; 0 if the clocks may agree.
    """
    parts = output.split()
    if not parts or not parts[-1].isdigit():
        return 0.0
    second = int(parts[-1])
    least, most = second - answered, second + 1 - asked
    return most if least > 0 or most < 0 else 0.0
