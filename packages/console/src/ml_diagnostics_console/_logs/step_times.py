"""When a process was at a step, by the clock of its host. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, ProcessFacts, StepSummary

__all__ = ["known_steps", "step_times"]


def step_times(attempt: AttemptFacts, step: int, curves: Iterable[Curve]) -> dict[int, int]:
    """Return when each process completed a step, by its position in the attempt, in ns since 1970 on its own clock.

    A process that has no mark of the step gets the middle of the others, on its own clock. Empty if none has one.

    Args:
        attempt: The attempt.
        step: The step.
        curves: The metrics of the run.
    """
    of_metrics = [curve for curve in curves if len(curve.steps)]
    own = {
        position: time_ns
        for position, process in enumerate(attempt.processes)
        if (time_ns := _time_of(process, step, of_metrics)) is not None
    }
    if not own:
        return {}
    offsets = attempt.clock_offsets_ns
    common = sorted(time_ns - offsets.get(attempt.processes[position].host, 0) for position, time_ns in own.items())
    middle = common[len(common) // 2]
    return {
        position: own.get(position, middle + offsets.get(process.host, 0))
        for position, process in enumerate(attempt.processes)
    }


def known_steps(attempt: AttemptFacts) -> tuple[int, int] | None:
    """Return the first and the last step of an attempt of which a time is known; None if there is none."""
    firsts = [process.summaries[0].first_step for process in attempt.processes if process.summaries]
    lasts = [process.step for process in attempt.processes if process.step is not None]
    return (min([*firsts, *lasts]), max(lasts)) if lasts else None


def _time_of(process: ProcessFacts, step: int, curves: Iterable[Curve]) -> int | None:
    for summary in process.summaries:
        if summary.return_step == step and summary.return_ns is not None:
            return summary.return_ns
        for returned, time_ns in summary.returns:
            if returned == step:
                return time_ns
    for summary in process.summaries:
        if summary.first_step <= step <= summary.last_step:
            return _within(summary, step)
    for curve in curves:
        if curve.key.host == process.host and curve.key.pid in ("", str(process.pid)):
            found = [time_ns for time_ns, known in zip(curve.times_ns, curve.steps, strict=True) if known == step]
            if found and process.started_ns <= found[-1]:
                return found[-1]
    last = process.last_step
    return last.as_of_ns if isinstance(last, Fact) and last.value == step and last.as_of_ns else None


def _within(summary: StepSummary, step: int) -> int:
    """Return the time of a step in a summary, which is written after its last one."""
    if summary.return_step is not None and summary.return_ns is not None:
        step_from, time_ns = summary.return_step, summary.return_ns
    else:
        step_from, time_ns = summary.last_step, summary.time_ns
    return time_ns - round((step_from - step) * summary.wall.sum / summary.steps * 1e9)
