"""K6: main threads are in JAX's compiler: a healthy job that compiles for long."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import Facts, MainStack, ProcessFacts
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stack_groups import is_compiling
from ml_diagnostics_console._rules.stuck import BUSY_SHARE, Kind, StuckJob, stuck_job
from ml_diagnostics_console._rules.stuck_texts import NEEDS, evidence_of, not_checked
from ml_diagnostics_console._rules.wording import clock, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Confidence, NextCommand, Part, Ref, Verdict, VerdictClass

__all__ = ["RULE"]

_SECOND_NS: Final = 1_000_000_000
_RECENT_NS: Final = 30 * _SECOND_NS


def _judge(facts: Facts) -> Judgement:
    job = stuck_job(facts)
    if job is not None and job.kind is Kind.COMPILING:
        processes = tuple(suspect.process for suspect in job.suspects)
        return _verdict(facts, processes, job.since_ns, evidence_of(job), _is_busy(job))
    if job is not None or facts.attempt is None or not facts.is_live or facts.attempt.has_failed:
        return not_checked("K6", facts) if job is None else None
    compiling = [
        (process, process.stacks[-1])
        for process in facts.processes
        if process.stacks and not process.has_ended and _is_recent(facts, process.stacks[-1])
    ]
    if not compiling:
        return not_checked("K6", facts)
    since_ns = min(_since_ns(process, stack) for process, stack in compiling)
    refs = tuple(stack.ref for _, stack in compiling[:3])
    return _verdict(facts, tuple(process for process, _ in compiling), since_ns, refs, False)


def _verdict(
    facts: Facts, processes: tuple[ProcessFacts, ...], since_ns: int, refs: tuple[Ref, ...], is_busy: bool
) -> Verdict:
    until_ns = facts.now_ns if facts.is_live else max(process.last_event_ns for process in processes)
    seconds = max(0.0, (until_ns - since_ns) / _SECOND_NS)
    subject = f"all {len(processes)} processes" if 1 < len(processes) == len(facts.processes) else named(processes)
    plural = len(processes) > 1
    longest, longest_ref = _longest(facts)
    known = f"; the longest compilations of 10 s so far took {format_duration(longest)}" if longest_ref else ""
    if facts.is_live:
        verb = "compile" if plural else "compiles"
        sentence = f"{subject} {verb} for {format_duration(seconds)}, since {clock(since_ns)}{known}: wait"
    else:
        verb = "were compiling" if plural else "was compiling"
        sentence = f"{subject} {verb} for {format_duration(seconds)} when the job was ended{known}: it was not stuck"
    return Verdict(
        rule="K6",
        verdict_class=VerdictClass.HEALTHY,
        sentence=sentence,
        blame=None,
        confidence=Confidence.LIKELY if is_busy or longest_ref else Confidence.POSSIBLE,
        part=Part.INITIATING if facts.is_live else Part.CONTRIBUTING,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        since_ns=since_ns,
        ended_ns=None if facts.is_live else until_ns,
        evidence=(*refs, *((longest_ref,) if longest_ref else ())),
        next=(
            NextCommand(
                "export JAX_COMPILATION_CACHE_DIR=gs://BUCKET/cache", "later attempts then read compiled programs"
            ),
        ),
    )


def _is_recent(facts: Facts, stack: MainStack) -> bool:
    return is_compiling(stack) and facts.now_ns - stack.time_ns <= max(_RECENT_NS, stack.unchanged_seconds * _SECOND_NS)


def _since_ns(process: ProcessFacts, stack: MainStack) -> int:
    return stack.time_ns - round(stack.unchanged_seconds * _SECOND_NS)


def _is_busy(job: StuckJob) -> bool:
    kernels = [suspect.kernel for suspect in job.suspects if suspect.kernel is not None]
    return any(
        kernel.cpu_seconds is not None and kernel.seconds and kernel.cpu_seconds >= BUSY_SHARE * kernel.seconds
        for kernel in kernels
    )


def _longest(facts: Facts) -> tuple[float, Ref | None]:
    """Return the longest time that compilations took in one report, of all attempts; 0 if none is known."""
    batches = [batch for attempt in facts.attempts for process in attempt.processes for batch in process.compiles]
    longest = max(batches, key=lambda batch: batch.seconds, default=None)
    return (0.0, None) if longest is None else (longest.seconds, longest.ref)


RULE = Rule(
    id="K6",
    title="the job compiles",
    needs=(*NEEDS, "for the longest compilation so far: JAX's compile events, recorded by diagnose()"),
    judge=_judge,
    thresholds=(
        Threshold("busy (CPU seconds per second)", BUSY_SHARE, "XLA's compiler uses a core at least"),
        Threshold("newest stack (s)", _RECENT_NS / _SECOND_NS, "three summaries of steps, which are 10 s apart"),
    ),
    example="all 8 processes compile for 4 min 10 s, since 16:02:11 UTC; the longest compilations of 10 s so far took "
    "6 min 2 s: wait",
    replaces=("K1", "K2"),
)
