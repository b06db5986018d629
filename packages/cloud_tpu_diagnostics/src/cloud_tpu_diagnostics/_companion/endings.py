"""The exit reason of a job: by its exit status, the kernel's count of kills, the job's own note and what it wrote last.

The kernel shows the exit status to processes other than the parent since Linux 6.15: once the process is reaped, its
process descriptor has it (`struct pidfd_info` and `PIDFD_GET_INFO` in include/uapi/linux/pidfd.h). Before that,
/proc/PID/stat has it for as long as the process waits to be reaped.

Kills for want of memory: version 2 of control groups counts them as `oom_kill` in memory.events, version 1 in
memory.oom_control (https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html).
"""

from __future__ import annotations

import enum
import os
import select
import signal
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ml_diagnostics_common.processes import read_system_file, stat_fields

from cloud_tpu_diagnostics._signals import signal_name
from cloud_tpu_diagnostics.entries import entry

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

__all__ = [
    "OUT_OF_MEMORY_SECONDS",
    "Ending",
    "ExitReason",
    "Note",
    "OutOfMemoryKills",
    "ending_of",
    "exit_status",
    "failure_fields",
    "left_block",
    "progress_fields",
]

OUT_OF_MEMORY_SECONDS = 60.0
"""A process that the kernel kills for want of memory may take so long to end."""

# mask, cgroupid; pid, tgid, ppid and eight ids of users and groups; exit_code.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3
_CONTROL_GROUPS = "/sys/fs/cgroup"
# Indexes into `stat_fields`.
_STATE, _EXIT_STATUS = 0, 49


class ExitReason(str, enum.Enum):
    """Why a job has ended."""

    CLEAN = "clean"
    """The block was left at its end, or the process exited with 0."""
    EXCEPTION = "exception"
    EXIT = "exit"
    """`sys.exit` or `os._exit`, with that code."""
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    """Killed by the kernel."""
    KILLED_OR_OS_EXIT = "killed_or_os_exit"
    """It exited without recording its end, and no more can be known."""


class Note(NamedTuple):
    """The job's note when it left the block."""

    how: str
    """clean or exception."""
    exception: str | None = None
    exit_code: int | None = None
    """The exit code of a SystemExit."""

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Note:
        """Return the note in a message of the job."""
        return cls(str(message.get("how")), message.get("exception"), message.get("exit_code"))


