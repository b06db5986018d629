"""Other processes of this host: whether one runs, since when, and which signals it handles.

Sidecars that must start fast import this, so it imports nothing heavy, not even `pathlib`.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable

__all__ = [
    "exists",
    "handled_signals",
    "has_ended",
    "pid_namespace",
    "process_descriptor",
    "process_started_ns",
    "read_system_file",
    "start_mark",
    "stat_fields",
    "wait_readable",
]

_MOST_BYTES = 65_536
_ENDED_STATES = (b"Z", b"X")
# Indexes into `stat_fields`; proc(5) counts from 1, and the first two fields are not in the list.
_STATE, _START = 0, 19


def wait_readable(descriptors: Iterable[int | None], timeout_seconds: float | None) -> set[int]:
    """Wait until one of these descriptors is readable, or its other end is closed.

    Args:
        descriptors: None is left out.
        timeout_seconds: None waits without a limit.

    Returns:
        The descriptors that are; empty after the timeout.
    """
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    timeout = None if timeout_seconds is None else 1e3 * max(0.0, timeout_seconds)
    return {descriptor for descriptor, _ in poller.poll(timeout)}


def process_descriptor(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None where the system has none."""
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        return None


def exists(pid: int) -> bool:
    """Return True if a process has this number; it may have ended and wait to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It belongs to another user.
        pass
    return True


def has_ended(pid: int) -> bool:
    """Return True if a process has ended, reaped or not; without process descriptors, only once it is reaped."""
    descriptor = process_descriptor(pid)
    if descriptor is None:
        return not exists(pid)
    try:
        return bool(wait_readable([descriptor], 0))
    finally:
        os.close(descriptor)


def process_started_ns(pid: int) -> int | None:
    """Return when a process started, by the wall clock: distinguishes a process from a later one with the same pid.

    Whole seconds; 0 where the system does not know it; None if there is no such process, or it waits to be reaped.
    """
    try:
        ticks = _start_ticks(pid)
        if ticks is None:
            return None
        lines = read_system_file("/proc/stat", 2**20).splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith(b"btime"))
        return (boot + ticks // os.sysconf("SC_CLK_TCK")) * 1_000_000_000
    except (FileNotFoundError, ProcessLookupError):
        return None if os.path.exists("/proc/self") or not exists(pid) else 0  # noqa: PTH110
    except (OSError, ValueError, IndexError, StopIteration):
        return 0 if exists(pid) else None


def start_mark(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since boot.

    Empty where the system does not know it, or the process has ended. It costs one small file.
    """
    try:
        ticks = _start_ticks(pid)
    except (OSError, IndexError, ValueError):
        return ""
    return "" if ticks is None else str(ticks)


def _start_ticks(pid: int) -> int | None:
    """Return the kernel's ticks from its boot to the process's start; None for a process that has ended.

    A parent that is slow to ask for its status keeps it listed.

    Raises:
        OSError: There is no such process, or no /proc.
        IndexError, ValueError: The file has another form.
    """
    fields = stat_fields(pid)
    return None if fields[_STATE] in _ENDED_STATES else int(fields[_START])


def stat_fields(pid: int, thread: int | None = None) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on: the state, the parent, ... (proc_pid_stat(5)).

    Args:
        pid: The process.
        thread: One of its threads, by the number that the kernel gives it: that of the main thread is `pid`.

    Raises:
        OSError: There is no such process, or no /proc.
    """
    # The name, in brackets before the other fields, may contain anything.
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    return read_system_file(path).rpartition(b")")[2].split()


def handled_signals(pid: int | None = None) -> frozenset[int]:
    """Return the signals that a process has handlers for, those of C libraries too: SigCgt of /proc/PID/status.

    Args:
        pid: The process; None is this one.

    Raises:
        OSError, ValueError: The system does not show them.
    """
    digits = read_system_file(f"/proc/{pid or 'self'}/status").partition(b"SigCgt:")[2].split(None, 1)
    mask = int(digits[0], 16) if digits else 0
    return frozenset(number for number in range(1, mask.bit_length() + 1) if mask >> (number - 1) & 1)


def pid_namespace() -> str:
    """Return an id of the process numbers that this process sees: those of one boot, in one container.

    Without dashes; "0" where the system does not know it.
    """
    try:
        boot = read_system_file("/proc/sys/kernel/random/boot_id")[:8].decode()
        return f"{boot}{os.stat('/proc/self/ns/pid').st_ino:x}"  # noqa: PTH116
    except OSError:
        return "0"


def read_system_file(path: str, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the content of a file in /proc or /sys.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)
