"""L1: the job waits for its input."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration, format_percent

from ml_diagnostics_console._facts.facts import Fact, Facts, ProcessFacts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import SUMMARIES, part_of, share_of_data, steady, step_seconds
from ml_diagnostics_console._rules.wording import command_line, hosts_of, indices_of
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
_LEAST_SECONDS: Final = 1e-4
_LEAST_STEPS: Final = 20
_LEAST_DUTY: Final = 20.0
_LEAST_SAMPLES: Final = 6
_DUTY: Final = ("tpu_duty_cycle", "gpu_duty_cycle")
_GRAIN: Final = ("tpu_pygrain_dataset_next_duration", "tpu_pygrain_dataloader_iterator_get_next_duration")


class _Signal(NamedTuple):
    """One measurement that shows that the job waits for input."""

    text: str
    ref: Ref
    share: float | None = None


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    shares = [share_of_data(steady(process)) for process in facts.processes]
    marks = _by_marks(facts.processes, shares)
    is_marked = any(share is not None for share in shares)
    signals = [
        signal for signal in (marks, _by_grain(facts), _by_duty(facts), _by_profile(facts)) if signal is not None
    ]
    if marks is None:
        # Where loading is marked and short, idle devices wait for something else.
        signals = [] if is_marked else signals
    if not signals:
        has_duty = any(len(metrics_of(facts).of(name)) for name in _DUTY)
        if is_marked or has_duty:
            return None
        why = (
            "data loading is not marked, and no duty cycle of an accelerator is recorded: mark it by "
            'diagnostic.heartbeat(step, phase="data") or record_data_loading_start_time()'
        )
        return NotChecked("L1", why if any(process.summaries for process in facts.processes) else SUMMARIES)
    return _verdict(facts, signals, marks)


def _verdict(facts: Facts, signals: list[_Signal], marks: _Signal | None) -> Verdict:
    waits = [process for process in facts.processes if any(each.wait is not None for each in steady(process))]
    is_sure = len(signals) > 1 or (marks is not None and bool(waits))
    possibly = "" if is_sure else "possibly "
    steps = max((process.step or 0 for process in facts.processes), default=0)
    cost = None
    if marks is not None and marks.share is not None:
        seconds = max(sum(each.wall.sum for each in process.summaries) for process in facts.processes) * marks.share
        cost = Cost(seconds, CostBasis.LOWER_BOUND, shows=f"in data loading, of {steps:,} steps")
    return Verdict(
        rule="L1",
        verdict_class=VerdictClass.SLOW,
        sentence=f"{possibly}input-bound: {'; '.join(signal.text for signal in signals)}",
        blame=Blame.USER,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        part=part_of(facts),
        hosts=hosts_of(facts.processes),
        process_indices=indices_of(facts.processes),
        cost=cost,
        evidence=tuple(signal.ref for signal in signals),
        next=(
            NextCommand("", "load in advance: a prefetch buffer on each host, more workers, batches as arrays on disk"),
            NextCommand(
                command_line("mldiagnostics", "profile", facts.name),
                "shows what the loading of a batch spends its time on",
            ),
        ),
    )


def _by_marks(processes: Sequence[ProcessFacts], of_processes: Sequence[float | None]) -> _Signal | None:
    """Return the share of marked data loading of the median host: a single slow host is the subject of L2."""
    shares = {
        index: share
        for index, (process, share) in enumerate(zip(processes, of_processes, strict=True))
        if share is not None and sum(each.steps for each in steady(process)) >= _LEAST_STEPS
    }
    if not shares:
        return None
    share = median_low(shares.values())
    if share <= _LEAST_SHARE:
        return None
    process = processes[next(index for index, each in shares.items() if each == share)]
    summaries = steady(process)
    step = step_seconds(summaries)
    if share * step < _LEAST_SECONDS:
        return None
    text = f"data loading takes {format_percent(100 * share)} of each step of {format_duration(step)} on {process.name}"
    if len(shares) > 1:
        text += ", the median host"
    newest = summaries[-1]
    shows = (
        f"{process.name}: steps {newest.first_step} to {newest.last_step}, data loading {format_percent(100 * share)}"
    )
    return _Signal(text, newest.ref._replace(shows=shows), share)


def _by_grain(facts: Facts) -> _Signal | None:
    """Return what grain itself measured of the time to get the next batch."""
    of_grain = [[curve for curve in metrics_of(facts).of(name) if curve.last > 0] for name in _GRAIN]
    steps = (
        [seconds for process in facts.processes if (seconds := step_seconds(steady(process)))] if any(of_grain) else []
    )
    if not steps:
        return None
    step = median(steps)
    for curves in of_grain:
        if not curves:
            continue
        curve = sorted(curves, key=lambda each: each.last)[(len(curves) - 1) // 2]
        share = curve.last / step
        if share > _LEAST_SHARE:
            text = f"grain takes {format_duration(curve.last)} for a batch, of a step of {format_duration(step)}"
            return _Signal(text, curve.ref("last"), min(1.0, share))
    return None


def _by_duty(facts: Facts) -> _Signal | None:
    """Return the time in which the devices compute, if it is short while the job runs steps."""
    curves = [curve for name in _DUTY for curve in metrics_of(facts).of(name)]
    start_ns, end_ns = _steps_span(facts) if curves else (0, 0)
    medians = {}
    for curve in curves:
        values = curve.between(start_ns, end_ns)
        if len(values) >= _LEAST_SAMPLES:
            medians[curve.key] = median(values), curve
    if not medians:
        return None
    duty = median(value for value, _ in medians.values())
    if duty >= _LEAST_DUTY:
        return None
    curve = next(iter(medians.values()))[1]
    return _Signal(f"the accelerators compute for only {format_percent(duty)} of the time", curve.ref("last"))


def _steps_span(facts: Facts) -> tuple[int, int]:
    """Return when the job ran steps; the second half of its time if that is not known, since it compiles before."""
    times_ns = [summary.time_ns for process in facts.processes for summary in steady(process)]
    if times_ns:
        return min(times_ns), max(times_ns)
    start_ns = min((process.started_ns for process in facts.processes), default=0)
    return (start_ns + facts.now_ns) // 2, facts.now_ns


def _by_profile(facts: Facts) -> _Signal | None:
    if not isinstance(facts.profile, Fact):
        return None
    waiting = facts.profile.value.input_percent
    if waiting is None or waiting <= 100 * _LEAST_SHARE:
        return None
    text = f"in the profile {facts.profile.value.session}, steps wait for input for {format_percent(waiting)}"
    return _Signal(text, facts.profile.refs[0], waiting / 100)


RULE = Rule(
    id="L1",
    title="the job waits for its input",
    needs=(
        "the mark of data loading (heartbeat phase data, or goodput's record_data_loading_...), or the duty cycle of "
        "the accelerators, or grain's own times",
    ),
    judge=_judge,
    thresholds=(
        Threshold("share of data loading", _LEAST_SHARE, "less is hidden by one batch loaded in advance"),
        Threshold("data loading of a step (s)", _LEAST_SECONDS, "to hand a batch over takes tens of microseconds"),
        Threshold("duty cycle (%)", _LEAST_DUTY, "a job with work for its devices has 60 to 100"),
        Threshold("steps", _LEAST_STEPS, "as of L2"),
        Threshold("samples of the duty cycle", _LEAST_SAMPLES, "a minute, at one each 10 s"),
    ),
    example="input-bound: data loading takes 42.0 % of each step of 310 ms on host-0, the median host",
)
