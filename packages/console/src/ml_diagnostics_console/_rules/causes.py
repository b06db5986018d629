"""The kind of the end of a process, from signals, exit codes and the texts of exceptions. Pure."""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from google_cloud_mldiagnostics.reading import State
from ml_diagnostics_common.raised_exception import RaisedException
from ml_diagnostics_common.story import CASCADE_TEXTS, Role, was_ended_by_fast_fail

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.host_memory import is_at_limit
from ml_diagnostics_console._rules.pod_reasons import was_container_out_of_memory

__all__ = [
    "Cause",
    "DiskFailure",
    "cause_of",
    "disk_failure",
    "exit_code_of",
    "fingerprint",
    "has_failed",
    "is_fallout",
    "is_gone",
    "left_by_failure",
    "left_with_code",
    "own_clock_ns",
    "signal_of",
    "titles",
]


class Cause(str, enum.Enum):
    """The kinds of ends, the ones with the strongest evidence first: of several at once, the first one leads."""

    MEMORY = "memory"
    NATIVE = "native"
    DEVICE_MEMORY = "device memory"
    DISK = "disk"
    ERROR = "error"
    EXIT = "exit"
    ASKED = "asked"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    LEFT = "left"
    SILENT = "silent"
    CASCADE = "cascade"


NATIVE_SIGNALS: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"})
_SIGNALS_OF_CODES: Final = {
    130: "SIGINT",
    132: "SIGILL",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    137: "SIGKILL",
    139: "SIGSEGV",
    143: "SIGTERM",
}
"""128 and the number of the signal, as shells and containers report it."""
_DEVICE_MEMORY: Final = re.compile(
    r"RESOURCE_EXHAUSTED.*(?:memory|alloc|\bhbm\b)|(?:CUDA|HIP|TPU|HBM).{0,40}out of memory|memory space hbm"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY",
    re.IGNORECASE,
)
"""XLA's, its allocators' and torch's texts."""
_OF_SERVICES: Final = re.compile(r"\bquota\b|\b429\b|message larger than", re.IGNORECASE)
"""RESOURCE_EXHAUSTED is also a code of gRPC and of Google's APIs, about rates and sizes of messages."""
_HOST_MEMORY: Final = re.compile(
    r"^\w*MemoryError\b|Cannot allocate memory|std::bad_alloc|Unable to allocate .+ for an array"
)
_ENDS_BY_ASKING: Final = re.compile(r"SIGTERM|preempt|terminat", re.IGNORECASE)
"""Exceptions that handlers of SIGTERM raise."""
_DISK_ERRORS: Final = frozenset(
    {
        errno.ENOSPC,
        getattr(errno, "EDQUOT", 122),
        errno.EFBIG,
        errno.EIO,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
    }
)
_ONLY_WITH_A_FILE: Final = frozenset({errno.EACCES, errno.EPERM})
"""They also are errors of sockets and of processes."""
_DISK_TEXTS: Final = (
    (re.compile(r"No space left on device|\d+ requested and \d+ written"), errno.ENOSPC),
    (re.compile(r"Disk quota exceeded"), getattr(errno, "EDQUOT", 122)),
    (re.compile(r"Read-only file system"), errno.EROFS),
    (re.compile(r"Input/output error"), errno.EIO),
)
"""Texts of libraries that write by themselves and raise without a number: numpy, TensorStore."""
_ERRNO_TEXT: Final = re.compile(r"\[Errno (\d{1,3})\]")
_FILE_TEXT: Final = re.compile(r"\[Errno \d{1,3}\] [^:']+: '([^']+)'")
_CASCADE: Final = re.compile("|".join(f"(?:{text.pattern})" for text in CASCADE_TEXTS), re.IGNORECASE)
_SYS_EXIT: Final = re.compile(r"sys\.exit\((\d{1,3})\)")
_ITS_OWN: Final = frozenset({"", "caused by", "in the group"})
"""Relations of exceptions that are a reason for the first one. One that was being handled may be unrelated."""


class DiskFailure(NamedTuple):
    """An error of a file system."""

    number: int
    path: str
    """Empty if it is not known."""


def cause_of(facts: Facts, process: ProcessFacts) -> Cause:
    """Return the kind of the end of a process."""
    end, signal = process.end, signal_of(process)
    if end.how == "out_of_memory":
        return Cause.MEMORY
    if process.role is Role.ASKED and not _failed_by_itself(facts, process):
        return Cause.ASKED
    if process.role is Role.CLEAN:
        return Cause.LEFT
    if process.role is Role.CASCADE:
        return Cause.CASCADE
    by_exception = _of_exception(process)
    if by_exception is not None:
        return by_exception
    if signal in NATIVE_SIGNALS:
        return Cause.NATIVE
    if not has_failed(process):
        if was_container_out_of_memory(facts, process):
            return Cause.MEMORY
        return Cause.KILLED if is_gone(process) else Cause.SILENT
    if signal == "SIGINT":
        return Cause.INTERRUPTED
    if signal or end.how == "killed_or_os_exit":
        is_memory = was_container_out_of_memory(facts, process) or (
            signal in ("SIGKILL", "") and is_at_limit(facts, process)
        )
        return Cause.MEMORY if is_memory else Cause.KILLED
    return Cause.EXIT


def is_gone(process: ProcessFacts) -> bool:
    """Return True if a process is known to have exited, and no end of it is recorded: by itself, or by a companion."""
    return process.state is State.FAILED and not process.has_ended and process.end.is_silent


