"""The processes that failed first in an attempt: one picture for all rules on crashes. Pure.

Each failure has one kind, and each kind one rule, so that no failure has verdicts of two rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ml_diagnostics_common.story import TOGETHER_SECONDS, Confidence, ProcessEnd, Role, story_of

from ml_diagnostics_console._facts.building import STUCK_BEFORE_END_SECONDS
from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import (
    Cause,
    cause_of,
    fingerprint,
    is_fallout,
    is_gone,
    left_by_failure,
    left_with_code,
    signal_of,
    titles,
)
from ml_diagnostics_console._rules.rule import Threshold

__all__ = ["ORDER_OF_ENDS", "Lead", "ended_while_stuck", "lead_of", "lead_of_attempt"]

_OF_PROGRAMS: Final = frozenset({Cause.MEMORY, Cause.DEVICE_MEMORY, Cause.DISK, Cause.ERROR, Cause.EXIT})
"""Kinds that a program may have on all hosts alike."""
_RECENT_SUMMARIES: Final = 360
"""An hour."""
_IN_STEPS: Final = frozenset({"step", "sync", "data"})
LEAST_STUCK_SECONDS: Final = 10.0
STUCK_STEPS: Final = 10
LEAST_WAIT_SECONDS: Final = 1.0
ORDER_OF_ENDS: Final = (
    Threshold(
        "age of the last progress from which the job was stuck before, without a hang verdict",
        f"{STUCK_STEPS} times the longest step, and {LEAST_STUCK_SECONDS:.0f} s at least",
        "the floor of a hang's timeout for jobs with short steps",
    ),
    Threshold(
        "the same where another process failed by itself, at least",
        f"{LEAST_WAIT_SECONDS:g} s",
        "one that waits for a failed process makes no step: only the resolution of the records counts",
    ),
    Threshold("steps that give the usual duration", f"{_RECENT_SUMMARIES} summaries", "an hour, at one each 10 s"),
    Threshold(
        "time from a hang verdict to an end that counts as that of a stuck job, at most",
        f"{STUCK_BEFORE_END_SECONDS:.0f} s",
        "JAX's timeouts, and those of a person who ends the job",
    ),
    Threshold("ends of one act from outside, within", f"{TOGETHER_SECONDS:g} s", "a launcher signals all at once"),
)
"""The numbers that decide which process failed first."""
_ORDER: Final = {cause: number for number, cause in enumerate(Cause)}
_JAX_ABORTS: Final = re.compile(
    r"Terminating process because the JAX|CoordinationServiceAgent::SetError|Polled an error from coordination"
    r"|stopped sending heartbeats|detected fatal errors|Gloo \S+ failed|(?:closed|reset) by peer",
    re.IGNORECASE,
)
"""Texts that a survivor prints before JAX aborts it (jaxlib 0.10: client.h, coordination_service_agent.cc,
gloo's pair.cc).
The start of a healthy job also names Gloo and the coordination service."""
_LONGEST_TAIL: Final = 8_192


class Lead(NamedTuple):
    """The processes that failed first.

    Attributes:
        cause: The kind of their ends.
        processes: The processes with this kind of end, the earliest first.
        others: The processes that ended at about the same time by another kind.
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


def lead_of(facts: Facts) -> Lead | None:
    """Return the processes that failed first in the attempt that is judged; None if none has failed."""
    attempt = facts.attempt
    return None if attempt is None else lead_of_attempt(facts, attempt)


def lead_of_attempt(facts: Facts, attempt: AttemptFacts) -> Lead | None:
    """Return the processes of one attempt that failed first; None if none has failed."""
    stuck = ended_while_stuck(attempt)
    processes, first, confidence = _first_of(attempt, stuck)
    if not first or confidence is None:
        return None if stuck else _ended_as_a_whole(attempt) or _gone(attempt)
    causes = [cause_of(facts, process) for process in first]
    if all(cause is Cause.CASCADE for cause in causes):
        return _without_own_end(attempt, first, has_stuck=bool(stuck))
    asked = causes.count(Cause.ASKED)
    leading = Cause.ASKED if asked * 2 > len(causes) else min(causes, key=_ORDER.__getitem__)
    pairs = list(zip(first, causes, strict=True))
    found = sorted((process for process, cause in pairs if cause is leading), key=_time_ns)
    others = tuple(process for process, cause in pairs if cause is not leading)
    common = _with_the_same_error(facts, processes, found[0]) if leading in _OF_PROGRAMS else ()
    if common:
        return Lead(leading, common, is_common=True)
    if all(is_gone(process) for process in found):  # It ended without a record, and others lost it.
        confidence = Confidence.LIKELY
    return Lead(leading, tuple(found), others, confidence)


def ended_while_stuck(attempt: AttemptFacts) -> frozenset[int]:
    """Return the processes, by position, that were ended from outside after the job had been stuck: because of that.

    The last progress of such a process is older than a timeout after which a companion of the job reported a hang, or
    ten times as old as the longest step. The timeouts are learned from the steps, so no healthy step lasts that long.
    Where another process failed by itself, ten usual steps are enough: it had waited for that one. Only durations are
    compared, no clocks.
    """
    processes = attempt.processes
    outside = [position for position, process in enumerate(processes) if _is_from_outside(process)]
    if not outside:
        return frozenset()
    timeout = min((hang.timeout_seconds for each in processes for hang in each.hangs), default=math.inf)
    recent = [summary.wall for each in processes for summary in each.summaries[-_RECENT_SUMMARIES:]]
    limit = max(LEAST_STUCK_SECONDS, STUCK_STEPS * max((wall.max for wall in recent), default=math.inf))
    if any(_failed_by_itself(process) for position, process in enumerate(processes) if position not in outside):
        limit = min(limit, max(LEAST_WAIT_SECONDS, STUCK_STEPS * max((wall.p95 for wall in recent), default=math.inf)))
    found = set()
    for position in outside:
        process = processes[position]
        age = process.end_fields.get("progress_age_seconds")
        longest = min(timeout, limit) if process.last_phase in _IN_STEPS else timeout
        if age >= longest if isinstance(age, (int, float)) else process.end.was_stuck:
            found.add(position)
    return frozenset(found)


def _failed_by_itself(process: ProcessFacts) -> bool:
    return left_by_failure(process) or (process.role is Role.OWN and not is_fallout(process))


def _is_from_outside(process: ProcessFacts) -> bool:
    if not process.has_ended or is_fallout(process) or left_by_failure(process) or left_with_code(process) == 0:
        return False
    if process.role is Role.ASKED or signal_of(process) in ("SIGKILL", "SIGTERM", "SIGINT"):
        return process.end.how != "out_of_memory"
    return process.end.exception.startswith("KeyboardInterrupt")


_First = tuple["tuple[ProcessFacts, ...]", "tuple[ProcessFacts, ...]", "Confidence | None"]


def _first_of(attempt: AttemptFacts, stuck: Collection[int]) -> _First:
    """Return the processes of an attempt with their roles, those that are the first cause, and its certainty.

    The story of the attempt knows ends alone. A process that has left its block by a failure has failed, though it
    waits for the others, and though JAX aborts it later; one that left well has left, whatever JAX does to it later;
    and one that fast-fail has ended, or that was ended while the job was stuck, did not fail by itself.

    Args:
        attempt: The attempt.
        stuck: The positions of processes that were ended while the job was stuck.
    """
    left_well = sum(left_with_code(process) == 0 for process in attempt.processes)
    may_have_left = 2 * left_well <= len(attempt.processes)  # Where most have left, they just were earlier.
    ends = [
        _ended_by_others(process)
        if position in stuck or is_fallout(process)
        else _end_for_story(attempt, process, may_have_left=may_have_left)
        for position, process in enumerate(attempt.processes)
    ]
    if all(end is process.end for end, process in zip(ends, attempt.processes, strict=True)):
        return attempt.processes, attempt.first, attempt.story.confidence
    story = story_of(ends, clocks_ns=attempt.clock_uncertainty_ns)
    processes = tuple(
        replace(process, end=end, role=role, is_first_cause=position in story.first)
        for position, (process, end, role) in enumerate(zip(attempt.processes, ends, story.roles, strict=True))
    )
    first = (position for position in story.first if position not in stuck and not is_fallout(processes[position]))
    return processes, tuple(processes[position] for position in first), story.confidence


def _ended_by_others(process: ProcessFacts) -> ProcessEnd:
    """Return an end that the story takes for a consequence."""
    return ProcessEnd("signal", process.end.ended_ns, signal="SIGABRT", host=process.host)


def _end_for_story(attempt: AttemptFacts, process: ProcessFacts, *, may_have_left: bool) -> ProcessEnd:
    end = process.end
    if process.left_block_ns is None:
        return end
    left_ns = process.left_block_ns - attempt.clock_offsets_ns.get(process.host, 0)
    failed_ns = left_ns if end.ended_ns is None else min(left_ns, end.ended_ns)
    if titles(process):
        return end if process.has_ended else end._replace(how="exception", ended_ns=failed_ns)
    code = left_with_code(process)
    is_later = not process.has_ended or signal_of(process) in ("SIGABRT", "SIGKILL", "SIGTERM")
    if code and (is_later or end.how == "exception"):
        return end._replace(how="exit", exit_code=code, signal="", exception="", ended_ns=failed_ns)
    if code == 0 and process.has_ended and is_later and may_have_left:
        return end._replace(how="clean", exit_code=0, signal="", exception="", ended_ns=failed_ns)
    return end


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
        process.role is Role.TEARDOWN and not is_fallout(process) for process in processes
    )
    if not is_whole:
        return None
    asked = any(process.end.was_asked or signal_of(process) == "SIGTERM" for process in processes)
    in_order = sorted(processes, key=_time_ns)
    return Lead(Cause.ASKED if asked else Cause.KILLED, tuple(in_order), is_whole_job=True)


