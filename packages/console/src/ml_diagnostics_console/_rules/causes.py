"""What ended the process that failed first: the kind of its end, which is the same for all rules on crashes. Pure.

Each failure has one kind, and each kind one rule, so that no failure has verdicts of two rules.
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ml_diagnostics_common.raised_exception import RaisedException
from ml_diagnostics_common.story import CASCADE_TEXTS, Confidence, ProcessEnd, Role, story_of

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.host_memory import is_at_limit
from ml_diagnostics_console._rules.pod_reasons import was_container_out_of_memory

__all__ = [
    "Cause",
    "Lead",
    "cause_of",
    "disk_failure",
    "fingerprint",
    "has_failed",
    "is_fallout",
    "lead_of",
    "lead_of_attempt",
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


_OF_PROGRAMS: Final = frozenset({Cause.MEMORY, Cause.DEVICE_MEMORY, Cause.DISK, Cause.ERROR, Cause.EXIT})
"""Kinds that a program may have on all hosts alike."""
_FROM_OUTSIDE: Final = frozenset({Cause.KILLED, Cause.ASKED, Cause.INTERRUPTED})
_ORDER: Final = {cause: number for number, cause in enumerate(Cause)}
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
_DISK_ERRORS: Final = {
    errno.ENOSPC: "no space left",
    getattr(errno, "EDQUOT", 122): "its quota is used up",
    errno.EFBIG: "the file would be larger than the limit",
    errno.EIO: "input/output error",
    errno.EROFS: "it is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
}
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
_JAX_ABORTS: Final = re.compile(
    r"Terminating process because the JAX|CoordinationServiceAgent::SetError|Polled an error from coordination"
    r"|stopped sending heartbeats|detected fatal errors|Gloo \S+ failed|(?:closed|reset) by peer",
    re.IGNORECASE,
)
"""What a survivor prints before JAX aborts it (jaxlib 0.10: client.h, coordination_service_agent.cc, gloo's pair.cc).
The start of a healthy job also names Gloo and the coordination service."""
_LONGEST_TAIL: Final = 8_192
_ITS_OWN: Final = frozenset({"", "caused by", "in the group"})
"""Relations of exceptions that are a reason for the first one. One that was being handled may be unrelated."""


class Lead(NamedTuple):
    """The processes that failed first.

    Attributes:
        cause: The kind of their ends.
        processes: Those with this kind of end, the earliest first.
        others: Those that ended at about the same time by another kind.
        confidence: The certainty that they were the first.
        is_whole_job: True if all processes were ended from outside at once.
        is_common: True if most processes failed by the same error: it is one cause without a host.
    """

    cause: Cause
    processes: tuple[ProcessFacts, ...]
    others: tuple[ProcessFacts, ...] = ()
    confidence: Confidence = Confidence.PROVEN
    is_whole_job: bool = False
    is_common: bool = False

    @property
    def process(self) -> ProcessFacts:
        """The earliest one."""
        return self.processes[0]


class DiskFailure(NamedTuple):
    """An error of a file system."""

    number: int
    reason: str
    path: str
    """Empty if it is not known."""


def lead_of(facts: Facts) -> Lead | None:
    """Return the processes that failed first in the attempt that is judged; None if none has failed."""
    attempt = facts.attempt
    return None if attempt is None else lead_of_attempt(facts, attempt)


def lead_of_attempt(facts: Facts, attempt: AttemptFacts) -> Lead | None:
    """Return the processes of one attempt that failed first; None if none has failed."""
    processes, first, confidence = _first_of(attempt)
    if not first or confidence is None:
        return _ended_as_a_whole(attempt)
    causes = [cause_of(facts, process) for process in first]
    if all(cause is Cause.CASCADE for cause in causes):
        aborted = _aborted_alone(attempt)
        if not aborted:
            return Lead(Cause.CASCADE, first, (), Confidence.POSSIBLE)
        is_printed = all(_end_of_console(process) for process in aborted)
        return Lead(Cause.NATIVE, aborted, (), Confidence.LIKELY if is_printed else Confidence.POSSIBLE)
    asked = causes.count(Cause.ASKED)
    leading = Cause.ASKED if asked * 2 > len(causes) else min(causes, key=_ORDER.__getitem__)
    pairs = list(zip(first, causes, strict=True))
    found = sorted((process for process, cause in pairs if cause is leading), key=_time_ns)
    others = tuple(process for process, cause in pairs if cause is not leading)
    common = _with_the_same_error(facts, processes, found[0]) if leading in _OF_PROGRAMS else ()
    if common:
        return Lead(leading, common, is_common=True)
    if leading in _FROM_OUTSIDE and all(_was_stuck(attempt, process) for process in found):
        return None
    return Lead(leading, tuple(found), others, confidence)


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
        return Cause.SILENT
    if signal == "SIGINT":
        return Cause.INTERRUPTED
    if signal or end.how == "killed_or_os_exit":
        is_memory = was_container_out_of_memory(facts, process) or (
            signal in ("SIGKILL", "") and is_at_limit(facts, process)
        )
        return Cause.MEMORY if is_memory else Cause.KILLED
    return Cause.EXIT


def has_failed(process: ProcessFacts) -> bool:
    """Return True if it has ended by a failure, or has left its block by one and continues."""
    return process.has_ended or _left_by_failure(process)


def signal_of(process: ProcessFacts) -> str:
    """Return the signal that ended a process, also if a shell reported it as an exit code; empty if none did."""
    return process.end.signal or _SIGNALS_OF_CODES.get(process.end.exit_code or 0, "")


def is_fallout(process: ProcessFacts) -> bool:
    """Return True if fast-fail ended the process because of another one."""
    return process.end_fields.get("ended_by") == "fast_fail" and process.end_fields.get("is_first_cause") is not True


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
    text = next(iter(titles(process)), "") or signal_of(process) or f"exit {process.end.exit_code}"
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
    return DiskFailure(number, _DISK_ERRORS[number], path)


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


def _left_by_failure(process: ProcessFacts) -> bool:
    """Return True if a process has left its block by a failure."""
    return process.left_block_ns is not None and bool(titles(process) or _left_with_code(process))


def _left_with_code(process: ProcessFacts) -> int | None:
    """Return the exit code with which a process left its block; None if it did not, or by an exception."""
    if process.left_block_ns is None or titles(process):
        return None
    code = process.end_fields.get("exit_code")
    if isinstance(code, int):
        return code
    return process.end.exit_code if process.end.exit_code not in (128 + 6, 128 + 9, 128 + 15) else None


_First = tuple["tuple[ProcessFacts, ...]", "tuple[ProcessFacts, ...]", "Confidence | None"]


def _first_of(attempt: AttemptFacts) -> _First:
    """Return the processes of an attempt with their roles, those that are the first cause, and its certainty.

    The story of the attempt knows ends alone. A process that has left its block by a failure has failed, though it
    waits for the others, and though JAX aborts it later; one that left well has left, whatever JAX does to it later;
    and one that fast-fail has ended did not fail by itself, whatever its exit code.
    """
    left_well = sum(_left_with_code(process) == 0 for process in attempt.processes)
    may_have_left = 2 * left_well <= len(attempt.processes)  # Where most have left, they just were earlier.
    ends = [_end_for_story(attempt, process, may_have_left=may_have_left) for process in attempt.processes]
    if all(end is process.end for end, process in zip(ends, attempt.processes, strict=True)):
        return attempt.processes, attempt.first, attempt.story.confidence
    story = story_of(ends, clocks_ns=attempt.clock_uncertainty_ns)
    processes = tuple(
        replace(process, end=end, role=role, is_first_cause=index in story.first)
        for index, (process, end, role) in enumerate(zip(attempt.processes, ends, story.roles, strict=True))
    )
    first = (processes[index] for index in story.first)
    return processes, tuple(process for process in first if not is_fallout(process)), story.confidence


def _end_for_story(attempt: AttemptFacts, process: ProcessFacts, *, may_have_left: bool) -> ProcessEnd:
    end = process.end
    if is_fallout(process):
        return ProcessEnd("signal", end.ended_ns, signal="SIGABRT", host=process.host)
    if process.left_block_ns is None:
        return end
    left_ns = process.left_block_ns - attempt.clock_offsets_ns.get(process.host, 0)
    failed_ns = left_ns if end.ended_ns is None else min(left_ns, end.ended_ns)
    if titles(process):
        return end if process.has_ended else end._replace(how="exception", ended_ns=failed_ns)
    code = _left_with_code(process)
    is_later = not process.has_ended or signal_of(process) in ("SIGABRT", "SIGKILL", "SIGTERM")
    if code and (is_later or end.how == "exception"):
        return end._replace(how="exit", exit_code=code, signal="", exception="", ended_ns=failed_ns)
    if code == 0 and process.has_ended and is_later and may_have_left:
        return end._replace(how="clean", exit_code=0, signal="", exception="", ended_ns=failed_ns)
    return end


def _was_stuck(attempt: AttemptFacts, process: ProcessFacts) -> bool:
    """Return True if the job had been stuck when a process was ended from outside: it was ended because of that.

    Its last progress is older than a timeout after which a companion of the job reported a hang. The timeouts are
    learned from the steps of the job, so no healthy step lasts that long. Only durations are compared, no clocks.
    """
    timeouts = [hang.timeout_seconds for each in attempt.processes for hang in each.hangs if hang.timeout_seconds > 0]
    age = process.end_fields.get("progress_age_seconds")
    return bool(timeouts) and isinstance(age, (int, float)) and age >= min(timeouts)


def _with_the_same_error(
    facts: Facts, processes: Sequence[ProcessFacts], first: ProcessFacts
) -> tuple[ProcessFacts, ...]:
    """Return all processes that failed by themselves, if they are the most of several, and all by the same error."""
    own = [process for process in processes if process.role is Role.OWN]
    if len(own) < 2 or 2 * len(own) <= len(processes):
        return ()
    expected = fingerprint(facts, first)
    return tuple(sorted(own, key=_time_ns)) if all(fingerprint(facts, each) == expected for each in own) else ()


def _time_ns(process: ProcessFacts) -> int:
    return process.end.ended_ns or 0


def _ended_as_a_whole(attempt: AttemptFacts) -> Lead | None:
    """Return all processes, if all were ended from outside at once while the job was not stuck."""
    processes = attempt.processes
    is_whole = bool(processes) and all(
        process.role is Role.TEARDOWN and not process.end.was_stuck and not is_fallout(process) for process in processes
    )
    if not is_whole:
        return None
    asked = any(process.end.was_asked or signal_of(process) == "SIGTERM" for process in processes)
    in_order = sorted(processes, key=_time_ns)
    return Lead(Cause.ASKED if asked else Cause.KILLED, tuple(in_order), is_whole_job=True)


def _aborted_alone(attempt: AttemptFacts) -> tuple[ProcessFacts, ...]:
    """Return the processes that aborted and report no lost process, where the others report one."""
    cascade = [process for process in attempt.processes if process.role is Role.CASCADE]
    silent = [process for process in cascade if signal_of(process) == "SIGABRT" and not titles(process)]
    if len(silent) * 2 > len(cascade):
        return ()
    return tuple(process for process in silent if not _JAX_ABORTS.search(_end_of_console(process)))


def _end_of_console(process: ProcessFacts) -> str:
    """Return the last lines of a process before its end; empty if they were not recorded."""
    return "\n".join(text.text[-_LONGEST_TAIL:] for text in process.console if text.occasion == "end")
