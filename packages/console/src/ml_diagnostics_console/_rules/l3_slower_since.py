"""L3: steps take longer since some step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from ml_diagnostics_common.texts import format_duration, format_percent

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts, StepSummary, Times
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.robust import SIGNIFICANCE, Change, last_change
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import SUMMARIES, part_of, steady
from ml_diagnostics_console._rules.wording import at, command_line
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

_LEAST_CHANGE: Final = 0.05
_LEAST_STEPS: Final = 20
_EXPLAINED: Final = 0.80
_MOST_WINDOWS: Final = 512
_STEP_TIME: Final = "step_time"


class _Window(NamedTuple):
    """Some steps in a row."""

    first_step: int
    last_step: int
    steps: int
    seconds: float
    """The median duration of a step."""
    time_ns: int
    ref: Ref
    summary: StepSummary | None = None


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    process, windows = _windows(facts)
    if not windows:
        return NotChecked("L3", f"{SUMMARIES}; or the metric {_STEP_TIME} with its step")
    change = last_change([window.seconds for window in windows])
    if change is None or change.before <= 0 or change.after < (1 + _LEAST_CHANGE) * change.before:
        return None
    before, after = windows[: change.start], windows[change.start :]
    if min(sum(each.steps for each in before), sum(each.steps for each in after)) < _LEAST_STEPS:
        return None
    return _verdict(facts, process, before, after, change)


def _verdict(
    facts: Facts, process: ProcessFacts | None, before: Sequence[_Window], after: Sequence[_Window], change: Change
) -> Verdict:
    first = after[0]
    changed = _what_changed(before, after, change)
    slower = change.after / change.before - 1
    steps = sum(window.steps for window in after)
    moment = at(first.first_step, first.time_ns)
    host = f" on {process.name}" if process is not None else ""
    sentence = (
        f"steps take {format_percent(100 * slower)} longer since step{moment.removeprefix('at step')}: "
        f"{format_duration(change.after)} instead of {format_duration(change.before)}{host}; {changed}"
    )
    return Verdict(
        rule="L3",
        verdict_class=VerdictClass.SLOW,
        sentence=sentence,
        blame=Blame.UNKNOWN,
        confidence=Confidence.LIKELY,
        part=part_of(facts),
        hosts=() if process is None else (process.host,),
        process_indices=() if process is None or process.index is None else (process.index,),
        step=first.first_step,
        since_ns=first.time_ns,
        cost=Cost((change.after - change.before) * steps, CostBasis.LOWER_BOUND, shows=f"in {steps:,} steps"),
        evidence=(
            before[-1].ref._replace(
                shows=f"steps until {before[-1].last_step:,}: {format_duration(before[-1].seconds)}"
            ),
            first.ref._replace(shows=f"steps from {first.first_step:,}: {format_duration(first.seconds)}"),
            after[-1].ref._replace(shows=f"steps until {after[-1].last_step:,}: {format_duration(after[-1].seconds)}"),
        ),
        next=(
            NextCommand(
                command_line("mldiagnostics", "profile", facts.name), "compare it with a profile from before that step"
            ),
            NextCommand(
                command_line("mldiagnostics", "logs", facts.name, "--around", f"step {first.first_step}"),
                "what the job did when it changed",
            ),
        ),
    )


def _windows(facts: Facts) -> tuple[ProcessFacts | None, list[_Window]]:
    """Return the steps in groups: by the summaries of one process, else by the metric of step times."""
    with_summaries = [process for process in facts.processes if len(process.summaries) > 2]
    if with_summaries:
        process = max(with_summaries, key=lambda each: len(each.summaries))
        return process, _of_summaries(steady(process, len(process.summaries)))
    curves = [
        curve for curve in metrics_of(facts).of(_STEP_TIME) if not curve.labels and max(curve.steps, default=-1) >= 0
    ]
    if curves:
        curve = max(curves, key=len)
        ref = curve.ref("last")
        points = list(zip(curve.steps, curve.values, curve.times_ns, strict=True))
        size = -(-len(points) // _MOST_WINDOWS)
        groups = [points[start : start + size] for start in range(0, len(points), size)]
        return None, [
            _Window(each[0][0], each[-1][0], len(each), median(value for _, value, _ in each), each[0][2], ref)
            for each in groups
        ]
    if any(process.summaries for process in facts.processes):
        process = max(facts.processes, key=lambda each: len(each.summaries))
        return process, _of_summaries(process.summaries)
    return None, []


def _of_summaries(summaries: Sequence[StepSummary]) -> list[_Window]:
    size = max(1, -(-len(summaries) // _MOST_WINDOWS))
    windows = []
    for start in range(0, len(summaries), size):
        group = [summary for summary in summaries[start : start + size] if summary.steps > 0]
        if not group:
            continue
        steps = sum(summary.steps for summary in group)
        seconds = median(summary.wall.sum / summary.steps for summary in group)
        windows.append(
            _Window(group[0].first_step, group[-1].last_step, steps, seconds, group[0].time_ns, group[0].ref, group[0])
        )
    return windows


def _what_changed(before: Sequence[_Window], after: Sequence[_Window], change: Change) -> str:
    """Return which part of the step explains the change."""
    grown = change.after - change.before
    parts = (("data", "data loading"), ("wait", "the wait for the devices"), ("own", "the time of the host itself"))
    for name, text in parts:
        old, new = _mean_part(before, name), _mean_part(after, name)
        if old is not None and new is not None and new - old >= _EXPLAINED * grown:
            return f"{text} grew from {format_duration(old)} to {format_duration(new)}"
    return "which part of the step grew is not known"


def _mean_part(windows: Sequence[_Window], name: str) -> float | None:
    found = []
    for window in windows:
        times: Times | None = getattr(window.summary, name, None)
        if times is not None and window.summary is not None:
            found.append(times.sum / window.summary.steps)
    return median(found) if found else None


RULE = Rule(
    id="L3",
    title="slower since some step",
    needs=(f"step summaries, or the metric {_STEP_TIME}",),
    judge=_judge,
    thresholds=(
        Threshold("change of the median", _LEAST_CHANGE, "the noise of step times of healthy jobs is 1 to 3 %"),
        Threshold("steps before and after", _LEAST_STEPS, "as of L2"),
        Threshold("significance", SIGNIFICANCE, "Pettitt's test, 1979: eight summaries before and after at least"),
        Threshold("explained", _EXPLAINED, "as of L2"),
    ),
    example="steps take 18.0 % longer since step 4,210 (16:02:11 UTC): 366 ms instead of 310 ms on host-0; data "
    "loading grew from 12.0 ms to 68.0 ms",
)
