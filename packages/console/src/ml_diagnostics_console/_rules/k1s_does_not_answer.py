"""K1s: the process that the others wait for does not answer: stopped, waiting for a disk, or its machine is gone."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import Fact, Facts
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stuck import BUSY_SHARE, Kind, StuckJob, Suspect, stuck_job
from ml_diagnostics_console._rules.stuck_texts import (
    NEEDS,
    THRESHOLDS,
    cost_of,
    duration,
    evidence_of,
    not_checked,
    shell,
    waiting_text,
    when,
)
from ml_diagnostics_console._rules.wording import clock, command_line, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, Ref, Verdict, VerdictClass

__all__ = ["RULE"]

_SECOND_NS: Final = 1_000_000_000


def _judge(facts: Facts) -> Judgement:
    job = stuck_job(facts)
    if job is None:
        return not_checked("K1s", facts)
    if job.kind is not Kind.UNANSWERING or not job.suspects:
        return None
    suspect = job.suspects[0]
    processes = [each.process for each in job.suspects]
    states = suspect.kernel.states if suspect.kernel is not None else ()
    is_debugged = states[-1:] == ("t",)
    is_known = states[-1:] in (("T",), ("D",), ("t",)) and job.is_decided
    likely = job.is_decided and job.waiting is not None and len(processes) == 1
    return Verdict(
        rule="K1s",
        verdict_class=VerdictClass.HEALTHY if is_debugged else VerdictClass.STUCK,
        sentence=_sentence(job, suspect, is_sure=is_known or likely),
        blame=None if is_debugged else Blame.SYSTEM,
        confidence=Confidence.PROVEN if is_known else Confidence.LIKELY if likely else Confidence.POSSIBLE,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=job.step,
        since_ns=job.since_ns,
        ended_ns=job.until_ns if job.is_over else None,
        cost=cost_of(job),
        evidence=(*_silence(suspect), *evidence_of(job)),
        next=_next(facts, job, suspect),
    )


def _sentence(job: StuckJob, suspect: Suspect, *, is_sure: bool) -> str:
    names = named([each.process for each in job.suspects])
    others = f"; {waiting_text(job)}" if job.waiting is not None else ""
    possibly = "" if is_sure else "possibly "
    return f"{possibly}{names} {_state(suspect)}{when(job)}{others}; {duration(job)}"


def _state(suspect: Suspect) -> str:
    kernel = suspect.kernel
    last = f"does not answer: its last event was {clock(suspect.process.last_event_ns)}, and no stack of it is known"
    if kernel is None or not kernel.states:
        return last
    channel = next((name for name in reversed(kernel.wait_channels) if name), "")
    call = f" in {channel}" if channel else ""
    known = {
        "T": "is stopped by a signal",
        "t": "is stopped by a debugger",
        "D": f"waits for a disk or a device{call}, and cannot be interrupted",
    }
    if kernel.states[-1] in known:
        return known[kernel.states[-1]]
    if kernel.cpu_seconds is not None and kernel.seconds and kernel.cpu_seconds < BUSY_SHARE * kernel.seconds:
        return (
            f"does not answer: it is asleep in native code{call}, and used no CPU in {format_duration(kernel.seconds)}"
        )
    return f"does not answer: it computes in native code{call}"


def _silence(suspect: Suspect) -> tuple[Ref, ...]:
    """Return what was known of a process last, if nothing shows its state."""
    if suspect.kernel is not None:
        return ()
    process = suspect.process
    if process.stacks:
        return (process.stacks[-1].ref._replace(shows=f"the last stack of {process.name}"),)
    if isinstance(process.last_step, Fact) and process.last_step.refs:
        return (process.last_step.refs[0]._replace(shows=f"the last step of {process.name}"),)
    shows = f"the last event of {process.name}"
    return (Ref(f"{process.host}/{process.pid}", "run", process.last_event_ns, process.host, shows),)


def _next(facts: Facts, job: StuckJob, suspect: Suspect) -> tuple[NextCommand, ...]:
    process = suspect.process
    if job.is_over:
        why = f"the last lines of {process.host} before it fell silent"
        return (NextCommand(command_line("mldiagnostics", "logs", facts.name, "--host", process.host), why),)
    states = suspect.kernel.states if suspect.kernel is not None else ()
    if states[-1:] == ("T",):
        return (shell(facts, process, f"kill -CONT {process.pid}", "lets the stopped process continue"),)
    return (shell(facts, process, f"cat /proc/{process.pid}/status", "shows if the machine answers, and its state"),)


RULE = Rule(
    id="K1s",
    title="the process that the others wait for does not answer",
    needs=(*NEEDS, "the kernel's view of the process (process_state), to know if it is stopped or waits for a disk"),
    judge=_judge,
    thresholds=(
        *THRESHOLDS,
        Threshold("busy (CPU seconds per second)", BUSY_SHARE, "a loop uses 1, an idle process below 0.01"),
    ),
    example="host-3 is stopped by a signal at step 4,210 (16:02:11 UTC); the 7 others wait in train_step "
    "(train.py:88); no progress for 12 min 0 s",
    replaces=("K1",),
)
