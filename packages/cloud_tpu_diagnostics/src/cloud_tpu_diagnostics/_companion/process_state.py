"""The state of a job that seems to be stuck, as the kernel shows it: twice, a second apart.

It separates stopped, asleep and computing processes without a question to them: `T` do_signal_stop is stopped, `S`
futex_do_wait waits for a lock, `S` anon_pipe_read for a pipe, `D` for a disk; `R` with CPU time computes
(https://www.kernel.org/doc/html/latest/filesystems/proc.html: stat, wchan, syscall).
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.processes import read_system_file, stat_fields

from cloud_tpu_diagnostics.entries import PROCESS_STATE, entry

__all__ = ["StateSamples"]

_APART_SECONDS: Final = 1.0
# Indexes into `stat_fields`.
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
_SENTENCES: Final = {
    "R": "runs, or wants to",
    "S": "is asleep",
    "D": "waits for a disk or a device, and cannot be interrupted",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended, and its parent has not noticed",
}


class _Sample(NamedTuple):
    state: str
    """The main thread's, as in /proc/PID/stat."""
    wait_channel: str
    """The function of the kernel that it waits in; empty if it runs, or the system does not show it."""
    system_call: str
    """The number of its system call, or `running`; empty if the system does not show it."""
    cpu_seconds: float
    """The CPU time of all threads."""
    main_thread_cpu_seconds: float


class StateSamples:
    """Two samples of one process. The first is taken at construction.

    Args:
        pid: The process.
        now: Monotonic seconds.
    """

    def __init__(self, pid: int, now: float) -> None:
        self._pid, self._started = pid, now
        self._first = _sample(pid)

    def entry(self, now: float) -> dict[str, Any] | None:
        """Return the entry once the second sample is due; None before.

        Args:
            now: Monotonic seconds.
        """
        seconds = now - self._started
        if seconds < _APART_SECONDS:
            return None
        samples = [sample for sample in (self._first, _sample(self._pid)) if sample is not None]
        if not samples:
            return entry(PROCESS_STATE, "The system does not show the state of the job", states=[])
        first, last = samples[0], samples[-1]
        cpu_seconds = round(last.cpu_seconds - first.cpu_seconds, 3)
        what = _SENTENCES.get(last.state, f"is in state {last.state}")
        waits = f" in {last.wait_channel}" if last.wait_channel else ""
        text = f"The main thread of the job {what}{waits}; the job used {cpu_seconds:.2f} s of CPU in {seconds:.1f} s"
        return entry(
            PROCESS_STATE,
            text,
            states=[sample.state for sample in samples],
            wait_channels=[sample.wait_channel for sample in samples],
            system_calls=[sample.system_call for sample in samples],
            seconds=round(seconds, 3),
            cpu_seconds=cpu_seconds,
            main_thread_cpu_seconds=round(last.main_thread_cpu_seconds - first.main_thread_cpu_seconds, 3),
        )


def _sample(pid: int) -> _Sample | None:
    """Return the present state of a process; None if it has ended."""
    try:
        process, main = stat_fields(pid), stat_fields(pid, pid)
        return _Sample(
            main[_STATE].decode(), _wait_channel(pid), _system_call(pid), _cpu_seconds(process), _cpu_seconds(main)
        )
    except (OSError, ValueError, IndexError):
        return None


def _cpu_seconds(fields: list[bytes]) -> float:
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")


def _wait_channel(pid: int) -> str:
    try:
        name = read_system_file(f"/proc/{pid}/wchan").decode().strip()
    except OSError:
        return ""
    return "" if name == "0" else name


def _system_call(pid: int) -> str:
    try:
        return read_system_file(f"/proc/{pid}/syscall").split()[0].decode()
    except (OSError, IndexError):  # It needs the right to trace the job, which some systems give to its parents only.
        return ""
