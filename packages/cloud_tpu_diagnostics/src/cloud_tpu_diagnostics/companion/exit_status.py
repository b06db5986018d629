"""The exact status with which another process has ended, where the kernel tells it to others than the parent.

Since Linux 6.15 a process descriptor does, once the process is reaped: `struct pidfd_info` and `PIDFD_GET_INFO` in
include/uapi/linux/pidfd.h. Before that, /proc/PID/stat does for as long as the process waits to be reaped.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time

from cloud_tpu_diagnostics.companion.system_files import read_system_file

__all__ = ["exit_status"]

# mask, cgroupid; pid, tgid, ppid and eight ids of users and groups; exit_code.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3
_LONGEST_WAIT_SECONDS = 1.0
"""For the parent to reap it: shells and launchers do so within milliseconds."""


def exit_status(pid: int, descriptor: int) -> int | None:
    """Returns the wait status of a process that has just ended, as `os.waitpid` would; None if nothing tells it.

    Args:
        pid: The process.
        descriptor: Of the process, opened while it lived.
    """
    status = _status_of_zombie(pid)
    if status is not None:
        return status
    deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
    poller = select.poll()
    poller.register(descriptor, 0)
    while not poller.poll(0) and time.monotonic() < deadline:  # POLLHUP comes once it is reaped.
        time.sleep(0.01)
    return _status_of_reaped(descriptor)


def _status_of_reaped(descriptor: int) -> int | None:
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _INFO_EXIT, *(0,) * 13)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None  # An older kernel.
    mask, *_, code = _PIDFD_INFO.unpack(info)
    return code if mask & _INFO_EXIT else None


def _status_of_zombie(pid: int) -> int | None:
    """Field 52 of its stat; the kernel says 0 to those who may not know, so that only another value tells something."""
    try:
        fields = read_system_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        status = int(fields[49])
        # /proc/PID/mem is gone with the memory; whether we may see the code is asked as for our own processes.
        may_know = os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116
        return status if fields[0] == b"Z" and may_know and status else None
    except (OSError, ValueError, IndexError):
        return None
