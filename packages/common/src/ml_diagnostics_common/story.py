"""The ends of all processes of one attempt: the role of each, and the first cause.

Timestamps alone do not show it. The survivors of a killed process fail within milliseconds, on clocks of their own and
often before the end of the killed one is recorded: ordered by time, the culprit was first in 66 of 160 cases with
clocks up to a minute apart. So an end of a process's own, and one that was asked for, count before any end that
another process can cause. Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "CASCADE_TEXTS",
    "CASCADE_VERSION",
    "TOGETHER_SECONDS",
    "CascadeText",
    "Confidence",
    "ProcessEnd",
    "Role",
    "Story",
    "recorded_end",
    "story_of",
    "was_ended_by_fast_fail",
]


class Role(str, enum.Enum):
    """The part that the end of a process has in the end of its attempt."""

    OWN = "own"
    """It failed by itself."""
    ASKED = "asked"
    """It was asked to end: SIGTERM, as at a preemption."""
    CASCADE = "cascade"
    """It failed because another process was gone."""
    TEARDOWN = "teardown"
    """It was ended since the job had failed, or with all others at once."""
    CLEAN = "clean"
    """It ended well."""
    NONE = "none"
    """No end is known."""


class Confidence(str, enum.Enum):
    """The certainty of a first cause."""

    PROVEN = "proven"
    """The kernel, the control group or the interpreter reports it."""
    LIKELY = "likely"
    POSSIBLE = "possible"


class CascadeText(NamedTuple):
    """A text with which a process reports that another one is gone."""

    pattern: str
    """A regular expression, for any case."""
    source: str
    """The program that writes it."""


CASCADE_VERSION: Final = 1
CASCADE_TEXTS: Final = (
    CascadeText(r"\bgloo\b", "the CPU collectives of JAX and PyTorch, with `reset by peer` or `timed out`"),
    CascadeText(r"connection (?:reset|closed) by peer|socket closed|broken pipe", "gRPC and TCP stores of a job"),
    CascadeText(r"coordination (?:service|agent)|CoordinationService", "tsl/coordination: a task of JAX is gone"),
    CascadeText(r"heartbeat", "JAX: a task `stopped sending heartbeats`; the same in torchrun's rendezvous"),
    CascadeText(r"\bbarrier\b", "JAX's barriers, also that of its shutdown, and torch's store-based barrier"),
    CascadeText(r"\bncclRemoteError\b|\bNCCL\b.*(?:remote|peer|abort|timeout)", "NCCL, through JAX and PyTorch"),
    CascadeText(r"\bDCN\b|megascale", "the data-centre network of TPU slices"),
    CascadeText(r"DistBackendError|DistStoreError|rendezvous", "torch.distributed and torchrun"),
)
"""Each has a test with the text of a real failure."""

_CASCADE: Final = re.compile("|".join(f"(?:{text.pattern})" for text in CASCADE_TEXTS), re.IGNORECASE)
_OF_SOCKETS: Final = re.compile(r"(?:ConnectionResetError|ConnectionAbortedError|BrokenPipeError|OSError|.*Timeout)\b")
"""Errors of a program's own requests, such as to a data server."""
_FROM_OUTSIDE: Final = frozenset({"SIGKILL", "SIGTERM"})
_SIGTERM_CODE: Final = 128 + 15
_ABORT_CODE: Final = 128 + 6
"""JAX ends the survivors of a failure by an abort; codes of signals where a shell is between."""
TOGETHER_SECONDS: Final = 1.0
"""Ends within this time are of one act from outside; later ones are the teardown of a job that has failed."""
_TOGETHER_NS: Final = round(TOGETHER_SECONDS * 1e9)
_CLOCKS_NS: Final = 1_000_000_000
"""The difference of clocks that are not known better."""


class ProcessEnd(NamedTuple):
    """All that was recorded of the end of one process."""

    how: str = ""
    """`clean`, `exception`, `exit`, `signal`, `out_of_memory`, `killed_or_os_exit`, as its companion records it; empty
    while no end is known."""
    ended_ns: int | None = None
    """When it failed, by the clock of its host, in ns since 1970; it may have ended minutes later."""
    exception: str = ""
    """`ValueError: batch 12 is empty`; empty for a SystemExit."""
    signal: str = ""
    exit_code: int | None = None
    was_asked: bool = False
    """True if it received SIGTERM before."""
    is_silent: bool = False
    """True if nothing was heard of it for long though no end is known, or it is known to be gone."""
    was_stuck: bool = False
    """True if it was taken for stuck when it ended."""
    host: str = ""
    """Processes of one host share its clock."""
    was_ended: bool = False
    """True if fast-fail ended it, since another process had failed."""


def recorded_end(payload: Mapping[str, Any], time_ns: int, host: str) -> ProcessEnd:
    """Return the end of a process as its companion, or `run`, recorded it.

    Args:
        payload: The fields of the entry on its end; several may be merged.
        time_ns: The time of that entry, for one without the time of the end.
        host: The host of the process.
    """
    kind, text = str(payload.get("exception") or ""), str(payload.get("exception_text") or "")
    exception = "" if kind == "SystemExit" else f"{kind}: {text}" if kind and text else kind
    return ProcessEnd(
        how=str(payload.get("how") or ""),
        ended_ns=_natural_number(payload.get("ended_ns")) or time_ns,
        exception=exception,
        signal=str(payload.get("signal") or ""),
        exit_code=_natural_number(payload.get("exit_code")),
        host=host,
        was_ended=was_ended_by_fast_fail(payload),
    )


