"""R2: restarts cost a large part of the time: the causes, and how often to save instead."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_common.texts import format_count, format_duration

from ml_diagnostics_console._facts.facts import AttemptFacts, Facts, Unknown
from ml_diagnostics_console._rules.causes import Cause
from ml_diagnostics_console._rules.costs import GOODPUT, report_of
from ml_diagnostics_console._rules.crashes import command, error_of
from ml_diagnostics_console._rules.leads import Lead, lead_of_attempt
from ml_diagnostics_console._rules.pod_reasons import kubernetes_reason
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import (
    Blame,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Part,
    Ref,
    Verdict,
    VerdictClass,
)

if TYPE_CHECKING:
    from ml_goodput_measurement.partition import Disruption, JobReport

__all__ = ["RULE"]

_LEAST_PERCENT: Final = 5.0
_LEAST_DISRUPTIONS: Final = 2
_LEAST_SAVES: Final = 3
_LEAST_FACTOR: Final = 2.0
_LEAST_STALE_STEPS: Final = 2
_BLAMES: Final = {
    Cause.MEMORY: Blame.USER,
    Cause.DEVICE_MEMORY: Blame.USER,
    Cause.DISK: Blame.USER,
    Cause.ERROR: Blame.USER,
    Cause.EXIT: Blame.USER,
    Cause.INTERRUPTED: Blame.USER,
    Cause.LEFT: Blame.USER,
    Cause.ASKED: Blame.PREEMPTION,
}
_NAMES: Final = {
    Blame.USER: "failures of the program",
    Blame.SYSTEM: "machines, network and cluster",
    Blame.PREEMPTION: "preemptions",
    Blame.UNKNOWN: "unknown causes",
}


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on the time that restarts cost."""
    if facts.attempt is None:
        return None
    report = report_of(facts)
    if report is None:
        why = facts.ledger.why if isinstance(facts.ledger, Unknown) else "the job records no goodput"
        return NotChecked("R2", why)
    disruptions = report.disruptions
    stale = max((found for each in disruptions if (found := _stale(report, each))), default=None)
    if stale is not None:
        return _stale_restore(facts, report, stale)
    total_ns = sum(disruption.cost_ns for disruption in disruptions)
    if len(disruptions) < _LEAST_DISRUPTIONS or report.counted_ns <= 0:
        return None
    percent = 100 * total_ns / report.counted_ns
    return _verdict(facts, report, percent, total_ns) if percent >= _LEAST_PERCENT else None


class _Stale(NamedTuple):
    """A restart from an older checkpoint than the last complete one."""

    steps: int
    """Saved steps that were repeated."""
    number: int
    """The number of the disruption."""
    checkpoint: int
    """The step of the last complete checkpoint."""


def _stale(report: JobReport, disruption: Disruption) -> _Stale | None:
    """Return the restart if it ignored a checkpoint that was complete; None if it did not.

    The last checkpoint may only have started when the attempt ended; the one before it was complete.
    """
    summary = next((each for each in report.attempts if each.number == disruption.attempt), None)
    checkpoint = summary.previous_checkpoint_step if summary is not None else None
    if checkpoint is None or disruption.resumed_step is None or disruption.steps_lost <= 0:
        return None
    steps = checkpoint - disruption.resumed_step
    return _Stale(steps, disruption.number, checkpoint) if steps >= _LEAST_STALE_STEPS else None


def _stale_restore(facts: Facts, report: JobReport, stale: _Stale) -> Verdict:
    disruption = next(each for each in report.disruptions if each.number == stale.number)
    following = next((each for each in report.attempts if each.start_ns >= disruption.resumed_ns), None)
    attempt = f"attempt {following.number}" if following is not None else "the next attempt"
    seconds = disruption.recompute_ns / 1e9 * min(1.0, stale.steps / disruption.steps_lost)
    repeated = format_count(stale.steps, "saved step")
    shows = f"resumed at step {disruption.resumed_step:,}; the checkpoint of step {stale.checkpoint:,} was complete"
    ref = Ref(f"goodput/{report.job_name}/disruption/{stale.number}", GOODPUT, disruption.resumed_ns, "", shows)
    return Verdict(
        rule="R2",
        verdict_class=VerdictClass.RESTARTS,
        sentence=f"{attempt} resumed at step {disruption.resumed_step:,} ({clock(disruption.resumed_ns)}), though the "
        f"checkpoint of step {stale.checkpoint:,} was complete: {repeated} had to be repeated, in "
        f"{format_duration(seconds)}",
        blame=Blame.USER,
        confidence=Confidence.LIKELY,
        part=Part.CONTRIBUTING,
        step=disruption.resumed_step,
        since_ns=disruption.resumed_ns,
        cost=Cost(seconds, CostBasis.LEDGER, shows="to repeat saved steps"),
        evidence=(ref,),
        next=(
            NextCommand(command_line("goodput", "report", report.job_name), "see the checkpoints of each attempt"),
            command(facts, "mldiagnostics logs RUN", "see which checkpoint it restored, and why"),
        ),
    )


