"""L2: one host is late in each step, and all others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ml_diagnostics_common.texts import format_count, format_duration, format_percent

from ml_diagnostics_console._facts.facts import Fact, Facts
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import MARKS, SUMMARIES, Lateness, late_processes, part_of
from ml_diagnostics_console._rules.wording import command_line, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Ref,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_LEAST_SHARE: Final = 0.10
_CRITICAL_SHARE: Final = 0.20
_LEAST_STEPS: Final = 20
_POSSIBLE_SHARE: Final = 0.06
"""A host that takes 1.1 times as long makes 9 % of the step; less where collectives are long."""
_POSSIBLE_STEPS: Final = 100
_EXPLAINED: Final = 0.80


def _judge(facts: Facts) -> Judgement:
    processes = facts.processes
    if facts.attempt is None or len(processes) < 2:
        return None
    if not any(process.summaries for process in processes):
        return NotChecked("L2", SUMMARIES)
    if sum(any(each.own is not None for each in process.summaries) for process in processes) < 2:
        return NotChecked("L2", f"the own time of the hosts is not known: {MARKS}")
    late = late_processes(processes, least_share=_LEAST_SHARE, least_steps=_LEAST_STEPS)
    if late:
        return _verdict(facts, late, is_sure=True)
    late = late_processes(processes, least_share=_POSSIBLE_SHARE, least_steps=_POSSIBLE_STEPS)
    return _verdict(facts, late, is_sure=False) if late else None


def _verdict(facts: Facts, late: Sequence[Lateness], *, is_sure: bool) -> Verdict:
    worst = late[0]
    others = [each for each in late[1:] if each.share >= (_LEAST_SHARE if is_sure else _POSSIBLE_SHARE)]
    processes = [each.process for each in (worst, *others)]
    cause = _cause(worst)
    stays = _was_late_before(facts, worst)
    return Verdict(
        rule="L2",
        verdict_class=VerdictClass.SLOW,
        sentence=("" if is_sure else "possibly ") + _sentence(worst, others, cause, stays=stays),
        blame=Blame.USER if cause else Blame.SYSTEM if stays else Blame.UNKNOWN,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        part=part_of(facts),
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=worst.first_step,
        cost=Cost(
            worst.excess_seconds * worst.steps,
            CostBasis.LOWER_BOUND,
            shows=f"in {format_count(worst.steps, 'step')} of all hosts",
        ),
        evidence=_evidence(facts, worst),
        next=_next(facts, worst, cause),
    )


def _sentence(worst: Lateness, others: Sequence[Lateness], cause: str, *, stays: bool) -> str:
    excess, step = format_duration(worst.excess_seconds), format_duration(worst.step_seconds)
    critical = ", critical" if worst.share >= _CRITICAL_SHARE else ""
    until = "" if worst.lasts else f" to {worst.last_step:,}"
    also = f" (so {'is' if len(others) == 1 else 'are'} {named([each.process for each in others])})" if others else ""
    if cause:
        why = f"because of {cause}"
    elif stays:
        why = "as in an earlier attempt: it stays with the host"
    else:
        why = "neither input nor compilation explains it; a slow chip or link is excluded, since all would wait alike"
    return (
        f"{worst.process.name} is late by {excess} of {step} in each step since {worst.first_step:,}{until}{also}: "
        f"it costs {format_percent(100 * worst.share)}{critical}; {why}"
    )


def _cause(late: Lateness) -> str:
    """Return the cause that explains most of the excess; empty if none does."""
    if late.compile_seconds >= _EXPLAINED * late.excess_seconds:
        return f"compilation, {format_duration(late.compile_seconds)} of it"
    if late.data_seconds >= _EXPLAINED * late.excess_seconds:
        return f"its input, {format_duration(late.data_seconds)} of it"
    return ""


def _was_late_before(facts: Facts, late: Lateness) -> bool:
    """Return True if the same host, with another index among the processes, was late in an earlier attempt."""
    for attempt in facts.attempts[: facts.judged or 0]:
        for each in late_processes(attempt.processes, least_share=_LEAST_SHARE, least_steps=_LEAST_STEPS)[:1]:
            indexes = each.process.index, late.process.index
            if each.process.host == late.process.host and None not in indexes and len(set(indexes)) > 1:
                return True
    return False


def _evidence(facts: Facts, worst: Lateness) -> tuple[Ref, ...]:
    own, other = worst.summary.own, worst.other.own
    refs = []
    if own is not None and other is not None:
        waited = worst.summary.wait.p50 if worst.summary.wait is not None else 0.0
        shows = f"{worst.process.name}: own time {format_duration(own.p50)} of a step, waits {format_duration(waited)}"
        refs.append(worst.summary.ref._replace(shows=shows))
        waited = worst.other.wait.p50 if worst.other.wait is not None else 0.0
        name = worst.other.ref.host or "another host"
        shows = f"{name}: own time {format_duration(other.p50)}, waits {format_duration(waited)}"
        refs.append(worst.other.ref._replace(shows=shows))
    if isinstance(facts.profile, Fact) and facts.profile.value.slow_host == worst.process.host:
        refs += facts.profile.refs[:1]
    return tuple(refs)


def _next(facts: Facts, worst: Lateness, cause: str) -> tuple[NextCommand, ...]:
    profile = NextCommand(
        command_line("mldiagnostics", "profile", facts.name),
        f"compare the host events of {worst.process.host} with those of another host",
    )
    if cause:
        return (profile,)
    why = f"swap {worst.process.host} with another host: if it is still late, replace it; if not, its work is larger"
    swap = NextCommand("", why)
    return (swap, profile)


RULE = Rule(
    id="L2",
    title="one host is late in each step",
    needs=(f"step summaries of two hosts at least, with own times: {MARKS}",),
    judge=_judge,
    thresholds=(
        Threshold("excess of a step", _LEAST_SHARE, "hosts differ by 1 % when healthy, by 6 % on a loaded machine"),
        Threshold("possible excess", _POSSIBLE_SHARE, "a host that takes 1.1 times as long"),
        Threshold("steps in a row for that", _POSSIBLE_STEPS, "five times as many, since it is nearer to the noise"),
        Threshold("critical", _CRITICAL_SHARE, "a fifth of all chips of the job is lost"),
        Threshold("steps in a row", _LEAST_STEPS, "a save or a collection of garbage takes one"),
        Threshold("explained", _EXPLAINED, "a cause of less leaves another as large as the threshold of 10 %"),
    ),
    example="host-3 is late by 51.0 ms of 61.0 ms in each step since 4,210: it costs 83.6 %, critical; because of "
    "its input, 50.0 ms of it",
)