def was_ended_by_fast_fail(payload: Mapping[str, Any]) -> bool:
    """Return True if fast-fail ended a process since another one had failed, by the entry on its end."""
    return payload.get("ended_by") == "fast_fail" and payload.get("is_first_cause") is not True


def _natural_number(value: object) -> int | None:
    """Return a whole number: Cloud Logging has only floats, and times in ns also as texts; None for anything else."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**62:
        return None
    return int(value) if value == int(value) else None


class Story(NamedTuple):
    """The end of an attempt.

    Attributes:
        roles: The role of each process.
        first: The indexes of the first cause: several if they cannot be ordered; none if there is none.
        confidence: None without a first cause.
    """

    roles: tuple[Role, ...]
    first: tuple[int, ...]
    confidence: Confidence | None


def story_of(ends: Sequence[ProcessEnd], *, clocks_ns: int = _CLOCKS_NS) -> Story:
    """Return the roles of all processes of an attempt, and which of them was the first cause.

    Args:
        ends: The end of each process, in any order.
        clocks_ns: The largest difference of two clocks.
    """
    roles = [_role_of(end, is_alone=len(ends) == 1) for end in ends]
    _mark_teardown(ends, roles, clocks_ns)

    def having(*kinds: Role) -> list[int]:
        return [index for index, role in enumerate(roles) if role in kinds]

    if own := having(Role.OWN, Role.ASKED):
        first = _earliest(own, ends, clocks_ns)
        return Story(tuple(roles), first, Confidence.PROVEN if len(first) == 1 else Confidence.LIKELY)
    cascade = having(Role.CASCADE)
    if not cascade:
        return Story(tuple(roles), (), None)
    # Others missed a process: one that is silent, else one that left, else it was not recorded at all.
    silent = [index for index in having(Role.NONE) if ends[index].is_silent]
    suspects = silent or having(Role.CLEAN) or cascade
    return Story(tuple(roles), _earliest(suspects, ends, clocks_ns), Confidence.POSSIBLE)


def _role_of(end: ProcessEnd, *, is_alone: bool) -> Role:
    """Return the role of an end by itself."""
    if not end.how:
        return Role.NONE
    if end.was_ended:
        return Role.TEARDOWN
    if end.how == "out_of_memory":
        return Role.OWN
    if end.was_asked or end.signal == "SIGTERM" or end.exit_code == _SIGTERM_CODE:
        return Role.ASKED
    if end.how == "clean" or (end.how == "exit" and end.exit_code == 0):
        return Role.CLEAN
    if is_alone:
        return Role.OWN
    if end.exception:  # Whatever ended the process later: JAX aborts it in its shutdown.
        is_of_job = _CASCADE.search(end.exception) and not _OF_SOCKETS.match(end.exception)
        return Role.CASCADE if is_of_job else Role.OWN
    return Role.CASCADE if end.signal == "SIGABRT" or end.exit_code == _ABORT_CODE else Role.OWN


def _mark_teardown(ends: Sequence[ProcessEnd], roles: list[Role], clocks_ns: int) -> None:
    """Mark the ends from outside that another end explains, or that came to all at once."""
    # One with an exception failed before: a cluster kills the others of a job that has failed.
    outside = [
        index
        for index, end in enumerate(ends)
        if end.signal in _FROM_OUTSIDE and end.how == "signal" and not end.exception
    ]
    times = [end.ended_ns for end in ends if end.ended_ns is not None]
    is_all = len(outside) == len(ends) > 1 and len(times) == len(ends)
    if is_all and (max(times) - min(times) <= _TOGETHER_NS + clocks_ns or all(end.was_stuck for end in ends)):
        for index in outside:
            roles[index] = Role.TEARDOWN
        return
    own = [end.ended_ns for index, end in enumerate(ends) if roles[index] is Role.OWN and index not in outside]
    first_ns = min((ended_ns for ended_ns in own if ended_ns is not None), default=None)
    for index in outside:
        ended_ns = ends[index].ended_ns
        if first_ns is not None and ended_ns is not None and ended_ns - first_ns > _TOGETHER_NS:
            roles[index] = Role.TEARDOWN


def _earliest(found: Sequence[int], ends: Sequence[ProcessEnd], clocks_ns: int) -> tuple[int, ...]:
    """Return the earliest of some ends, and those that clocks cannot separate from it."""
    known = [(ended_ns, index) for index in found if (ended_ns := ends[index].ended_ns) is not None]
    if not known:
        return tuple(found)
    first_ns, first = min(known)
    return tuple(
        sorted(
            index
            for ended_ns, index in known
            if ended_ns - first_ns <= (0 if ends[index].host == ends[first].host else clocks_ns)
        )
    )