def _verdict(facts: Facts, report: JobReport, percent: float, total_ns: int) -> Verdict:
    by_blame: Counter[Blame] = Counter()
    refs = []
    for disruption in report.disruptions:
        blame, text = _blame(facts, disruption)
        by_blame[blame] += disruption.cost_ns
        shows = f"disruption {disruption.number}: {format_duration(disruption.cost_ns / 1e9)}{text}"
        id_ = f"goodput/{report.job_name}/disruption/{disruption.number}"
        refs.append((disruption.cost_ns, Ref(id_, GOODPUT, disruption.last_event_ns, "", shows)))
    shares = ", ".join(
        f"{100 * cost_ns / report.counted_ns:.1f} % to {_NAMES[blame]}" for blame, cost_ns in by_blame.most_common()
    )
    steps = sum(disruption.steps_lost for disruption in report.disruptions)
    repeated_ns = sum(disruption.recompute_ns for disruption in report.disruptions)
    repeated = ""
    if steps:
        repeated = f"; {format_count(steps, 'step')} had to be repeated in {format_duration(repeated_ns / 1e9)}"
    count = format_count(len(report.disruptions), "restart")
    advice = _saves(report)
    refs.sort(key=lambda pair: -pair[0])
    ledger = Ref(f"goodput/{report.job_name}", GOODPUT, report.end_ns, "", f"{count} cost {percent:.1f} % of the time")
    return Verdict(
        rule="R2",
        verdict_class=VerdictClass.RESTARTS,
        sentence=f"{count} cost {percent:.1f} % of the time: {shares}{repeated}{advice}",
        blame=by_blame.most_common(1)[0][0],
        confidence=Confidence.PROVEN if not by_blame[Blame.UNKNOWN] else Confidence.LIKELY,
        part=Part.CONTRIBUTING,
        since_ns=report.disruptions[0].last_event_ns,
        cost=Cost(total_ns / 1e9, CostBasis.LEDGER),
        evidence=(ledger, *(ref for _, ref in refs[:9])),
        next=(NextCommand(command_line("goodput", "report", report.job_name), "see each restart and its parts"),),
    )


def _blame(facts: Facts, disruption: Disruption) -> tuple[Blame, str]:
    """Return the side that a restart is due to, with the failure as text."""
    attempt = _attempt_of(facts, disruption)
    lead: Lead | None = lead_of_attempt(facts, attempt) if attempt is not None else None
    if lead is None:
        return Blame.UNKNOWN, ""
    reason = kubernetes_reason(facts, lead.process)
    blame = reason.blame if reason is not None else _BLAMES.get(lead.cause, Blame.UNKNOWN)
    return blame, f", after {lead.process.name}: {error_of(lead.process)}"


def _attempt_of(facts: Facts, disruption: Disruption) -> AttemptFacts | None:
    """Return the run's attempt that a disruption cut short: the last one that started before its last event."""
    started = [each for each in facts.attempts if each.started_ns and each.started_ns <= disruption.last_event_ns]
    return started[-1] if started else None


def _saves(report: JobReport) -> str:
    """Return how often to save instead, by Young's formula; empty if that is about as often as now.

    The interval that costs least is sqrt(2 x time of a save x time between failures): J. W. Young, A first order
    approximation to the optimum checkpoint interval, CACM 17(9), 1974.
    """
    from ml_goodput_measurement.partition import Bucket

    saves = [piece for piece in report.timeline if piece.bucket is Bucket.CHECKPOINT_SAVE]
    if len(saves) < _LEAST_SAVES or not report.ideal_step_seconds or not report.disruptions:
        return ""
    save_seconds = sum(piece.end_ns - piece.start_ns for piece in saves) / len(saves) / 1e9
    between_seconds = report.counted_ns / len(report.disruptions) / 1e9
    best = math.sqrt(2 * save_seconds * between_seconds)
    now = report.buckets[Bucket.PRODUCTIVE] / len(saves) / 1e9
    steps = max(1, round(best / report.ideal_step_seconds))
    now_steps = max(1, round(now / report.ideal_step_seconds))
    if best <= 0 or max(best / now, now / best) < _LEAST_FACTOR if now > 0 else True:
        return ""
    return f"; save every {format_count(steps, 'step')} instead of {now_steps:,}: a save takes " + format_duration(
        save_seconds
    )


RULE = Rule(
    id="R2",
    title="restarts cost a large part of the time",
    needs=("the ledger: ml_goodput_measurement, or `instrument`", "the ends of earlier attempts: as for C1"),
    judge=_judge,
    thresholds=(
        Threshold("time lost to restarts, at least", f"{_LEAST_PERCENT:.0f} %", "below, other waste is mostly larger"),
        Threshold("restarts, at least", _LEAST_DISRUPTIONS, "one restart has a verdict of its own"),
        Threshold(
            "steps between the last complete checkpoint and the step of a restart, at least",
            _LEAST_STALE_STEPS,
            "programs count the step of a checkpoint as the one before or after it",
        ),
        Threshold("saves with a known duration, at least", _LEAST_SAVES, "their median is the cost of one"),
        Threshold("factor between the advised and the present interval", _LEAST_FACTOR, "the optimum is flat"),
    ),
    example="6 restarts cost 12.4 % of the time: 9.1 % to preemptions, 3.3 % to failures of the program; 4,210 steps "
    "had to be repeated in 1 h 10 min; save every 180 steps instead of 1,000: a save takes 4.00 s",
)
