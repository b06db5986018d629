"""The hosts' clock, where it is not this machine's: that of a laptop may be wrong, those of the hosts agree."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xprofiler.capture.targets import Target
from xprofiler.exceptions import XprofilerError
from xprofiler.programs.processes import Process, Programs

__all__ = ["HostClock", "ahead_seconds", "read_host_clock"]

_PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class HostClock:
    """The time of a host, asked for and perhaps not known yet.

    Attributes:
        name: The host.
        programs: Where it is asked.
        process: What asks.
        asked: When that began, in seconds since 1970, by this machine.
    """

    name: str
    programs: Programs
    process: Process
    asked: float

    def ahead_seconds(self) -> float:
        """How far it is ahead of this machine's clock, at most; 0 where they may agree, or where it is not known."""
        try:
            told, _ = self.process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            told = b""
        finally:
            self.programs.end(self.process)
        return ahead_seconds(told, self.asked, time.time())


def read_host_clock(targets: Sequence[Target], programs: Programs) -> HostClock | None:
    """Asks the first host on which we may start programs for its time, while other things go on.

    Args:
        targets: The hosts; one alone has no moment to share.
        programs: Where what asks it runs.
    """
    ways = [(target.name, target.access) for target in targets if target.access is not None]
    if len(targets) < 2 or not ways:
        return None
    name, access = ways[0]
    asked = time.time()
    try:
        process = programs.start(access.execute(["date", "+%s"]), stderr=subprocess.DEVNULL)
    except XprofilerError:
        return None  # Whoever opens tunnels says why.
    return HostClock(name, programs, process, asked)


def ahead_seconds(told: bytes, asked: float, answered: float) -> float:
    """What `date +%s` says of a clock that was read at some time between two others.

    Args:
        told: Its output: whole seconds.
        asked: The earliest time that it can have been.
        answered: The latest.

    Returns:
        How far that clock is ahead, at most; 0 where it may be right.
    """
    words = told.split()
    if not words or not words[-1].isdigit():
        return 0.0
    second = int(words[-1])
    least, most = second - answered, second + 1 - asked
    return most if least > 0 or most < 0 else 0.0
