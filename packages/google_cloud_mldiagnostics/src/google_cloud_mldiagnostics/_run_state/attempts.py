"""Changes of a run in its folder on this machine, when a process of it starts or ends.

They are pure; they may modify the run that they are given, as any `Change` may.

Beside what Google's API knows, the run has `attempts`, the oldest first:

number      from 1
token       the same text on all processes until the job restarts; empty if the environment has none
startTime   start of its first process on this machine
endTime     when it ended
phase       ACTIVE, COMPLETED or FAILED
reason      why it has ended
processes   those of this machine: hostname, process_index, pid, started (a mark of the kernel's that is another
            for an earlier process with the pid), phase, startTime, endTime, reason

A FAILED of an attempt is never overwritten; another attempt makes the run ACTIVE again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ml_diagnostics_common.program_end import UNSEEN_EXIT

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.control_plane import Change, Resource

__all__ = [
    "ENDED",
    "END_NOT_RECORDED",
    "Member",
    "end",
    "explain",
    "has_unseen_exit",
    "is_active",
    "is_end_missing",
    "is_shared",
    "join",
    "last_attempt",
    "new_run",
    "renumber",
    "unexplained_attempt",
]

END_NOT_RECORDED: Final = "exited without recording its end: it was killed, or called os._exit"
"""Stored in runs as a reason, which `is_end_missing` recognises."""

_STORED_BY_EARLIER_RELEASES: Final = "ended without a word: it was killed, or called os._exit"
ENDED: Final = ("COMPLETED", "FAILED")
"""The phases of a run, an attempt or a process that has ended."""


class Member(NamedTuple):
    """One process of a run.

    Attributes:
        host: The host's name.
        process_index: The index in the run.
        pid: The process id on its host.
        started: A text that differs for an earlier process with the same pid.
    """

    host: str
    process_index: int
    pid: int
    started: str

    def is_in(self, process: Mapping[str, Any]) -> bool:
        """Return True if this is the given process of an attempt."""
        return (self.host, self.pid, self.started) == (
            process.get("hostname"),
            process.get("pid"),
            process.get("started"),
        )


def new_run(run: Resource, member: Member, *, token: str, number: int, now: str) -> Resource:
    """Return a run in its first attempt on this machine."""
    return _with_attempt(run, _attempt(number, token, member, now))


def join(
    run: Resource,
    member: Member,
    *,
    token: str,
    number: int,
    now: str,
    is_alive: Callable[[Mapping[str, Any]], bool],
) -> Change:
    """Return how a process joins an existing run: its last attempt, or by starting another.

    Args:
        run: The run as the process would create it; its fields replace the existing ones.
        member: The process.
        token: The token of the attempt; empty if the environment has none.
        number: The least that another attempt's is.
        now: RFC 3339.
        is_alive: Return True if a process of the last attempt, given with the run's `updateTime`, still runs.
    """

    def change(kept: Resource) -> Resource:
        merged = _merged(kept, run)
        last = last_attempt(kept)
        if last is None:
            return _with_attempt(merged, _attempt(number, token, member, now))
        update_time = kept.get("updateTime")
        if _belongs(member, token, last, lambda process: is_alive({**process, "updateTime": update_time})):
            last["processes"] = [*_others(last, member), _process(member, now)]
            return merged
        if last.get("phase") not in ENDED:
            last |= {"phase": "FAILED", "endTime": now, "reason": END_NOT_RECORDED}
            _end_silent(last, now)
        number_after = max(number, int(last.get("number", 0)) + 1)
        return _with_attempt(merged, _attempt(number_after, token, member, now))

    return change


def end(member: Member, phase: str, reason: str, *, now: str) -> Change:
    """Return the change by which a process leaves its attempt.

    The attempt has ended when process 0 has (each of them, if several have the index 0), or a process has
    failed, or all that are known here have ended.

    Args:
        member: The process.
        phase: COMPLETED or FAILED.
        reason: The reason, for users.
        now: RFC 3339.
    """

    def change(kept: Resource) -> Resource | None:
        attempt = next((attempt for attempt in reversed(_attempts(kept)) if _has(attempt, member)), None)
        if attempt is None:
            return None
        for process in attempt["processes"]:
            if member.is_in(process) and process.get("phase") not in ENDED:
                process |= {"phase": phase, "endTime": now} | ({"reason": reason} if reason else {})
        if attempt.get("phase") == "FAILED":
            return kept
        phases = [process.get("phase") for process in attempt["processes"]]
        if phase == "COMPLETED" and "FAILED" in phases:
            return kept
        first = [process.get("phase") for process in attempt["processes"] if process.get("process_index") == 0]
        has_first_ended = member.process_index == 0 and all(other in ENDED for other in first)
        if phase == "FAILED" or has_first_ended or all(other in ENDED for other in phases):
            attempt |= {"phase": phase, "endTime": now, "reason": reason}
            if attempt is last_attempt(kept):
                kept |= {"runPhase": phase, "endTime": now}
                if phase == "FAILED" and reason:
                    kept["errorDetails"] = reason
        return kept

    return change


def unexplained_attempt(run: Resource) -> dict[str, Any] | None:
    """Return the attempt before the last, if its exit reason is unknown."""
    before = _attempts(run)[-2:-1]
    return before[0] if before and _is_unexplained(before[0]) else None


def is_end_missing(reason: object) -> bool:
    """Return True if the reason of a process or an attempt is that its end was not recorded."""
    return reason in (END_NOT_RECORDED, _STORED_BY_EARLIER_RELEASES)


def is_active(run: Resource, member: Member) -> bool:
    """Return True if a process has joined the run, and its end is not recorded."""
    return any(
        member.is_in(process) and process.get("phase") not in ENDED
        for attempt in _attempts(run)
        for process in attempt.get("processes") or ()
    )


def is_shared(run: Resource, member: Member) -> bool:
    """Return True if a process has joined an attempt in which another active one has the same index."""
    return any(
        process.get("process_index") == member.process_index and process.get("phase") not in ENDED
        for process in _others(last_attempt(run) or {}, member)
    )


def has_unseen_exit(run: Resource) -> bool:
    """Return True if the last attempt is COMPLETED, but the exit code, seen from outside, may correct that."""
    last = last_attempt(run)
    return last is not None and last.get("reason") == UNSEEN_EXIT


def explain(number: int, phase: str, reason: str) -> Change:
    """Return the change that gives an unexplained attempt an exit reason that became known later.

    Args:
        number: The number of the attempt.
        phase: COMPLETED or FAILED.
        reason: The reason, for users.
    """

    def change(kept: Resource) -> Resource | None:
        for attempt in _attempts(kept)[:-1]:
            if attempt.get("number") == number and _is_unexplained(attempt):
                attempt |= {"phase": phase, "reason": reason}
                return kept
        return None

    return change


def renumber(member: Member, number: int) -> Change:
    """Return the change that gives a process's attempt the number that other processes use."""

    def change(kept: Resource) -> Resource | None:
        last = last_attempt(kept)
        if last is None or not _has(last, member):
            return None
        last["number"] = number
        return {**kept, "labels": {**(kept.get("labels") or {}), "attempt": str(number)}}

    return change