def _gone(attempt: AttemptFacts) -> Lead | None:
    """Return the processes that have exited without a record of their end, if nothing else failed."""
    gone = [process for process in attempt.processes if is_gone(process)]
    if not gone:
        return None
    in_order = sorted(gone, key=lambda process: process.last_event_ns)
    return Lead(Cause.KILLED, tuple(in_order), (), Confidence.LIKELY)


def _without_own_end(attempt: AttemptFacts, first: tuple[ProcessFacts, ...], *, has_stuck: bool) -> Lead | None:
    """Return the processes that may have failed first, where none failed by itself."""
    aborted = _aborted_alone(attempt)
    if aborted:
        is_printed = all(_end_of_console(process) for process in aborted)
        return Lead(Cause.NATIVE, aborted, (), Confidence.LIKELY if is_printed else Confidence.POSSIBLE)
    return None if has_stuck else Lead(Cause.CASCADE, first, (), Confidence.POSSIBLE)


def _aborted_alone(attempt: AttemptFacts) -> tuple[ProcessFacts, ...]:
    """Return the processes that aborted and report no lost process, where others report one."""
    cascade = [process for process in attempt.processes if process.role is Role.CASCADE]
    silent = [process for process in cascade if signal_of(process) == "SIGABRT" and not titles(process)]
    if len(silent) * 2 > len(cascade):
        return ()
    found = [process for process in silent if not _JAX_ABORTS.search(_end_of_console(process))]
    return tuple(found) if len(found) < len(cascade) else ()


def _end_of_console(process: ProcessFacts) -> str:
    """Return the last lines of a process before its end; empty if they were not recorded."""
    return "\n".join(text.text[-_LONGEST_TAIL:] for text in process.console if text.occasion == "end")
