"""How a job ended: judged by what the kernel, the job itself, and what it wrote last tell. Pure."""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from cloud_tpu_diagnostics.entries import JOB_ENDED, entry
from cloud_tpu_diagnostics.signals import signal_name

__all__ = ["Ending", "How", "Note", "judge"]


class How(str, enum.Enum):
    """The kinds of ending."""

    CLEAN = "clean"
    """The block was left at its end, or the process exited with 0."""
    EXCEPTION = "exception"
    EXIT = "exit"
    """`sys.exit` or `os._exit`, with that code."""
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    """Killed by the kernel."""
    KILLED_OR_OS_EXIT = "killed_or_os_exit"
    """It ended without a word, and no more can be known."""


class Note(NamedTuple):
    """What the job said when it left the block."""

    how: str
    """clean or exception."""
    exception: str | None = None
    exit_code: int | None = None
    """Of a SystemExit."""

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Note:
        """Returns what a message of the job says."""
        return cls(str(message.get("how")), message.get("exception"), message.get("exit_code"))


class Ending(NamedTuple):
    """How a job ended, as well as it is known."""

    how: How
    evidence: str
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    goes_on: bool = False
    """It has left the block, and has not ended."""

    def payload(self) -> dict[str, Any]:
        """Returns it as an entry."""
        fields = self._asdict()
        return entry(JOB_ENDED, self.message(), **{**fields, "how": self.how.value, "goes_on": self.goes_on or None})

    def message(self) -> str:
        """Returns it for people."""
        if self.goes_on:
            how = {
                How.CLEAN: "well",
                How.EXCEPTION: f"with an exception ({self.exception})",
                How.EXIT: f"to exit with code {self.exit_code}",
            }[self.how]
            return f"The job left the block {how}, and goes on ({self.evidence})"
        what = {
            How.CLEAN: "The job ended well",
            How.EXCEPTION: f"The job ended with an exception: {self.exception}",
            How.EXIT: f"The job exited with code {self.exit_code}",
            How.SIGNAL: f"The job was ended by {self.signal}",
            How.OUT_OF_MEMORY: "The job was killed because memory ran out",
            How.KILLED_OR_OS_EXIT: "The job ended without a word: it was killed, or called os._exit",
        }[self.how]
        return f"{what} ({self.evidence})"


def judge(
    status: int | None, note: Note | None, *, fault: str | None, is_out_of_memory: bool, goes_on: bool = False
) -> Ending:
    """Tells how a job ended.

    Args:
        status: Its wait status; None if nobody knows it.
        note: What it said when it left the block; None if it did not.
        fault: The line `Fatal Python error: ...` that it wrote last, if it did.
        is_out_of_memory: Whether the kernel has just killed a process of its control group for want of memory.
        goes_on: Whether it lives; then there is a note.
    """
    if goes_on:
        return _by_hearsay(note or Note(How.CLEAN.value), None, is_out_of_memory=False)._replace(goes_on=True)
    if status is None:
        return _by_hearsay(note, fault, is_out_of_memory=is_out_of_memory)
    if os.WIFSIGNALED(status):
        return _by_signal(os.WTERMSIG(status), note, fault, is_out_of_memory=is_out_of_memory)
    code = os.WEXITSTATUS(status)
    evidence = "exit code from the kernel"
    if note is None:  # sys.exit would have been a note.
        return Ending(How.EXIT, f"{evidence}; the block was never left", code)
    if note.exception and note.exit_code is None and code:
        return Ending(How.EXCEPTION, f"{evidence}, exception from the job", code, exception=note.exception)
    return Ending(How.EXIT if code else How.CLEAN, evidence, code)


def _by_hearsay(note: Note | None, fault: str | None, *, is_out_of_memory: bool) -> Ending:
    """Return the ending of a job whose status the kernel does not show."""
    if note is not None:
        evidence = "reported by the job when it left the block"
        if note.exit_code is not None:
            return Ending(How.EXIT if note.exit_code else How.CLEAN, evidence, note.exit_code)
        if note.how == How.EXCEPTION.value:
            return Ending(How.EXCEPTION, evidence, exception=note.exception)
        return Ending(How.CLEAN, evidence)
    if fault is not None:
        return Ending(How.SIGNAL, f"it wrote: {fault}", signal=_SIGNALS.get(fault.partition(": ")[2], "SIGABRT"))
    if is_out_of_memory:
        return Ending(How.OUT_OF_MEMORY, "the count of oom_kill in its control group rose", signal="SIGKILL")
    return Ending(How.KILLED_OR_OS_EXIT, "nothing tells more: neither the kernel, nor the job, nor its last trace")


def _by_signal(number: int, note: Note | None, fault: str | None, *, is_out_of_memory: bool) -> Ending:
    evidence = "signal from the kernel"
    if is_out_of_memory and number == signal.SIGKILL:
        evidence += ", and the count of oom_kill in its control group rose"
        return Ending(How.OUT_OF_MEMORY, evidence, signal=signal_name(number))
    if fault:
        evidence += f"; it wrote: {fault}"
    return Ending(How.SIGNAL, evidence, signal=signal_name(number), exception=note.exception if note else None)


_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""By what faulthandler calls them."""