class Ending(NamedTuple):
    """The exit reason of a job, or how it left the block, as far as it is known, and what shows it."""

    reason: ExitReason
    evidence: str
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    sentence: str = ""

    def payload(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return it as an entry.

        Args:
            kind: JOB_ENDED or LEFT_BLOCK.
            fields: The further fields of the kind.
        """
        own = self._asdict()
        del own["sentence"]
        return entry(kind, self.message(), how=own.pop("reason").value, **own, **fields)

    def message(self) -> str:
        """Return it as a sentence."""
        return f"{self.sentence or self._sentence()} ({self.evidence})"

    def _sentence(self) -> str:
        return {
            ExitReason.CLEAN: "The job ended well",
            ExitReason.EXCEPTION: f"The job ended with an exception: {self.exception}",
            ExitReason.EXIT: f"The job exited with code {self.exit_code}",
            ExitReason.SIGNAL: f"The job was ended by {self.signal}",
            ExitReason.OUT_OF_MEMORY: "The job was killed because memory ran out",
            ExitReason.KILLED_OR_OS_EXIT: "The job exited without recording its end: it was killed, or called os._exit",
        }[self.reason]


def left_block(note: Note, *, is_alive: bool) -> Ending:
    """Return how a job left its block.

    Args:
        note: Its note.
        is_alive: True if it continues.
    """
    left = _without_status(note, None, is_out_of_memory=False)
    how = {
        ExitReason.CLEAN: "well",
        ExitReason.EXCEPTION: f"with an exception ({left.exception})",
        ExitReason.EXIT: f"to exit with code {left.exit_code}",
    }[left.reason]
    return left._replace(sentence=f"The job left the block {how}{', and continues' if is_alive else ''}")


def ending_of(status: int | None, note: Note | None, *, fault: str | None, is_out_of_memory: bool) -> Ending:
    """Return the exit reason of a job that has ended.

    Args:
        status: Its wait status; None if it is unknown.
        note: Its note when it left the block; None if it did not.
        fault: The line `Fatal Python error: ...` that it wrote last, if it did.
        is_out_of_memory: True if the kernel has just killed a process of its control group for want of memory.
    """
    if status is None:
        return _without_status(note, fault, is_out_of_memory=is_out_of_memory)
    if os.WIFSIGNALED(status):
        return _by_signal(os.WTERMSIG(status), note, fault, is_out_of_memory=is_out_of_memory)
    code = os.WEXITSTATUS(status)
    evidence = "exit code from the kernel"
    if note is None:  # sys.exit would have been a note.
        return Ending(ExitReason.EXIT, f"{evidence}; the block was never left", code)
    if note.exception and note.exit_code is None and code:
        return Ending(ExitReason.EXCEPTION, f"{evidence}, exception from the job", code, exception=note.exception)
    return Ending(ExitReason.EXIT if code else ExitReason.CLEAN, evidence, code)


def progress_fields(progress: Progress | None, now_ns: int) -> dict[str, Any]:
    """Return the phase and step that a job was in last, and for how long, as fields of an entry.

    Args:
        progress: Its last progress; None if it has published none.
        now_ns: The time of its end, on the monotonic clock.
    """
    if progress is None:
        return {}
    age_seconds = round(max(0, now_ns - progress.monotonic_ns) / 1e9, 3)
    return {"phase": progress.phase, "step": progress.step, "progress_age_seconds": age_seconds}


def failure_fields(failure: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the exception that left the block; waits a moment for the file systems that it is about.

    They are asked here: one that does not answer must not keep the job.

    Args:
        failure: The `failure` of the job's message: `fields` and `paths`.
    """
    fields = dict(failure.get("fields") or {})
    if paths := failure.get("paths"):
        from ml_diagnostics_common.file_systems import FileSystemProbes

        if answers := FileSystemProbes(paths).answers():
            fields["file_systems"] = [each.to_json() for each in answers]
    return fields


def _without_status(note: Note | None, fault: str | None, *, is_out_of_memory: bool) -> Ending:
    """Return the exit reason of a job if the kernel does not show its status."""
    if note is not None:
        evidence = "reported by the job when it left the block"
        if note.exit_code is not None:
            return Ending(ExitReason.EXIT if note.exit_code else ExitReason.CLEAN, evidence, note.exit_code)
        if note.how == ExitReason.EXCEPTION.value:
            return Ending(ExitReason.EXCEPTION, evidence, exception=note.exception)
        return Ending(ExitReason.CLEAN, evidence)
    if fault is not None:
        return Ending(ExitReason.SIGNAL, f"it wrote: {fault}", signal=_SIGNALS.get(fault.partition(": ")[2], "SIGABRT"))
    if is_out_of_memory:
        return Ending(ExitReason.OUT_OF_MEMORY, "the count of oom_kill in its control group rose", signal="SIGKILL")
    return Ending(ExitReason.KILLED_OR_OS_EXIT, "neither the kernel, nor the job, nor its last trace has the reason")


def _by_signal(number: int, note: Note | None, fault: str | None, *, is_out_of_memory: bool) -> Ending:
    evidence = "signal from the kernel"
    if is_out_of_memory and number == signal.SIGKILL:
        evidence += ", and the count of oom_kill in its control group rose"
        return Ending(ExitReason.OUT_OF_MEMORY, evidence, signal=signal_name(number))
    if fault:
        evidence += f"; it wrote: {fault}"
    return Ending(ExitReason.SIGNAL, evidence, signal=signal_name(number), exception=note.exception if note else None)


_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""The names of signals by faulthandler's names of them."""


def exit_status(pid: int, descriptor: int | None, *, reaping_seconds: float = 1.0) -> int | None:
    """Return the wait status of a process that has just ended, as `os.waitpid` would; None if the kernel hides it.

    Args:
        pid: The process.
        descriptor: Its process descriptor, opened while it lived; None where the system has none.
        reaping_seconds: How long to wait for the parent to reap it: shells and launchers do so within milliseconds.
    """
    if descriptor is None:
        return None
    status = _status_of_zombie(pid)
    if status is not None:
        return status
    deadline = time.monotonic() + reaping_seconds
    poller = select.poll()
    poller.register(descriptor, 0)
    while not poller.poll(0) and time.monotonic() < deadline:  # POLLHUP is set once it is reaped.
        time.sleep(0.01)
    return _status_of_reaped(descriptor)


def _status_of_reaped(descriptor: int) -> int | None:
    import fcntl  # Not in Windows, where `python -m cloud_tpu_diagnostics` is to report that by itself.

    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, _INFO_EXIT, *(0,) * 13)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None  # An older kernel.
    mask, *_, code = _PIDFD_INFO.unpack(info)
    return code if mask & _INFO_EXIT else None


def _status_of_zombie(pid: int) -> int | None:
    """Return the exit status of /proc/PID/stat; the kernel shows 0 to processes that may not see it."""
    try:
        fields = stat_fields(pid)
        status = int(fields[_EXIT_STATUS])
        # /proc/PID/mem is gone with the memory; the right to see the code is checked as for our own processes.
        may_know = os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116
        return status if fields[_STATE] == b"Z" and may_know and status else None
    except (OSError, ValueError, IndexError):
        return None


class OutOfMemoryKills:
    """Counts the kernel's kills for want of memory in the control group of a process, and the time of the last one.

    Args:
        pid: The process.
        root: The folder where control groups are mounted.
        proc: The folder of processes.
    """

    def __init__(self, pid: int, *, root: str = _CONTROL_GROUPS, proc: str = "/proc") -> None:
        self._file = next((file for file in _files(pid, root, proc) if _count(file) is not None), None)
        self._last = _count(self._file)
        self._last_kill = -float("inf")

    def check(self, now: float) -> None:
        """Read the count.

        Args:
            now: Monotonic seconds.
        """
        count = _count(self._file)
        if count is not None and self._last is not None and count > self._last:
            self._last_kill = now
        self._last = count

    def is_recent(self, now: float) -> bool:
        """Return True if one was counted within the time that a process may take to end after it."""
        return now - self._last_kill <= OUT_OF_MEMORY_SECONDS


def _files(pid: int, root: str, proc: str) -> Iterator[str]:
    """Yield the files that may have the count; in a container the mounted folder is often the root of the group."""
    try:
        lines = read_system_file(f"{proc}/{pid}/cgroup").decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            for mounted in (root, f"{root}/unified"):
                yield f"{mounted}{path}/memory.events"
                yield f"{mounted}/memory.events"
        elif "memory" in controllers.split(","):
            yield f"{root}/memory{path}/memory.oom_control"
            yield f"{root}/memory/memory.oom_control"


def _count(file: str | None) -> int | None:
    if file is None:
        return None
    try:
        for line in read_system_file(file).decode("ascii", "replace").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