def last_attempt(run: Resource) -> dict[str, Any] | None:
    """Return a run's current or last attempt."""
    attempts = _attempts(run)
    return attempts[-1] if attempts else None


def _is_unexplained(attempt: Mapping[str, Any]) -> bool:
    reason = attempt.get("reason")
    return reason == UNSEEN_EXIT or is_end_missing(reason)


def _attempts(run: Resource) -> list[dict[str, Any]]:
    return run.get("attempts") or []


def _belongs(
    member: Member, token: str, attempt: Mapping[str, Any], is_alive: Callable[[Mapping[str, Any]], bool]
) -> bool:
    """Return True if a process belongs to the attempt: by its token, or as others are alive and none has its index."""
    if attempt.get("phase") in ENDED and (not token or attempt.get("token") != token):
        return False
    namesakes = [
        process
        for process in attempt.get("processes") or ()
        if (process.get("hostname"), process.get("process_index")) == (member.host, member.process_index)
    ]
    going_on = [process for process in namesakes if process.get("phase") not in ENDED]
    if namesakes:
        # A live process was not restarted, so two processes have this index, such as a trainer and its evaluator.
        is_same_life = not token or token == attempt.get("token")
        return any(member.is_in(process) or (is_same_life and is_alive(process)) for process in going_on)
    if token and attempt.get("token"):
        return bool(token == attempt["token"])
    return any(is_alive(process) for process in attempt.get("processes") or ())


def _has(attempt: Mapping[str, Any], member: Member) -> bool:
    return any(member.is_in(process) for process in attempt.get("processes") or ())


def _others(attempt: Mapping[str, Any], member: Member) -> list[dict[str, Any]]:
    return [process for process in attempt.get("processes") or () if not member.is_in(process)]


def _end_silent(attempt: Mapping[str, Any], now: str) -> None:
    for process in attempt.get("processes") or ():
        if process.get("phase") not in ENDED:
            process |= {"phase": "FAILED", "endTime": now, "reason": END_NOT_RECORDED}


def _attempt(number: int, token: str, member: Member, now: str) -> dict[str, Any]:
    return {
        "number": number,
        "token": token,
        "startTime": now,
        "phase": "ACTIVE",
        "reason": "",
        "processes": [_process(member, now)],
    }


def _process(member: Member, now: str) -> dict[str, Any]:
    return {
        "hostname": member.host,
        "process_index": member.process_index,
        "pid": member.pid,
        "started": member.started,
        "phase": "ACTIVE",
        "startTime": now,
    }


def _with_attempt(run: Resource, attempt: dict[str, Any]) -> Resource:
    """Return the run in another attempt, which makes it ACTIVE."""
    changed = {key: value for key, value in run.items() if key not in ("endTime", "errorDetails")}
    changed["attempts"] = [*_attempts(run), attempt]
    changed["runPhase"] = "ACTIVE"
    changed["labels"] = {**(run.get("labels") or {}), "attempt": str(attempt["number"])}
    return changed


def _merged(kept: Resource, run: Resource) -> Resource:
    """Return the stored run, updated by a starting process; its configs replace those of the same name."""
    merged = {**kept, **{key: value for key, value in run.items() if key not in ("runPhase", "attempts", "name")}}
    merged["configs"] = {
        section: {**(kept.get("configs") or {}).get(section, {}), **(run.get("configs") or {}).get(section, {})}
        for section in {**(kept.get("configs") or {}), **(run.get("configs") or {})}
    }
    merged["labels"] = {**(run.get("labels") or {}), **_label_of_attempt(kept)}
    return merged


def _label_of_attempt(run: Resource) -> dict[str, str]:
    number = (run.get("labels") or {}).get("attempt")
    return {} if number is None else {"attempt": number}
