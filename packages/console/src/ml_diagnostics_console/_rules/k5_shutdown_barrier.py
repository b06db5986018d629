"""K5: a process has raised an exception, and JAX keeps the job in its shutdown barrier: it is not a hang."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.story import Role
from ml_diagnostics_common.texts import format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, ProcessFacts
from ml_diagnostics_console._rules.causes import titles
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.stack_groups import frame_text, is_in_shutdown
from ml_diagnostics_console._rules.wording import at, quoted
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    Part,
    Ref,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_BARRIER_SECONDS: Final = 300.0
_LEAST_SECONDS: Final = 10.0
_SECOND_NS: Final = 1_000_000_000


def _judge(facts: Facts) -> Judgement:
    attempt = facts.attempt
    if attempt is None or len(attempt.processes) < 2:
        return None
    lead = lead_of(facts)
    for process in lead.processes if lead is not None else ():
        if process.role is Role.OWN and titles(process):
            return _judged(facts, attempt, process)
    return None


def _judged(facts: Facts, attempt: AttemptFacts, process: ProcessFacts) -> Verdict | None:
    failed_ns = process.end.ended_ns or process.left_block_ns
    if failed_ns is None:
        return None
    is_open = facts.is_live and any(not _is_gone(each) for each in attempt.processes)
    until_ns = facts.now_ns if is_open else attempt.ended_ns or process.last_event_ns
    seconds = (until_ns - failed_ns) / _SECOND_NS
    if seconds < _LEAST_SECONDS:
        return None
    error = quoted(titles(process)[0])
    moment = at(process.step, failed_ns)
    waited = format_duration(seconds)
    if is_open:
        sentence = (
            f"not a hang: {process.name} raised {error} {moment}, {waited} ago; the others wait for it, and JAX keeps "
            f"it in its shutdown barrier for up to {_BARRIER_SECONDS:.0f} s"
        )
    else:
        sentence = (
            f"the job held its hosts for {waited} after {process.name} raised {error} {moment}: JAX waits for all "
            f"processes in its shutdown barrier, for up to {_BARRIER_SECONDS:.0f} s"
        )
    barrier = next((stack for stack in reversed(process.stacks) if is_in_shutdown(stack)), None)
    evidence: tuple[Ref, ...] = process.end_refs[:2]
    if barrier is not None:
        evidence = (*evidence, barrier.ref._replace(shows=f"{process.name} is in {frame_text(barrier)}"))
    others = [each.hangs[-1].ref for each in attempt.processes if each is not process and each.hangs]
    return Verdict(
        rule="K5",
        verdict_class=VerdictClass.STUCK,
        sentence=sentence,
        blame=Blame.USER,
        confidence=Confidence.LIKELY if barrier is not None or others else Confidence.POSSIBLE,
        part=Part.CONTRIBUTING,
        hosts=(process.host,),
        process_indices=() if process.index is None else (process.index,),
        step=process.step,
        since_ns=failed_ns,
        ended_ns=None if is_open else until_ns,
        cost=Cost(seconds, CostBasis.STUCK_TIME),
        evidence=(*evidence, *others[:2]),
        next=_next(facts, is_open=is_open),
    )


def _is_gone(process: ProcessFacts) -> bool:
    """Return True if the process itself is known to have ended, not only its block."""
    return process.end_fields.get("kind") == "job_ended" or (process.has_ended and process.left_block_ns is None)


def _next(facts: Facts, *, is_open: bool) -> tuple[NextCommand, ...]:
    fast_fail = NextCommand(
        "export ML_DIAGNOSTICS_FAST_FAIL=1", "ends all processes within seconds of the first failure, in later attempts"
    )
    if not is_open:
        return (fast_fail,)
    end = NextCommand("", "end the job now: it cannot continue, and waits for nothing but a timeout")
    return (end, fast_fail)


RULE = Rule(
    id="K5",
    title="an exception, then JAX's shutdown barrier: not a hang",
    needs=("the end of each process: machinelearning_run, or diagnose()",),
    judge=_judge,
    thresholds=(
        Threshold("barrier (s)", _BARRIER_SECONDS, "jax.distributed: shutdown_timeout_seconds, by default"),
        Threshold("wait (s)", _LEAST_SECONDS, "JAX's own errors end the others of a killed process within 10 s"),
    ),
    example="not a hang: host-3 raised ValueError: batch 12 is empty at step 4,210 (16:02:11 UTC), 2 min 0 s ago; the "
    "others wait for it, and JAX keeps it in its shutdown barrier for up to 300 s",
)