def has_failed(process: ProcessFacts) -> bool:
    """Return True if it has ended by a failure, or has left its block by one and continues."""
    return process.has_ended or left_by_failure(process)


def signal_of(process: ProcessFacts) -> str:
    """Return the signal that ended a process, also if a shell reported it as an exit code; empty if none did."""
    return process.end.signal or _SIGNALS_OF_CODES.get(process.end.exit_code or 0, "")


def exit_code_of(process: ProcessFacts) -> int | None:
    """Return the exit code of a process, as the kernel or its own record of `sys.exit` has it; None without one."""
    if process.end.exit_code is not None:
        return process.end.exit_code
    match = _SYS_EXIT.search(process.end_message)
    return int(match.group(1)) if match else None


def is_fallout(process: ProcessFacts) -> bool:
    """Return True if fast-fail ended the process because of another one."""
    return was_ended_by_fast_fail(process.end_fields)


def own_clock_ns(facts: Facts, process: ProcessFacts, time_ns: int) -> int:
    """Return a time of the clock of the job, such as that of an end, on the clock of a process's host.

    Ends are corrected to one clock; all other times of a process are those of its host.
    """
    offsets = facts.attempt.clock_offsets_ns if facts.attempt is not None else {}
    return time_ns + offsets.get(process.host, 0)


def titles(process: ProcessFacts) -> tuple[str, ...]:
    """Return the exception of a process and its causes, as `ValueError: batch 12 is empty`; none for `sys.exit`."""
    own = tuple(raised.title for raised in _raised(process))
    return own or ((process.end.exception,) if process.end.exception and not _is_exit(process.end.exception) else ())


def disk_failure(process: ProcessFacts) -> DiskFailure | None:
    """Return the error of a file system that ended a process; None if another one did."""
    for raised in _raised(process):
        found = _disk_failure(raised.title, raised.number, raised.file)
        if found is not None:
            return found
    number, file = process.end_fields.get("errno"), process.end_fields.get("filename")
    text = process.end.exception
    return _disk_failure(text, number if isinstance(number, int) else None, str(file or "")) if text else None


def fingerprint(facts: Facts, process: ProcessFacts) -> tuple[str, str]:
    """Return what the same failure has in common in all attempts: its kind, and its text without numbers and paths."""
    cause = cause_of(facts, process)
    text = next(iter(titles(process)), "") or signal_of(process) or f"exit {exit_code_of(process)}"
    text = re.sub(r"0x[0-9a-fA-F]+|/[^\s'\",:]+", "#", text.replace(process.host, "#") if process.host else text)
    return cause.value, re.sub(r"\d+(?:\.\d+)?", "#", text)


def _raised(process: ProcessFacts) -> Iterator[RaisedException]:
    return (raised for raised in process.exception if raised.relation in _ITS_OWN and not _is_exit(raised.kind))


def _is_exit(text: str) -> bool:
    """Return True for `sys.exit`, which Python and our own hooks report as an exception."""
    return text.startswith(("SystemExit", "_NotedExit", "sys.exit"))


def _of_exception(process: ProcessFacts) -> Cause | None:
    """Return the kind of the exception that ended a process; None without one."""
    texts = titles(process)
    if not texts:
        return None
    for text in texts:
        if _DEVICE_MEMORY.search(text) and not _OF_SERVICES.search(text):
            on_cpu = process.hardware.get("accelerator_type") == "cpu"
            return Cause.MEMORY if on_cpu else Cause.DEVICE_MEMORY
        if _HOST_MEMORY.search(text):
            return Cause.MEMORY
    if disk_failure(process) is not None:
        return Cause.DISK
    return Cause.INTERRUPTED if texts[0].startswith("KeyboardInterrupt") else Cause.ERROR


def _disk_failure(text: str, number: int | None, file: str) -> DiskFailure | None:
    if number is None:
        match = _ERRNO_TEXT.search(text)
        number = int(match.group(1)) if match else None
    if number is None:
        number = next((number for pattern, number in _DISK_TEXTS if pattern.search(text)), None)
    in_text = _FILE_TEXT.search(text)
    path = file or (in_text.group(1) if in_text else "")
    if number is None or number not in _DISK_ERRORS or (number in _ONLY_WITH_A_FILE and not path):
        return None
    return DiskFailure(number, path)


def _failed_by_itself(facts: Facts, process: ProcessFacts) -> bool:
    """Return True if a process that received SIGTERM had an exception of its own before."""
    text = next(iter(titles(process)), "")
    if not text or _ENDS_BY_ASKING.search(text) or _CASCADE.search(text) or text.startswith("KeyboardInterrupt"):
        return False
    asked_ns = min((signal.time_ns for signal in process.signals if signal.name == "SIGTERM"), default=None)
    failed_ns = process.left_block_ns
    if failed_ns is None and process.end.ended_ns is not None:
        failed_ns = own_clock_ns(facts, process, process.end.ended_ns)
    return asked_ns is None or failed_ns is None or failed_ns < asked_ns


def left_by_failure(process: ProcessFacts) -> bool:
    """Return True if a process has left its block by a failure."""
    return process.left_block_ns is not None and bool(titles(process) or left_with_code(process))


def left_with_code(process: ProcessFacts) -> int | None:
    """Return the exit code with which a process left its block; None if it did not, or by an exception."""
    if process.left_block_ns is None or titles(process):
        return None
    code = process.end_fields.get("exit_code")
    if isinstance(code, int):
        return code
    return process.end.exit_code if process.end.exit_code not in (128 + 6, 128 + 9, 128 + 15) else None
