"""The cost of a failure: by the ledger of goodput, else the time that is known to be lost at least. Pure."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, ProcessFacts
from ml_diagnostics_console.verdict import Cost, CostBasis, Ref

if TYPE_CHECKING:
    from ml_goodput_measurement.partition import AttemptSummary, Disruption, JobReport

__all__ = ["GOODPUT", "Loss", "attempt_of_ledger", "cost_of_failure", "disruption_of", "report_of"]

GOODPUT = "goodput"
"""The source of what the ledger shows."""


class Loss(NamedTuple):
    """The cost of a failure, and its evidence."""

    cost: Cost | None
    refs: tuple[Ref, ...] = ()


def report_of(facts: Facts) -> JobReport | None:
    """Return the ledger of the job; None if it records no goodput."""
    return facts.ledger.value if isinstance(facts.ledger, Fact) else None


def attempt_of_ledger(report: JobReport, time_ns: int) -> AttemptSummary | None:
    """Return the attempt of the ledger that a moment is in; the numbers of a run's attempts may be others."""
    starts = [attempt.start_ns for attempt in report.attempts]
    index = bisect.bisect_right(starts, time_ns) - 1
    return report.attempts[index] if index >= 0 else None


def disruption_of(report: JobReport, time_ns: int) -> Disruption | None:
    """Return the disruption that a failure at some moment caused; None if the ledger has none of that attempt."""
    summary = attempt_of_ledger(report, time_ns)
    if summary is None:
        return None
    return next((each for each in report.disruptions if each.attempt == summary.number), None)


def cost_of_failure(facts: Facts, since_ns: int | None) -> Loss:
    """Return what a failure of the attempt that is judged cost.

    With a ledger: from the last event of the attempt to the first new best step, as it is in the ledger; before the job
    has resumed, the time since the failure and the steps that have to be repeated. Without one: the time from the
    failure to the end of the attempt, or to the next one.

    Args:
        facts: The facts.
        since_ns: The time of the failure, in ns since 1970; None if it is not known.
    """
    attempt = facts.attempt
    if attempt is None:
        return Loss(None)
    report = report_of(facts)
    moment_ns = since_ns or attempt.ended_ns
    if report is not None and moment_ns is not None:
        disruption = disruption_of(report, moment_ns)
        if disruption is not None:
            return _of_disruption(report, disruption)
        summary = attempt_of_ledger(report, moment_ns)
        if summary is not None:
            return _since_checkpoint(facts, report, summary, attempt, since_ns)
    waited = _waited_seconds(facts, attempt, since_ns)
    return Loss(None if waited is None else Cost(waited, shows="until all processes were gone"))


def _of_disruption(report: JobReport, disruption: Disruption) -> Loss:
    summary = next((each for each in report.attempts if each.number == disruption.attempt), None)
    seconds = disruption.cost_ns / 1e9
    checkpoint = summary.last_checkpoint_step if summary is not None else None
    parts = [f"{format_duration(disruption.infrastructure_ns / 1e9)} until the next start"]
    if disruption.restore_ns:
        parts.append(f"{format_duration(disruption.restore_ns / 1e9)} to restore")
    if disruption.steps_lost:
        steps = format_count(disruption.steps_lost, "step")
        parts.append(f"{format_duration(disruption.recompute_ns / 1e9)} to repeat {steps}")
    shows = f"disruption {disruption.number}: {', '.join(parts)}"
    lost = ""
    if disruption.steps_lost:
        since = "" if checkpoint is None else f" since the last checkpoint (step {checkpoint:,})"
        lost = f"with {format_count(disruption.steps_lost, 'step')}{since} to repeat"
    ref = Ref(f"goodput/{report.job_name}/disruption/{disruption.number}", GOODPUT, disruption.last_event_ns, "", shows)
    return Loss(Cost(seconds, CostBasis.LEDGER, shows=lost), (ref,))


def _since_checkpoint(
    facts: Facts, report: JobReport, summary: AttemptSummary, attempt: AttemptFacts, since_ns: int | None
) -> Loss:
    """Return the cost so far of a failure after which the job has not resumed."""
    waited = _waited_seconds(facts, attempt, since_ns) or 0.0
    last, checkpoint = summary.last_step, summary.last_checkpoint_step
    step_seconds = report.ideal_step_seconds
    first = summary.first_step if checkpoint is None else checkpoint
    steps = 0 if last is None or first is None else max(0, last - first)
    repeat = steps * step_seconds if step_seconds is not None else 0.0
    if not waited and not repeat:
        return Loss(None)
    since = "the start: there is no checkpoint" if checkpoint is None else f"the last checkpoint (step {checkpoint:,})"
    shows = f"since {since}" if repeat else "until all processes were gone"
    shown = f"{format_count(steps, 'step')} since {since}: {format_duration(repeat)} to repeat"
    ref = Ref(f"goodput/{report.job_name}/attempt/{summary.number}", GOODPUT, summary.end_ns, "", shown)
    return Loss(Cost(waited + repeat, CostBasis.LOWER_BOUND, shows=shows), (ref,) if repeat else ())


def _waited_seconds(facts: Facts, attempt: AttemptFacts, since_ns: int | None) -> float | None:
    """Return the time from a failure to the next attempt, to the end of this one, or to now if it goes on."""
    if since_ns is None:
        return None
    index = facts.judged if facts.judged is not None else len(facts.attempts) - 1
    following = facts.attempts[index + 1 :]
    next_ns = next((each.started_ns for each in following if each.started_ns and each.started_ns > since_ns), None)
    # Ends are the moments of failures: JAX may keep a process for minutes more.
    last_ns = max((_last_ns(attempt, process) for process in attempt.processes), default=0)
    end_ns = next_ns or (facts.now_ns if facts.is_live else max(attempt.ended_ns or facts.now_ns, last_ns))
    return max(0.0, (end_ns - since_ns) / 1e9)


def _last_ns(attempt: AttemptFacts, process: ProcessFacts) -> int:
    return process.last_event_ns - attempt.clock_offsets_ns.get(process.host, 0)
